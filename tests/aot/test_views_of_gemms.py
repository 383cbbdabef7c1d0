"""Several outputs that are views of what a linear layer gives, which is made of a GEMM's result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo

Tensor = torch.Tensor


def chunks(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    return F.linear(x, weight).chunk(3, -1)


def rows(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    y = F.linear(x, weight)
    return y[:, 0], y, y[:, 1:]


def written(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    y = F.linear(x, weight)
    first = y[:, 0]
    first.mul_(2)
    return first, y[:, 1:]


def detached(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    y = F.linear(x, weight)
    return y[:, 0].detach(), y[:, 1:]


def of_images(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    y = F.linear(x.unsqueeze(1), weight)
    return y.squeeze(1), y.transpose(2, 3)


def facts(outputs: tuple[Tensor, ...]) -> list[Any]:
    memory = outputs[0].untyped_storage()
    return [
        (t.shape, t.stride(), t.storage_offset(), t._is_view(), t.requires_grad,
         t.untyped_storage().data_ptr() == memory.data_ptr(), t.untyped_storage().nbytes())
        for t in outputs
    ]  # fmt: skip


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", [chunks, rows, written, detached, of_images])
def test_outputs(program: Callable[..., tuple[Tensor, ...]], dynamic: bool | None) -> None:
    dynamo.reset()
    compiled = dynamo.compile(program, dynamic=dynamic, fullgraph=True)
    for count in (2, 5, 4):
        x, weight, seen = torch.randn(2, count, 16), torch.randn(48, 16), []
        for call in (program, compiled):
            given = x.clone().requires_grad_(), weight.clone().requires_grad_()
            outputs = call(*given)
            parts = [k * t.square().sum() for k, t in enumerate(outputs, 1) if t.requires_grad]
            torch.stack(parts).sum().backward()
            seen.append((facts(outputs), [t.detach() for t in outputs], [t.grad for t in given]))
        (shown, values, grads), (found, own, own_grads) = seen
        assert found == shown
        torch.testing.assert_close([*own, *own_grads], [*values, *grads], rtol=1e-4, atol=1e-4)
        with torch.no_grad():  # they share their memory
            one, other = program(x, weight), compiled(x, weight)
            for outputs in (one, other):
                outputs[0].add_(1)
            torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)
    assert not dynamo.counters["not_compiled"]
