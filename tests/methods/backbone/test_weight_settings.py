"""Settings of weights come from their tag, their JSON or all tags of their architecture; else one line asks."""

import json
import math
from collections import Counter
from functools import reduce
from itertools import product

import open_clip
import pytest
from open_clip.pretrained import get_pretrained_cfg

from ctvr.methods.backbone.load import load_backbone
from ctvr.methods.backbone.weight_settings import MOST_TOKENS, WeightSettings, weight_settings

TAGS = open_clip.list_pretrained()
FIELDS = ("mean", "std", "resize_mode", "interpolation")
CLIP_MEAN, HALF = (0.48145466, 0.4578275, 0.40821073), (0.5, 0.5, 0.5)


def of_tag(name, tag):
    """Return open_clip's own statement on a tag: the reference, read without our code."""
    config, described = get_pretrained_cfg(name, tag), open_clip.get_model_config(name)
    is_quick = config.get("quick_gelu", described.get("quick_gelu", False))
    found = {field: config[field] for field in FIELDS}
    return found | {"quick_gelu": is_quick, "context_length": described["text_cfg"].get("context_length", 77)}


def stated(settings):
    found = {field: getattr(settings, field) for field in (*FIELDS, "context_length")}
    return found | {"quick_gelu": settings.activation == "quick_gelu"}


def write(folder, name="ViT-B-32", file="open_clip_config.json", **content):
    folder.mkdir(exist_ok=True)
    (folder / file).write_text(json.dumps(content))
    return folder / "open_clip_model.safetensors"


@pytest.mark.parametrize("is_folder", [False, True])
def test_every_tag_is_right_by_name_and_by_its_json(tmp_path, is_folder):
    right = Counter()
    for number, (name, tag) in enumerate(TAGS):
        want, described = of_tag(name, tag), open_clip.get_model_config(name)
        model = described | {"quick_gelu": want["quick_gelu"]}
        file = write(tmp_path / str(number), model_cfg=model, preprocess_cfg={field: want[field] for field in FIELDS})
        right["tag"] += stated(weight_settings(name, tag)) == want
        right["json"] += stated(weight_settings(name, "", file.parent if is_folder else file)) == want
    assert right == {"tag": len(TAGS), "json": len(TAGS)}


def test_a_bare_file_is_right_or_asks_for_one_setting(tmp_path):
    outcomes = Counter()
    for name, tag in TAGS:
        try:
            found = stated(weight_settings(name, "", tmp_path / "bare.safetensors"))
            outcomes["right" if found == of_tag(name, tag) else "WRONG"] += 1
        except ValueError as error:
            outcomes["line" if "\n" not in str(error) and "Add backbone." in str(error) else "other"] += 1
    assert outcomes == {"right": len(TAGS) - outcomes["line"], "line": outcomes["line"]}
    assert outcomes["line"] <= 57


def test_the_line_leads_to_every_tag(tmp_path):
    for name, tag in TAGS:
        want = weight_settings(name, tag)
        chosen = {}
        for _ in range(4):
            try:
                assert weight_settings(name, "", tmp_path / "bare.pt", chosen) == want
                break
            except ValueError as error:
                field = str(error).partition(":")[0]
                chosen[field] = getattr(want, field)
        else:
            pytest.fail(f"{name} {tag}: {chosen}")


def test_a_contradiction_or_an_unknown_value_is_one_line(tmp_path):
    quick = {"quick_gelu": True}
    file = write(tmp_path / "a", model_cfg=quick, preprocess_cfg={"mean": HALF, "std": HALF})
    with pytest.raises(ValueError, match="activation: the JSON next to .* states quick_gelu"):
        weight_settings("ViT-B-32", "", file, {"activation": "gelu"})
    with pytest.raises(ValueError, match=r"trained with gelu.*backbone\.name=ViT-B-32\."):
        weight_settings("ViT-B-32-quickgelu", "", write(tmp_path / "b", model_cfg={}))
    with pytest.raises(ValueError, match="resize_mode must be one of .*'stretch'"):
        weight_settings("ViT-B-32", "", write(tmp_path / "c", preprocess_cfg={"resize_mode": "stretch"}))
    with pytest.raises(ValueError, match="mean must be three numbers"):
        weight_settings("ViT-B-32", "", write(tmp_path / "d", preprocess_cfg={"mean": [0.5, 0.5]}))
    with pytest.raises(ValueError, match=r"mean: weights of ViT-B-16 have 0.48145466,.*got 0.1,0.2,0.3"):
        weight_settings("ViT-B-16", "", tmp_path / "x.pt", {"activation": "gelu", "mean": (0.1, 0.2, 0.3)})
    with pytest.raises(ValueError, match="applies to a local file"):
        weight_settings("ViT-B-32", "openai", None, {"activation": "gelu"})
    broken = write(tmp_path / "e")
    (tmp_path / "e" / "open_clip_config.json").write_text("[")
    with pytest.raises(ValueError, match="not a JSON object"):
        weight_settings("ViT-B-32", "", broken)


def test_transformers_files_are_read(tmp_path):
    towers = {"text_config": {"hidden_act": "quick_gelu", "max_position_embeddings": 77}}
    towers |= {"vision_config": {"hidden_act": "quick_gelu"}}
    clip = write(tmp_path / "clip", file="config.json", model_type="clip", **towers)
    crops = {"do_center_crop": True, "crop_size": {"height": 224, "width": 224}}
    write(
        tmp_path / "clip", file="preprocessor_config.json", image_mean=HALF, image_std=HALF, resample=2,
        size={"shortest_edge": 224}, **crops,
    )  # fmt: skip
    want = WeightSettings("quick_gelu", HALF, HALF, "shortest", "bilinear", 77)
    assert weight_settings("ViT-B-32", "", clip) == want
    write(tmp_path / "clip", file="preprocessor_config.json", size={"height": 224, "width": 224}, do_normalize=False)
    found = weight_settings("ViT-B-32", "", clip)
    assert (found.resize_mode, found.mean, found.std) == ("squash", (0.0,) * 3, (1.0,) * 3)
    write(tmp_path / "clip", file="preprocessor_config.json", size={"shortest_edge": 256}, **crops)
    with pytest.raises(ValueError, match="resizes to 256 pixels and crops 224"):
        weight_settings("ViT-B-32", "", clip)
    relu = write(tmp_path / "relu", file="config.json", vision_config={"hidden_act": "relu"})
    with pytest.raises(ValueError, match="hidden_act is relu"):
        weight_settings("ViT-B-32", "", relu)


def test_a_model_runs_with_what_its_json_states(tmp_path, monkeypatch):
    described = open_clip.get_model_config("PE-Core-T-16-384")
    described["text_cfg"] |= {"width": 32, "heads": 2, "layers": 1}  # as published it has 300 MB
    monkeypatch.setitem(open_clip.factory._MODEL_CONFIGS, "PE-Core-T-16-384", described)
    want = of_tag("PE-Core-T-16-384", "meta")
    from safetensors.torch import save_file

    file = write(tmp_path / "pe", model_cfg=described, preprocess_cfg={field: want[field] for field in FIELDS})
    state = open_clip.create_model("PE-Core-T-16-384", pretrained=None).state_dict()
    save_file({name: value.contiguous().clone() for name, value in state.items()}, file)
    (tmp_path / "bare").mkdir()
    bare = tmp_path / "bare" / file.name
    bare.write_bytes(file.read_bytes())
    for weights in (file, file.parent, bare):
        model = load_backbone("PE-Core-T-16-384", str(weights))
        assert (model.mean, model.std, model.resize) == (want["mean"], want["std"], ("squash", "bilinear"))


OF_FILES = {
    "open_clip_config.json": (
        *("preprocess_cfg", "preprocess_cfg.mean", "preprocess_cfg.std", "preprocess_cfg.resize_mode"),
        *("preprocess_cfg.interpolation", "model_cfg", "model_cfg.quick_gelu", "model_cfg.text_cfg"),
        "model_cfg.text_cfg.context_length",
    ),
    "config.json": (
        *("text_config", "vision_config", "text_config_dict", "model_type", "text_config.hidden_act"),
        *("vision_config.hidden_act", "text_config.max_position_embeddings"),
    ),
    "preprocessor_config.json": (
        *("image_mean", "image_std", "resample", "size", "size.shortest_edge", "crop_size", "crop_size.height"),
        *("do_center_crop", "do_normalize"),
    ),
}
VALUES = (
    *(None, True, 0, -1, 3.5, math.nan, math.inf, 10**30, "", "x", "77", [], [1], ["a", "b", "c"], {}),
    *([math.nan] * 3, [0, 0, 0], [0.5, 0.5, 0.5], {"height": "x"}, {"shortest_edge": [1]}),
    *({"context_length": "abc"}, {"hidden_act": ["a"]}, {"hidden_act": {}}, {"quick_gelu": "yes"}),
)


@pytest.mark.parametrize("file", OF_FILES)
def test_any_value_in_the_json_is_read_or_refused_in_one_line(file, tmp_path):
    found, refused = {}, {}
    for number, (name, value) in enumerate(product(OF_FILES[file], VALUES)):
        content = {"model_type": "clip", "do_center_crop": True} | {name.partition(".")[0]: {}}
        *path, last = name.split(".")
        reduce(lambda part, each: part.setdefault(each, {}), path, content)[last] = value
        weights = write(tmp_path / str(number), file=file, **content)
        try:
            found[name, repr(value)] = weight_settings("PE-Core-T-16-384", "", weights)
        except ValueError as error:
            refused[name, repr(value)] = str(error).replace(str(weights.parent), "FOLDER")
    assert found
    assert refused
    for case, line in refused.items():
        assert "\n" not in line, case
        assert line.startswith(f"FOLDER/{file}: "), case
    for case, settings in found.items():
        assert all(math.isfinite(x) for x in (*settings.mean, *settings.std)), case
        assert min(settings.std) > 0, case
        assert 0 < settings.context_length <= MOST_TOKENS, case
