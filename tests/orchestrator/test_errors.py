"""The tree of exceptions, as used by the command line and Ray, and as documented in errors.py."""

import inspect
import pickle
import re
from pathlib import Path

import pytest

from ctvr.orchestrator import errors
from ctvr.orchestrator.errors import ConfigError, CtvrError, MissingObject, TrialFailed, VideoError

ORCHESTRATOR = Path(errors.__file__).parent
CLASSES = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, CtvrError)]
BUILT_IN = (ValueError, KeyError, RuntimeError)


def example(cls: type[CtvrError]) -> CtvrError:
    if issubclass(cls, (VideoError, MissingObject)):
        return cls("a", "b: c")
    return TrialFailed("a: b", is_permanent=True) if issubclass(cls, TrialFailed) else cls("a: b")


@pytest.mark.parametrize("cls", CLASSES)
def test_an_exception_survives_pickling_and_rays_wrapper(cls):
    from ray.exceptions import RayTaskError

    error = example(cls)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert (str(again), vars(again)) == (str(error), vars(error))
    wrapped = pickle.loads(pickle.dumps(RayTaskError("work", "traceback", error))).as_instanceof_cause()
    assert isinstance(wrapped, cls)
    assert type(wrapped).status == cls.status
    assert str(wrapped.cause) == str(error)


def test_the_documented_tree_of_exceptions_is_the_actual_one():
    """The module's docstring contains name, built-in base and exit status of each class."""
    drawn = re.findall(r"── (\w+)(?: +\((\w+)\))? +(\d+)  ", str(errors.__doc__))
    real = [
        (each.__name__, next((base.__name__ for base in BUILT_IN if base in each.__bases__), ""), str(each.status))
        for each in CLASSES
    ]
    assert sorted(drawn) == sorted(real)


def test_every_public_exception_of_the_package_stands_in_the_tree():
    """A private one (`_Crash`) is caught in its own file; any other is a class of errors.py."""
    elsewhere = [
        f"{file.relative_to(ORCHESTRATOR)} {name}"
        for file in ORCHESTRATOR.rglob("*.py")
        if file.name != "errors.py"
        for name, bases in re.findall(r"^ *class (\w+)\(([^)]*)\):", file.read_text(encoding="utf-8"), re.MULTILINE)
        if not name.startswith("_") and re.search(r"(Error|Exception)\b", bases)
    ]
    assert elsewhere == []


@pytest.mark.wording
def test_the_line_of_a_config_error_is_made_of_its_parts():
    error = ConfigError("is not a number", "optim.epochs", "two", write=("optim.epochs=2",))
    assert str(error) == "optim.epochs: is not a number (got 'two'). Use optim.epochs=2."
    assert (error.described, error.settings) == ("optim.epochs: is not a number (got 'two')", ("optim.epochs",))
    moved = ConfigError("no method called 'lfw'", "method", remedy="All: x.", write=("lwf",), unknown="lfw").at("base")
    assert (str(moved), moved.write, moved.unknown) == ("base: no method called 'lfw'. All: x.", ("base=lwf",), "lfw")
    assert str(ConfigError("a: whole line. Omit it.")) == "a: whole line. Omit it."


def test_a_mistake_of_the_user_is_still_a_value_error():
    with pytest.raises(ValueError, match="^b$"):
        raise ConfigError("b")
    assert ConfigError.status == 2
    assert ConfigError("x").is_permanent
    assert not CtvrError("x").is_permanent
