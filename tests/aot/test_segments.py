"""A backward cut into segments, each of which gives its gradients at once."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import dynamo
from dynamo.aot import chained_backward, training
from dynamo.testing import CompileCounter
from inductor import metrics
from inductor.config import config
from tests.common import new_cache


@pytest.fixture(autouse=True)
def each_gradient_alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """As in a DistributedDataParallel whose buckets take one gradient each. Gives what has run: segments."""
    run, seen = chained_backward.Part.run, []
    monkeypatch.setattr(DistributedDataParallel, "_active_ddp_module", object())
    monkeypatch.setattr(training, "bucket_limits", lambda: (1,))
    monkeypatch.setattr(chained_backward.Part, "run", lambda self, values: (seen.append(self.at), run(self, values))[1])
    yield seen
    assert max(seen, default=1) > 0


def through(x: torch.Tensor, a: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The gradient of w goes on to a as well."""
    return ((torch.tanh(x @ a) + w) @ b).square().mean()


def parts(x: torch.Tensor, a: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Views, several results of one operation, a value that two segments need."""
    first, second = torch.tanh(x @ a).t().contiguous().chunk(2)
    y = torch.cat((second * 2, first)).t() + w
    return (F.layer_norm(y, (4,), w[0], w[1]) @ b).sigmoid().sum()


def made(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    draws = torch.Generator().manual_seed(0)
    sizes = (4, 4), (4, 4), (4, 4), (4, 3)
    return [torch.randn(size, generator=draws, dtype=dtype).requires_grad_(at > 0) for at, size in enumerate(sizes)]


def triple(weight: torch.Tensor) -> None:
    weight.grad.mul_(3)  # type: ignore[union-attr]


PROGRAMS = [through, parts]


@pytest.mark.parametrize("backend", ["eager_aten", "inductor"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients(each_gradient_alone: list[int], program: Callable[..., Any], backend: str) -> None:
    x, *weights = made()
    want = torch.autograd.grad(program(x, *weights), weights)
    loss = dynamo.compile(program, backend="aot_eager" if backend == "eager_aten" else backend)(x, *weights)
    for kept in (True, False):  # all, and single ones, which leave the rest of the chain alone
        for at in range(3):
            (single,) = torch.autograd.grad(loss, weights[at : at + 1], retain_graph=True)
            torch.testing.assert_close(single, want[at])
        torch.testing.assert_close(torch.autograd.grad(loss, weights, retain_graph=kept), want)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    assert each_gradient_alone.count(0) == 8 and each_gradient_alone.count(2) < 8


@pytest.mark.parametrize("program", PROGRAMS)
def test_whoever_gets_a_gradient_may_write_into_it(program: Callable[..., Any]) -> None:
    x, *weights = made()
    want = torch.autograd.grad(program(x, *weights), weights)
    for weight in weights:
        weight.register_post_accumulate_grad_hook(triple)
    dynamo.compile(program)(x, *weights).backward()
    torch.testing.assert_close([weight.grad / 3 for weight in weights], [*want])


@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_of_gradients(program: Callable[..., Any]) -> None:
    def second(call: Callable[..., Any]) -> Any:
        x, *weights = made(torch.float64)
        first = torch.autograd.grad(call(x, *weights), weights, create_graph=True)
        return torch.autograd.grad(sum(grad.square().sum() for grad in first), weights)

    torch.testing.assert_close(second(dynamo.compile(program)), second(program))


def test_a_second_derivative_that_there_is_not() -> None:
    x, *weights = made()
    loss = dynamo.compile(lambda *given: F.dropout(through(*given), 0.5))(x, *weights)
    first = torch.autograd.grad(loss, weights, create_graph=True)
    with pytest.raises(RuntimeError, match="can't be differentiated again"):
        torch.autograd.grad(first[0].sum(), weights[1:2])


def test_what_is_handed_on_dies(each_gradient_alone: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where autograd does not go on, and where it does."""
    held: list[Any] = []
    load = chained_backward.Carrier.load

    def watched(self: Any, rest: Any) -> torch.Tensor:
        grad = load(self, rest)
        held.append(weakref.ref(rest))
        return grad

    monkeypatch.setattr(chained_backward.Carrier, "load", watched)
    x, *weights = made()
    for wanted in (weights[2:], weights):
        torch.autograd.grad(dynamo.compile(through)(x, *weights), wanted)
        assert held and not any(ref() for ref in held)
    with pytest.raises(RuntimeError, match="took away"):
        chained_backward.Carrier.unload(torch.zeros(()))


def test_symbolic_sizes() -> None:
    def program(x: torch.Tensor, a: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x @ a) * w[0]
        y = torch.cat((y.reshape(-1), x.new_ones(x.shape[0] * 4))).view(2, x.shape[0], 4).sum(0)
        return (y @ b).square().sum() / (x.shape[0] + 1)

    counter, (_, *weights) = CompileCounter("inductor"), made()
    compiled = dynamo.compile(program, dynamic=True, backend=counter)
    for rows in (5, 7, 6):
        x = torch.randn(rows, 4)
        want = torch.autograd.grad(program(x, *weights), weights)
        torch.testing.assert_close(torch.autograd.grad(compiled(x, *weights), weights), want)
    assert counter.frame_count == 1


def test_another_process_finds_the_segments(tmp_path: Path) -> None:
    x, *weights = made()
    want = torch.autograd.grad(parts(x, *weights), weights)
    with new_cache(tmp_path), config.patch(graph_cache=True):
        for reused in (0, 4):  # forward and three segments
            dynamo.reset()
            before = metrics.snapshot()["graphs_reused"]
            got = torch.autograd.grad(dynamo.compile(parts)(x, *weights), weights)
            torch.testing.assert_close(got, want)
            assert metrics.snapshot()["graphs_reused"] - before == reused


def test_anomalies_and_missing_gradients() -> None:
    def two(x: torch.Tensor, a: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.tanh(x @ a) * w
        return y.sum(), (y @ b).sqrt().sum()

    x, *weights = made()
    compiled = dynamo.compile(two)
    (first, _), (want, _) = compiled(x, *weights), two(x, *weights)
    got = torch.autograd.grad(first, weights, allow_unused=True)
    torch.testing.assert_close(got, torch.autograd.grad(want, weights, allow_unused=True))
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="nan values"):
        sum(compiled(x, *weights)).backward()  # type: ignore[union-attr]
    assert all(weight.grad is None for weight in weights)
