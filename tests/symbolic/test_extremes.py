"""`min` and `max` of a tensor of no dimension and a number give one of the two objects, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.base.errors import Unsupported
from dynamo.testing import CompileCounter


@pytest.mark.parametrize("value", [0.2, 0.9, float("nan")])
@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("first", [True, False])
def test_the_winner_itself(name: str, first: bool, value: float) -> None:
    extreme = {"min": min, "max": max}[name]

    def program(x: torch.Tensor, others: torch.Tensor) -> tuple[Any, bool, torch.Tensor]:
        found = extreme(x, 0.5) if first else extreme(0.5, x)
        is_tensor = isinstance(found, torch.Tensor)
        if is_tensor:
            found.mul_(2)  # x itself is written
        return found, is_tensor, others + x

    results, inputs = [], []
    for call in (dynamo.compile(program), program):
        x = torch.tensor(value)
        results.append(call(x, torch.ones(3)))
        assert (results[-1][0] is x) == results[-1][1]
        inputs.append(x)
    (found, found_tensor, rest), (wanted, wanted_tensor, other) = results
    assert found_tensor == wanted_tensor and type(found) is type(wanted)
    torch.testing.assert_close([found, rest, inputs[0]], [wanted, other, inputs[1]], equal_nan=True)


def test_no_whole_graph() -> None:
    """Which object it is depends on the value."""
    with pytest.raises(Unsupported, match="depends on the values"):
        dynamo.compile(lambda x: max(x, 0.5) + 1, fullgraph=True)(torch.tensor(1.0))


VALUES = [0.2, 0.5, 0.9, -3.0, float("nan"), float("inf")]
USES = """max(x, 0.5) * t
t + min(x, 0.5)
t - max(0.5, x)
min(0.5, x) / t
min(1.0, 0.5 / (x + 1e-6)) * t
(max(x, 0.5) * 2 - 1) * t
t * (1 - min(x, 1)) + t * (1 + min(x, 1))
t > max(x, 0.1)
max(x, 0.1) <= t
torch.clamp(t, max=max(x, 0.5))
t.clamp(min=min(x, 0.5))
torch.mul(t, max(x, 0.1))
t.clone().mul_(max(x, 0.1)).add_(min(x, 0.1))
t.double() * max(x, 0.1)
t.sum() + max(x, 0.1)
t * max(t.abs().max(), 1e-3)
t * max(x, 0.1) if max(x, 0.1) is not None else None""".splitlines()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("text", USES)
def test_its_value_beside_a_tensor_is_part_of_one_graph(text: str, dtype: torch.dtype) -> None:
    program = eval(f"lambda x, t: {text}", {"torch": torch})
    if dtype is torch.float64:
        text = text.replace("t.sum()", "t.double().sum()")
        program = eval(f"lambda x, t: {text}", {"torch": torch})
    counter = CompileCounter()
    compiled = dynamo.compile(program, backend=counter, fullgraph=True)
    for value in VALUES:
        x, t = torch.tensor(value, dtype=dtype), torch.randn(3, 5)
        found, wanted = compiled(x, t), program(x, t)
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
    assert counter.frame_count == 1


def test_in_place_and_later_writes() -> None:
    """The winner is an object: what is written into the tensor later shows."""
    def program(x: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        bound = max(x, 0.5)
        x.add_(1)
        t *= bound
        return t + x, t * bound

    for value in VALUES:
        x, t = torch.tensor(value), torch.randn(4)
        compiled = dynamo.compile(program, fullgraph=True)
        given, other = (x.clone(), t.clone()), (x.clone(), t.clone())
        found, wanted = compiled(*given), program(*other)
        torch.testing.assert_close([found, given], [wanted, other], equal_nan=True)


def test_training_by_a_clipped_norm() -> None:
    def program(w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = min(1.0, 0.5 / (w.norm() + 1e-6))
        return (t @ (w * scale)).square().sum()

    compiled = dynamo.compile(program, fullgraph=True)
    for size in (1e-3, 1.0, 100.0):
        w, t = size * torch.randn(5, 4), torch.randn(3, 5)
        ours, theirs = w.clone().requires_grad_(), w.clone().requires_grad_()
        found, wanted = compiled(ours, t), program(theirs, t)
        found.backward()
        wanted.backward()
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(ours.grad, theirs.grad)


LOOKS = """(max(x, 0.5), t)
[min(x, 0.5) * 2, t + 1]
(isinstance(max(x, 0.5), float), t + 1)
(max(x, 0.5) is x, t)
(x is min(x, 0.5), t)
(type(max(x, 0.5) * 2).__name__, t)
t * float(max(x, 0.5))
torch.stack([t.sum(), torch.as_tensor(max(x, 0.5))])
(t * 2, t + 1 if max(x, 0.5) else t)
f"{max(x, 0.5)}"
min(max(x, 0.0), 1.0) * t
t.half() * max(x, 0.1)
t.long() * max(x, 0.1)
t ** max(x, 0.5)
max(x, 0.5) + max(x, 0.25) + t
torch.add(t, max(x, 0.5), alpha=2)
{"a": max(x, 0.5)}["a"] + 1""".splitlines()


@pytest.mark.parametrize("text", LOOKS)
def test_what_tells_which_it_is_runs_behind_a_break(text: str) -> None:
    program = eval(f"lambda x, t: {text}", {"torch": torch})
    compiled = dynamo.compile(program)
    for value in VALUES:
        x, t = torch.tensor(value), torch.randn(3, 5)
        assert_equal(compiled(x, t), program(x, t))


def assert_equal(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(found, tuple | list):
        assert len(found) == len(wanted)
        for mine, theirs in zip(found, wanted, strict=True):
            assert_equal(mine, theirs)
    elif isinstance(found, torch.Tensor | float):
        torch.testing.assert_close(found, wanted, equal_nan=True)
    else:
        assert found == wanted


def test_gradients_of_the_winner() -> None:
    """Where a number wins, none flows to the tensor; not zeros."""
    program = lambda x, t: (max(x, 0.5) * t).sum()  # noqa: E731
    for value in (0.2, 0.9):
        grads = []
        for call in (dynamo.compile(program), program):
            x, t = torch.tensor(value, requires_grad=True), torch.ones(3, requires_grad=True)
            call(x, t).backward()
            grads.append([x.grad, t.grad])
        assert (grads[0][0] is None) == (grads[1][0] is None) == (value < 0.5)
        torch.testing.assert_close(*grads)


COUNTED: dict[str, Callable[[torch.Tensor], Any]] = {
    "max": lambda s: s.sum() / max(s.shape[0], 1),
    "min": lambda s: s.sum() * min(3, s.shape[0]),
    "of three": lambda s: s.sum() + max(s.shape[0], 2, s.shape[0] - 1),
    "of a list": lambda s: s.sum() + max([s.shape[0], 2]),
    "fixed": lambda s: s.sum() / torch.sym_max(3, 1.5) + torch.sym_min(2, s.dim()),
    "sym_max": lambda s: s.sum() / torch.sym_max(s.shape[0], 1),
    "sym_min": lambda s: s.sum() / (torch.sym_min(s.shape[0], 2) + 1),
    "sizes": lambda s: torch.ones(max(s.shape[0], 1)).sum() + s.sum(),
    "of a symbolic size": lambda s: s.sum() + max(s.shape[0], s.shape[1]),
}


@pytest.mark.parametrize("name", COUNTED)
def test_of_a_count_that_the_data_decide(name: str) -> None:
    def f(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return COUNTED[name](x[mask])

    compiled = dynamo.compile(f, backend="aot_eager", fullgraph=True)
    for bits, columns in (([1, 0, 1, 1], 4), ([0, 0, 0, 0], 4), ([0, 1, 0, 0], 5)):
        x, mask = torch.randn(4, columns, requires_grad=True), torch.tensor(bits).bool()
        result, expected = compiled(x, mask), f(x, mask)
        torch.testing.assert_close(result, expected)
        found, wanted = (torch.autograd.grad(y, x) for y in (result, expected))
        torch.testing.assert_close(found, wanted)
