"""Runs a function in a child, for code that must not be loaded in the process of pytest (see tests/conftest.py)."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any


def in_subprocess(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Run a function in a child and return its result; the call is pickled, and a crash of the child fails the test."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments, **named).result()
