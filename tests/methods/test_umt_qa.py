"""UMT's answers to questions as a method: the authors' ranking and loss, and the trained weights."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from ctvr.methods.backbone.answer_decoder import rank_answers
from ctvr.methods.backbone.umt import like
from ctvr.methods.umt_qa import UmtQA, UmtQAConfig
from tests.methods.backbone.test_answer_decoder import released
from tests.methods.conftest import awake, make_batch
from tests.methods.released import floats

ANSWERS = torch.tensor([[1, 9, 2, 0, 0, 0], [1, 10, 2, 0, 0, 0], [1, 9, 30, 2, 0, 0], [1, 11, 50, 4, 5, 2]])


@pytest.fixture
def made(small_clip):
    def make(**settings: object) -> UmtQA:
        torch.manual_seed(3)
        return awake(UmtQA(UmtQAConfig(**settings), small_clip))

    return make


@torch.no_grad()
def test_ranked_answers_and_the_loss_equal_the_released_code(shared, compared):
    umt, decoder, io = released(shared / "reference" / "umt")
    method = UmtQA(
        UmtQAConfig(k=4, num_words=io["question_ids"].shape[1], answer_words=io["train/answer_ids"].shape[1]), umt
    )
    method.decoder = decoder
    method.eval()
    ids = io["question_ids"]
    ends = (ids != 0).sum(dim=1, keepdim=True)
    questions = F.pad(ids, (0, 1)).scatter(1, ends, 95)  # the end mark of captions, which UMT does not read
    videos = method.encode_video(io["video"].float())
    theirs = io["rank4/probs"].sort(dim=1, descending=True).indices
    ranked = method.rank_answers(questions, videos, io["answer_list_ids"])
    compared("umt_qa", "forward", ranked, io["rank4/ids"].gather(1, theirs), 0.0)
    asked, train = torch.repeat_interleave(torch.arange(3), io["train/k"]), floats(io, "train/")
    batch = replace(
        make_batch(len(asked), 1),
        frames=io["video"].float()[asked],
        tokens=questions[asked],
        answers=train["answer_ids"],
    )
    alone = train["answer_losses"].sum() / len(asked)  # of questions with one answer each
    compared("umt_qa", "loss", method.losses(batch)["answer"], alone, 2e-5)


def test_the_loss_is_the_mean_of_questions_and_trains_no_retrieval_head(made):
    method = made()
    batch = replace(make_batch(4, 3), answers=ANSWERS)
    loss = method.losses(batch)["answer"]
    parts = [
        replace(batch, frames=batch.frames[i : i + 1], tokens=batch.tokens[i : i + 1], answers=ANSWERS[i : i + 1])
        for i in range(4)
    ]
    torch.testing.assert_close(loss, torch.stack([method.losses(part)["answer"] for part in parts]).mean())
    loss.backward()
    (group,) = method.param_groups()
    trained = {id(parameter) for parameter in group["params"]}
    assert all(
        parameter.grad is not None and parameter.grad.any() for parameter in group["params"] if parameter.ndim > 1
    )
    left = {name for name, parameter in method.named_parameters() if id(parameter) not in trained}
    assert {name.removeprefix("backbone.").rpartition(".")[0] for name in left} == {
        *("vision.pool_norm", "vision.proj", "text.proj", "head", ""),
    }
    assert all(dict(method.named_parameters())[name].grad is None for name in left)


@torch.no_grad()
def test_only_the_commonest_answers_are_ranked_and_an_answer_is_cut(made):
    batch = make_batch(3, 2)
    videos = made().encode_video(batch.frames)
    everything = made().rank_answers(batch.tokens, videos, ANSWERS)
    assert sorted(everything[0].tolist()) == [0, 1, 2, 3]
    assert sorted(made(answers=2).rank_answers(batch.tokens, videos, ANSWERS)[0].tolist()) == [0, 1]
    changed = ANSWERS.clone()
    changed[3, 5] = 60  # after the fifth id
    assert torch.equal(made().rank_answers(batch.tokens, videos, changed), everything)
    there = made()._states(batch.tokens, videos)[1]
    assert torch.equal(there.sum(dim=1), (batch.tokens != 0).sum(dim=1) - 1)  # without the end mark
    other = videos.flip(0)
    assert not torch.equal(made()._states(batch.tokens, other)[0], made()._states(batch.tokens, videos)[0])


@torch.no_grad()
def test_an_answer_is_learned_and_ranked_up_to_its_last_id_and_no_further(made):
    method = made(answer_words=5)
    batch = replace(make_batch(4, 2), answers=ANSWERS)
    videos = method.encode_video(batch.frames)
    states, there = method._states(batch.tokens, videos)

    def seen(answers):
        ranked = method.rank_answers(batch.tokens, videos, answers)
        return method.losses(replace(batch, answers=answers))["answer"].item(), ranked

    for place, is_seen in ((4, True), (5, False)):
        changed = ANSWERS.clone()
        changed[:, place] = torch.tensor([7, 8, 60, 61])
        assert (seen(changed)[0] != seen(ANSWERS)[0]) == is_seen
    ids = ANSWERS[:, :5]
    expected = rank_answers(method.decoder, states, there, ids, method.config.k)[0]
    assert torch.equal(seen(ANSWERS)[1], expected)


def test_a_decoder_begins_with_what_the_checkpoint_has(small_clip):
    umt = like(small_clip)
    anew = UmtQA(UmtQAConfig(), umt).decoder.state_dict()
    umt.decoder_state = {name: torch.full_like(value, 0.5) for name, value in anew.items()}
    assert all((value == 0.5).all() for value in UmtQA(UmtQAConfig(), umt).decoder.state_dict().values())
    umt.decoder_state = {"word.weight": torch.zeros(2, 2)}
    with pytest.raises(ValueError, match="the sizes of the answer decoder do not fit the towers"):
        UmtQA(UmtQAConfig(), umt)
    umt.decoder_state, umt.no_decoder = None, "w.pth: the checkpoint has neither"
    with pytest.raises(ValueError, match=r"w\.pth: .* Use a pre-training or question-answering"):
        UmtQA(UmtQAConfig(), umt)  # its decoder would start with new weights, its towers would not
