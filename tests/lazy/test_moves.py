"""Operators that change the sizes of their operand in place, in traces that are followed in C++."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils._python_dispatch import _disable_current_modes

from dynamo import lazy

STEPS = 6


def run(program: Callable[[int], list[torch.Tensor]], steps: int) -> list[list[torch.Tensor]]:
    """What each step of a program gives, with random numbers of its own."""
    found = []
    for step in range(steps):
        torch.manual_seed(step)
        results = program(step)
        lazy.mark_step()
        reals = [lazy.eager(tensor) for tensor in results]
        with _disable_current_modes():
            found.append([tensor.detach().clone() for tensor in reals])
    return found


def agree(program: Callable[[int], list[torch.Tensor]], steps: int = STEPS) -> int:
    """A program gives in a mode what it gives in eager, with the same strides; how many operations
    were followed."""
    expected = run(program, steps)
    with lazy.mode("cpu", "eager"):
        found = run(program, steps)
    for wanted, given in zip(expected, found, strict=True):
        for one, other in zip(wanted, given, strict=True):
            assert one.stride() == other.stride()
            torch.testing.assert_close(one, other)
    return lazy.metrics().followed


MOVES: dict[str, Callable[[torch.Tensor], Any]] = {
    "t_": lambda x: x.t_(),
    "transpose_": lambda x: x.transpose_(0, 1),
    "unsqueeze_": lambda x: x.unsqueeze_(1),
    "squeeze_": lambda x: x.squeeze_(),
    "as_strided_": lambda x: x.as_strided_((2, 2), (3, 1), 1),
    "swapaxes_": lambda x: x.swapaxes_(0, 1),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves_are_followed(name: str) -> None:
    def step(number: int) -> list[torch.Tensor]:
        x = torch.randn(3, 4) * 2
        before = x.detach()
        MOVES[name](x)
        y = x + 1
        x.add_(0.5)
        return [x, y, before]

    followed = agree(step)
    ends = lazy.explain()
    assert followed >= (STEPS - 2) * ends[-1].operations, lazy.metrics()


def test_moves_one_after_another() -> None:
    def step(number: int) -> list[torch.Tensor]:
        x = torch.randn(2, 3, 4).sin()
        x.transpose_(0, 2).squeeze_().unsqueeze_(0)
        y = x.exp()
        x.transpose_(1, 2)
        view = x[0]
        view.mul_(3)
        return [x, y, view]

    assert agree(step) >= 20


def test_pools_that_are_channels_last() -> None:
    """ATen's pool to one pixel changes strides in place."""
    def step(number: int) -> list[torch.Tensor]:
        x = torch.randn(2, 8, 6, 6).to(memory_format=torch.channels_last)
        return [functional.adaptive_avg_pool2d(x.relu(), 1) * 2]

    assert agree(step) >= (STEPS - 2) * lazy.explain()[-1].operations


def test_known_tensors_are_moved() -> None:
    """The tensor has its value since the step before, or is an ordinary one."""
    kept: list[torch.Tensor] = []

    def step(number: int) -> list[torch.Tensor]:
        if number == 0:
            kept[:] = [torch.randn(3, 4) + 1]
        kept[0].t_()
        given = torch.arange(6.0).reshape(2, 3)
        given.t_()
        return [kept[0] * 2, given + 1]

    agree(step)


@pytest.mark.parametrize("other", [0, 1, 2])
def test_a_trace_is_left_after_a_move(other: int) -> None:
    def step(number: int) -> list[torch.Tensor]:
        x = torch.randn(3, 4) * 2
        view = x[1:]
        x.t_()
        if number == 3 and other == 0:
            x = x.cos()
        if number == 3 and other == 1:
            x.squeeze_(0)
        y = x.sum(0)
        if number == 3 and other == 2:
            x.unsqueeze_(0)
        return [x, y, view]

    assert agree(step) >= 8


def test_looks_at_what_was_moved() -> None:
    def step(number: int) -> list[torch.Tensor]:
        x = torch.randn(3, 4) * 2
        x.t_()
        x.tolist()
        y = x + 1
        y.t_()
        return [x, y] if float(y[0, 0]) > -100 else [x]

    assert agree(step) >= 8


def test_moves_under_autograd() -> None:
    def step(number: int) -> list[torch.Tensor]:
        w = torch.randn(3, 4, requires_grad=True)
        x = w * 2
        x.t_()
        x.unsqueeze_(0)
        y = x.sin()
        (y.sum() + x.square().sum()).backward()
        assert w.grad is not None
        return [w.grad, y, x]

    assert agree(step) >= 20


def test_sizes_that_grow_are_eagers() -> None:
    """`resize_` is no view: nothing of the trace is followed from there."""
    def step(number: int) -> list[torch.Tensor]:
        x = torch.randn(4) * 2
        x.resize_(2)
        return [x + 1]

    agree(step)


@pytest.mark.parametrize("inference", [False, True])
def test_a_followed_graph_runs_below_all(inference: bool) -> None:
    """No modes, no gradients, no casts; and all is as before when it has run, or failed."""
    seen: list[tuple[Any, ...]] = []
    fails = [False]

    def state() -> tuple[Any, ...]:
        return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
                torch._C._len_torch_dispatch_stack(),
                torch._C._is_torch_function_all_disabled(),
                torch._C._dispatch_tls_local_include_set(),
                torch._C._dispatch_tls_local_exclude_set())  # fmt: skip

    def backend(module: Any, inputs: Any) -> Any:
        def call(*args: Any) -> Any:
            seen.append(state())
            if fails[0]:
                raise ValueError("the graph fails")
            return module(*args)
        return call

    class Functions(torch.overrides.TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    x = torch.randn(3)
    with lazy.mode("cpu", backend), torch.inference_mode(inference), Functions(), \
            torch.autocast("cpu", torch.bfloat16):  # fmt: skip
        for step in range(5):
            before = state()
            fails[0] = step == 4
            y = x * 2 + 1
            lazy.mark_step()
            assert state() == before
            with _disable_current_modes():
                torch.testing.assert_close(lazy.eager(y), x * 2 + 1)
    assert lazy.metrics().followed >= 6
    assert len(seen) >= 4
    assert all(found[:4] == (False, False, 0, True) for found in seen), seen
    assert len(set(map(repr, seen))) == 1
