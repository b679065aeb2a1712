"""`ctvr reproduce` is `ctvr sweep --preset TABLE` by the paper's number."""

import json
import re

import pytest

from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.tables import paper_items
from ctvr.orchestrator.tables.paper_items import text
from tests.refusing import missing_from


@pytest.fixture
def stream(tmp_path):
    """Write a manifest of two videos, one of which exists."""
    item = {"category": "a", "captions": ["a thing"]}
    split = [{**item, "video": "one", "path": "one.mp4"}]
    task = {
        "name": "task_01",
        "categories": ["a"],
        "train": split,
        "test": [{**item, "video": "two", "path": "two.mp4"}],
    }
    settings = {"backbone.name": "tiny-clip", "backbone.weights": "shipped"}
    manifest = {"format": 1, "name": "mine", "protocol": "ctvr", "videos": ".", "settings": settings, "tasks": [task]}
    (tmp_path / "mine.json").write_text(json.dumps(manifest))
    (tmp_path / "one.mp4").write_bytes(b"0")
    return str(tmp_path / "mine.json")


def test_the_plan_of_an_embedded_stream_renders_nothing(tmp_path, capsys):
    words = ["reproduce", "tempme/table2", "--plan", "--stream", "shapes-5", "--runs", str(tmp_path)]
    assert main(words) == 0
    assert "videos    shapes-5: embedded; a run renders the 960 missing videos" in capsys.readouterr().out
    assert not list(tmp_path.rglob("*.mp4"))


def test_the_plan_counts_runs_and_says_what_is_here_and_runs_nothing(stream, tmp_path, capsys):
    runs = ["--runs", str(tmp_path / "runs")]
    words = ["reproduce", "tempme/table2", "--plan", "--stream", stream, "--seeds", "2", *runs]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "14 rows x 2 seeds = 28 runs of 1 task\n" in shown
    assert "not on mine: MV-Adapter, ViT-B/16, VoP^F+C, ViT-B/16, DGL^L, ViT-B/16, TempMe, ViT-B/16" in shown
    assert "1 of 2 videos are missing" in shown
    assert "tiny-clip, shipped: available (14 rows)" in shown
    assert "rows without a method here: RAP, ViT-B/16" in shown
    assert "RAP's code is not public" in shown
    assert not (tmp_path / "runs" / "mlflow.db").exists()
    assert main([*words[:2], "backbone.weights=other.safetensors", *words[2:]]) == 0
    assert "tiny-clip, other.safetensors: missing; a run downloads them" in capsys.readouterr().out
    assert main(["reproduce", "framefusion/table1", "--plan", "--stream", "msrvtt-10", *runs]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"videos    not available: stream: .*'msrvtt-10'", shown)
    assert main(["reproduce", "framefusion/table1", "--plan", "--stream", "msrvt-10", *runs]) == 2
    assert not missing_from(capsys.readouterr().err, "stream", "'msrvt-10'")


def test_claims_plan_lists_rows_and_runs_nothing(stream, tmp_path, capsys):
    words = ["reproduce", "claims", "--plan", "--runs", str(tmp_path / "runs")]
    assert main([*words, "--stream", stream, "--only", "clip-dsl,tempme-lora", "--seeds", "2"]) == 0
    shown = capsys.readouterr().out
    assert "rows      4: CLIP with DSL, zero_shot, tempme, lora\n" in shown
    assert "4 rows x 2 seeds = 8 runs of 1 task\n" in shown
    assert "time      unknown: no run of mine is recorded here." in shown
    assert "clip-dsl: CLIP with DSL against zero_shot, r1 (higher by 14.1 %)" in shown
    assert main([*words, "--stream", stream, "--only", "bmu-base,bmu-global"]) == 0
    shown = capsys.readouterr().out
    assert "bmu_moco:table2-row6 has the settings of bmu_moco, so it is not run again\n" in shown
    assert "3 rows x 3 seeds = 9 runs of 1 task\n" in shown
    assert main([*words, "--stream", "msrvtt-10"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"videos    not available: stream: .*'msrvtt-10'", shown)
    assert re.search(r"runs      \d+ rows x 3 seeds = \d+ runs\n", shown)
    assert "framefusion-ffa: framefusion_moe against framefusion_moe:no-ffa, r1 (higher by 9.14 %)" in shown
    assert not (tmp_path / "runs" / "mlflow.db").exists()
    assert main(["reproduce", "claims", "--list"]) == 0
    assert "framefusion-ffa " in capsys.readouterr().out


def test_reproduce_makes_the_same_request_as_the_sweep(monkeypatch, stream, tmp_path):
    asked = []
    (tmp_path / "two.mp4").write_bytes(b"0")
    monkeypatch.setattr("ctvr.orchestrator.sweeps.sweep.sweep", lambda *request: asked.append(request) or "")
    rest = ["--name", "x", "--stream", stream, "--seeds", "1", "--runs", str(tmp_path)]
    assert main(["reproduce", "tempme/table13", "optim.epochs=1", *rest]) == 0
    assert main(["sweep", "--preset", "tempme-table13", "--direction", "both", "optim.epochs=1", *rest]) == 0
    assert asked[0] == asked[1]
    assert (asked[0][0].preset.name, asked[0][0].orders) == ("tempme-table13", 1)
    assert main(["reproduce", "tempme/table13", "--task-orders", "3", *rest]) == 0
    assert asked[2][0].orders == 3


def test_one_setting_is_varied_and_the_recommended_value_runs_once(stream, tmp_path, capsys, monkeypatch):
    words = ["reproduce", "framefusion/fig8", "--plan", "--stream", stream, "--runs", str(tmp_path)]
    assert main(words) == 0
    blocks = [f"method.ffa_layers={count}" for count in (1, 2, 3)]  # tiny-clip has 4 blocks, and 10 of 12 scale to 4
    experts = [f"method.num_experts={count}" for count in (1, 5, 15, 20)]
    betas = [f"method.beta={beta}" for beta in (0.0, 0.2, 0.4, 0.8)]
    rows = ["framefusion_moe", *blocks, *experts, *betas, "data.num_frames=6", "data.num_frames=18"]
    assert f"{len(rows)}: {', '.join(rows)}\n" in capsys.readouterr().out
    assert main([*words[:2], "method.beta=0.1", *words[2:]]) == 2
    assert "method.beta" in capsys.readouterr().err

    asked = []
    (tmp_path / "two.mp4").write_bytes(b"0")
    monkeypatch.setattr("ctvr.orchestrator.sweeps.sweep.sweep", lambda *request: asked.append(request) or "")
    vary = ["sweep", "--method", "structalign", "--stream", stream, "--runs", str(tmp_path), "--name", "x"]
    assert main([*vary, "--vary", "method.lambda1=0.1,0.5", "--baselines", "zero_shot", "--seeds", "2"]) == 0
    preset = asked[0][0].preset
    assert [row.name for row in preset.rows] == ["structalign", "zero_shot", "method.lambda1=0.1", "method.lambda1=0.5"]
    assert (preset.seeds, preset.search["trials"], preset.varies) == (2, 0, ("method.lambda1",))
    for more, values in (
        (["--vary", "method.lamda1=1"], "method.lamda1 method.lambda1=1"),
        (["--vary", "method.lambda1"], "--vary 'method.lambda1'"),
        (["--vary", "seed=1,2"], "seed"),
        (["--vary", "method.lambda1=1", "--trials", "4"], "search.trials"),
        (["--vary", "method.lambda1=1", "--space", "method.lambda2=1,2"], "--space --space-add --top --rows"),
    ):
        capsys.readouterr()
        assert main([*vary, *more]) == 2
        assert not missing_from(capsys.readouterr().err, *values.split())


def test_the_list_and_every_mistake_in_one_line(capsys, monkeypatch):
    assert main(["reproduce", "--list"]) == 0
    assert capsys.readouterr().out.strip() == text()
    papers, items = paper_items.read()
    missing = paper_items.Item(item="camoe/fig9", shows="a film", why="its videos are not public")
    monkeypatch.setattr(paper_items, "read", lambda: (papers, (*items, missing)))
    for words, values in (
        ([], "tempme/table2"),
        (["--list", "bmu/table1"], "--list"),
        (["camoe/fig9"], "camoe/fig9"),
        (["bmu/table1", "--preset", "paper"], "--preset paper"),
        (["bmu/table1", "--only", "bmu-base"], "--only bmu-base"),
        (["claims", "--only", "bmu-bas"], "'bmu-bas' 'bmu-base'"),
        (["claims", "--rows", "lora"], "--rows lora --only"),
        (["claims", "--task-orders", "4"], "--task-orders 4 --seeds"),
        (["claims", "--trials", "2"], "--trials 2"),
    ):
        assert main(["reproduce", *words]) == 2
        assert not missing_from(capsys.readouterr().err, *values.split())
