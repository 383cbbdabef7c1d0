"""Loops for operators of routing and sampling give what ATen gives. They are a GPU's, and run here
as a CPU's kernels; `tests/inductor/gpu/interpreted_routing.py` runs them as Triton's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from routing_programs import EXPERTS, PROGRAMS, assert_same

import dynamo
from inductor import metrics
from inductor.config import config
from inductor.lowering import routing, scans

LIBRARY = {
    "long rows": lambda x: torch.topk(x.expand(2, 5000), 3),
    "long order": lambda x: torch.sort(x.expand(2, 65)),
    "order of equal elements": lambda x: torch.sort(x.expand(2, 5)),
    "doubles": lambda x: torch.sort(x.expand(2, 5).double(), stable=True),
    "dense long sums": lambda x: x.expand(2, 300).cumsum(1),
    "looked for": lambda x: torch.histc(x.expand(2, 3), 4),
    "a number": lambda x: x[0, 0].cumsum(0),
}  # fmt: skip


@pytest.fixture(autouse=True)
def on_a_gpu(as_on_gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch):
    as_on_gpu(scans, routing)
    monkeypatch.setattr(scans, "SHORT", scans.DIRECT)
    for module in (scans, routing):
        monkeypatch.setattr(module, "LONGEST_SCAN", 0)
    monkeypatch.setattr(routing, "LONGEST_SORTED", 64)
    dynamo.reset()
    metrics.reset()
    with config.patch(graph_cache=False):
        yield


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    program, make = PROGRAMS[name]
    given = make()
    assert_same(dynamo.compile(program)(*given), program(*given))
    assert not metrics.fallbacks()


@pytest.mark.parametrize("name", LIBRARY)
def test_what_stays_a_librarys(name: str) -> None:
    x = torch.randn(2, 1)
    assert_same(dynamo.compile(LIBRARY[name])(x), LIBRARY[name](x))
    assert metrics.fallbacks()


def test_gradients_of_what_is_chosen() -> None:
    x = torch.randn(20, EXPERTS)
    grads = []
    for function in (lambda x: x.softmax(-1).sort(stable=True)[0][:, :3], lambda x: x.cumsum(0)):
        for run in (function, dynamo.compile(function)):
            given = x.clone().requires_grad_()
            (run(given) * torch.arange(1.0, run(given).numel() + 1).reshape(run(given).shape)).sum().backward()
            grads.append(given.grad)
        torch.testing.assert_close(grads[-1], grads[-2])


def test_nothing_is_looped_over_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    x = torch.randn(20, EXPERTS)
    dynamo.compile(lambda x: (torch.sort(x, stable=True), x.cumsum(0)))(x)
    assert set(metrics.fallbacks()) == {"aten.sort.stable", "aten.cumsum.default"}
