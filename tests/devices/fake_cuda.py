"""A simulated GPU: tensors that report `cuda:0`, hold their numbers on the CPU, and raise errors where CUDA would.

Every tensor of the device is a wrapper without memory. Torch's spare device (PrivateUse1) carries it, so that autograd
treats it as an accelerator's tensor; Python sees `cuda:0`. Each operator is checked, counted and then computed on the
numbers. It finds:

    devices      a CPU tensor with dimensions next to one of the device, a CPU generator, a conversion to NumPy
    types        matrix products of integers; under autocast CUDA's own lists decide who gets bfloat16
    cuDNN        the backward pass of an LSTM that ran in evaluation mode
    waits        reads of the device by the host, and copies that block, with the lines of our code that cause them
    operators    all that were dispatched, by name

It does not see kernels and their numbers (they are the CPU's), streams, memory, time, autocast's cache of cast weights,
other limits of cuDNN, or collectives of NCCL.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed.tensor  # its annotations need the class torch.Generator, which is patched below
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode

GPU = torch.device("cuda:0")
NAME = "pretended"
ROOT = Path(__file__).resolve().parents[2]
ROOMS = tuple(str(ROOT / "ctvr" / room) for room in ("methods", "orchestrator"))
aten = torch.ops.aten
AnyGenerator = torch.Generator

# Operators whose result the host needs, or whose size depends on numbers
READS = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten._unique2.default,
    aten.unique_dim.default,
    aten.unique_consecutive.default,
}
INDEXED = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
COPIES = {aten._to_copy.default, aten.copy_.default}
PRODUCTS = {aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default, aten.mv.default}


class Trespass(AssertionError):
    """Raised for an operation that CUDA would refuse."""


_generators: list[torch.Generator] = []  # of the device; torch forgets whatever else could mark one


class Pretended(Tensor):
    """A tensor of the device; `host` holds its numbers."""

    host: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, real: Tensor) -> Pretended:
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, no-any-return]
            cls,
            real.shape,
            strides=real.stride(),
            storage_offset=real.storage_offset(),
            dtype=real.dtype,
            device=_spare(),
        )

    def __init__(self, real: Tensor) -> None:
        self.host = real

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return GPU

    @property
    def is_cuda(self) -> bool:  # type: ignore[override]
        return True

    def numpy(self, *given: Any, **named: Any) -> Any:
        raise Trespass("NumPy reads a tensor of the device")

    __array__ = numpy

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:  # a wrapper has no storage that torch could copy
            made = self.detach().clone()
            memo[id(self)] = nn.Parameter(made, self.requires_grad) if isinstance(self, nn.Parameter) else made
        return memo[id(self)]  # type: ignore[no-any-return]

    def __repr__(self, **given: Any) -> str:
        return f"Pretended({self.host!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


@cache
def _spare() -> torch.device:
    """Prepare torch's spare device: a backend in Python, and CUDA's lists of autocast."""
    from torch.utils import backend_registration as backend

    class Module(backend._DummyBackendModule):
        def get_amp_supported_dtype(self) -> list[torch.dtype]:
            return [torch.bfloat16, torch.float16]

        def _lazy_init(self) -> None:
            pass

        def get_rng_state(self, device: Any = None) -> Tensor:
            return torch.get_rng_state()

        def set_rng_state(self, state: Tensor, device: Any = None) -> None:
            torch.set_rng_state(state)

    backend._setup_privateuseone_for_python_backend(NAME, Module())
    _register_autocast()
    return torch.device(f"{NAME}:0")


# ------------------------------------------------------------------------------------------- precision

_libraries: list[Any] = []


def _register_autocast() -> None:
    """Cast as CUDA does, by the lists of torch's own header."""
    key = "AutocastPrivateUse1"
    header = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text()
    fallback = torch.library.Library("_", "IMPL")
    fallback.fallback(torch.library.fallthrough_kernel, key)
    library = torch.library.Library("aten", "IMPL")
    _libraries.extend((fallback, library))
    casts: dict[str, Callable[..., Any]] = {
        "LOWER_PRECISION_FP": lambda dtypes: torch.get_autocast_dtype(NAME),
        "FP32": lambda dtypes: torch.float32,
        "FP32_SET_OPT_DTYPE": lambda dtypes: torch.float32,
        "PROMOTE": lambda dtypes: torch.float32 if torch.float32 in dtypes else None,
    }
    for name, choose in casts.items():
        block = re.search(rf"#define AT_FORALL_{name}\(_\)(.*?)\n\n", header, re.S)
        assert block, f"torch's header has no list {name} any more"
        for op, overload in re.findall(r"_\((\w+)(?:, (\w+))?\)", block[1]):
            packet = getattr(aten, op)
            if (overload or "default") in packet.overloads():
                func = getattr(packet, overload or "default")
                library.impl(func, partial(_cast, func, choose), key, allow_override=True)


def _cast(func: Any, choose: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)):
        dtype = choose({x.dtype for x in _leaves((args, kwargs)) if isinstance(x, Tensor)})

        def cast(x: Tensor) -> Tensor:
            is_ours = isinstance(x, Pretended) and x.dtype in {torch.float32, torch.bfloat16, torch.float16}
            return x.to(dtype) if is_ours and dtype is not None else x

        return func(*_mapped(cast, args), **_mapped(cast, kwargs))


# ------------------------------------------------------------------------------------------- computing


class Watch:
    """Counts since its start: `waits` by line of our code, `operators` by name."""

    def __init__(self, phase: str) -> None:
        self.phase = phase
        self.waits: Counter[str] = Counter()
        self.operators: Counter[str] = Counter()

    @property
    def total(self) -> int:
        return sum(self.waits.values())


_watches: list[Watch] = []


_mode: list[str] = ["default"]  # of torch.cuda.set_sync_debug_mode, the last one counts


def _wait(what: str) -> None:
    if _mode[-1] == "warn":
        warnings.warn("called a synchronizing CUDA operation", UserWarning, stacklevel=2)
    if not _watches:
        return
    frame, place = sys._getframe(1), "torch"
    while frame is not None:
        if frame.f_code.co_filename.startswith(ROOMS):
            place = f"{Path(frame.f_code.co_filename).relative_to(ROOT)}:{frame.f_lineno}"
            break
        frame = frame.f_back  # type: ignore[assignment]
    for watch in _watches:
        watch.waits[f"{place} {what}"] += 1


@contextmanager
def watching(phase: str = "") -> Iterator[Watch]:
    """Count until the end of a `with` block, except in `apart_from` blocks."""
    watch = Watch(phase)
    _watches.append(watch)
    try:
        yield watch
    finally:
        _watches.remove(watch)


@contextmanager
def apart_from(phase: str) -> Iterator[None]:
    """Pause the watches of this phase inside."""
    former = list(_watches)
    _watches[:] = [watch for watch in former if watch.phase != phase]
    try:
        yield
    finally:
        _watches[:] = former


def _leaves(x: Any) -> Iterator[Any]:
    """Flatten the lists in an operator's arguments; torch's own pytree would take half of a run's time."""
    if isinstance(x, (tuple, list)):
        for each in x:
            yield from _leaves(each)
    elif isinstance(x, dict):
        yield from _leaves(tuple(x.values()))
    else:
        yield x


def _mapped(change: Callable[[Tensor], Any], x: Any) -> Any:
    """Return the same structure with every tensor changed."""
    if isinstance(x, Tensor):
        return change(x)
    if type(x) in (tuple, list):
        return type(x)([_mapped(change, each) for each in x])
    return {name: _mapped(change, each) for name, each in x.items()} if isinstance(x, dict) else x


def _host(x: Tensor) -> Tensor:
    return x.host if isinstance(x, Pretended) else x


def _made(x: Tensor) -> Tensor:
    return x if isinstance(x, Pretended) else Pretended(x)


def _compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    flat = list(_leaves((args, kwargs)))
    ours = [x for x in flat if isinstance(x, Pretended)]
    others = [x for x in flat if isinstance(x, Tensor) and not isinstance(x, Pretended)]
    name = str(func)
    target = kwargs.get("device")
    makes = bool(ours) if target is None else torch.device(target).type in {NAME, "cuda"}
    for watch in _watches:
        watch.operators[name] += 1
    if func in COPIES:
        _check_copy(func, args, kwargs, makes)
    elif ours:
        _check(func, name, args, ours, others)
    if makes or ours:
        generator = next((x for x in flat if isinstance(x, AnyGenerator)), None)
        if generator is not None and all(generator._cdata != one._cdata for one in _generators):
            raise Trespass(f"{name}: a CPU generator draws for the device")
    if target is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    result = func(*_mapped(_host, args), **_mapped(_host, kwargs))
    if not makes and func is not aten.copy_.default:
        return result
    if func._schema.is_mutable and args and isinstance(args[0], Tensor) and _returns_first(func):
        return args[0]
    return _mapped(_made, result)


def _returns_first(func: Any) -> bool:
    first = func._schema.arguments[0].alias_info
    returned = func._schema.returns[0].alias_info if func._schema.returns else None
    return first is not None and first.is_write and returned is not None and returned.is_write


def _check(func: Any, name: str, args: Any, ours: list[Pretended], others: list[Tensor]) -> None:
    if func in READS:
        _wait(name)
    if func in INDEXED:
        indices = [x for x in args[1] if x is not None]
        if any(x.dtype in {torch.bool, torch.uint8} for x in indices):
            _wait("boolean mask")
        if any(not isinstance(x, Pretended) for x in indices):
            _wait("index from the CPU")
        others = [x for x in others if not any(x is index for index in indices)]
        if not isinstance(args[0], Pretended):
            raise Trespass(f"{name}: a CPU tensor is indexed by one of the device")
    if name.startswith("aten.repeat_interleave.Tensor"):
        _wait(name)
    if strangers := [x for x in others if x.ndim]:
        raise Trespass(f"{name}: a CPU tensor {tuple(strangers[0].shape)} beside tensors of cuda:0")
    if func in PRODUCTS and not ours[0].dtype.is_floating_point:
        raise Trespass(f"{name}: CUDA has no matrix product of {ours[0].dtype}")


def _check_copy(func: Any, args: Any, kwargs: dict[str, Any], makes: bool) -> None:
    source = args[0] if func is aten._to_copy.default else args[1]
    target = makes if func is aten._to_copy.default else isinstance(args[0], Pretended)
    is_ours = isinstance(source, Pretended)
    if is_ours == target:
        return
    is_patient = bool(kwargs.get("non_blocking")) or (func is aten.copy_.default and len(args) > 2 and args[2])
    if is_ours or not (is_patient and getattr(source, "is_pretended_pinned", False)):
        _wait("copy to the CPU" if is_ours else "copy to the device")


class _Devices(TorchFunctionMode):
    """Replace `cuda` in the arguments of torch functions by the pretended device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.tensor or func is torch.as_tensor:
            device = kwargs.pop("device", None)
            made = func(*args, **kwargs)
            return made if device is None or torch.device(device).type == "cpu" else made.to(_swap(device))
        if func in {Tensor.new_tensor, torch._C.TensorBase.new_tensor} and isinstance(args[0], Pretended):
            return torch.tensor(args[1], dtype=args[0].dtype).to(_spare())
        if "device" in kwargs:
            kwargs["device"] = _swap(kwargs["device"])
        if func in {Tensor.to, torch._C.TensorBase.to}:
            args = (args[0], *(_swap(x) for x in args[1:]))
        return func(*args, **kwargs)


def _swap(x: Any) -> Any:
    if isinstance(x, str) and x.startswith("cuda"):
        return _spare()
    return _spare() if isinstance(x, torch.device) and x.type == "cuda" else x


class _Factories(TorchDispatchMode):
    """Builds tensors that are created on the device from no other tensor; for the rest it only saves torch a detour."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        device = kwargs.get("device")
        makes = device is not None and torch.device(device).type in {NAME, "cuda"}
        return _compute(func, args, kwargs) if makes or Pretended in types else func(*args, **kwargs)


class _NoWayBack(torch.autograd.Function):
    """Result that cuDNN computed in evaluation mode, without a backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        raise Trespass("cudnn RNN backward can only be called in training mode")


def _lstm(plain: Callable[..., Any], x: Tensor, state: Any, weights: Any, *given: Any) -> Any:
    """Compute one layer and direction, rows first, by torch's formula, since the device has no kernel for it."""
    if not isinstance(x, Pretended):
        return plain(x, state, weights, *given)
    has_bias, layers, _, is_training, is_bidirectional, is_batch_first = given
    assert (has_bias, layers, is_bidirectional, is_batch_first) == (True, 1, False, True)
    (h, c), (w_in, w_own, b_in, b_own) = (part[0] for part in state), weights
    found = []
    for step in x.unbind(dim=1):
        i, f, g, o = (nn.functional.linear(step, w_in, b_in) + nn.functional.linear(h, w_own, b_own)).chunk(4, dim=1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        found.append(h)
    y = torch.stack(found, dim=1)
    return (y if is_training else _NoWayBack.apply(y)), h[None], c[None]


def _pin(x: Tensor, *given: Any) -> Tensor:
    pinned = x.clone()
    pinned.is_pretended_pinned = True  # type: ignore[attr-defined]
    return pinned


def _empty(empty: Any, *given: Any, pin_memory: bool = False, **more: Any) -> Any:
    return _pin(empty(*given, **more)) if pin_memory else empty(*given, **more)


def _rng_state(device: Any = None) -> Tensor:
    return torch.get_rng_state()


def _set_rng_state(state: Tensor, device: Any = None) -> None:
    torch.set_rng_state(state)


def _generator(device: Any = "cpu") -> torch.Generator:
    if torch.device(device).type != "cuda":
        return AnyGenerator(device)
    _generators.append(AnyGenerator())
    return _generators[-1]


@contextmanager
def pretended() -> Iterator[torch.device]:
    """Simulate a GPU inside a `with` block."""
    _spare()
    _generators.clear()
    autocast, get_dtype, is_on = torch.autocast, torch.get_autocast_dtype, torch.is_autocast_enabled

    def kind(name: str) -> str:
        return NAME if name == "cuda" else name

    patches = (
        mock.patch.object(torch, "autocast", lambda name, *given, **more: autocast(kind(name), *given, **more)),
        mock.patch.object(torch, "get_autocast_dtype", lambda name: get_dtype(kind(name))),
        mock.patch.object(torch, "is_autocast_enabled", lambda name="cuda": is_on(kind(name))),
        mock.patch.object(torch, "Generator", _generator),
        mock.patch.object(torch.cuda, "get_rng_state", _rng_state),
        mock.patch.object(torch.cuda, "set_rng_state", _set_rng_state),
        mock.patch.object(torch.cuda, "set_sync_debug_mode", _mode.append),
        mock.patch.object(torch.cuda, "synchronize", return_value=None),
        mock.patch.object(torch.cuda, "reset_peak_memory_stats", return_value=None),
        mock.patch.object(torch.cuda, "max_memory_allocated", return_value=0),
        mock.patch.object(Tensor, "pin_memory", _pin),
        mock.patch.object(torch, "empty", partial(_empty, torch.empty)),  # a mode of functions ends at its thread
        mock.patch.object(torch._VF, "lstm", partial(_lstm, torch._VF.lstm)),
        mock.patch.object(nn.RNNBase, "flatten_parameters", return_value=None),
        mock.patch.object(_foreach_utils, "_foreach_supported_types", [torch.Tensor, Pretended]),
    )
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        stack.enter_context(_Devices())
        stack.enter_context(_Factories())
        yield GPU
