"""Runs a method over two tasks of noise as the loop does, on the CPU or on a simulated GPU."""

import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ctvr.methods import CONFIGURATIONS, find_method
from ctvr.methods.backbone.architectures import TINY
from ctvr.methods.backbone.clip import Clip
from ctvr.methods.backbone.load import load_backbone
from ctvr.methods.base import Batch, Method
from ctvr.methods.lambda_orthogonality import RelaxedConfig
from ctvr.orchestrator.data.batches import StreamData
from ctvr.orchestrator.data.config import DataConfig
from ctvr.orchestrator.learning.record.commits import Commits
from ctvr.orchestrator.learning.training.distributed import Workers
from ctvr.orchestrator.learning.training.loop import Loop, LoopConfig, Precision
from ctvr.orchestrator.settings.evaluation_config import EvaluationConfig
from ctvr.orchestrator.settings.optim_config import OptimConfig
from ctvr.orchestrator.settings.resolve import resolve
from ctvr.orchestrator.store.store import Store
from ctvr.orchestrator.streams.stream import Item, Stream, StreamTask
from tests.devices.fake_cuda import Watch, apart_from, pretended, watching
from tests.methods.conftest import make_small_clip
from tools.bench.gpu import GpuRow, time_step

FRAMES, PAIRS, STEPS, TASKS = 4, 6, 2, 2
BLOCKS = 2  # of each tower
FITS: dict[str, dict[str, Any]] = {
    "xbt": {"steps": 20},
    "lambda_orthogonality": {"map": RelaxedConfig(steps=20)},
}  # 500 by default
THINGS = ("man", "dog", "woman", "boy", "girl", "cat")
DEEDS = ("plays a guitar", "runs", "is walking in the park slowly", "cooks food", "sings", "rides a horse home")


def make_stream() -> Stream:
    tasks = []
    for index in range(TASKS):

        def items(split: str, count: int, index: int = index) -> tuple[Item, ...]:
            made = []
            for row in range(count):
                caption = f"a {THINGS[row % 6]} {DEEDS[(row + index) % 6]}"
                category = f"c{2 * index + row % 2}"
                made.append(Item(f"{split}{index}{row}", "", None, category, (caption,)))
            return tuple(made)

        names = (f"c{2 * index}", f"c{2 * index + 1}")
        tasks.append(StreamTask(f"task_{index + 1:02d}", names, items("train", PAIRS * STEPS), (), items("test", 5)))
    return Stream("noise", tuple(tasks), "ctvr", has_val=False)


class Noise:
    """Source of frames that are drawn from the name of an item."""

    def key(self, item: Item) -> str:
        return item.video

    def load(self, item: Item) -> np.ndarray:
        seed = int.from_bytes(item.video.encode(), "big") % 2**32
        return np.random.default_rng(seed).integers(0, 255, (FRAMES, 32, 32, 3), dtype=np.uint8)


def make_method(name: str, base_settings: Mapping[str, Any] | None = None, **settings: Any) -> Method:
    """Build a method with its defaults on the small backbone, or a configuration; `ewc:clip4clip` names the base."""
    torch.manual_seed(5)
    if name in CONFIGURATIONS:
        made = resolve({"method": name, "stream": "s", "data.num_frames": FRAMES})
        whole, clip = find_method(name), make_small_clip(BLOCKS)
        return whole(made.method, find_method(made.method.base)(made.base, clip) if whole.wraps else clip)
    name, _, base = name.partition(":")
    cls = find_method(name)
    own = {"num_frames": FRAMES} if "num_frames" in cls.Config.__dataclass_fields__ else {}
    if cls.wraps:
        config = cls.Config(**{**own, **FITS.get(name, {}), **({"base": base} if base else {}), **settings})
        return cls(config, make_method(config.base, **(base_settings or {})))
    reducer = getattr(cls.Config(), "reducer", None)
    if hasattr(reducer, "num_frames"):
        own["reducer"] = replace(reducer, num_frames=FRAMES)
    return cls(cls.Config(**{**own, **settings}), make_small_clip(BLOCKS))


# Faults as people plant them: what is added to the terms of a loss of a batch
PLANTS: dict[str, Callable[[Method, Batch], Tensor]] = {
    "a target on the CPU": lambda method, batch: F.cross_entropy(
        method.logits(batch), torch.arange(len(batch.video_ids))
    ),
    "a generator of the CPU": lambda method, batch: torch.randn(
        3, device=batch.frames.device, generator=torch.Generator()
    ).sum(),
    "a dropped float()": lambda method, batch: _without_float(method, batch),
    "an extra item()": lambda method, batch: method.scale() * 0.0 * method.scale().item(),
    "an operator that adds in any order": lambda method, batch: F.interpolate(
        method.encode_video(batch.frames)[None].float(), size=3, mode="linear"
    ).sum(),
}


def _without_float(method: Method, batch: Batch) -> Tensor:
    text, video = method.backbone.text(batch.tokens), method.encode_video(batch.frames).float()  # type: ignore
    with torch.autocast(video.device.type, enabled=False):
        return (text @ video.mT).sum()


PHASES = {"steps": ("_train",), "end_task": ("end_task",), "search": ("_store_galleries", "_evaluate")}


def run(
    name: str,
    device: torch.device,
    folder: Path,
    precision: Precision = "fp32",
    plant: str = "",
    optim: Mapping[str, Any] | None = None,
    data: Mapping[str, Any] | None = None,
    evaluation: Mapping[str, Any] | None = None,
    **settings: Any,
) -> tuple[Loop, dict[str, list[Watch]]]:
    """Train and evaluate on the device; a second call in the same folder resumes from the last commit.

    Returns the loop and the observations of each task, by phase.
    """
    method = make_method(name, **settings)
    if plant:
        plain = method.losses
        method.losses = lambda batch: {**plain(batch), "planted": PLANTS[plant](method, batch)}  # type: ignore
    config = DataConfig(num_frames=FRAMES, batch_size=PAIRS, prefetch_threads=0, **(data or {}))
    clip = next(module for module in method.modules() if isinstance(module, Clip))
    source: Any = Noise()
    tensors = StreamData(make_stream(), source, clip.tokenize, clip.mean, clip.std, config, device)
    optimizer = OptimConfig(**{"epochs": 1, "lr_scale": 20.0, **(optim or {})})
    made = LoopConfig(optimizer, EvaluationConfig(**(evaluation or {})), 0, precision)
    loop = Loop(method, tensors, made, Commits(Store.open(folder), "noise"), Workers(device=device))
    watches: dict[str, list[Watch]] = {phase: [] for phase in PHASES}
    for phase, names in PHASES.items():
        for each in names:
            _watch(method if each == "end_task" else loop, each, phase, watches[phase])
    for each in ("_encode_galleries", "_measure"):  # a search while a task is trained is none of its steps
        _replace(loop, each, lambda: apart_from("steps"))
    loop.run()
    return loop, watches


def _watch(owner: Any, name: str, phase: str, watches: list[Watch]) -> None:
    """Report every call of a function to a watch."""

    @contextmanager
    def seen() -> Iterator[None]:
        with watching(phase) as watch:
            yield
        watches.append(watch)

    _replace(owner, name, seen)


def _replace(owner: Any, name: str, around: Callable[[], Any]) -> None:
    plain = getattr(owner, name)

    def replaced(*given: Any) -> Any:
        with around():
            return plain(*given)

    setattr(owner, name, replaced)


@dataclass(frozen=True)
class Report:
    """Return the observations of a run's last task on the pretended GPU, as plain data."""

    waits: dict[str, int] = field(default_factory=dict)  # by phase
    places: dict[str, int] = field(default_factory=dict)  # phase, line and kind of each
    operators: dict[str, int] = field(default_factory=dict)  # by name: how often in training, 0 if elsewhere alone
    moved: list[str] = field(default_factory=list)  # tensors that a resumed run has otherwise
    far: list[str] = field(default_factory=list)  # tensors that a run on the CPU has otherwise


def _is_counted(phase: str, place: str) -> bool:
    """Return whether a wait counts: in a search only those of the method do, since the evaluation must copy every
    block.
    """
    return place.startswith("search ctvr/methods/" if phase == "search" else f"{phase} ")


def examine(name: str, precision: Precision, beside_cpu: bool = False, **more: Any) -> Report:
    """Run, resume the same run from its last commit, and optionally repeat it on the CPU, in a separate process."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # three steps are too few for some methods, which say so
    with tempfile.TemporaryDirectory() as folder:
        with pretended() as gpu:
            loop, watches = run(name, gpu, Path(folder), precision, **more)
            again, _ = run(name, gpu, Path(folder), precision, **more)
            state, resumed = loop.method.state_dict(), again.method.state_dict()
            assert all(tensor.device == gpu for tensor in state.values())
            assert again.record == loop.record
            moved = [key for key in state if not torch.equal(state[key], resumed[key])]
            state = {key: value.cpu() for key, value in state.items()}
        far = []
        if beside_cpu:
            there = run(name, torch.device("cpu"), Path(folder) / "cpu", precision, **more)[0].method.state_dict()
            far = [
                key for key in state if not torch.allclose(state[key], there[key], rtol=1e-3, atol=5e-4)
            ]  # a step is 0.02
    last = {phase: seen[-len(PHASES[phase]) :] for phase, seen in watches.items()}
    places: Counter[str] = Counter()
    for phase, seen in last.items():
        for each in seen:
            places.update({f"{phase} {place}": n for place, n in each.waits.items()})
    waits = {phase: sum(n for place, n in places.items() if _is_counted(phase, place)) for phase in PHASES}
    assert sum(n for place, n in places.items() if "learning/evaluation/ranking.py" in place) <= 1, (
        "ranks are read at once"
    )
    operators: Counter[str] = Counter()
    for watch in watches["steps"]:
        operators.update(watch.operators)
    for watch in (*watches["end_task"], *watches["search"]):
        operators.update(dict.fromkeys(watch.operators, 0))
    return Report(waits, dict(places), dict(operators), moved, far)


def bench(name: str) -> GpuRow:
    """Compute a row of `make bench-gpu`, in a separate process."""
    torch.set_num_threads(1)
    backbone = load_backbone(TINY, "shipped")
    with pretended() as gpu:
        try:
            return time_step(name, backbone, "bf16", gpu, pairs=4, frames=2, steps=2)
        finally:
            torch.use_deterministic_algorithms(False)
