"""UMT as a backbone: published weights by name, with BERT's vocabulary."""

import hashlib

import pytest
import torch
from safetensors.torch import save_file

from ctvr.methods.backbone import architectures, umt_load
from ctvr.methods.backbone.descriptions import image_size
from ctvr.methods.backbone.load import load_backbone
from ctvr.methods.backbone.umt_weights import of_decoder
from ctvr.methods.backbone.wordpiece import MARKS
from ctvr.methods.umt import UMT, UmtConfig
from ctvr.methods.umt_qa import UmtQA, UmtQAConfig
from ctvr.orchestrator.catalog.cost_table import estimate
from ctvr.orchestrator.keys.run_key import weights_digest
from ctvr.orchestrator.learning.evaluation.cost import trained_parameters
from ctvr.orchestrator.learning.run.factory import make_method
from ctvr.orchestrator.on_ray.memory import model_size
from ctvr.orchestrator.settings.resolve import resolve
from tests.methods.conftest import make_batch
from tests.methods.released import floats, read
from tests.refusing import refused, refuses

SMALL = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 32, "patch_size": 8, "width": 64, "layers": 4, "heads": 4},
    "text_cfg": {
        "width": 48,
        "layers": 4,
        "heads": 4,
        "hidden": 96,
        "fusion_from": 2,
        "vocab_size": 128,
        "context_length": 40,
    },
}


@pytest.fixture
def vocabulary(tmp_path, monkeypatch):
    monkeypatch.setitem(architectures.UMT, "UMT-small", SMALL)
    file = tmp_path / "vocab.txt"
    file.write_text("\n".join([*MARKS, *(f"w{number}" for number in range(124))]))
    return file


@pytest.mark.slow
def test_the_authors_file_is_read_by_name_and_scores_as_released(shared, tmp_path, vocabulary, compared):
    folder = shared / "reference" / "umt"
    state = {name: value.contiguous() for name, value in floats(read(folder / "umt_s_state.npz")).items()}
    save_file(state, tmp_path / "umt.safetensors")
    torch.save({"model": state}, tmp_path / "umt.pth")
    digest = hashlib.sha256((tmp_path / "umt.pth").read_bytes()).hexdigest()
    backbone = load_backbone("UMT-small", str(tmp_path / "umt.safetensors"), vocabulary=str(vocabulary))
    pickled = load_backbone("UMT-small", str(tmp_path / "umt.pth"), sha256=digest, vocabulary=str(vocabulary))
    for name, value in backbone.state_dict().items():
        assert torch.equal(value, pickled.state_dict()[name]), name
    method, io = UMT(UmtConfig(), backbone).eval(), read(folder / "umt_s_io.npz")
    assert method.backbone is backbone
    assert "has neither an answer decoder nor a language-model head" in backbone.no_decoder
    ends = io["attention_mask"].sum(dim=1, keepdim=True)
    tokens = torch.nn.functional.pad(io["input_ids"], (0, 1)).scatter(1, ends, 128)  # as the tokenizer ends captions
    with torch.no_grad():
        scores = method.score(method.encode_text(tokens), method.encode_video(io["video"].float()))
    compared("umt", "forward", scores[..., 0].mT, io["sim_v2t_temp1"])
    assert backbone.tokenize(["w3, w5"]).tolist()[0][:4] == [2, 7, 9, 128]


def forms_of(state):
    """Return the forms in which UMT's weights are stored: released for retrieval and pre-training, and by wrappers."""
    conv = "vision_encoder.encoder.patch_embed.proj.weight"
    more = {"clip_teacher.ln.weight": torch.ones(3), "vision_encoder.clip_decoder.0.bias": torch.ones(3)}
    more |= {
        "text_encoder.cls.predictions.bias": torch.ones(128),
        "text_encoder.bert.embeddings.position_ids": torch.arange(4),
    }
    return {
        "retrieval": state,
        "pre-training": {n.replace("text_encoder.", "text_encoder.bert."): v for n, v in state.items()} | more,
        "an image's first layer": {**state, conv: state[conv][:, :, 0]},
        "half": {name: value.bfloat16() for name, value in state.items()},
        **{
            prefix: {prefix + n: v for n, v in state.items()}
            for prefix in ("module.", "_orig_mod.", "model.", "model.module.")
        },
        "an average": {f"model.{n}": v for n, v in state.items()} | {f"model_ema.{n}": v * 0 for n, v in state.items()},
    }


def test_every_form_of_the_weights_gives_the_same_towers(shared, tmp_path, vocabulary):
    state = {n: v.contiguous() for n, v in floats(read(shared / "reference" / "umt" / "umt_s_state.npz")).items()}
    whole = None
    for number, (form, kept) in enumerate(forms_of(state).items()):
        file = tmp_path / f"{number}.safetensors"
        save_file({name: value.contiguous().clone() for name, value in kept.items()}, file)
        backbone = load_backbone("UMT-small", str(file), vocabulary=str(vocabulary))
        found = backbone.state_dict()
        whole = whole or found
        assert found.keys() == whole.keys(), form
        for name, value in found.items():
            wanted = whole[name].bfloat16().float() if form == "half" else whole[name]
            assert torch.equal(value, wanted), f"{form}: {name}"
        assert bool(backbone.decoder_state) == (form == "pre-training"), form  # the head of the language model


def test_question_checkpoint_has_a_decoder_and_no_retrieval(shared, tmp_path, vocabulary, monkeypatch):
    text = {**SMALL["text_cfg"], "width": 32, "hidden": 64, "vocab_size": 96}
    small = {"embed_dim": 32, "vision_cfg": {**SMALL["vision_cfg"], "width": 32, "layers": 2}, "text_cfg": text}
    monkeypatch.setitem(architectures.UMT, "UMT-small", small)
    vocabulary.write_text("\n".join([*MARKS, *(f"w{number}" for number in range(92))]))
    state = floats(read(shared / "reference" / "umt" / "umt_qa_q_state.npz"))
    save_file({name: value.contiguous() for name, value in state.items()}, tmp_path / "qa.safetensors")
    backbone = load_backbone("UMT-small", str(tmp_path / "qa.safetensors"), vocabulary=str(vocabulary))
    decoder = UmtQA(UmtQAConfig(), backbone).decoder.state_dict()
    expected = of_decoder(state, 2)
    assert decoder.keys() == expected.keys()
    assert all(torch.equal(decoder[name], value) for name, value in expected.items())
    with pytest.raises(ValueError, match=r"question-answering checkpoint lacks.* or method=umt_qa"):
        UMT(UmtConfig(), backbone)


def test_it_learns_by_the_loop_and_other_methods_are_refused(vocabulary):
    settings = {"method": "umt", "stream": "s", "backbone.name": "UMT-small", "data.num_frames": 4}
    backbone = load_backbone("UMT-small", "random", vocabulary=str(vocabulary))
    method = make_method(resolve(settings), backbone)
    assert method.backbone is backbone
    assert set(method.losses(make_batch(4, 4))) == {"contrastive", "matching"}
    with refuses("clip4clip", "UMT-small", where="method"):
        make_method(resolve({**settings, "method": "clip4clip"}), backbone)


def test_wrong_files_are_named_with_what_to_write(tmp_path, vocabulary):
    def refuses(*values, name="UMT-small", weights="random", words=str(vocabulary)):
        refused(lambda: load_backbone(name, weights, vocabulary=words), *values, kind=ValueError)

    refuses("backbone.vocabulary=FILE", words="")
    refuses("'openai'", weights="openai")
    refuses("tiny-clip", name="tiny-clip", weights="shipped")
    for name in ("temp", "another"):
        save_file({name: torch.zeros(())}, tmp_path / f"{name}.safetensors")
    refuses("0", weights=str(tmp_path / "temp.safetensors"))
    refuses("UMT-small", "another", weights=str(tmp_path / "another.safetensors"))
    vocabulary.write_text("\n".join(MARKS))
    refuses("4", "UMT-small", "128")


def test_other_words_are_another_run(vocabulary):
    before = weights_digest("UMT-small", "random", str(vocabulary))
    assert before != weights_digest("UMT-small", "random")
    vocabulary.write_text("another")
    assert before != weights_digest("UMT-small", "random", str(vocabulary))


def test_at_full_size_it_is_the_published_model():
    with torch.device("meta"):
        assert umt_load.make_umt("UMT-L-16").embed_dim == 768
    method, cost = estimate("umt", backbone="UMT-B-16")
    assert trained_parameters(method) == 202_411_267
    assert cost.macs / 1e9 == pytest.approx(303.118, abs=1e-3)
    answering, cost = estimate("umt_qa", backbone="UMT-B-16")
    assert trained_parameters(answering) == 254_435_898  # with the decoder's 52,815,162, without the heads of retrieval
    assert cost.macs / 1e9 == pytest.approx(303.118, abs=1e-3)
    assert image_size("UMT-B-16") == 224
    assert 1e8 < model_size("UMT-B-16").parameters < 2.1e8
