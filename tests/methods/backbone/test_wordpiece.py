"""BERT's word pieces compared with those of UMT's code."""

import json
import pickle

import pytest

from ctvr.methods.backbone.wordpiece import MARKS, WordPieces, clean

PIECES = [*MARKS, "a", "man", "play", "##ing", "##s", "dog", "cafe", "'", "t", "don"]


def test_captions_and_answers_equal_the_released_tokenizer(shared):
    facts = json.loads((shared / "reference" / "umt" / "umt_data_names.json").read_text())
    tokenizer = WordPieces(facts["tokenizer"]["vocab"])
    for case in facts["tokenizer"]["cases"]:
        if case["text"].endswith("[SEP]"):
            found = tokenizer.answers([case["text"].removesuffix("[SEP]").strip()], case["max_length"])[0].tolist()
        else:
            found = tokenizer.pieces(case["text"], case["max_length"])
            found += [0] * (case["max_length"] - len(found))
        assert found == case["ids"], case
    assert [clean(case["text"]) for case in facts["pre_text"]] == [case["clean"] for case in facts["pre_text"]]


def test_wordpieces_are_greedy_and_the_end_has_the_largest_id():
    tokenizer = WordPieces(PIECES, 6)
    assert tokenizer.pieces("Plays DOG playings café xyz", 20) == [2, 6, 8, 9, 6, 7, 8, 10, 1]
    assert tokenizer.pieces("don't", 20) == [2, 13, 11, 12]
    assert tokenizer(["A man-dog!", "", "a a a a a a a"]).tolist() == [
        [2, 4, 5, 9, 14, 0],
        [2, 14, 0, 0, 0, 0],
        [2, 4, 4, 4, 4, 14],
    ]
    assert tokenizer.answers(["dog", "a man play a"]).tolist() == [[2, 9, 3, 0, 0], [2, 4, 5, 6, 4]]
    assert tokenizer.pieces("a" * 101, 9) == [2, 1]
    handed_on = pickle.loads(pickle.dumps(tokenizer))
    assert handed_on.pieces("dog plays", 9) == [2, 9, 6, 8]


def test_a_file_that_is_not_a_vocabulary_is_refused_in_one_line(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such vocabulary. Use the vocab.txt of bert-base-uncased"):
        WordPieces.of_file(tmp_path / "vocab.txt")
    for content in (b"a\nb\n", b"\xff\xfe\x00"):
        (tmp_path / "vocab.txt").write_bytes(content)
        with pytest.raises(ValueError, match=r"vocab.txt: .* Use the vocab.txt of bert-base-uncased") as error:
            WordPieces.of_file(tmp_path / "vocab.txt")
        assert "\n" not in str(error.value)
