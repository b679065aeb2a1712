"""Card and canaries travel with a feature set: imported, printed, compared, and never mixed with those of another."""

from pathlib import Path

import numpy as np
import pytest

from ctvr.orchestrator.cli.main import main
from ctvr.orchestrator.importers.features import import_features
from ctvr.orchestrator.vectors.canaries import CLIPS, TEXTS
from ctvr.orchestrator.vectors.relations import unit
from tests.refusing import refuses

RNG = np.random.default_rng(0)
VIDEOS, SENTENCES, ROTATION = (
    RNG.normal(size=(16, 8)),
    RNG.normal(size=(16, 8)),
    np.linalg.qr(RNG.normal(size=(8, 8)))[0],
)
ROWS = [(f"v{number}", "train" if number % 2 else "test", 1 + number // 4) for number in range(8)]


def write_set(
    folder: Path, card: str = "embedder: org/a\nnormalisation: unit\n", change=lambda vectors: vectors, **files
):
    """Write a table, features of videos and captions, a card and canaries; `change` maps the canaries' vectors."""
    folder.mkdir()
    lines = [f"{video},caption {video},c,{split},{task}" for video, split, task in ROWS]
    (folder / "table.csv").write_text("\n".join(["video,caption,category,split,task", *lines]))
    vectors = unit(np.random.default_rng(1).normal(size=(8, 8))).astype(np.float32)
    np.savez(folder / "videos.npz", **{row[0]: vector[None] for row, vector in zip(ROWS, vectors)})
    np.save(folder / "texts.npy", vectors)
    if card:
        (folder / "features.yaml").write_text(card)
        sides = {"videos": unit(change(VIDEOS)).astype(np.float32), "texts": unit(change(SENTENCES)).astype(np.float32)}
        np.savez(folder / "canaries.npz", video_ids=list(CLIPS), text_ids=list(TEXTS), **sides)
    return folder


def run_import(videos: Path, texts: Path | None = None, name: str = "mine") -> str:
    out = videos.parent / "runs" / "streams" / f"{name}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    captions = (texts or videos) / "texts.npy"
    return import_features(videos / "table.csv", videos / "videos.npz", captions, out, name)[1]


def stored(folder: Path) -> set[str]:
    found = (folder / "runs" / "streams" / "mine").rglob("*")
    return {file.name for file in found} & {"features.yaml", "canaries.npz"}


def test_a_card_and_canaries_are_stored_and_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert "card: embedder: org/a" in run_import(write_set(tmp_path / "a"))
    assert stored(tmp_path) == {"features.yaml", "canaries.npz"}
    assert main(["streams", "check", "mine"]) == 0
    assert "card: embedder: org/a" in capsys.readouterr().out


def test_an_import_without_a_card_leaves_none_of_the_one_before(tmp_path):
    run_import(write_set(tmp_path / "a"))
    assert "org/a" in run_import(write_set(tmp_path / "b", card=""))
    assert stored(tmp_path) == set()


def test_a_check_compares_canaries_and_reads_no_array_of_the_set(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_import(write_set(tmp_path / "a"))
    for file in (tmp_path / "runs" / "streams" / "mine").rglob("*.npy"):
        file.write_bytes(b"not an array")
    assert main(["streams", "check", "mine", "--features", "a"]) == 0
    assert capsys.readouterr().out.startswith("equal: ")
    write_set(tmp_path / "rotated", change=lambda vectors: vectors @ ROTATION)
    assert main(["streams", "check", "mine", "--features", "rotated/features.yaml"]) == 1
    said = capsys.readouterr().err
    assert "a fixed map away" in said
    assert "Traceback" not in said


def test_videos_of_one_embedder_are_not_mixed_with_captions_of_another(tmp_path):
    ours = write_set(tmp_path / "a")
    theirs = write_set(tmp_path / "b", card="embedder: org/b\n")
    with refuses("org/a", "org/b", where="b/features.yaml", remedy=True):
        run_import(ours, theirs)
    turned = write_set(tmp_path / "c", change=lambda vectors: vectors @ ROTATION)
    with refuses(where="c/canaries.npz", remedy=True):
        run_import(ours, turned)
    assert not (tmp_path / "runs" / "streams" / "mine").exists()
    run_import(ours, write_set(tmp_path / "d", change=lambda vectors: vectors * (1 + 1e-5)))


def test_another_embedder_is_not_imported_under_the_same_name(tmp_path):
    ours = write_set(tmp_path / "a")
    run_import(ours)
    run_import(ours)
    theirs = write_set(tmp_path / "b", card="embedder: org/b\n")
    with refuses("org/a", "org/b", where="b/features.yaml", remedy=True):
        run_import(theirs)
    run_import(theirs, name="other")
    with refuses(where="c/canaries.npz", remedy=True):
        run_import(write_set(tmp_path / "c", change=lambda vectors: vectors @ ROTATION))


@pytest.mark.parametrize("side", ["videos.npz", "texts.npy"])
def test_rows_that_are_not_normalised_contradict_a_card_that_says_so(tmp_path, side):
    folder = write_set(tmp_path / "a")
    if side == "texts.npy":
        np.save(folder / side, 3 * np.load(folder / side))
    else:
        np.savez(folder / side, **{name: 3 * array for name, array in np.load(folder / side).items()})
    with refuses("3", "unit", where=f"a/{side}", remedy=True):
        run_import(folder)
    (folder / "features.yaml").write_text("embedder: org/a\nnormalisation: none\n")
    run_import(folder)


@pytest.mark.parametrize("width", ["width: 7\n", ""])
def test_another_width_than_that_of_card_or_canaries_is_refused(tmp_path, width):
    folder = write_set(tmp_path / "a", card=f"embedder: org/a\n{width}")
    if not width:
        np.savez(folder / "videos.npz", **{video: np.ones((1, 5), np.float32) for video, _, _ in ROWS})
        np.save(folder / "texts.npy", np.ones((8, 5), np.float32))
    with refuses("8", remedy=True):
        run_import(folder)


def test_canaries_in_a_folder_of_features_are_not_a_video(tmp_path):
    folder = write_set(tmp_path / "a")
    for video, _, _ in ROWS:
        np.save(folder / f"{video}.npy", unit(np.ones((1, 8))).astype(np.float32))
    (folder / "videos.npz").unlink()
    (folder / "texts.npy").rename(tmp_path / "texts.npy")
    out = tmp_path / "mine.json"
    report = import_features(folder / "table.csv", folder, tmp_path / "texts.npy", out, "mine")[1]
    assert "only one of videos and captions has a card" in report


def test_canaries_without_a_card_and_missing_canaries_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = write_set(tmp_path / "a")
    (folder / "features.yaml").unlink()
    with refuses("canaries.npz", where="a", remedy=True):
        run_import(folder)
    run_import(write_set(tmp_path / "b"))
    (tmp_path / "b" / "canaries.npz").unlink()
    for given in ("b", "nowhere"):
        assert main(["streams", "check", "mine", "--features", given]) == 2
        assert given in capsys.readouterr().err
    (tmp_path / "runs" / "streams" / "mine" / "1" / "canaries.npz").unlink()
    assert main(["streams", "check", "mine", "--features", "a"]) == 2
    assert "mine" in capsys.readouterr().err
