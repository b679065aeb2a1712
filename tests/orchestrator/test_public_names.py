"""The face of the package: every public name is there, documented, and the same object as in its own file."""

from __future__ import annotations

import importlib

import pytest

import orchestrator


@pytest.mark.parametrize("name", orchestrator.__all__)
def test_a_public_name_is_handed_on(name):
    found = getattr(orchestrator, name)
    assert found is getattr(importlib.import_module(orchestrator._PUBLIC[name]), name)
    assert found.__module__ == orchestrator._PUBLIC[name], "name the file that defines it"
    assert found.__doc__


def test_an_unknown_name_is_refused_with_those_that_there_are():
    assert dir(orchestrator) == sorted(orchestrator.__all__)
    with pytest.raises(AttributeError, match=r"no attribute 'laod_model'\. Public names: .*load_model"):
        orchestrator.laod_model  # noqa: B018
