"""The readers of files that users and other people write, each with a small whole file that it accepts.

A reader may return, or raise an error of the project. The readers in `methods`, which does not import our errors, may
raise a ValueError or a FileNotFoundError, which their callers catch.
"""

import importlib.util
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.fuzz.files import (
    CARD,
    JOURNAL,
    NARRATIONS,
    PLAN,
    PRESET,
    SENTENCES,
    SPLIT,
    TABLE,
    TOLD,
    VATEX,
    VIDEOS,
    YAML,
    cifar_pickle,
    make_arrays,
    make_canaries,
    make_file,
    make_hf,
    make_json,
    make_lines,
    make_model,
    make_npy,
    make_picture,
    make_pt,
    make_questions,
    make_video,
    manifest,
    small_bundle,
    small_bundle_text,
)
from tests.own_towers import CLIP

Form = Literal["bytes", "json", "lines", "table"]


@dataclass(frozen=True)
class Target:
    """A reader.

    Attributes:
        make: writes valid files into a folder and returns the name of the one to damage.
        form: how it can be damaged, apart from its bytes.
    """

    name: str
    make: Callable[[Path], str]
    read: Callable[[Path], object]
    form: Form = "bytes"
    also: tuple[type[Exception], ...] = ()  # raised as documented, and caught where it is called

    def errors(self) -> tuple[type[Exception], ...]:
        from ctvr.orchestrator.errors import CtvrError

        return (CtvrError, *self.also)


def _architecture(path: Path) -> object:
    from ctvr.methods.backbone.own_architecture import read_architecture, tokenizer_digests

    return tokenizer_digests(str(path), read_architecture(str(path)))


def _features(path: Path) -> object:
    """Import a table with features, as `ctvr streams import features` does."""
    from ctvr.orchestrator.importers.features import import_features

    table = path.parent / "table.csv"
    table.write_text(TABLE)
    return import_features(table, path, None, path.parent / "out.json", "out")


def _card(path: Path) -> object:
    from ctvr.orchestrator.vectors.card import read_card

    return read_card(path)


def _canaries(path: Path) -> object:
    from ctvr.orchestrator.vectors.canary_vectors import read_canaries

    return read_canaries(path)


def _vectors(path: Path) -> object:
    from ctvr.orchestrator.migration.inputs import read_set

    return read_set(str(path), path.parent)


def _read_npy(path: Path) -> object:
    from ctvr.orchestrator.data.arrays import read_features

    return read_features(str(path))


def _read_images(path: Path) -> object:
    from ctvr.orchestrator.data.images import _read

    return _read(str(path))


def _stream(path: Path) -> object:
    from ctvr.orchestrator.streams.check import check_stream
    from ctvr.orchestrator.streams.load import load_stream

    stream = load_stream(path, path.parent / "runs")
    return stream.digest, check_stream(stream)


def _table(path: Path) -> object:
    from ctvr.orchestrator.importers.csv_table import import_csv

    return import_csv(path, path.parent, path.parent / "out.json", "out")


def _hf(path: Path) -> object:
    from ctvr.orchestrator.importers.hf_dataset import import_dataset

    folder = path.parent if path.name == "stream.json" else path.parent.parent
    return import_dataset(folder, folder / "out.json")


def _captions(path: Path) -> object:
    from ctvr.orchestrator.importers.captions import (
        read_entries,
        read_msrvtt_captions,
        read_msrvtt_splits,
        read_narrations,
    )

    if path.name == "narrations.json":
        return list(read_narrations(path))
    if path.name == "vatex.json":
        return list(read_entries(path, "videoID", "enCap", list))
    return read_msrvtt_captions([path]), read_msrvtt_splits(path)


def _split(path: Path) -> object:
    from ctvr.orchestrator.importers.ctvr import read_split

    return read_split(path)


def _questions(path: Path) -> object:
    from ctvr.orchestrator.importers.msrvtt_qa import import_questions

    return import_questions(path.parent, path.parent, path.parent / "out.json", "2")


def _cifar(path: Path) -> object:
    from ctvr.orchestrator.importers.images import _binary, _pickled

    return _binary(path, "cifar-10") if path.suffix == ".bin" else _pickled(path, "cifar-10")


def _settings(path: Path) -> object:
    from ctvr.orchestrator.settings.resolve import resolve
    from ctvr.orchestrator.sweeps.settings_file import read_settings

    found = {name: value for name, value in read_settings(path).items() if not name.startswith("base")}
    return resolve({"method": "zero_shot", "stream": "shapes-5", **found})


def _preset(path: Path) -> object:
    from ctvr.orchestrator.tables.presets import load_preset

    return load_preset(str(path))


def _plan(path: Path) -> object:
    """Read and use a plan as `ctvr sweep --resume` does before it loads the stream."""
    from ctvr.orchestrator.execution import ExecutionConfig
    from ctvr.orchestrator.on_ray.plan import read_plan
    from ctvr.orchestrator.sweeps.plan import read_request
    from ctvr.orchestrator.sweeps.session import restore_execution

    plan, kept = read_plan(path.parent, "s")
    restore_execution(ExecutionConfig(), plan, kept).check()
    return read_request(path, kept.get("request", {}))


def _told(path: Path) -> object:
    from ctvr.orchestrator.tracking.event_log import EventLog

    return EventLog(path.parent).runs()


def _outbox(path: Path) -> object:
    from ctvr.orchestrator.tracking.outbox import Outbox

    return Outbox(path.parent).read_all(path.stem)


def _journal(path: Path) -> object:
    from ctvr.orchestrator.on_ray.journal import HalvingTrial, Journal

    journal, trial = Journal(path, "s"), HalvingTrial(1, {}, {}, "1")
    for row, trials in journal.rows.items():
        for journal.rows[row][trial.label] in list(trials.values()):
            journal.read(row, trial)
    return journal.rows


def _model(path: Path) -> object:
    from ctvr.orchestrator.learning.record.method_state import read_model

    return read_model(path.parent)


def _checkpoint(path: Path) -> object:
    from ctvr.methods.backbone.checkpoint import read_checkpoint

    return read_checkpoint(path)


def _pickled_weights(path: Path) -> object:
    """Read an allowed file as the child of weights.py does; it reports every exception."""
    from ctvr.methods.backbone.inert import read
    from ctvr.orchestrator.text_files import read_bytes

    content = read_bytes(path)
    try:
        return {name: value.detach().clone() for name, value in read(content).items()}
    except Exception as error:
        raise ValueError(type(error).__name__) from error


def _picture(path: Path) -> object:
    from ctvr.methods.layers.replay.reference import _decode

    if not path.is_file():  # `files_below` lists no other
        raise FileNotFoundError(path)
    return _decode(path, 32)


def _film(path: Path) -> object:
    from ctvr.orchestrator.video.index import Limits, Watch, read_index

    limits = Limits()
    return read_index(path, limits, Watch(path, limits))


def _video_of_a_stream(path: Path) -> object:
    """Read a video of a stream. Only regular files reach a decoder: `missing_videos` excludes the others."""
    from ctvr.orchestrator.text_files import open_regular

    open_regular(path).close()
    return _film(path)


def _bundle(path: Path) -> object:
    """Read and check a bundle, or the text of one, as `ctvr runs verify --queries 0` does."""
    import zipfile

    from ctvr.orchestrator.bundles.bundle import read_bundle
    from ctvr.orchestrator.bundles.check import inconsistencies
    from ctvr.orchestrator.text_files import read_bytes

    if path.suffix == ".json":
        text, whole = read_bytes(path), path.with_suffix(".zip")
        whole.write_bytes(small_bundle())
        with zipfile.ZipFile(whole) as archive:
            arrays = {name: archive.read(name) for name in archive.namelist() if name != path.name}
        with zipfile.ZipFile(whole, "w") as archive:
            for name, content in {path.name: text, **arrays}.items():
                archive.writestr(name, content)
        path = whole
    return inconsistencies(read_bundle(path))


def _ranks(path: Path) -> object:
    from ctvr.orchestrator.jobs.compare import read_csv

    return read_csv(path)


TARGETS = (
    Target(
        "manifest", make_json("m.json", manifest("ctvr", captions=["hi"], segment=[0, 1.5], twin="x1")), _stream, "json"
    ),
    Target("manifest-qa", make_json("m.json", manifest("qa", captions=["why"], answers=["yes"])), _stream, "json"),
    Target("manifest-ucl", make_json("m.json", manifest("ucl", "npy")), _stream, "json"),
    Target("csv", make_file("t.csv", TABLE.encode), _table, "table"),
    Target("hf-rows", make_hf("train/metadata.jsonl"), _hf, "lines"),
    Target("hf-stream", make_hf("stream.json"), _hf, "json"),
    Target("msrvtt", make_json("c.json", SENTENCES | VIDEOS), _captions, "json"),
    Target("narrations", make_json("narrations.json", NARRATIONS), _captions, "json"),
    Target("vatex", make_json("vatex.json", VATEX), _captions, "json"),
    Target("split", make_file("s.pkl", lambda: pickle.dumps(SPLIT)), _split),
    Target("questions", make_questions, _questions, "json"),
    Target("cifar-bin", make_file("b.bin", lambda: bytes(3073 * 2)), _cifar),
    Target("cifar-pickle", make_file("data_batch_1", cifar_pickle), _cifar),
    Target("yaml", make_file("c.yaml", lambda: YAML), _settings),
    Target("card", make_file("features.yaml", lambda: CARD), _card),
    Target("canaries", make_canaries, _canaries),
    Target("architecture", make_json("a.json", CLIP), _architecture, "json", also=(ValueError,)),
    Target("preset", make_json("p.json", PRESET), _preset, "json"),
    Target("npy", make_npy((3, 6)), _read_npy),
    Target("npz", make_arrays("npz"), _features),
    Target("vectors", make_arrays("npz"), _vectors),
    Target("parquet", make_arrays("parquet"), _features),
    Target("tar", make_arrays("tar"), _features),
    Target("pkl", make_arrays("pkl"), _features),
    Target("pt", make_arrays("pt"), _features),
    *((Target("h5", make_arrays("h5"), _features),) if importlib.util.find_spec("h5py") else ()),
    Target("images", make_npy((2, 8, 8, 3)), _read_images),
    Target("plan", make_json("plan.json", PLAN), _plan, "json"),
    Target("told", make_lines("abc.jsonl", TOLD), _told, "lines"),
    Target("outbox", make_lines("abc.jsonl", TOLD), _outbox, "lines"),
    Target("journal", make_lines("reports.jsonl", JOURNAL), _journal, "lines"),
    Target("model", make_model("model.json"), _model, "json", also=(FileNotFoundError,)),
    Target("model-weights", make_model("model.safetensors"), _model, also=(FileNotFoundError,)),
    Target(
        "index",
        make_model("model.safetensors.index.json"),
        _checkpoint,
        "json",
        also=(ValueError, FileNotFoundError),
    ),
    Target("checkpoint", make_model("model.safetensors"), _checkpoint, also=(ValueError, FileNotFoundError)),
    Target("bundle", make_file("b.zip", small_bundle), _bundle),
    Target("bundle-text", make_file("bundle.json", small_bundle_text), _bundle, "json"),
    Target("ranks", make_file("r.csv", lambda: b"query,rank\na#0,1\nb#0,2.5\n"), _ranks, "table"),
    Target("pickle", make_pt, _pickled_weights, also=(ValueError, FileNotFoundError)),
    Target("png", make_picture("p.png"), _picture, also=(ValueError, FileNotFoundError)),
    Target("jpeg", make_picture("p.jpg"), _picture, also=(ValueError, FileNotFoundError)),
    *(Target(form, make_video(f"v.{form}"), _video_of_a_stream) for form in ("mp4", "mkv", "avi", "ts", "webm")),
)
