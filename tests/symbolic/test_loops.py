"""`while_loop`, `scan`, `associative_scan` and `map` of torch in traced programs, against plain Python loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._higher_order_ops import associative_scan as associative_module
from torch._higher_order_ops import map as map_module
from torch._higher_order_ops import scan as scan_module
from torch._higher_order_ops import while_loop as while_module

import dynamo
from dynamo.testing import CompileCounter

LEAF = torch.rand(3, dtype=torch.float64, requires_grad=True)
SEEN: list[int] = []
TORCH = [getattr(module, name, module) for module, name in
         ((while_module, "while_loop"), (scan_module, "scan"), (map_module, "map"))]


def plain_while(cond_fn: Any, body_fn: Any, carried: Any) -> Any:
    values = tuple(value.clone() for value in carried)
    while cond_fn(*values):
        values = tuple(body_fn(*values))
    return values


def plain_scan(combine: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False) -> Any:
    several = isinstance(xs, tuple)
    rows = list(zip(*(x.unbind(dim) for x in xs), strict=True)) if several else list(xs.unbind(dim))
    found = []
    for row in rows[::-1] if reverse else rows:
        init, out = combine(init, row)
        found.append(out)
    return init, torch.stack(found[::-1] if reverse else found, dim)


def plain_map(f: Any, xs: Any, *args: Any) -> Any:
    return torch.stack([f(x, *args) for x in xs])


PLAIN = [plain_while, plain_scan, plain_map]


def counted(x: torch.Tensor, loops: Any) -> Any:
    n, y = loops[0](lambda i, a: i < 5, lambda i, a: (i + 1, a * 1.5 + i), (torch.tensor(0), x * 1))
    return n * y


def until_large(x: torch.Tensor, loops: Any) -> Any:
    limit = x.sum() * 40
    scale = LEAF.detach() + 1

    def body(a: torch.Tensor, b: torch.Tensor) -> Any:
        return a * scale + 1, torch.where(a > b, a, b)

    a, b = loops[0](lambda a, b: a.sum() < limit, body, (x, x.flip(0)))
    return a + b * LEAF


def never(x: torch.Tensor, loops: Any) -> Any:
    y = x * 1
    (z,) = loops[0](lambda a: a.sum() < -1, lambda a: (a * 2,), (y,))
    return z.add_(1) + y


def loop_in_a_loop(x: torch.Tensor, loops: Any) -> Any:
    def body(i: torch.Tensor, a: torch.Tensor) -> Any:
        _, b = loops[0](lambda j, b: j < i, lambda j, b: (j + 1, b + j), (torch.tensor(0), a * 1))
        return i + 1, b * 0.5

    return loops[0](lambda i, a: i < 4, body, (torch.tensor(1), x))[1]


def scanned(x: torch.Tensor, loops: Any) -> Any:
    last, rows = loops[1](lambda c, a: (c * a + LEAF, c.sin()), torch.zeros_like(x[0]), x * LEAF)
    return last + rows


def scanned_backwards(x: torch.Tensor, loops: Any) -> Any:
    init = x[:, 0] * 1
    last, rows = loops[1](lambda c, a: (c + a[0] * a[1], c * a[0]), init, (x * 2, x * LEAF), dim=1, reverse=True)
    return last.sum() + rows


def mapped(x: torch.Tensor, loops: Any) -> Any:
    k = x.sum()
    return loops[2](lambda a, b: (a * b).sin() + k, x, LEAF)


def kept_as_it_is(x: torch.Tensor, loops: Any) -> Any:
    return loops[0](lambda i, a: i < 2, lambda i, a: (i + 1, a), (torch.tensor(0), x * 1))[1]


def with_gradient(x: torch.Tensor, loops: Any) -> Any:
    return loops[0](lambda i, a: i < 2, lambda i, a: (i + 1, a * 2), (torch.tensor(0), x * LEAF))[1]


def that_counts(x: torch.Tensor, loops: Any) -> Any:
    return loops[2](lambda a: (SEEN.append(1), a * 2)[1], x)


def other_dtype(x: torch.Tensor, loops: Any) -> Any:
    return loops[1](lambda c, a: (c.float(), a * 1), x[0] * 1, x)[1]


def observe(f: Callable[..., Any], seed: int, loops: Any) -> Any:
    torch.manual_seed(seed)
    LEAF.grad = None
    found = f(torch.rand(2, 3, dtype=torch.float64), loops)
    if found.requires_grad:
        found.sum().backward()
    return [found.detach(), LEAF.grad]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("f", [
    counted, until_large, never, loop_in_a_loop, scanned, scanned_backwards, mapped,
])
def test_one_graph(f: Callable[..., Any], backend: str) -> None:
    counter = CompileCounter(backend)
    compiled = dynamo.compile(lambda x, _: f(x, TORCH), backend=counter, fullgraph=True)
    with dynamo.config.patch(suppress_errors=False):
        for seed in range(3):
            got, want = observe(compiled, seed, None), observe(f, seed, PLAIN)
            assert (got[1] is None) == (want[1] is None)
            torch.testing.assert_close([v for v in got if v is not None], [v for v in want if v is not None])
    assert counter.frame_count == 1


@pytest.mark.parametrize("f,name", [
    (kept_as_it_is, "torch.cond"), (with_gradient, "while_loop"), (that_counts, "map_in_python"),
    (other_dtype, "scan"),
])
def test_what_eager_refuses_breaks(f: Callable[..., Any], name: str) -> None:
    compiled = dynamo.compile(lambda x: f(x, TORCH), backend="eager", fullgraph=True)
    with pytest.raises(dynamo.exc.Unsupported, match=name):
        compiled(torch.rand(2, 3, dtype=torch.float64))


def test_another_number_of_slices_is_another_graph() -> None:
    def f(x: torch.Tensor, loops: Any) -> torch.Tensor:
        carried, rows = loops[1](lambda c, a: ((c * a + LEAF).tanh(), c + a), x[0] * 1, x)
        return carried + rows.sum(0)

    counter = CompileCounter("inductor")
    compiled = dynamo.compile(lambda x: f(x, TORCH), backend=counter, fullgraph=True)
    for count in (2, 3, 4, 3):
        found = []
        for call in (compiled, lambda x: f(x, PLAIN)):
            x = torch.linspace(0, 1, count * 3, dtype=torch.float64).view(count, 3).requires_grad_()
            LEAF.grad = None
            out = call(x)
            out.sum().backward()
            found.append([out.detach(), x.grad, LEAF.grad])
        torch.testing.assert_close(*found)
    assert counter.frame_count == 3


ASSOCIATIVE = getattr(associative_module, "associative_scan", associative_module)


def recurrence(a: torch.Tensor, b: torch.Tensor, mode: str, reverse: bool) -> torch.Tensor:
    """h[i] = a[i] * h[i - 1] + b[i], the last one first if `reverse`."""

    def step(left: Any, right: Any) -> Any:
        return left[0] * right[0], right[0] * left[1] + right[1]

    return ASSOCIATIVE(step, (a, b), 1, reverse, combine_mode=mode)[1]


def plain_recurrence(a: torch.Tensor, b: torch.Tensor, reverse: bool) -> torch.Tensor:
    rows, h = [], torch.zeros_like(b[:, 0])
    for i in reversed(range(a.shape[1])) if reverse else range(a.shape[1]):
        h = a[:, i] * h + b[:, i]
        rows.append(h)
    return torch.stack(rows[::-1] if reverse else rows, 1)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("device,mode", [
    ("cpu", "generic"),
    pytest.param("cuda", "pointwise", marks=pytest.mark.skipif(
        not torch.cuda.is_available(), reason="torch allows pointwise scans on a GPU only")),
])
def test_associative_scan(device: str, mode: str, backend: str, reverse: bool) -> None:
    counter = CompileCounter(backend)
    compiled = dynamo.compile(recurrence, backend=counter, fullgraph=True)
    a, b = (torch.rand(2, 7, 3, dtype=torch.float64, device=device).requires_grad_() for _ in "ab")
    out, want = compiled(a, b, mode, reverse), plain_recurrence(a, b, reverse)
    torch.testing.assert_close(out, want)
    torch.testing.assert_close(torch.autograd.grad(out.sin().sum(), (a, b)),
                               torch.autograd.grad(want.sin().sum(), (a, b)))
    assert counter.frame_count == 1


def test_pointwise_scan_on_the_cpu_is_as_in_eager() -> None:
    a = torch.rand(2, 3)
    outcomes = []
    for call in (recurrence, dynamo.compile(recurrence, backend="eager")):
        try:
            outcomes.append(call(a, a, "pointwise", False).tolist())
        except ValueError as error:  # torch before 2.14
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1] and len(outcomes[0]) == 2 or "pointwise" in outcomes[0]
