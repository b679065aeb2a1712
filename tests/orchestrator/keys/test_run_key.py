"""A run has one key, which depends on everything that determines the result and on nothing else."""

import shutil

import pytest
from PIL import Image

from ctvr.methods.backbone.load import load_backbone
from ctvr.methods.layers.replay.reference import load_reference
from ctvr.orchestrator.digests import ROOT
from ctvr.orchestrator.keys import run_key
from ctvr.orchestrator.keys.run_key import DIGESTED_PACKAGES, code_digests, content_of, weights_digest
from ctvr.orchestrator.learning.run.execute import RunPaths, execute
from ctvr.orchestrator.settings.resolve import resolve
from tests.own_towers import CLIP, CODE, write_json, write_package

SMALL = {"backbone.name": "tiny-clip", "backbone.weights": "shipped"}


def test_the_key_changes_with_what_decides_and_with_nothing_else(small_stream):
    def key(**more):
        settings = {"method": "clip4clip", "stream": "s", **SMALL}
        return resolve({**settings, **{name.replace("__", "."): v for name, v in more.items()}}).key(small_stream)

    assert key() == key()
    assert key() == key(data__prefetch_threads=2) == key(evaluation__query_chunk=7)
    assert len({key(), key(seed=1), key(method__lr=2e-6), key(optim__epochs=3), key(evaluation__split="val")}) == 5
    random = {"backbone__weights": "random"}
    assert key() != key(**random)


def test_the_key_contains_the_code_of_a_backbone_that_is_an_entry_point(small_stream, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))

    def key(code=CODE, **more):
        write_package(tmp_path, code, bag="Bag", hooked="Hooked")
        return resolve({"method": "clip4clip", "stream": "s", "backbone.name": "bag", **more}).key(small_stream)

    assert key() == key()
    upgrade = {
        "backbone.name": "tiny-clip",
        "backbone.weights": "shipped",
        "upgrade.task": 2,
        "upgrade.backbone": "bag",
    }
    edited = f"{CODE}\n# a comment\n"
    assert len({key(), key(edited), key(**upgrade), key(edited, **upgrade), key(**{"backbone.name": "hooked"})}) == 5


def test_the_key_contains_the_architecture_in_the_users_file(small_stream, tmp_path):
    def key(heads):
        config = {**CLIP, "text_cfg": {**CLIP["text_cfg"], "heads": heads}}
        name = write_json(tmp_path / "mine.json", config)
        given = {"backbone.name": name, "backbone.weights": "random"}
        return resolve({"method": "clip4clip", "stream": "s", **given}).key(small_stream)

    assert key(4) == key(4) != key(2)


@pytest.fixture
def edited(tmp_path_factory, monkeypatch):
    """Edit a copy of one of our sources; return the parts of the key that change."""
    root = tmp_path_factory.mktemp("sources")
    for package in ("orchestrator", "methods"):
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__", "tiny_clip"))
    monkeypatch.setattr(run_key, "ROOT", root)

    def changed(file, *of):
        before, content = code_digests(*of), (root / file).read_bytes()
        (root / file).write_bytes(content + b"\n")
        after = code_digests(*of)
        (root / file).write_bytes(content)
        return [name for name in before if before[name] != after[name]]

    return changed


def test_an_edit_of_any_file_that_decides_results_changes_the_key(edited):
    files = [file.relative_to(ROOT) for room in DIGESTED_PACKAGES for file in (ROOT / room).rglob("*.py")]
    assert len(files) > 60
    for file in files:
        assert edited(file, "lwf", "framefusion_moe") == [f"code of {'/'.join(file.parts[:2])}"]
    for name in ("base", "user_paths", "lwf", "framefusion_moe/__init__", "framefusion_moe/config"):
        assert edited(f"methods/{name}.py", "lwf", "framefusion_moe") == ["code of the method"]
    for name in ("clip4clip", "structalign/config", "images/siamese"):
        assert edited(f"methods/{name}.py", "lwf", "framefusion_moe") == []


@pytest.mark.parametrize("name", ["structalign", "mv_adapter", "lpi", "image_si"])
def test_an_edit_of_any_file_of_a_method_changes_its_key(name, edited):
    folder = "images" if name.startswith("image_") else name
    files = sorted((ROOT / "methods" / folder).glob("*.py"))
    assert len(files) > 1
    for file in files:
        assert edited(f"methods/{folder}/{file.name}", name) == ["code of the method"]


def test_what_a_method_imports_of_another_decides_its_results_too(edited):
    assert edited("methods/lump.py", "xpool") == []
    with (run_key.ROOT / "methods/xpool.py").open("a") as file:
        file.write("\n\ndef late():\n    from ctvr.methods.lump import LUMP\n")
    assert edited("methods/lump.py", "xpool") == ["code of the method"]


def test_a_reference_folder_is_known_by_what_is_in_it_however_it_is_named(small_stream, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "references"
    (folder / "deep").mkdir(parents=True)
    (folder / "captions.txt").write_text("a cat\n")
    Image.new("RGB", (8, 8)).save(folder / "deep" / "1.png")
    names = ("~/references", "references", str(folder))

    def keys():
        made = [resolve({"method": "zscl", "stream": "s", "method.reference": name, **SMALL}) for name in names]
        return [experiment.key(small_stream) for experiment in made]

    clip = load_backbone("tiny-clip", "shipped")
    assert [len(load_reference(name, clip)) for name in names] == [1, 1, 1]  # the method reads the files of the key
    states = [keys()]
    (folder / "captions.txt").write_text("a dog\n")
    states.append(keys())
    (folder / "deep" / "1.png").rename(folder / "deep" / "2.png")  # images are read in the order of their names
    states.append(keys())
    assert all(len(set(of_one)) == len(states) for of_one in zip(*states))


@pytest.mark.parametrize("part", ["torch", "capability", "kernels"])
def test_a_run_in_another_environment_adopts_no_task(part, manifest, small_stream, runs, monkeypatch):
    experiment = resolve({"method": "clip4clip", "stream": manifest, "optim.epochs": 1}, small_stream.settings)
    first = execute(experiment, RunPaths(runs))
    assert execute(experiment, RunPaths(runs)).resumed == 3
    assert set(run_key.environment("cpu")) == {"torch", "open_clip", "device", "capability", "kernels"}
    known = {**run_key.environment("cpu"), part: "other"}
    monkeypatch.setattr("ctvr.orchestrator.settings.experiment.environment", lambda device: known)
    elsewhere = execute(experiment, RunPaths(runs))
    assert elsewhere.key != first.key
    assert (elsewhere.resumed, elsewhere.reused) == (0, 0)


def test_the_decoding_rule_is_the_sources_that_decide_frames():
    from ctvr.orchestrator.digests import list_imported_sources

    found = list_imported_sources([ROOT / "orchestrator/video/decode.py"], "orchestrator/video")
    stems = ["container", "counting", "decode", "decoders", "index", "packets", "sampling"]
    assert [file.stem for file in found] == stems


def test_a_text_that_no_file_can_have_as_its_name_is_not_a_file():
    assert content_of("a photo of " * 100) == ""
    assert weights_digest("tiny-clip", "x" * 300)
