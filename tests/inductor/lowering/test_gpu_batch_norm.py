"""The batch norm that a capture on a GPU holds, lowered and interpreted here."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from dynamo.aot.capture import capture_forward
from inductor.ir.interpret import interpret_graph
from inductor.lowering.run import Lowered, lower_graph

NAMES = ("x", "weight", "bias", "mean", "var")


def lowered(training: bool, values: list[torch.Tensor]) -> Lowered:
    graph = fx.Graph()
    inputs = [graph.placeholder(name) for name in NAMES]
    for node, value in zip(inputs, values, strict=True):
        node.meta["val"] = value
    target = torch.ops.aten.cudnn_batch_norm.default
    node = graph.call_function(target, (*inputs, training, 0.1, 1e-3))
    none = torch.empty(0)
    node.meta["val"] = (values[0], none, none, torch.empty(0, dtype=torch.uint8))
    first = graph.call_function(lambda results, index: results[index], (node, 0))
    first.meta["val"] = values[0]
    graph.output((first,))
    return lower_graph(fx.GraphModule({}, graph))


def test_inference_is_arithmetic() -> None:
    x, weight, bias, mean = torch.randn(3, 5, 4, 4), *(torch.randn(5) for _ in range(3))
    var = torch.rand(5) + 0.1
    values = [x.to(memory_format=torch.channels_last), weight, bias, mean, var]
    made = lowered(False, values)
    assert not made.fallbacks
    (got,) = interpret_graph(made.graph, values)
    wide = [value.double() for value in (x, mean, var, weight, bias)]
    torch.testing.assert_close(got.double(), F.batch_norm(*wide, eps=1e-3), rtol=1e-5, atol=1e-5)
    assert got.stride() == values[0].stride()


def test_statistics_of_the_batch_alone_are_recorded_as_a_norm_that_is_lowered() -> None:
    """As instance norms have it, which keep no running statistics."""
    mode, gpu = FakeTensorMode(), torch.device("cuda", 0)
    values = [torch.randn(1, 6, 4, 5), torch.randn(6), torch.randn(6)]
    fakes = [FakeTensor(mode, value.to("meta"), gpu) for value in values]

    def program(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        norm = torch.ops.aten.cudnn_batch_norm(x, weight, bias, None, None, True, 0.0, 1e-3)
        return norm[0] * 2

    module = capture_forward(fx.symbolic_trace(program), fakes).module
    targets = {node.target for node in module.graph.nodes}
    assert torch.ops.aten.cudnn_batch_norm.default not in targets
    found, *_ = fx.Interpreter(module).run(*values)
    torch.testing.assert_close(found, F.batch_norm(values[0], None, None, *values[1:], True, eps=1e-3) * 2)
