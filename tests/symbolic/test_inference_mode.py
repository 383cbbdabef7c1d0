"""Inference mode around and inside of compiled functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynamo
from dynamo.testing import CompileCounter

LINEAR = nn.Linear(3, 3)
LEAF = torch.rand(3, requires_grad=True)
enabled = torch.is_inference_mode_enabled


def whole(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        y = LINEAR(x)
    return y, enabled()


@torch.inference_mode()
def decorated(x: torch.Tensor) -> Any:
    return LINEAR(x) * 2, torch.is_grad_enabled(), enabled(), x.is_inference()


def nested(x: torch.Tensor) -> Any:
    with torch.inference_mode():
        a = x * LEAF
        with torch.inference_mode(False):
            b = x * LEAF
        with torch.no_grad():
            c = x + 1
        d = c.add_(1)
    return a, b, c, d, x * LEAF


def around_break(x: torch.Tensor) -> Any:
    y = x * LEAF
    with torch.inference_mode():
        z = y * 2
        dynamo.graph_break()
        w = z + LEAF
    return y, z, w, enabled(), y * LEAF


def raises_inside(x: torch.Tensor) -> Any:
    try:
        with torch.inference_mode():
            y = x + 1
            raise ValueError("no")
    except ValueError:
        return y, enabled(), x * LEAF


def gradients_inside(x: torch.Tensor) -> Any:
    with torch.inference_mode(), torch.enable_grad():
        return x * LEAF


def plain(x: torch.Tensor) -> Any:
    return LINEAR(x), torch.is_grad_enabled(), enabled(), x.is_inference()


def in_place(x: torch.Tensor) -> Any:
    x.add_(1)
    return x.view(-1), x[0]


def check(f: Callable[[torch.Tensor], Any], graphs: int | None, outside: bool) -> None:
    dynamo.reset()
    counter = CompileCounter("eager")
    compiled = dynamo.compile(f, backend=counter, fullgraph=graphs == 1)
    for call in range(3):
        results = []
        for run in (f, compiled):
            torch.manual_seed(call)
            with torch.inference_mode(outside):
                x = torch.rand(2, 3)
                results.append([*run(x), x, torch.is_grad_enabled()])
            assert not enabled() and torch.is_grad_enabled()
        for want, got in zip(*results, strict=True):
            if isinstance(want, torch.Tensor):
                assert torch.equal(want, got) and want.requires_grad == got.requires_grad
                assert want.is_inference() == got.is_inference()
            else:
                assert want == got
    assert graphs is None or counter.frame_count == graphs
    assert not dynamo.counters["internal_errors"]


@pytest.mark.parametrize("f", [whole, decorated, nested, raises_inside])
def test_one_graph(f: Callable[[torch.Tensor], Any]) -> None:
    check(f, 1, outside=False)


@pytest.mark.parametrize("f", [whole, decorated, plain, in_place, raises_inside])
def test_inside_of_inference_mode(f: Callable[[torch.Tensor], Any]) -> None:
    check(f, 1, outside=True)


@pytest.mark.parametrize("f", [around_break, gradients_inside])
@pytest.mark.parametrize("outside", [False, True])
def test_any_graphs(f: Callable[[torch.Tensor], Any], outside: bool) -> None:
    check(f, None, outside)


def test_mode_is_guarded() -> None:
    compiled = dynamo.compile(plain, backend="eager")
    x = torch.rand(2, 3)
    for mode in (True, False, True):
        with torch.inference_mode(mode):
            assert compiled(x)[2] is mode and compiled(x)[0].is_inference() is mode


def test_a_view_whose_history_torch_refuses_to_tell() -> None:
    """Made in inference mode of a normal tensor that was written into since."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.exp() * 2

    compiled = dynamo.compile(program, backend="eager")
    for writes in (False, True):
        base = LEAF + 1
        with torch.inference_mode():
            view = base[1:]
            if writes:
                base.add_(1)
                with pytest.raises(RuntimeError, match="created in inference mode"):
                    _ = view.is_leaf
            assert torch.equal(compiled(view), program(view))
            torch.testing.assert_close(dynamo.compile(program)(view), program(view))
