"""Ten methods on backbones of users: those that fit take a step, the others are refused with the missing parts."""

import importlib
import sys

import pytest
import torch

from ctvr.methods import METHODS, find_method
from ctvr.methods.base import Batch, Task
from ctvr.orchestrator.addresses import name_addresses
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.record.method_state import save_model
from ctvr.orchestrator.learning.run import tower_parts
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.learning.run.factory import (
    check_backbone,
    load_clip,
    load_trained,
    make_method,
    restore_from_commits,
)
from ctvr.orchestrator.learning.run.tower_parts import (
    CLASS,
    HOOKS,
    MLP,
    describe_offer,
    missing_parts,
    parts_used,
)
from ctvr.orchestrator.settings.resolve import resolve
from tests.own_towers import CLIP, SIGLIP, write_json, write_package
from tests.refusing import refused

TEN = ["zero_shot", "clip4clip", "xpool", "lwf", "er_ring", "lora", "adapter", "framefusion_moe"]
TEN += ["moe_adapter", "clip_vip"]
OUTSIDE = {"zero_shot", "clip4clip", "xpool", "lwf", "er_ring"}  # they use the features of towers only
# timm's test_vit has a class token, which the gates of moe_adapter read
IN_BLOCKS = {"lora", "adapter", "framefusion_moe"}  # their hooks treat all tokens of a frame alike
FIT = {"bag": OUTSIDE, "hooked": OUTSIDE | IN_BLOCKS, "siglip": OUTSIDE | IN_BLOCKS | {"moe_adapter"}, "clip": {*TEN}}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Write the backbones; return the setting `backbone.name` of each."""
    folder = tmp_path_factory.mktemp("towers")
    write_package(folder, bag="Bag", hooked="Hooked")
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    files = {"siglip": write_json(folder / "s.json", SIGLIP), "clip": write_json(folder / "c.json", CLIP)}
    yield {"bag": "bag", "hooked": "hooked", **files}
    sys.path.remove(str(folder))
    sys.modules.pop("tiny_towers", None)


@pytest.fixture
def backbones(written):
    """Name the files of the backbones, as a command does; return the setting `backbone.name` of each."""
    name_addresses(written.values())
    return written


FOUND = {}  # method -> its parts, on any backbone


@pytest.fixture
def found_once(monkeypatch):
    """Find the parts of each of the ten methods once: they do not depend on the backbone."""

    def once(experiment):
        key = experiment.name
        if key not in FOUND:
            FOUND[key] = parts_used(experiment)
        return FOUND[key]

    monkeypatch.setattr(tower_parts, "parts_used", once)


def experiment_of(method, name):
    weights = "random" if name.endswith(".json") else "shipped"
    return resolve({"stream": "x", "method": method, "backbone.name": name, "backbone.weights": weights})


@pytest.mark.parametrize("kind", FIT)
def test_the_methods_that_fit_follow_from_what_the_backbone_offers(kind, backbones, found_once):
    clip = load_clip(experiment_of("zero_shot", backbones[kind]).backbone)
    missing = {method: missing_parts(experiment_of(method, backbones[kind]), clip) for method in TEN}
    assert {method for method, lacking in missing.items() if not lacking} == FIT[kind]
    for method, lacking in missing.items():
        if lacking:
            experiment = experiment_of(method, backbones[kind])
            refused(lambda made=experiment: make_method(made, clip), method, clip.name, lacking[0], where="method")
            refused(lambda made=experiment: check_backbone(made), method, clip.name, lacking[0], where="method")


@pytest.mark.parametrize(("kind", "method"), [(kind, each) for kind in FIT for each in sorted(FIT[kind])])
def test_a_method_that_fits_learns_and_encodes(kind, method, backbones, found_once):
    experiment = experiment_of(method, backbones[kind])
    clip = load_clip(experiment.backbone)
    made = make_method(experiment, clip).train()
    frames, tokens = torch.randn(2, 2, 3, clip.image_size, clip.image_size), clip.tokenize(["a red box", "a blue star"])
    batch = Batch(frames, tokens, torch.tensor([0, 1]), torch.tensor([0, 1]), torch.tensor([0, 1]))
    task = Task(0, "task 1", 2, (0,), 2)
    made.begin_task(task)
    groups = made.param_groups()
    loss = sum(made.losses(batch).values())
    assert loss.isfinite()
    if groups:
        loss.backward()
        assert any(p.grad is not None and p.grad.abs().max() > 0 for group in groups for p in group["params"])
    made.eval().end_task(task, [batch])
    with torch.no_grad():
        assert made.score(made.encode_text(tokens, 0), made.encode_video(frames)).shape[:2] == (2, 2)


def test_the_parts_that_a_method_uses_depend_on_its_settings():
    def used(method, **more):
        return parts_used(resolve({"method": method, "stream": "x", **more}))

    assert used("clip4clip") == set()
    assert used("lora") == {("vision", HOOKS), ("text", HOOKS)}
    assert used("lwf", **{"method.base": "lora"}) == used("lora")
    assert ("vision", CLASS) in used("moe_adapter")
    assert {("vision", MLP), ("text", MLP)} <= used("dar")
    assert ("vision", "class_embedding") in used("clip_vip")
    assert ("vision", HOOKS) in used("clip4clip", **{"method.reducer.name": "tome"})


def test_no_method_fails_on_the_tiny_clip_before_its_parts_are_known(monkeypatch):
    run, finished = tower_parts._use, []

    def use(method, frames):
        run(method, frames)
        finished.append(method)

    monkeypatch.setattr(tower_parts, "_use", use)
    for method in METHODS:
        parts_used(resolve({"method": method, "stream": "x"}))
    assert len(finished) == len(METHODS)


def test_a_method_that_fails_on_the_tiny_clip_fits_other_backbones_only_if_it_declares_so(backbones, monkeypatch):
    clip = load_clip(experiment_of("zero_shot", backbones["hooked"]).backbone)
    own = load_clip(experiment_of("zero_shot", backbones["clip"]).backbone)

    def losses(self, batch):
        return self.backbone.vision.blocks[11]

    for method, is_refused in (("xpool", True), ("clip4clip", False)):
        monkeypatch.setattr(find_method(method), "losses", losses)
        experiment = experiment_of(method, backbones["hooked"])
        assert experiment.capabilities.backbone_agnostic is not is_refused
        if is_refused:
            refused(
                lambda made=experiment: missing_parts(made, clip), method, "IndexError", where="method", remedy=True
            )
        else:
            assert missing_parts(experiment, clip) == []
        assert missing_parts(experiment, own) == []


def test_finding_the_parts_leaves_the_random_numbers_alone():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    parts_used(resolve({"method": "lora", "stream": "x"}))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("kind", ["hooked", "clip"])
def test_a_run_on_them_is_resumed_from_commits_and_loaded_from_its_saved_model(
    kind, backbones, manifest, small_stream, runs, tmp_path
):
    given = {"method": "lora", "stream": manifest, "backbone.name": backbones[kind], "optim.epochs": 1}
    given |= {"backbone.weights": "random"} if kind == "clip" else {}
    experiment = resolve(given, small_stream.settings)
    result = execute(experiment, RunPaths(runs))
    save_model(result.method, experiment.settings, result.stream, tmp_path / "model")
    commits = Commits(RunPaths(runs).open_store(), result.key)
    models = [restore_from_commits(experiment, commits, 3, small_stream), load_trained(tmp_path / "model")]
    tokens = models[0].clip.tokenize(["a red circle"])
    frames = torch.randn(1, 2, 3, 32, 32)
    for model in models:
        with torch.no_grad():
            assert torch.equal(model.method.encode_text(tokens, 2), result.method.eval().encode_text(tokens, 2))
            assert torch.equal(model.method.encode_video(frames), result.method.encode_video(frames))


def test_the_offer_is_described(backbones):
    text = describe_offer(load_clip(experiment_of("zero_shot", backbones["hooked"]).backbone))
    assert all(word in text for word in ("3 blocks", "2 blocks", CLASS.removeprefix("a ")))


def test_a_path_that_only_a_file_names_is_refused(backbones, tmp_path, monkeypatch):
    from ctvr.orchestrator import addresses
    from ctvr.orchestrator.sweeps.trust import trust_text, trust_typed

    monkeypatch.setattr(addresses, "_named", {})
    file = write_json(tmp_path / "mine.json", CLIP)
    given = {"method": "zero_shot", "stream": "x", "backbone.weights": "random"}
    recommended = resolve(given, {"backbone.name": file})
    refused(lambda: check_backbone(recommended), file, "--trust", where="backbone.name")
    refused(lambda: load_clip(recommended.backbone), file, "--trust", where="backbone.name")
    trust_typed([f"backbone.name={file}"])
    check_backbone(recommended)
    assert trust_text() == f" --trust {file}"


def test_the_weights_of_a_folder_or_a_package_replace_those_of_the_stream(backbones, tmp_path):
    stream = {"backbone.name": "ViT-B-32-quickgelu", "backbone.weights": "openai"}

    def weights(**more):
        return resolve({"method": "zero_shot", "stream": "x", **more}, stream).backbone.weights

    assert weights() == "openai"
    write_json(tmp_path / "config.json", {"model_type": "clip"})
    assert weights(**{"backbone.name": str(tmp_path)}) == weights(**{"backbone.name": "bag"}) == "shipped"
    assert weights(**{"backbone.name": "bag", "backbone.weights": "a.pt"}) == "a.pt"
    assert weights(**{"backbone.name": backbones["clip"]}) == "openai"  # a file has no weights; loading says so
