"""Each row of the table in docs/architecture.md: what changes between two calls, and whether that compiles another graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dynamo


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.other = nn.Parameter(torch.randn(2, 2)), nn.Parameter(torch.randn(2, 2))
        self.register_buffer("mask", None)
        self.register_buffer("steps", torch.tensor([1, 2]))
        self.number, self.tensors, self.named = 1, [torch.randn(2, 2)], {"a": torch.randn(2, 2)}

    def forward(self, x: torch.Tensor) -> Any:
        y = x * self.weight + self.other
        return y if self.mask is None else y * self.mask


def x(**kwargs: Any) -> torch.Tensor:
    return torch.randn(2, 2, **kwargs)


def inside(start: int) -> torch.Tensor:
    return torch.randn(9)[start : start + 4].view(2, 2)


def inference() -> torch.Tensor:
    with torch.inference_mode():
        return x()


def with_gradient(value: float) -> torch.Tensor:
    made = x(requires_grad=True)
    made.grad = torch.full((2, 2), float(value))
    return made


def new_memory(given: torch.Tensor) -> torch.Tensor:
    given.data = x()
    return given


def one_twice() -> tuple[torch.Tensor, ...]:
    both = x()
    return both, both


def shared() -> tuple[torch.Tensor, ...]:
    one = x()
    return one, one.view(2, 2)


def swapped(net: Net, **parts: Any) -> Net:
    for name, value in parts.items():
        setattr(net, name, value)
    return net


def tied() -> Net:
    net = Net()
    net.other = net.weight
    return net


class Named(Net):
    pass


def renamed(name: str) -> Named:
    Named.__name__ = name
    return Named()


def table(*numbers: int) -> torch.Tensor:
    return torch.tensor([numbers])


def under(mode: Any) -> tuple[Any, ...]:
    return x(), mode


# What one changes in place and the other is asked for.
READ_BESIDE_A_CHANGE: list[Callable[..., Any]] = [
    lambda x, y: (x.t_(), y.stride()), lambda x, y: (x.unsqueeze_(0), y.dim()), lambda x, y: (y.shape, x.unsqueeze_(0), y.shape, len(y)),
    lambda x, y: (x.transpose_(0, 1), y.is_contiguous()), lambda x, y: (x.requires_grad_(), y.requires_grad), lambda x, y: (x.squeeze_().mul_(2), y.size(0)),
    lambda x, y: (x.as_strided_((1, 2), (1, 1)), y.numel()),
]  # fmt: skip
# Row: (program, arguments of the first call, of the second, whether that compiles another graph).
Case = tuple[Callable[..., Any], Callable[[], Any], Callable[[], Any], bool]
PLAIN = lambda x: x * 2
NET = lambda net: net(torch.ones(2, 2))
CASES: dict[str, list[Case]] = {
    "class, dtype, device, `requires_grad`": [
        (PLAIN, x, lambda: nn.Parameter(x()), True), (PLAIN, x, lambda: x(dtype=torch.float64), True), (PLAIN, x, lambda: x(requires_grad=True), True),
    ],
    "sizes and strides": [(PLAIN, x, lambda: torch.randn(3, 2), True), (PLAIN, x, lambda: x().t(), True)],
    "conjugate or negative bit, inference tensor": [
        (PLAIN, lambda: x(dtype=torch.complex64), lambda: x(dtype=torch.complex64).conj(), True), (PLAIN, x, inference, True),
    ],
    "one object in two places, now two": [(lambda x, y: x + y, one_twice, lambda: (x(), x()), True)],
    "two objects, now one": [
        (lambda x, y: x + y, lambda: (x(), x()), one_twice, False), (lambda x, y: (x.add_(1), y * 2), lambda: (x(), x()), one_twice, True),
        (lambda x, y: x + y if x is y else x - y, lambda: (x(), x()), one_twice, True),
        *((program, lambda: (x(), x()), one_twice, True) for program in READ_BESIDE_A_CHANGE),
    ],
    "values": [(PLAIN, x, x, False)],
    "numbers of a small table of integers": [
        (lambda table: torch.ones(table.tolist()[0]) * 2, lambda: table(2, 3), lambda: table(2, 3), False),
        (lambda table: torch.ones(table.tolist()[0]) * 2, lambda: table(2, 3), lambda: table(3, 2), True),
        (lambda table: table * 2, lambda: table(2, 3), lambda: table(3, 2), False),
    ],
    "numbers of a small buffer of integers or flags": [
        (lambda net: NET(net)[: net.steps[0]], Net, Net, False), (NET, Net, lambda: swapped(Net(), steps=torch.tensor([0, 2])), False),
        (lambda net: NET(net) * (2 if net.steps[0] else 3), Net, lambda: swapped(Net(), steps=torch.tensor([0, 2])), True),
    ],
    "storage offset": [(lambda x: (x[1], x * 2), lambda: inside(0), lambda: inside(3), False), (lambda x: x[1].mul_(2), lambda: inside(0), lambda: inside(3), False)],
    "memory shared with another argument": [
        (lambda x, y: x + y, lambda: (x(), x()), shared, False), (lambda x, y: (x.add_(1), y * 2), lambda: (x(), x()), shared, False),
    ],
    "leaf, `grad_fn`": [
        (PLAIN, lambda: x(requires_grad=True), lambda: x(requires_grad=True) * 1, False),
        (lambda x: x * 2 if x.is_leaf else x * 3, lambda: x(requires_grad=True), lambda: x(requires_grad=True) * 1, True),
    ],
    "view, `_base`, `_version`": [
        (PLAIN, x, lambda: inside(2), False), (lambda x: (x * 2, x._is_view()), x, lambda: inside(2), False),
        (lambda x: (x * 2, x._version), x, lambda: x().mul_(2), False),
    ],
    "`grad`": [
        (PLAIN, lambda: x(requires_grad=True), lambda: with_gradient(1), False),
        (lambda x: x * 2 if x.grad is None else x * x.grad, lambda: x(requires_grad=True), lambda: with_gradient(1), True),
        (lambda x: x * x.grad, lambda: with_gradient(1), lambda: with_gradient(2), False),
    ],
    "new memory (`.data = `, `resize_` and back)": [
        (PLAIN, x, lambda: new_memory(x()), False), (PLAIN, x, lambda: x().resize_(40).resize_(2, 2).fill_(1), False),
    ],
    "grad mode, autocast, inference mode, default dtype": [
        (PLAIN, lambda: x(requires_grad=True), lambda: under(torch.no_grad()), True), (PLAIN, x, lambda: under(torch.autocast("cpu")), True),
        (PLAIN, x, lambda: under(torch.inference_mode()), True),
    ],
    "a parameter or buffer that is another tensor": [(NET, Net, lambda: swapped(Net(), weight=nn.Parameter(x())), False)],
    "a parameter or buffer that has come or gone": [(NET, Net, lambda: swapped(Net(), mask=x()), True)],
    "two parameters untied": [(NET, tied, Net, True)],
    "two parameters tied": [(NET, Net, tied, False)],
    "a list's length, a dict's keys": [
        (lambda net: sum(net.tensors), Net, lambda: swapped(Net(), tensors=[x(), x()]), True),
        (lambda net: sum(net.named.values()), Net, lambda: swapped(Net(), named={"b": x()}), True),
    ],
    "attributes of objects, names of modules": [
        (NET, Net, lambda: swapped(Net(), number="text"), False), (lambda net: net(torch.ones(2, 2)) * net.number, Net, lambda: swapped(Net(), number=5.5), True),
    ],
    "bases and names of classes": [  # more in test_changed_classes.py
        (NET, lambda: renamed("One"), lambda: renamed("Other"), False),
        (lambda net: NET(net) * len(type(net).__name__), lambda: renamed("One"), lambda: renamed("Other"), True),
    ],
}


def test_the_table_has_these_rows() -> None:
    text = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    table = text.split("| fact | how |\n| --- | --- |\n")[1].split("\n\n")[0]
    assert [row.split(" | ")[0].removeprefix("| ") for row in table.splitlines()] == list(CASES)


def called(call: Callable[..., Any], made: Any) -> Any:
    given = made if isinstance(made, tuple) else (made,)
    mode = given[-1] if len(given) > 1 and not isinstance(given[-1], torch.Tensor) else contextlib.nullcontext()
    given = [value for value in given if value is not mode]
    with mode:
        return call(*given), given


@pytest.mark.parametrize("number,row", [(n, row) for row in CASES for n in range(len(CASES[row]))])
def test_a_changed_fact(row: str, number: int) -> None:
    program, first, second, guarded = CASES[row][number]
    graphs = []

    def count(gm: Any, inputs: Any) -> Any:
        graphs.append(gm)
        return gm.forward

    dynamic = None if "small" in row else False  # whether sizes may be symbolic; tables are not known with False
    compiled = dynamo.compile(program, backend=count, dynamic=dynamic)
    called(compiled, first())
    known = len(graphs)
    seed = int(torch.randint(1 << 30, ()))
    torch.manual_seed(seed)
    want = called(program, second())
    torch.manual_seed(seed)
    got = called(compiled, second())
    torch.testing.assert_close(got, want, rtol=0, atol=0) if not isinstance(got[1][0], nn.Module) else torch.testing.assert_close(got[0], want[0], rtol=0, atol=0)
    assert (len(graphs) > known) is guarded
