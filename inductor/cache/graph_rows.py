"""A captured graph as bytes, and back.

In: a captured graph whose functions are torch's own. Out: bytes that another process reads.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

import torch
from torch import fx

from dynamo.aot.plain_graphs import Rows, rows_of
from dynamo.aot.records import Unsupported
from inductor.cache.graph_key import text_of_function


def plain_rows(gm: fx.GraphModule) -> tuple[Any, ...]:
    """The parts of `Rows`, with names for functions. Errors: Unsupported, Uncacheable."""
    rows = rows_of(gm)
    nodes = tuple([
        (op, name, text_of_function(target) if op == "call_function" else target, *rest)
        for op, name, target, *rest in rows.nodes])  # fmt: skip
    return nodes, rows.fakes, rows.storages, rows.constants


def rows_from(nodes: Any, fakes: Any, storages: Any, constants: Any) -> Rows:
    """The rows of these parts."""
    named = tuple([
        (op, name, function_of(target) if op == "call_function" else target, *rest)
        for op, name, target, *rest in nodes])  # fmt: skip
    return Rows(named, fakes, storages, constants)


def function_of(name: str) -> Any:
    """What `text_of_function` has named."""
    package, *path = name.split(".")
    value: Any = sys.modules[package] if package in sys.modules else getattr(torch.ops, package)
    for part in path:
        value = getattr(value, part)
    return value


def write_rows(gm: fx.GraphModule) -> bytes:
    """Errors: Unsupported, Uncacheable; those of pickle."""
    return pickle.dumps(plain_rows(gm), protocol=5)


KNOWN = ("cpu", "cuda")


def write_rows_of_known(gm: fx.GraphModule) -> bytes:
    """The same. Errors: also Unsupported for tensors on devices for which nothing is compiled."""
    rows = plain_rows(gm)
    for _, _, _, _, device, *_ in rows[1]:
        if device.type not in KNOWN:
            raise Unsupported(f"it has a tensor on {device}")
    return pickle.dumps(rows, protocol=5)


def read_rows(content: bytes) -> Rows:
    return rows_from(*pickle.loads(content))
