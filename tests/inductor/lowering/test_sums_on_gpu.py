"""GEMMs that add where a tensor lies, as they are lowered for a GPU: what reads the old one comes before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_stacks_on_gpu import moved
from torch import Tensor, fx

from dynamo.aot.api import simplify
from dynamo.aot.capture import capture_forward
from inductor.fx_passes import sums_of_gemms
from inductor.fx_passes.in_place import write_in_place
from inductor.fx_passes.pipeline import decompositions
from inductor.fx_passes.sums_of_gemms import add_in_gemms
from inductor.ir import interpret
from inductor.lowering.registry import LOWERINGS
from inductor.lowering.run import lower_graph

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    monkeypatch.setattr(sums_of_gemms, "LARGE", 1)
    monkeypatch.setattr(interpret, "_allocate", lambda layout: torch.empty(
        layout.storage_elements(), dtype=layout.dtype))


def read_before(x: Tensor, w: Tensor) -> Any:
    """By a value that is computed where it is wanted, behind the GEMM."""
    total = w.sin()
    old = total * 3
    return torch.addmm(total, x.t(), x), old


def by_a_factor(x: Tensor, w: Tensor) -> Any:
    """One of the factors is computed from what is written."""
    total = w.sin()
    return torch.addmm(total, total * 2, w)


def thrice(x: Tensor, w: Tensor) -> Any:
    return x.t() @ x + x.sin().t() @ x + x.cos().t() @ x


def of_batches(x: Tensor, w: Tensor) -> Any:
    total = torch.stack([w, w]).sin()
    return total.baddbmm(torch.stack([w, w]), torch.stack([w, w.t()]), beta=2)


def of_a_constant(x: Tensor, w: Tensor) -> Any:
    """The trace holds the ones, which the next call reads again."""
    return torch.ones(4, 4).addmm(x.t(), x)


@pytest.mark.parametrize(("program", "in_place"), [
    (read_before, 1), (by_a_factor, 1), (thrice, 2), (of_batches, 1), (of_a_constant, 0)])
def test_values(program: Any, in_place: int) -> None:
    given = [torch.randn(6, 4), torch.randn(4, 4)]
    captured = capture_forward(fx.symbolic_trace(program), given)
    world = next(n.meta["val"].world for n in captured.module.graph.nodes if n.op == "placeholder")
    module = simplify(captured.module, decompositions(), world)
    for node in module.graph.nodes:
        node.meta["val"] = moved(node.meta.get("val"))
    module = write_in_place(add_in_gemms(module), LOWERINGS.__contains__)
    made = lower_graph(module)
    assert not made.fallbacks
    writes = [node for node in made.graph.nodes if getattr(node, "target", None) in (aten.addmm_.default, aten.baddbmm_.default)]
    assert len(writes) == in_place
    wanted = program(*given)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for one, other in zip(interpret.interpret_graph(made.graph, given), wanted, strict=True):
        torch.testing.assert_close(one, other)
