"""`torch.cond` in traced programs, against a plain `if`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter

LEAF = torch.rand(3, dtype=torch.float64, requires_grad=True)
PLAIN = LEAF.detach()
SEEN: list[int] = []


def plain(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    return true_fn(*operands) if pred else false_fn(*operands)


def closures(cond: Any, x: torch.Tensor) -> Any:
    k = 3.0
    return cond(x.sum() > 3, lambda a: (a + k, [a.sum()]), lambda a: (a - PLAIN, [a[0, 0] * 1]), (x,))


def gradients(cond: Any, x: torch.Tensor) -> Any:
    y = x * LEAF
    return cond(x.sum() > 3, lambda a: a * LEAF, lambda a: a / LEAF, (y,)) + y


def nested(cond: Any, x: torch.Tensor) -> Any:
    def inner(a: torch.Tensor) -> torch.Tensor:
        return cond(a[0, 0] > 0.5, lambda b: b * 2, lambda b: b * 3, (a,)) + 1

    return cond(x.sum() > 3, inner, lambda a: a - 1, (x * 1,))


def without_operands(cond: Any, x: torch.Tensor) -> Any:
    return cond(x[0, 0] > 0.5, lambda: x.sin(), lambda: x.cos())


def gives_operand_back(cond: Any, x: torch.Tensor) -> Any:
    return cond(x.sum() > 3, lambda a: a, lambda a: a * 2, (x,))


def changes(cond: Any, x: torch.Tensor) -> Any:
    return cond(x.sum() > 3, lambda: (SEEN.append(1), x * 1)[1], lambda: x * 2), list(SEEN)


def run(f: Callable[..., Any], cond: Any, x: torch.Tensor) -> Any:
    LEAF.grad = None
    SEEN.clear()
    flat = torch.utils._pytree.tree_leaves(f(cond, x))
    if flat[0].requires_grad:
        flat[0].sum().backward()
    return [*flat, LEAF.grad]


@pytest.mark.parametrize("f", [closures, gradients, nested, without_operands])
def test_one_graph(f: Callable[..., Any]) -> None:
    counter = CompileCounter("eager")
    compiled = dynamo.compile(lambda _, x: f(torch.cond, x), backend=counter, fullgraph=True)
    for call in range(6):
        torch.manual_seed(call)
        x = torch.rand(2, 3, dtype=torch.float64)
        for want, got in zip(run(f, plain, x), run(compiled, None, x), strict=True):
            assert (want is None and got is None) or torch.equal(want, got)
    assert counter.frame_count == 1


@pytest.mark.parametrize("f", [gives_operand_back, changes])
def test_what_is_no_choice_breaks(f: Callable[..., Any]) -> None:
    compiled = dynamo.compile(lambda x: f(torch.cond, x), backend="eager", fullgraph=True)
    with pytest.raises(dynamo.exc.Unsupported, match="torch.cond"):
        compiled(torch.rand(2, 3, dtype=torch.float64))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_predicate_that_is_a_bool_chooses_when_compiled(backend: str) -> None:
    def f(x: torch.Tensor, flag: bool, cond: Any) -> torch.Tensor:
        y = cond(flag, lambda a: a.sin(), lambda a: a * 2, (x,))
        return cond(x.shape[0] > 2, lambda a: a + 1, lambda a: cond(False, torch.cos, torch.exp, (a,)), (y,))

    counter = CompileCounter(backend)
    compiled = dynamo.compile(lambda x, flag: f(x, flag, torch.cond), backend=counter, fullgraph=True)
    for size, flag in ((2, True), (3, True), (2, False), (2, True)):
        x = torch.rand(size, dtype=torch.float64)
        torch.testing.assert_close(compiled(x, flag), f(x, flag, plain))
    assert counter.frame_count == 3


class Counting(torch.nn.Module):
    """Its branches write into buffers, each into others."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)
        self.seen, self.last = torch.nn.Buffer(torch.zeros(3)), torch.nn.Buffer(torch.zeros(3))

    def forward(self, x: torch.Tensor, cond: Any) -> Any:
        y = x * 2

        def often(a: torch.Tensor) -> torch.Tensor:
            self.seen.add_(a[0].sum())
            return self.norm(a) + self.seen * 2

        def rarely(a: torch.Tensor) -> torch.Tensor:
            self.last.copy_(self.seen + a[0])
            a.mul_(3)
            return a + self.last

        return cond(x.sum() > 3, often, rarely, (y,)) + self.seen, y


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_branches_that_write_into_buffers(backend: str) -> None:
    """Without gradients, as torch has it; with them it refuses."""
    modules = [Counting(), Counting()]
    compiled = dynamo.compile(lambda x: modules[0](x, torch.cond), backend=backend, fullgraph=True)
    for size in (0.1, 2.0, 0.2, 3.0, 3.0):
        x = torch.rand(4, 3) * size
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), modules[1](x, plain))
        torch.testing.assert_close(modules[0].state_dict(), modules[1].state_dict())
    with pytest.raises(dynamo.exc.Unsupported, match="torch.cond"):
        compiled(x)


# (branches, which of x, y and LEAF get a gradient)
LEARNED: dict[str, tuple[Callable[..., Any], Callable[..., Any], str]] = {
    "detached": (lambda x, y: x.detach() * 2, lambda x, y: x.detach() * 3, "x"),
    "one of two results": (lambda x, y: (x.detach() * 2, x * 2), lambda x, y: (x * 3, y.detach() * 3), "xy"),
    "each its own": (lambda x, y: x * 2, lambda x, y: y * 2, "xy"),
    "used by one": (lambda x, y: x * y.detach(), lambda x, y: x * 3, "xy"),
    "used by none": (lambda x, y: x * 2, lambda x, y: x * 3 + y.shape[0], "x"),
    "a constant": (lambda x, y: x.new_ones(2), lambda x, y: x * 3, "x"),
    "a leaf outside": (lambda x, y: x * LEAF[:2], lambda x, y: y * 3, "xyl"),
    "a view inside": (lambda x, y: x.detach() + 1, lambda x, y: (y * 2).clone(), "xy"),
}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", LEARNED)
def test_gradients_that_a_branch_leaves_undefined(name: str, backend: str) -> None:
    """As torch's own `cond`: zeros, where some gradient may come through one of the branches."""
    *branches, reached = LEARNED[name]
    x, y = (torch.rand(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    compiled = dynamo.compile(lambda pred: torch.cond(pred, *branches, (x, y)), backend=backend, fullgraph=True)
    for pred in (True, False, True):
        made = torch.utils._pytree.tree_leaves(compiled(torch.tensor(pred)))
        want = torch.utils._pytree.tree_leaves(branches[0 if pred else 1](x, y))
        assert all(a.requires_grad and not a.is_leaf and not a._version and torch.equal(a, b) for a, b in zip(made, want, strict=True))
        total = sum((b.sum() for b in want), 0.0 * (x.sum() + y.sum() + LEAF.sum()))
        wanted = torch.autograd.grad(total, (x, y, LEAF))
        found = torch.autograd.grad(sum(a.sum() for a in made), (x, y, LEAF), allow_unused=True)
        for letter, a, b in zip("xyl", found, wanted, strict=True):
            assert (a is None) == (letter not in reached) and (a is None or torch.equal(a, b))


def test_what_is_around_a_choice_is_compiled() -> None:
    def f(x: torch.Tensor, cond: Callable[..., Any]) -> torch.Tensor:
        y = x.sin() + 1
        return cond(y.sum() > 3, lambda y: y * 2, lambda y: y - 1, (y,)).exp().sum(-1) + y.mean()

    dynamo.counters.clear()
    with dynamo.config.patch(fullgraph_compiles=True):
        compiled = dynamo.compile(lambda x: f(x, torch.cond), fullgraph=True)
        for sign in (1, -1, 1):
            x = (torch.rand(4, 3) * sign).requires_grad_()
            want, found = f(x, plain), compiled(x)
            torch.testing.assert_close(found, want)
            grads = [torch.autograd.grad(y.sum(), x)[0] for y in (found, want)]
            torch.testing.assert_close(*grads)
    assert not dynamo.counters["not_compiled"]
