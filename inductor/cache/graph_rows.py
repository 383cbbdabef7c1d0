"""A captured graph as bytes, and back.

In: a captured graph whose functions are torch's own. Out: bytes that another process reads.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from dynamo.aot.plain_graphs import Rows, rows_of
from dynamo.aot.records import Unsupported
from dynamo.base.autograd_apply import AUTOGRAD_FUNCTION, apply_at, place_of_apply
from dynamo.base.decisions import is_in_graph
from dynamo.store.content import Stale
from inductor.cache.graph_key import OWN, TRUSTED, text_of_function

KNOWN = ("cpu", "cuda")


def write_rows(gm: fx.GraphModule, operators: Collection[str] = ()) -> bytes:
    """operators: of the program, that may be in it. Errors: Unsupported, also for tensors on
    devices for which nothing is compiled; Uncacheable; those of pickle."""
    rows = rows_of(gm)
    for device in rows.devices():
        if device.type not in KNOWN:
            raise Unsupported(f"it has a tensor on {device}")
    nodes = [(op, name, _place_of(target, operators) if op == "call_function" else target, *rest)
             for op, name, target, *rest in rows.nodes]  # fmt: skip
    parts = nodes, rows.fakes, rows.storages, rows.constants, rows.symbols
    return pickle.dumps(parts, protocol=5)


def _place_of(function: Any, operators: Collection[str]) -> Any:
    """A name, or the place of an autograd function, whose code the trace has looked through."""
    name = str(function)
    if name in operators:
        return name
    place = place_of_apply(function)
    if place is not None and not is_in_graph(getattr(function, AUTOGRAD_FUNCTION)):
        return place
    return text_of_function(function)


def is_own(function: torch._ops.OpOverload) -> bool:
    """Whether it is no operator of the program."""
    return function.name().partition("::")[0] in OWN


def read_rows(content: bytes) -> Rows:
    nodes, *others = pickle.loads(content)
    named = tuple([
        (op, name, _function_at(target) if op == "call_function" else target, *rest)
        for op, name, target, *rest in nodes])  # fmt: skip
    return Rows(named, *others)


def _function_at(place: Any) -> Any:
    """Errors: Stale."""
    if isinstance(place, str):
        return function_of(place)
    try:
        return apply_at(*place)
    except LookupError as why:
        raise Stale(str(why)) from None


def function_of(name: str) -> Any:
    """What `text_of_function` has named."""
    package, *path = name.split(".")
    # Not any module of that name: the program may have one that is called as operators are.
    value: Any = sys.modules[package] if package in TRUSTED else getattr(torch.ops, package)
    for part in path:
        value = getattr(value, part)
    return value
