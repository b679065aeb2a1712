"""Every form of an import that a syntax tree shows is found."""

import pytest

from ctvr.orchestrator.keys.imports import absolute, names_in


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import a.b as c, d", {"a.b", "d"}),
        ("from a import b, c", {"a", "a.b", "a.c"}),
        ("from a import *", {"a"}),
        ("from . import b", {"p.q", "p.q.b"}),
        ("from ..r import b", {"p.r", "p.r.b"}),
        ("import importlib\nimportlib.import_module('.b', __package__)", {"importlib", "p.q.b"}),
        ("__import__('a.b')", {"a.b"}),
        ("async def f():\n    match 1:\n        case 1:\n            import a", {"a"}),
        ("print 'python 2'", set()),
    ],
)
def test_modules(source, expected):
    assert set(names_in(source.encode(), "p.q.m", False).modules) == expected


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("import_module(name)", ("",)),
        ("import_module(f'a.b.{name}')", ("a.b",)),
        ("import_module('a.' + name)", ("a",)),
        ("import_module(f'.{name}', __package__)", ("",)),
        ("import_module(f'.heads.{name}', __package__)", ("p.heads",)),
        ("import_module('a.b')", ()),
    ],
)
def test_computed_names(call, expected):
    assert names_in(call.encode(), "p.m", False).computed == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("T = HERE / 'a' / 'b.json'", "a/b.json"),
        ("T = join(HERE, 'a', 'b.json')", "a/b.json"),
        ("class A:\n    T = read('b.json')", "b.json"),
    ],
)
def test_files_of_the_module_level(source, expected):
    assert expected in names_in(source.encode(), "m", False).files


def test_relative_names_above_the_package_have_no_package():
    assert absolute("..b", "p.q") == "p.b"
    assert absolute(".", "p") == "p"
    assert absolute("a.b", "p") == "a.b"
