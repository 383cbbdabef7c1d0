"""Programs that read small buffers of modules, or branch on them: one graph while these stay the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynamo

Program = Callable[[Any, torch.Tensor], torch.Tensor]
PROGRAMS: dict[str, Program] = {
    "pad": lambda m, x: F.pad(x, (m.size, torch.ceil(m.size / m.step).long()), "reflect"),
    "one tensor twice": lambda m, x: F.pad(x, (m.step, m.step)),
    "slice": lambda m, x: x[..., m.step - 1 : x.shape[-1] - m.size],
    "index": lambda m, x: x[..., m.step] * 1,
    "narrow": lambda m, x: x.narrow(1, m.step, 1) * 1,
    "range": lambda m, x: sum((x * n for n in range(m.size)), x),
    "sizes": lambda m, x: torch.zeros(m.size, m.step) + x[0, 0],
    "flag": lambda m, x: x * 2 if m.flag else x * 3,
    "two flags": lambda m, x: x * 2 if not m.flag and m.size > 2 else x * 3,
    "element": lambda m, x: x + 1 if m.bits[0] == 1 else x,
    "any": lambda m, x: x + 1 if (m.bits == 2).any() else x,
    "list": lambda m, x: x[:, m.places.tolist()] * 1,
    "split": lambda m, x: torch.split(x, (m.places + 1).tolist(), 1)[1] * 2,
    "largest": lambda m, x: x[:, : max(m.size, m.step)] * 1,
    "quotient": lambda m, x: x[:, : m.size // m.step],
}


class Held(nn.Module):
    size: torch.Tensor
    step: torch.Tensor
    flag: torch.Tensor
    bits: torch.Tensor
    places: torch.Tensor

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        self.register_buffer("size", torch.tensor(3))
        self.register_buffer("step", torch.tensor(2))
        self.register_buffer("flag", torch.tensor(True))
        self.register_buffer("bits", torch.tensor([1, 2], dtype=torch.uint8))
        self.register_buffer("places", torch.tensor([3, 1, 1]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.program(self, x)

    @torch.no_grad()
    def change(self) -> None:
        """As `load_state_dict` does it."""
        self.size.fill_(4)
        self.step.fill_(3)
        self.flag.logical_not_()
        self.bits.copy_(torch.tensor([0, 3]))
        self.places.copy_(torch.tensor([0, 5, 0]))


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name: str, trains: bool) -> None:
    module = Held(PROGRAMS[name])
    compiled = dynamo.compile(module, fullgraph=True)
    for call in range(3):
        dynamo.counters.clear()
        x = torch.randn(2, 8, requires_grad=trains)
        found, expected = compiled(x), module(x)
        torch.testing.assert_close(found, expected)
        if trains:
            grads = (torch.autograd.grad(each.sum(), x)[0] for each in (found, expected))
            torch.testing.assert_close(*grads)
        assert not dynamo.counters["not_compiled"]
        assert (dynamo.counters["stats"]["frames"] == 1) == (call != 1)
        if call == 1:
            module.change()


@pytest.mark.parametrize("dynamic", [False, True])
def test_where_nothing_is_learnt_of_sizes(dynamic: bool) -> None:
    module = Held(PROGRAMS["range"])
    compiled = dynamo.compile(module, backend="eager", fullgraph=True, dynamic=dynamic)
    for _ in range(2):
        x = torch.randn(2, 8)
        torch.testing.assert_close(compiled(x), module(x))
        module.change()


def test_a_write_in_between_is_seen() -> None:
    def program(m: Any, x: torch.Tensor) -> torch.Tensor:
        m.size.add_(1)
        return x * m.size.item() if m.flag else x

    one, other = Held(program), Held(program)
    compiled = dynamo.compile(one)
    for _ in range(4):
        x = torch.randn(2, 8)
        torch.testing.assert_close(compiled(x), other(x))
        assert one.size.equal(other.size)


def test_memory_that_the_graph_writes_into() -> None:
    def program(m: Any, x: torch.Tensor) -> torch.Tensor:
        m.places[0] = 2
        return x * m.size.item()

    one, other = Held(program), Held(program)
    for module in (one, other):
        module.size = module.places[0]
    compiled = dynamo.compile(one)
    for _ in range(3):
        x = torch.randn(2, 8)
        torch.testing.assert_close(compiled(x), other(x))
        one.places[0] = other.places[0] = 5


def test_writes_that_count_no_version() -> None:
    """Values are guarded, not versions."""
    module = Held(PROGRAMS["range"])
    compiled, x = dynamo.compile(module), torch.randn(2, 8)
    for value in (3, 4, 2, 5):
        module.size.data.fill_(value)
        torch.testing.assert_close(compiled(x), module(x))


class Layer(nn.Module):
    """A convolution whose padding is computed of buffers, as audio codecs have it."""

    size: torch.Tensor
    step: torch.Tensor
    total: torch.Tensor

    def __init__(self, size: int, step: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, size, step)
        self.register_buffer("size", torch.tensor(size), persistent=False)
        self.register_buffer("step", torch.tensor(step), persistent=False)
        self.register_buffer("total", torch.tensor(size - step), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = torch.ceil((x.shape[-1] - self.size + self.total) / self.step + 1).to(torch.int64) - 1
        more = count * self.step + self.size - self.total - x.shape[-1]
        before = self.total - self.total // 2
        end = max(before, more)
        if x.shape[-1] <= end:
            x = F.pad(x, (0, end - x.shape[-1] + 1))
        return self.conv(F.pad(x, (before, self.total // 2 + more), "reflect"))


def test_layers_alike_take_few_attempts() -> None:
    model = nn.Sequential(*(Layer(3 + n % 3, 1 + n % 2) for n in range(9)))
    compiled = dynamo.compile(model, fullgraph=True)
    x = torch.randn(1, 4, 90)
    torch.testing.assert_close(compiled(x), model(x))
    report = dynamo.explain(model)(x)
    assert report.graph_count == 1


NUMBERS = torch.tensor([2, 3])


def test_a_global_tensor() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * NUMBERS.tolist()[1] if NUMBERS[0] == 2 else x

    compiled, x = dynamo.compile(program, fullgraph=True), torch.randn(4)
    torch.testing.assert_close(compiled(x), x * 3)


class Counted(nn.Module):
    """Reads what it has written, too, so that the values at the start are of no use there."""

    n: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.n < 3:
            x = x * 2
        self.n += 1
        return x + int(self.n)


class Prepared(nn.Module):
    """Its first call finds where the data lie."""

    done: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("done", torch.tensor(False))
        self.place = nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.done:
            with torch.no_grad():
                self.place.copy_(-x.mean(0))
                self.done.fill_(True)
        return x + self.place


class Averaged(nn.BatchNorm1d):
    """With averages of all batches, whose number it reads once it has counted this one."""

    def __init__(self) -> None:
        super().__init__(3, momentum=None)


@pytest.mark.parametrize("kind", [Counted, Prepared, Averaged])
def test_buffers_that_the_program_writes(kind: Callable[[], nn.Module]) -> None:
    dynamo.counters.clear()
    one, other = kind(), kind()
    compiled = dynamo.compile(one)
    for _ in range(6):
        x = torch.randn(5, 3)
        torch.testing.assert_close(compiled(x), other(x))
        for ours, eager in zip(one.buffers(), other.buffers(), strict=True):
            torch.testing.assert_close(ours, eager)
    if kind is Prepared:
        assert not dynamo.counters["graph_break"]
