"""A saved model runs with the activation, normalization and resizing that belong to its weights."""

import json
import re
import shutil
from dataclasses import asdict

import open_clip
import pytest
import torch
from safetensors.torch import load_file, save_file

from ctvr.methods.backbone.architectures import SHIPPED, UMT
from ctvr.methods.backbone.load import load_backbone
from ctvr.methods.backbone.weight_settings import WeightSettings, weight_settings
from ctvr.methods.images.resnet import RESNETS
from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.errors import ConfigError
from ctvr.orchestrator.execution import ExecutionConfig
from ctvr.orchestrator.jobs.explain import compare, explain
from ctvr.orchestrator.jobs.export_model import export_hf
from ctvr.orchestrator.jobs.load_model import load
from ctvr.orchestrator.keys.run_key import describe_preprocessing
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.record.method_state import save_model
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.learning.run.factory import check_backbone, load_tower, load_trained, restore_from_commits
from ctvr.orchestrator.retrieval.model import Model
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.streams.load import load_stream
from tests.refusing import refuses

NAME = "ViT-small-test"
ARCHITECTURE = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 48, "layers": 2, "width": 32, "head_width": 16, "patch_size": 16},
    "text_cfg": {"context_length": 32, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2},
}
OWN = WeightSettings("quick_gelu", (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), "squash", "bilinear", 32)


@pytest.fixture(autouse=True, scope="module")
def _registered():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(open_clip.factory._MODEL_CONFIGS, NAME, ARCHITECTURE)
        yield


@pytest.fixture(scope="module")
def state(_registered):
    torch.manual_seed(0)
    made = open_clip.create_model(NAME, pretrained=None).state_dict()
    return {name: value.contiguous().clone() for name, value in made.items()}


@pytest.fixture
def file(state, tmp_path):
    return write_weights(state, tmp_path / "weights")


def write_weights(state, folder):
    """Write weights of a small architecture, with open_clip's JSON next to them."""
    folder.mkdir()
    file = folder / "open_clip_model.safetensors"
    save_file(state, file)
    preprocessing = {field: getattr(OWN, field) for field in ("mean", "std", "resize_mode", "interpolation")}
    described = {"model_cfg": ARCHITECTURE | {"quick_gelu": True}, "preprocess_cfg": preprocessing}
    (file.parent / "open_clip_config.json").write_text(json.dumps(described))
    return file


@pytest.fixture(scope="module")
def finished(state, decoded, tmp_path_factory):
    """Return a model of a run, from its commits, and the folder that the model was saved in; both are only read."""
    root = tmp_path_factory.mktemp("finished")
    runs, file = shutil.copytree(decoded, root / "runs"), write_weights(state, root / "weights")
    manifest = str(runs / "small" / "small.json")
    small_stream = load_stream(manifest, runs)
    tower = {"backbone.name": NAME, "backbone.weights": str(file)}
    experiment = resolve({"method": "clip4clip", "stream": manifest, **tower}, small_stream.settings)
    result = execute(experiment, RunPaths(runs))
    store = RunPaths(runs).open_store()
    save_model(result.method, experiment.settings, result.stream, root / "model")
    model = restore_from_commits(experiment, Commits(store, result.key), 3, small_stream)
    file.unlink()  # a saved model reads neither the weights nor their JSON
    (file.parent / "open_clip_config.json").unlink()
    return Model("run", model, store, small_stream), root / "model"


@pytest.fixture
def trained(finished, tmp_path):
    """Return the model of a run, and a copy of the folder that it was saved in."""
    model, folder = finished
    return model, shutil.copytree(folder, tmp_path / "model")


def test_a_loaded_model_has_the_features_of_its_run(trained, tmp_path):
    first, folder = trained
    small_stream = first.stream
    alone = load(str(folder), ExecutionConfig(runs=tmp_path / "none"))
    assert first.trained.clip.weight_settings == alone.trained.clip.weight_settings == OWN
    videos = [item.path for item in small_stream.items(0, "test")]
    texts = ["a red circle", "a blue star on the test"]
    features = [[model.encode_video(videos), model.encode_text(texts)] for model in (first, alone)]
    assert all(map(torch.equal, *features))
    hits = [[(hit.video, hit.score) for hit in model.search(texts[0], k=3, videos=videos)] for model in (first, alone)]
    assert hits[0] == hits[1]


def test_an_older_model_without_them_has_the_defaults(trained):
    first, folder = trained
    described = json.loads((folder / "model.json").read_text())
    del described["weight_settings"]
    (folder / "model.json").write_text(json.dumps(described))
    older = load_trained(folder)
    assert older.clip.weight_settings == WeightSettings(context_length=32)
    tokens = first.trained.clip.tokenize(["a red circle"])
    with torch.no_grad():  # the activation alone changes features
        assert not torch.equal(older.method.encode_text(tokens), first.trained.method.encode_text(tokens))


@pytest.mark.wording
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (7, "model.json: weight_settings: "),
        ({"backbone": None}, "weight_settings: must state activation, mean"),
        ({"backbone": asdict(OWN) | {"activation": "relu"}}, "activation must be one of gelu, quick_gelu"),
        ({"backbone": asdict(OWN) | {"mean": [1, 2]}}, "mean must be three numbers"),
        ({"backbone": asdict(OWN) | {"resize_mode": "stretch"}}, "resize_mode must be one of"),
        ({"backbone": asdict(OWN) | {"context_length": 10**9}}, "context_length must be 1 to"),
    ],
)
def test_a_damaged_description_is_one_line(trained, wrong, message):
    _, folder = trained
    described = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(described | {"weight_settings": wrong}))
    with pytest.raises(ConfigError, match=message) as caught:
        load_trained(folder)
    assert "\n" not in str(caught.value)


def test_chosen_values_of_a_bare_file_are_saved(file, manifest, small_stream, runs, tmp_path):
    (file.parent / "open_clip_config.json").unlink()
    tower = {"backbone.name": NAME, "backbone.weights": str(file), "backbone.activation": "gelu"}
    experiment = resolve({"method": "zero_shot", "stream": manifest, **tower}, small_stream.settings)
    result = execute(experiment, RunPaths(runs))
    save_model(result.method, experiment.settings, result.stream, tmp_path / "model")
    found = load_trained(tmp_path / "model")
    assert found.clip.weight_settings == load_backbone(NAME, str(file), chosen={"activation": "gelu"}).weight_settings
    assert found.experiment.backbone.activation == "gelu"


def test_an_upgraded_model_has_those_of_both_backbones(file, manifest, small_stream, runs, tmp_path):
    settings = {"method": "clip4clip", "stream": manifest, "upgrade.task": 2}
    new = {"upgrade.backbone": NAME, "upgrade.weights": str(file)}
    experiment = resolve(settings | new, small_stream.settings)
    result = execute(experiment, RunPaths(runs))
    save_model(result.method, experiment.settings, small_stream.after(1), tmp_path / "model")
    found = load_trained(tmp_path / "model")
    assert found.clip.weight_settings == OWN
    tokens = found.clip.tokenize(["a red circle", "a blue star"])
    with torch.no_grad():
        assert torch.equal(found.method.encode_text(tokens), result.method.eval().encode_text(tokens))


@pytest.mark.parametrize("name", [*SHIPPED, *UMT, *RESNETS])
def test_a_backbone_that_has_its_own_adds_nothing_to_a_key(name):
    assert describe_preprocessing(name, "random") == describe_preprocessing(name, "random", prefix="upgrade.") == {}


@pytest.mark.parametrize("name", [NAME, "ViT-B-32-quickgelu", "ViT-B-16-SigLIP", "PE-Core-T-16-384"])
def test_a_backbone_of_open_clip_has_them_in_its_key(name):
    assert describe_preprocessing(name, "random") == {"preprocessing": str(weight_settings(name, "random"))}


def test_settings_of_a_file_are_refused_for_backbones_that_have_their_own(manifest, small_stream):
    for name in (*SHIPPED, *UMT):
        settings = {"backbone.name": name, "backbone.weights": "random", "backbone.activation": "gelu"}
        experiment = resolve({"method": "zero_shot", "stream": manifest, **settings}, small_stream.settings)
        with refuses(name, "activation", where="backbone"):
            check_backbone(experiment)
    images = {"backbone.name": "resnet18-8", "backbone.weights": "random", "backbone.resize_mode": "squash"}
    with refuses("resnet18-8", where="backbone.resize_mode"):
        load_tower(resolve({"method": "image_finetune", "stream": manifest, **images}))


def test_a_saved_model_of_a_tag_keeps_its_preprocessing(file, manifest, small_stream, runs, tmp_path, monkeypatch):
    config = {"url": "", "mean": OWN.mean, "std": OWN.std, "resize_mode": "squash", "interpolation": "bilinear"}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, NAME, {"own": config | {"quick_gelu": True}})
    create = open_clip.create_model

    def created(name, pretrained=None, **more):  # open_clip would download the weights of the tag
        model = create(name, pretrained=None, **more)
        if pretrained:
            model.load_state_dict(load_file(file))
        return model

    monkeypatch.setattr(open_clip, "create_model", created)
    settings = {"backbone.name": NAME, "backbone.weights": "own"}
    experiment = resolve({"method": "zero_shot", "stream": manifest, **settings}, small_stream.settings)
    result = execute(experiment, RunPaths(runs))
    save_model(result.method, experiment.settings, result.stream, tmp_path / "model")
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, NAME, {})
    found = load_trained(tmp_path / "model")
    assert found.clip.weight_settings == OWN
    assert (tuple(found.clip.mean), tuple(found.clip.std)) == (OWN.mean, OWN.std)
    assert found.clip.resize == ("squash", "bilinear")


def test_an_ambiguous_new_backbone_is_asked_for_by_its_own_setting(file, manifest, small_stream, runs, monkeypatch):
    (file.parent / "open_clip_config.json").unlink()
    tags = {tag: {"quick_gelu": tag == "quick", "mean": OWN.mean, "std": OWN.std} for tag in ("plain", "quick")}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, NAME, tags)
    settings = {"method": "clip4clip", "stream": manifest, "optim.epochs": 1, "upgrade.task": 2}
    new = {"upgrade.backbone": NAME, "upgrade.weights": str(file)}
    experiment = resolve(settings | new, small_stream.settings)
    with refuses("activation", NAME, "upgrade.activation=gelu", where="upgrade.backbone"):
        check_backbone(experiment)
    described = file.parent / "open_clip_config.json"
    described.write_text(json.dumps({"model_cfg": {"quick_gelu": True}}))
    given = resolve(settings | new | {"upgrade.activation": "gelu"}, small_stream.settings)
    with refuses("activation", "quick_gelu", where="upgrade.backbone"):
        check_backbone(given)
    described.unlink()
    execution, key = ExecutionConfig(runs=runs), {}
    for activation in ("gelu", "quick_gelu"):
        chosen = [f"{name}={value}" for name, value in (new | {"upgrade.activation": activation}).items()]
        words = ["run", "clip4clip", manifest, "optim.epochs=1", "upgrade.task=2", *chosen, "--runs", str(runs)]
        assert main([*words, "--keep-model"]) == 0
        run = execution.tracker().find_runs()[-1]
        key[activation] = run.tags["ctvr.result"]
        own = weight_settings(NAME, "", file, {"activation": activation})
        found = load_trained(execution.tracker().download(run.run_id, "model"))
        assert found.clip.weight_settings == own
        explained = explain(key[activation], execution.places().open_store(), execution.tracker())
        assert f"\nupgrade.preprocessing {own}\n" in explained
        export_hf(file.parent / activation, run.run_id, execution, "apache-2.0")
        assert f"\nUpgrade.preprocessing: {own}.\n" in (file.parent / activation / "README.md").read_text()
    assert len({*key.values()}) == 2


def test_explain_and_the_card_state_what_belongs_to_the_weights(file, manifest, runs, capsys):
    execution, other = ExecutionConfig(runs=runs), str(OWN).replace("squash", "longest")
    described = file.parent / "open_clip_config.json"
    for mode in ("squash", "longest"):
        described.write_text(described.read_text().replace("squash", mode))
        words = ["run", "zero_shot", manifest, f"backbone.name={NAME}", f"backbone.weights={file}", "--runs", str(runs)]
        assert main([*words, "--keep-model"]) == 0
    first, second = execution.tracker().find_runs()
    store, tracker = execution.places().open_store(), execution.tracker()
    assert f"\npreprocessing {OWN}\n" in explain(first.tags["ctvr.result"], store, tracker)
    compared = compare(first.tags["ctvr.result"], second.tags["ctvr.result"], store, tracker)
    assert re.search(rf"^preprocessing +a: {re.escape(str(OWN))}  b: {re.escape(other)}$", compared, re.MULTILINE)
    export_hf(file.parent / "card", first.run_id, execution, "apache-2.0")
    assert f"\nPreprocessing: {OWN}.\n" in (file.parent / "card" / "README.md").read_text()
