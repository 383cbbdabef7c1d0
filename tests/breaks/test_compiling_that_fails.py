"""Compiling what lies behind a break ends in an error, or the user ends it: blocks are left."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import dynamo
from dynamo.base.errors import DynamoError

log: list[str] = []


@contextlib.contextmanager
def told() -> Iterator[None]:
    log.append("in")
    try:
        yield
    finally:
        log.append("out")


BLOCKS: dict[str, Any] = {
    "no_grad": torch.no_grad, "inference_mode": torch.inference_mode, "told": told,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "device": lambda: torch.device("cpu"), "warnings": warnings.catch_warnings,
}


def modes() -> list[Any]:
    return [torch.is_grad_enabled(), torch.is_inference_mode_enabled(), log.count("in") - log.count("out"),
            torch.is_autocast_enabled("cpu"), torch._C._len_torch_function_stack(),
            torch._C._len_torch_dispatch_stack(), warnings.filters]


def within(x: torch.Tensor, block: Any) -> torch.Tensor:
    with block():
        x = x + 1
        dynamo.graph_break()
        return x * 2


def inner(x: torch.Tensor, block: Any) -> torch.Tensor:
    with block():
        return called(x) * 3


def called(x: torch.Tensor) -> torch.Tensor:
    with torch.enable_grad():
        x = x + 1
        dynamo.graph_break()
        return x.sin()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, RuntimeError, DynamoError])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("function", [within, inner])
@pytest.mark.parametrize("failing", [2, 3])
def test_blocks_are_left(
    failing: int, function: Any, block: str, error: type[BaseException]
) -> None:
    """failing: the graph at which the backend does."""
    graphs = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(gm)
        if len(graphs) == failing:
            raise error("told the backend")
        return gm.forward

    before = modes()
    compiled = dynamo.compile(function, backend=backend)
    with contextlib.suppress(KeyboardInterrupt, SystemExit, DynamoError):
        compiled(torch.ones(2), BLOCKS[block])
    assert len(graphs) >= 2
    assert modes() == before


COUNT = 1


def test_a_value_that_changes_with_each_compile() -> None:
    """It is compiled for as often as the limit says, and then no more."""
    compiles: list[int] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        global COUNT
        COUNT += 1
        compiles.append(COUNT)
        return gm.forward

    def f(x: torch.Tensor) -> torch.Tensor:
        return x + COUNT

    compiled = dynamo.compile(f, backend=backend, recompile_limit=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(9):
            assert compiled(torch.zeros(1)) == COUNT
    assert len(compiles) <= 4
    texts = [str(warning.message) for warning in caught]
    assert re.search(r"test_compiling_that_fails.py:\d+ f: guards fail on the values", texts[0])
