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
from inductor.cache.graph_key import OWN, TRUSTED, text_of_function

KNOWN = ("cpu", "cuda")


def write_rows(gm: fx.GraphModule, operators: Collection[str] = ()) -> bytes:
    """operators: of the program, that may be in it. Errors: Unsupported, also for tensors on
    devices for which nothing is compiled; Uncacheable; those of pickle."""
    rows = rows_of(gm)
    for device in rows.devices():
        if device.type not in KNOWN:
            raise Unsupported(f"it has a tensor on {device}")
    nodes = [(op, name, _name(target, operators) if op == "call_function" else target, *rest)
             for op, name, target, *rest in rows.nodes]  # fmt: skip
    parts = nodes, rows.fakes, rows.storages, rows.constants, rows.symbols
    return pickle.dumps(parts, protocol=5)


def _name(function: Any, operators: Collection[str]) -> str:
    name = str(function)
    return name if name in operators else text_of_function(function)


def is_own(function: torch._ops.OpOverload) -> bool:
    """Whether it is no operator of the program."""
    return function.name().partition("::")[0] in OWN


def read_rows(content: bytes) -> Rows:
    nodes, *others = pickle.loads(content)
    named = tuple([
        (op, name, function_of(target) if op == "call_function" else target, *rest)
        for op, name, target, *rest in nodes])  # fmt: skip
    return Rows(named, *others)


def function_of(name: str) -> Any:
    """What `text_of_function` has named."""
    package, *path = name.split(".")
    # Not any module of that name: the program may have one that is called as operators are.
    value: Any = sys.modules[package] if package in TRUSTED else getattr(torch.ops, package)
    for part in path:
        value = getattr(value, part)
    return value
