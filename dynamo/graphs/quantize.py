"""Linear layers and convolutions in int8.

In: a graph that `dynamo.export` made of a module for inference. Out: a new one with the same
arguments, whose `linear` and `conv2d` operations read int8 weights (symmetric, a scale for each
output channel) and uint8 inputs (affine, one scale), and sum in int32. oneDNN computes them
(`graphs.int8`; VNNI or AMX instructions where the processor has them; without these weights have
seven bits, and those that were converted elsewhere are an error).

- dynamic: the range of each input is found at each call; linear layers only;
- static: `calibrate` runs the graph on samples and notes ranges, `convert` writes them in.

Weights are quantized at that moment: later changes of the module's are not seen. With a static
range, NaN counts as 0. Sources: "torch.fx", section 6.2.1 of the paper; Jacob et al., "Quantization
and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from dynamo.graphs.copies import copied
from dynamo.graphs.effects import finish
from dynamo.graphs.int8 import convolution, linear, most_of_weights

LINEAR = (F.linear, torch._C._nn.linear)
# Their arguments behind input, weight and bias, with the values that they have unless given.
CONVOLUTION = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
MOST, LEAST_SCALE = 255, 1e-12


@dataclass(slots=True)
class Range:
    """The values that an input had. count: samples seen."""

    low: float = 0.0
    high: float = 0.0
    count: int = 0

    def see(self, value: Tensor) -> None:
        """Errors: ValueError where a value is infinite or not a number."""
        low, high = (float(each) for each in torch.aminmax(value))
        if not (-float("inf") < low and high < float("inf")):
            raise ValueError(f"can't calibrate with values between {low} and {high}")
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.count += 1

    def scale(self) -> float:
        return max((self.high - self.low) / MOST, LEAST_SCALE)

    def zero(self) -> int:
        """The uint8 number that stands for 0."""
        return min(max(round(-self.low / self.scale()), 0), MOST)


def quantize_dynamic(module: fx.GraphModule) -> fx.GraphModule:
    """A copy whose linear layers are computed in int8, with ranges found at each call.

    >>> import dynamo
    >>> layer, x = torch.nn.Linear(64, 32), torch.randn(4, 64)
    >>> graph, guards = dynamo.export(layer, x)
    >>> bool((quantize_dynamic(graph)(x) - layer(x)).abs().max() < 0.05)
    True
    """
    module = copied(module)
    for node in list(module.graph.nodes):
        if node.target in LINEAR and _weight(module, node) is not None:
            _replace(module, node, dynamic_linear, None)
    return finish(module)


def calibrate(module: fx.GraphModule, samples: Iterable[tuple[Any, ...]]) -> dict[str, Range]:
    """The ranges of what each linear layer and convolution reads, by the node's name.

    samples: tuples of arguments. Errors: ValueError where there is no sample.
    """
    watching = _Watching(module)
    with torch.no_grad():
        for sample in samples:
            watching.run(*sample)
    if not any(found.count for found in watching.ranges.values()):
        raise ValueError("calibration needs a sample and a layer that can be quantized")
    return watching.ranges


def convert(module: fx.GraphModule, ranges: Mapping[str, Range]) -> fx.GraphModule:
    """A copy whose layers with a range are computed in int8."""
    module = copied(module)
    for node in list(module.graph.nodes):
        found = ranges.get(node.name)
        if found is None or _weight(module, node) is None:
            continue
        by = static_linear if node.target in LINEAR else static_convolution
        _replace(module, node, by, found)
    return finish(module)


def dynamic_linear(x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None) -> Tensor:
    """x [.., k] times the int8 weight [n, k], in float32; NaN where x is not finite."""
    low, high = x.amin().clamp(max=0), x.amax().clamp(min=0)
    scale = ((high - low) / MOST).clamp(min=LEAST_SCALE)
    zero = (-low / scale).round().clamp(0, MOST).to(torch.int32)
    rows = x.reshape(-1, x.shape[-1])
    whole = ((rows / scale).round() + zero).clamp(0, MOST).to(torch.uint8)
    result = linear(whole, scale, zero, weight, scales, bias)
    broken = scale - scale  # 0, or NaN for an infinite range
    return (result + broken).reshape(*x.shape[:-1], result.shape[-1])


def static_linear(
    x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None, scale: Tensor, zero: Tensor
) -> Tensor:
    """The same with a range known before; what is outside of it is clamped."""
    whole = _rounded(x.reshape(-1, x.shape[-1]), scale, zero)
    result = linear(whole, scale, zero, weight, scales, bias)
    return result.reshape(*x.shape[:-1], result.shape[-1])


def static_convolution(
    x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None, scale: Tensor, zero: Tensor,
    stride: list[int], padding: list[int], dilation: list[int], groups: int,
) -> Tensor:
    """A convolution of x [batch, channels, height, width], channels last inside."""
    whole = _rounded(x.contiguous(memory_format=torch.channels_last), scale, zero)
    return convolution(
        whole, scale, zero, weight, scales, bias, stride, padding, dilation, groups
    )


def _rounded(x: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    return ((x / scale).round() + zero).clamp(0, MOST).to(torch.uint8)


class _Watching(fx.Interpreter):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module)
        layers = (*LINEAR, torch.conv2d)
        self.ranges = {node.name: Range() for node in module.graph.nodes
                       if node.target in layers and _weight(module, node) is not None}  # fmt: skip

    def run_node(self, n: fx.Node) -> Any:
        if n.name in self.ranges:
            self.ranges[n.name].see(self.map_nodes_to_values(n.args[0], n))  # type: ignore[arg-type]
        return super().run_node(n)


def _weight(module: fx.GraphModule, node: fx.Node) -> Tensor | None:
    """The weight of a layer, where it is an attribute of float32 and the layer has a usual form."""
    known = node.target in LINEAR or node.target is torch.conv2d
    if not known or node.kwargs or len(node.args) < 2:
        return None
    given: list[Any] = [node.args[1], *(each for each in node.args[2:3] if each is not None)]
    if any(not isinstance(each, fx.Node) or each.op != "get_attr" for each in given):
        return None
    if node.target is torch.conv2d and any(isinstance(each, str) for each in node.args[3:]):
        return None  # padding="same"
    owner: Any = module
    weight = reduce(getattr, given[0].target.split("."), owner).detach()
    return weight if weight.dtype is torch.float32 and weight.device.type == "cpu" else None


def _replace(module: fx.GraphModule, node: fx.Node, by: Any, value_range: Range | None) -> None:
    weight = _weight(module, node)
    assert weight is not None
    bias = node.args[2] if len(node.args) > 2 else None
    scales = weight.abs().amax(tuple(range(1, weight.dim()))) / most_of_weights()
    scales = torch.where(scales > 0, scales, 1.0)
    shape = [-1] + [1] * (weight.dim() - 1)
    made = {"int8": (weight / scales.view(shape)).round().to(torch.int8), "scales": scales}
    if value_range is not None:
        made["scale"] = torch.tensor(value_range.scale())
        made["zero"] = torch.tensor(value_range.zero(), dtype=torch.int32)
    how: tuple[Any, ...] = ()
    if by is static_convolution:
        given = {**CONVOLUTION, **dict(zip(CONVOLUTION, node.args[3:], strict=False))}
        how = (*(_pair(given[name]) for name in ("stride", "padding", "dilation")), given["groups"])
    graph = module.graph
    with graph.inserting_before(node):
        nodes = []
        for kind, tensor in made.items():
            name = f"{node.name}_{kind}"
            module.register_buffer(name, tensor)
            nodes.append(graph.get_attr(name))
        new = graph.call_function(by, (node.args[0], *nodes[:2], bias, *nodes[2:], *how))
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    graph.erase_node(node)


def _pair(value: Any) -> list[int]:
    return list(value) if isinstance(value, (tuple, list)) else [value, value]
