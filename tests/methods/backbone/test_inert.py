"""A checkpoint yields its tensors whatever else it contains, and no code that it names is called."""

import argparse
import enum
import io
import pickle
import warnings
from collections import OrderedDict, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ctvr.methods.backbone.inert import MAX_OBJECTS, read

STATE = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.n": torch.tensor([1, 2]), "half": torch.ones(3).half()}


class Kind(enum.Enum):
    ONE = 1


class Attributes(dict):
    """A dictionary type that is not Python's own, like EasyDict and Lightning's hyperparameters."""


class Built:
    """An object whose class the reader cannot import."""

    made = 0

    def __init__(self) -> None:
        Built.made += 1

    def __setstate__(self, state: object) -> None:
        raise AssertionError("a class of the file was called")


def saved(whole: object, **settings: object) -> bytes:
    file = io.BytesIO()
    torch.save(whole, file, **settings)
    return file.getvalue()


BESIDE = {
    "namespace": argparse.Namespace(lr=1),
    "numpy scalar": np.float64(0.5),
    "numpy array": np.ones(2),
    "path": Path("x"),
    "enum": Kind.ONE,
    "defaultdict": defaultdict(list),
    "attributes": Attributes(lr=1),
    "object": Built(),
    "function": argparse.ArgumentParser.parse_args,
    "optimizer": {"state": {0: {"exp_avg": torch.zeros(2)}}, "param_groups": [{"lr": 1e-6}]},
}


@pytest.mark.parametrize("settings", [{}, {"pickle_protocol": 4}])
@pytest.mark.parametrize("beside", BESIDE)
def test_weights_come_through_whatever_is_next_to_them(beside, settings):
    name = beside if beside == "optimizer" else "args"
    found = read(saved({"epoch": 3, name: BESIDE[beside], "model": STATE}, **settings))
    assert found.keys() == STATE.keys()
    for each, value in STATE.items():
        assert torch.equal(found[each], value)
        assert found[each].dtype == value.dtype
    assert Built.made == 1


@pytest.mark.parametrize("beside", BESIDE)
def test_legacy_torch_format_is_read(beside):
    whole = torch.arange(12.0)
    views = {"first": whole[:4], "turned": whole.reshape(3, 4).T, "empty": torch.zeros(0)}
    name = beside if beside == "optimizer" else "args"
    old = saved({name: BESIDE[beside], "model": {**STATE, **views}}, _use_new_zipfile_serialization=False)
    found = read(old)
    assert found.keys() == STATE.keys() | views.keys()
    assert all(torch.equal(found[each], value) for each, value in {**STATE, **views}.items())
    assert Built.made == 1
    for lost in (1, 8, 9):  # of the last storage, which may be the empty one, and of its length
        with pytest.raises(ValueError, match="it is truncated"):
            read(old[:-lost])


def test_several_dictionaries_become_dotted_names_and_one_is_left_out():
    found = read(saved({"model": OrderedDict(STATE), "model_ema": Attributes(STATE)}))
    assert set(found) == {f"{kind}.{name}" for kind in ("model", "model_ema") for name in STATE}
    assert set(read(saved({"state_dict": {"model": STATE}}))) == set(STATE)
    assert set(read(saved(STATE["half"]))) == {""}


@pytest.mark.parametrize(
    ("twice", "name"),
    [({1: torch.zeros(2), "1": torch.ones(2)}, "1"), ({"a.b": torch.zeros(2), "a": {"b": torch.ones(2)}}, "a.b")],
)
def test_two_tensors_of_one_name_are_refused(twice, name):
    with pytest.raises(ValueError, match=f"it holds two tensors named {name}"):
        read(saved(twice))


def test_parameters_of_every_kind_are_tensors():
    plain, marked = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    marked.note = "an attribute"
    shared = torch.arange(8.0)
    found = read(saved({"plain": plain, "marked": marked, "part": shared[2:4], "turned": shared.reshape(2, 4).T}))
    assert torch.equal(found["plain"], torch.ones(2))
    assert torch.equal(found["marked"], torch.ones(2))
    assert torch.equal(found["part"], shared[2:4])
    assert torch.equal(found["turned"], shared.reshape(2, 4).T)


def net() -> nn.Module:
    made = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    made.register_buffer("passing", torch.ones(1), persistent=False)
    return made


def test_a_whole_module_is_read_as_its_state_without_its_class():
    made = net()
    found = read(saved({"model": made, "epoch": 1}))
    assert found.keys() == made.state_dict().keys()
    assert all(torch.equal(value, found[name]) for name, value in made.state_dict().items())


def test_a_scripted_archive_is_read_and_its_programs_are_not():
    made, file = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)).half(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(made), file)
    found = read(file.getvalue())
    assert found.keys() == made.state_dict().keys()
    assert all(torch.equal(value, found[name]) for name, value in made.state_dict().items())


def test_recursive_objects_are_refused():
    wide: dict[str, object] = {}
    for _ in range(30):
        wide = {"a": wide, "b": wide}
    with pytest.raises(ValueError, match=f"it holds more than {MAX_OBJECTS} objects"):
        read(saved(wide))
    round_ = {"x": torch.ones(1)}
    round_["self"] = round_
    assert set(read(saved(round_))) == {"x"}


@pytest.mark.parametrize("program", [eval, __import__("os").system, __import__("subprocess").check_call])
def test_a_file_that_names_a_program_is_refused_even_with_weights(program):
    content = saved({"state_dict": STATE, "hook": program})
    with pytest.raises(pickle.UnpicklingError, match="it refers to the program .*; do not use this file"):
        read(content)
