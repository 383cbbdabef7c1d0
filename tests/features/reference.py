"""Compares a program of the reference tests: `what is there before`, a line `---`, the body of f.

It runs whole, and behind a graph break; compared are result, log, prints and exceptions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch

import dynamo
from tests.features.harness import build, facts_of, outcome

SETUP = """
import abc, collections, contextlib, contextvars, copy, dataclasses, enum, functools, io, itertools, math
import operator, random, sys, typing, warnings, weakref
LOG = []
def log(v): LOG.append(v); return v
"""


def shown(value: Any) -> Any:
    """A value with the types of all its parts."""
    if isinstance(value, BaseException):
        return shown(facts_of(value))
    if isinstance(value, torch.Tensor):
        return value.dtype, value.tolist()
    if type(value) in (list, tuple):
        return type(value), [*map(shown, value)]
    if isinstance(value, dict):
        return type(value).__name__, [(shown(k), shown(v)) for k, v in dict.items(value)]
    return type(value).__name__, re.sub(r" at 0x\w+", "", repr(value))


def result(f: Callable[..., Any], scope: dict[str, Any], call: int) -> Any:
    scope["LOG"].clear()
    with dynamo.config.patch(suppress_errors=False):
        return shown((outcome(f, call), scope["LOG"]))


def compare(text: str) -> None:
    before, _, body = ("\n" + text).rpartition("\n---\n")
    for start, calls in (("", 2), ("dynamo.graph_break()\n", 1)):
        dynamo.reset()
        eager, traced = build(start + body, SETUP + before), build(start + body, SETUP + before)
        compiled = dynamo.compile(traced["f"], backend="eager")
        for call in range(calls):
            want, got = result(eager["f"], eager, call), result(compiled, traced, call)
            assert want == got, f"call {call}\neager    {want}\ncompiled {got}"
