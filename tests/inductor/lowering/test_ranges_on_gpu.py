"""Ranges of floats as they are lowered for a GPU, and interpreted here."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, fx

from dynamo.shapes.fake import FakeWorld
from inductor.ir import interpret
from inductor.lowering.run import Lowered, lower_graph

aten = torch.ops.aten
GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


def lowered(target: Any, args: tuple[Any, ...], wanted: Tensor, device: torch.device = GPU) -> Lowered:
    """The operator alone. wanted: of its size and dtype."""
    graph, world = fx.Graph(), FakeWorld()
    node = graph.call_function(target, args, {"dtype": wanted.dtype, "device": device})
    node.meta["val"] = world.make(world.cache.facts(tuple(wanted.shape), (1,), 0, wanted.dtype, device))
    graph.output((node,))
    return lower_graph(fx.GraphModule({}, graph))


def found(target: Any, args: tuple[Any, ...], wanted: Tensor, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    monkeypatch.setattr(interpret, "_allocate", lambda layout: torch.empty(
        layout.storage_elements(), dtype=layout.dtype))
    made = lowered(target, args, wanted)
    assert not made.fallbacks
    (result,) = interpret.interpret_graph(made.graph, [])
    assert result.dtype is wanted.dtype and result.shape == wanted.shape
    return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("start", "end", "step"), [(0.5, 32, 1), (0, 3, 0.1), (2.7, -1.3, -0.3)])
def test_steps(start, end, step, dtype, monkeypatch) -> None:
    """start + step * i in float32, or float64."""
    wanted = torch.arange(start, end, step, dtype=dtype)
    kind = numpy.float64 if dtype is torch.float64 else numpy.float32
    wide = numpy.longdouble
    exact = wide(kind(step)) * numpy.arange(len(wanted)).astype(wide) + wide(kind(start))
    result = found(aten.arange.start_step, (start, end, step), wanted, monkeypatch)
    torch.testing.assert_close(
        result, torch.from_numpy(exact.astype(kind)).to(dtype), rtol=1e-2 if dtype is torch.bfloat16 else 1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("start", "end", "steps"), [(0, 1, 7), (-4, 4, 9), (1e-4, 1, 2), (3, -2.5, 64), (0.3, 9, 1)])
def test_evenly_spaced(start, end, steps, dtype, monkeypatch) -> None:
    wanted = torch.linspace(start, end, steps, dtype=dtype)
    result = found(aten.linspace.default, (start, end, steps), wanted, monkeypatch)
    torch.testing.assert_close(result, wanted, atol=1e-6, rtol=1e-6)
    assert result[0] == wanted[0] and result[-1] == wanted[-1]


def test_what_falls_back() -> None:
    for dtype, device in ((torch.float16, GPU), (torch.int64, GPU), (torch.float32, CPU)):
        assert lowered(aten.linspace.default, (0, 9, 4), torch.empty(4, dtype=dtype), device).fallbacks
    assert lowered(aten.arange.start, (0.5, 3), torch.empty(3), CPU).fallbacks
