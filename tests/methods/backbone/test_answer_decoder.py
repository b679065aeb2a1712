"""UMT's head for questions compared with its authors' code, and its invariants."""

import pytest
import torch

from ctvr.methods.backbone.answer_decoder import (
    AnswerDecoder,
    answer_losses,
    answering_loss,
    question_states,
    rank_answers,
)
from ctvr.methods.backbone.bert import FusionBert
from ctvr.methods.backbone.umt import Umt, UmtVision
from ctvr.methods.backbone.umt_weights import of_decoder, under_our_names
from tests.methods.released import FIXTURES, Weights, floats, read

VISION = {"image": 32, "patch": 8, "width": 32, "blocks": 2, "heads": 4, "embed": 32}
TEXT = {"width": 32, "heads": 4, "hidden": 64, "vocabulary": 96, "places": 40}


@torch.no_grad()
def released(folder) -> tuple[Umt, AnswerDecoder, Weights]:
    state = floats(read(folder / "umt_qa_q_state.npz"))
    bert = FusionBert(**TEXT, layers=4, fusion_from=2, video_width=32)
    umt = Umt(UmtVision(**VISION), bert, lambda texts: torch.empty(0), (0.5,) * 3, (0.5,) * 3, 32).eval()  # type: ignore
    found = umt.load_state_dict(under_our_names(state), strict=False)
    assert found.unexpected_keys == []
    assert {name.split(".")[1] for name in found.missing_keys if name not in {"temp"}} <= {
        "pool_norm",
        "proj",
        "weight",
        "bias",
    }
    decoder = AnswerDecoder(**TEXT, layers=2).eval()
    decoder.load_state_dict(of_decoder(state, 2))
    own = {
        name.replace("text_decoder.bert.", "text_encoder.bert.").replace("text_decoder.", "text_encoder."): value
        for name, value in state.items()
        if name.startswith("text_decoder.")
    }
    shifted = {
        name.replace("layer.1.", "layer.3.").replace("layer.0.", "layer.2."): value for name, value in own.items()
    }
    pretrained = of_decoder({**shifted, "text_encoder.bert.encoder.layer.0.output.dense.bias": torch.zeros(32)}, 2)
    assert {name: value.tolist() for name, value in pretrained.items()} == {
        name: value.tolist() for name, value in decoder.state_dict().items()
    }
    with pytest.raises(ValueError, match="neither an answer decoder"):
        of_decoder({"temp": torch.zeros(())}, 2)
    return umt, decoder, read(folder / "umt_qa_q_io.npz")


@torch.no_grad()
def test_states_logits_losses_and_ranked_answers_equal_the_released_code(shared):
    umt, decoder, io = released(shared / "reference" / "umt")

    def close(ours, theirs, atol=1e-5):
        torch.testing.assert_close(ours, torch.as_tensor(theirs), rtol=0, atol=atol)

    there = io["question_mask"]
    states = question_states(umt, io["question_ids"], umt.vision.tokens(io["video"].float())[0])
    close(states[there.bool()], io["question_states"][there.bool()])
    asked, train = torch.repeat_interleave(torch.arange(3), io["train/k"]), floats(io, "train/")
    logits = decoder(train["answer_ids"], states[asked], there[asked])
    known = train["answer_mask"].bool()
    close(logits[known], train["decoder_logits"][known], 2e-5)
    losses = answer_losses(logits, train["answer_ids"])
    close(losses, train["answer_losses"], 3e-5)
    close(answering_loss(losses, train["weights"], 3), train["loss"], 2e-5)
    answers = io["answer_list_ids"]
    ids, probabilities = rank_answers(decoder, states, there, answers, 4)
    released_order = io["rank4/probs"].sort(dim=1, descending=True)
    close(probabilities, released_order.values)
    assert torch.equal(ids, io["rank4/ids"].gather(1, released_order.indices))
    everything = rank_answers(decoder, states, there, answers)[1]
    assert everything.shape == (3, 9)
    torch.testing.assert_close(everything.sum(dim=1), torch.ones(3))


def test_pieces_of_stored_logits_cost_what_the_released_ones_do(compared):
    file = floats(read(FIXTURES / "umt_answers_released.npz"))
    losses = answer_losses(file["logits"], file["answers"])
    compared("umt_qa", "loss", losses, file["losses"], 3e-5)
    compared("umt_qa", "loss", answering_loss(losses, file["weights"], 3), file["loss"], 2e-5)


@pytest.fixture
def decoder() -> AnswerDecoder:
    torch.manual_seed(2)
    made = AnswerDecoder(**TEXT, layers=2).eval()
    for parameter in made.parameters():  # away from BERT's timid start
        parameter.data += 0.2 * torch.randn_like(parameter)
    return made


@torch.no_grad()
def test_answer_token_ignores_later_tokens_and_pads(decoder):
    states, there = torch.randn(1, 4, 32), torch.tensor([[1, 1, 1, 0]])
    answers = torch.tensor([[1, 9, 14, 2], [1, 9, 80, 7]])
    logits = decoder(answers, states, there)
    torch.testing.assert_close(logits[0, :2], logits[1, :2])
    assert not torch.allclose(logits[0, 2], logits[1, 2], atol=1e-3)
    states[0, 3] += 5.0
    torch.testing.assert_close(decoder(answers, states, there), logits)
    states[0, 2] += 5.0
    assert not torch.allclose(decoder(answers, states, there), logits, atol=1e-3)


@torch.no_grad()
def test_first_pieces_count_twice_and_only_likely_starts_are_scored(decoder):
    states, there = torch.randn(2, 3, 32), torch.ones(2, 3, dtype=torch.int64)
    answers = torch.tensor([[1, 9, 2, 0], [1, 10, 2, 0], [1, 9, 30, 2], [1, 11, 50, 2]])
    likely = decoder(answers, states[:1], there[:1]).log_softmax(dim=-1)
    pieces = [likely[n].gather(1, torch.cat([ids[1:], ids[:1]])[:, None])[:, 0] for n, ids in enumerate(answers)]
    lengths = [2, 2, 3, 3]
    scores = torch.stack([piece[0] + piece[:length].sum() for piece, length in zip(pieces, lengths)])
    rows, probabilities = rank_answers(decoder, states, there, answers, 9)
    torch.testing.assert_close(probabilities[0], scores.softmax(dim=0)[rows[0]])
    assert torch.equal(probabilities, probabilities.sort(dim=1, descending=True).values)
    two = rank_answers(decoder, states, there, answers, 2)[0]
    best = likely[0, 0][answers[:, 1]].topk(2).values.sort().values
    torch.testing.assert_close(likely[0, 0][answers[two[0], 1]].sort().values, best)
