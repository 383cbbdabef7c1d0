"""Programs that write into an input of which another input is a view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.base.counters import counters

Make = Callable[[torch.Tensor], torch.Tensor]
VIEWS: dict[str, Make] = {
    "all of it": lambda a: a.view(3, 8), "a row": lambda a: a[2:7], "by data": lambda a: a.data[5:],
}  # fmt: skip


def around_a_write(a: torch.Tensor, v: torch.Tensor) -> Any:
    before = v.sum()
    a.mul_(2)
    return before + v.sum(), v * 1


def through_the_view(a: torch.Tensor, v: torch.Tensor) -> Any:
    before = a.sum()
    v.add_(1).mul_(3)
    return before, a * 2, v.sum()


def both(a: torch.Tensor, v: torch.Tensor) -> Any:
    v.zero_()
    a += 1
    v[..., :2] -= 5
    return a.clone()


def compare(program: Callable[..., Any], call: Callable[..., Any], made: Callable[[], tuple[torch.Tensor, ...]]) -> None:
    ours, theirs = made(), made()
    found, wanted = call(*ours), program(*theirs)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("program", [around_a_write, through_the_view, both])
@pytest.mark.every_combination
def test_values(program: Callable[..., Any], view: str, backend: str) -> None:
    def made() -> tuple[torch.Tensor, ...]:
        a = torch.arange(24.0)
        return a, VIEWS[view](a)

    dynamo.reset()
    counters["not_compiled"].clear()
    call = dynamo.compile(program, backend=backend, fullgraph=True)
    compare(program, call, made)
    compare(program, call, made)
    assert not counters["not_compiled"]


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_other_places(backend: str) -> None:
    dynamo.reset()
    call = dynamo.compile(around_a_write, backend=backend)
    for start in (3, 0, 7):  # of both in their storage
        compare(around_a_write, call, lambda start=start: (lambda a: (a, a[2:8]))(torch.arange(40.0)[start : start + 24]))  # type: ignore[misc]
    counters["not_compiled"].clear()
    for start in (3, 4, 3, 0):
        compare(around_a_write, call, lambda start=start: (lambda a: (a, a[start : start + 6]))(torch.arange(24.0)))  # type: ignore[misc]
    compare(around_a_write, call, lambda: (torch.arange(24.0), torch.arange(6.0)))
    (reason, count), = counters["not_compiled"].items()
    assert "share memory otherwise" in reason and count == 5  # each call


def test_calls_that_run_as_captured_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return a * b

    dynamo.reset()
    call = dynamo.compile(program)
    compare(program, call, lambda: (torch.ones(4), torch.ones(4)))
    assert not counters["not_compiled"]
    caplog.clear()
    for _ in range(3):
        compare(program, call, lambda: (torch.ones(4),) * 2)
        compare(program, call, lambda: (lambda a: (a[:4], a[2:]))(torch.arange(6.0)))
    assert sum(counters["not_compiled"].values()) == 3 and len(caplog.messages) == 1
    assert "a.add_(1)" in caplog.text or "return a * b" in caplog.text


@pytest.mark.parametrize("made", [
    lambda: (lambda a: (a[:16], a[8:]))(torch.arange(24.0)),  # neither covers the other
    lambda: (lambda a: (a, a.view(4, 6)[:, 1]))(torch.arange(24.0)),
    lambda: (lambda a: (a, a.view(torch.int32)))(torch.arange(24.0)),
    lambda: (lambda a: (a.detach(), a))(torch.arange(24.0, requires_grad=True)),
], ids=["neither covers", "a column", "another dtype", "a gradient"])  # fmt: skip
def test_others_run_as_captured(made: Callable[[], tuple[torch.Tensor, ...]]) -> None:
    dynamo.reset()
    counters["not_compiled"].clear()
    with dynamo.config.patch(suppress_errors=True):
        compare(around_a_write, dynamo.compile(around_a_write), made)
    assert counters["not_compiled"]


def test_a_codebook_behind_a_graph_break() -> None:
    class Codebook(torch.nn.Module):
        embed: torch.Tensor
        ready: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("embed", torch.randn(1, 8, 4))
            self.register_buffer("ready", torch.tensor(True))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = self.embed.view(8, 4)
            if self.ready:
                x = x * 2
            near = torch.cdist(x, rows).argmin(-1)
            self.embed.data.lerp_(rows.new_ones(1, 8, 4), 0.1)
            return rows[near]

    torch.manual_seed(0)
    eager, x = Codebook(), torch.randn(5, 4)
    ours = Codebook()
    ours.load_state_dict(eager.state_dict())
    dynamo.reset()
    counters["not_compiled"].clear()
    call = dynamo.compile(ours)
    for _ in range(3):
        torch.testing.assert_close(call(x), eager(x))
        torch.testing.assert_close(ours.embed, eager.embed)
    assert not counters["not_compiled"]


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("start", [0, 3])
def test_places_of_a_storage_after_a_write(start: int, backend: str) -> None:
    """`as_strided` counts from where the storage begins, which the new value of an input has not."""

    def program(a: torch.Tensor) -> Any:
        v = torch.as_strided(a, (6,), (1,), 5)
        before = v.sum()
        a.mul_(2)
        return before + v.sum(), v * 1

    dynamo.reset()
    with dynamo.config.patch(suppress_errors=True):
        call = dynamo.compile(program, backend=backend)
        for _ in range(2):
            compare(program, call, lambda: (torch.arange(40.0)[start : start + 24],))
