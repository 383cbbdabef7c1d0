"""Inputs whose memory holds their conjugates or negatives: programs over them are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynamo
from dynamo.testing import assert_compiled
from inductor.driver.compile_fx import compile_fx


def numbers() -> Tensor:
    return torch.complex(torch.arange(6.0), torch.arange(6.0).neg() / 2).view(2, 3)


KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "conjugated": lambda z: z.conj(),
    "negative": lambda z: z.conj().imag,
    "both": lambda z: torch._neg_view(z.t().conj()),
    "plain": lambda z: z,
}


def computed(x: Tensor) -> Any:
    return x * 2 + 1, (x @ x.mH).abs()


def viewed(x: Tensor) -> Any:
    return x[1:], x.t() * x.t(), x.conj()


def written(x: Tensor) -> Any:
    y = x.sin()
    x.mul_(3)
    return y + x, x[0]


def given(x: Tensor) -> Any:
    return x, x + 1


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("program", [computed, viewed, written, given])
def test_equals_eager(program: Callable[[Tensor], Any], kind: str, learns: bool, backend: str) -> None:
    dynamo.reset()
    compiled = dynamo.compile(program, backend=backend)
    for other in (kind, "plain", kind):
        found = []
        for call in (program, compiled):
            start = numbers().requires_grad_(learns and program is not written)
            x = KINDS[other](start)
            results = [*call(x)]
            if start.requires_grad:
                total: Any = sum(value.abs().square().sum() for value in results)
                total.backward()
            told = [(value.is_conj(), value.is_neg(), value.stride()) for value in results]
            storages = [value.untyped_storage()._cdata == x.untyped_storage()._cdata for value in results]
            found.append((told, storages, [*results, start, start.grad]))
        assert found[1][:2] == found[0][:2]
        torch.testing.assert_close(found[1][2], found[0][2])
    if program is not given and (program is not written or kind != "negative"):
        assert_compiled()  # a write into a view with gaps has other strides


def test_calls_with_other_inputs_are_counted() -> None:
    """Guards keep a frame's graph from them; who compiles a graph by hand may bring them."""
    dynamo.reset()
    z = numbers()
    gm = torch.fx.symbolic_trace(lambda x: (x * 2 + 1,))
    (node,) = gm.graph.find_nodes(op="placeholder")
    node.meta["example_value"] = z.conj()
    call = compile_fx(gm, [z.conj()])
    before = sum(dynamo.counters["not_compiled"].values())
    torch.testing.assert_close(call(z.conj())[0], z.conj() * 2 + 1)
    assert sum(dynamo.counters["not_compiled"].values()) == before
    torch.testing.assert_close(call(z)[0], z * 2 + 1)
    assert sum(dynamo.counters["not_compiled"].values()) == before + 1
