"""Numbers that only scale and shift tensors become tensors of no dimension: their value is free.

In: a captured graph with symbolic numbers. Out: a graph in which such numbers are tensor inputs,
and a function that makes its inputs of the original's. + - * / of a float32 or float64 tensor with
dimensions take the tensor as it is; other operators become functions of `rules.py`. A number
stays one where it meets an operator that has no rule: there the value may decide sizes.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from inductor.dynamic_shapes.numbers.rules import WithNumbers, rule_of

ARITHMETIC = frozenset((
    operator.add, operator.sub, operator.mul, operator.truediv, operator.iadd, operator.isub,
    operator.imul, operator.itruediv, torch.add, torch.sub, torch.mul, torch.div, "add", "sub",
    "mul", "div", "add_", "sub_", "mul_", "div_",
))  # fmt: skip
ON_NUMBERS: frozenset[Any] = frozenset((
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.neg, operator.pos, abs, min, max, round, int, float, torch.sym_max,
    torch.sym_min, torch.sym_float, torch.sym_int, torch.sym_sqrt,
    *filter(callable, vars(math).values()),
))  # fmt: skip
DTYPES = (torch.float32, torch.float64)
CPU = torch.device("cpu")
PACK = struct.Struct("d").pack


@dataclass(frozen=True)
class Lifted:
    """module: the graph with tensors in place of numbers; inputs_of: makes its inputs."""

    module: fx.GraphModule
    inputs_of: Callable[[tuple[Any, ...]], list[Any]]

    def has_floats(self) -> bool:
        """Whether an input is a float still."""
        return any(
            type(node.meta.get("example_value")) is float
            for node in self.module.graph.nodes if node.op == "placeholder")


def lift_numbers(gm: fx.GraphModule) -> Lifted | None:
    """The graph with lifted numbers; None where no number can be lifted."""
    places = [node for node in gm.graph.nodes if node.op == "placeholder"]
    numbers = number_nodes(gm.graph)
    ends = [node for node in numbers if any(user not in numbers for user in node.users)]
    free = [
        node for node in ends if all(user in numbers or takes(user, node) for user in node.users)
    ]
    free = without_shared_roots(ends, free, numbers)
    if not free:
        return None
    gone = {place for node in free for place in roots(node, numbers)}
    copy, known, taken = fx.Graph(), dict[fx.Node, fx.Node](), dict.fromkeys(free)
    for place in places:
        if place not in gone:
            known[place] = copy.node_copy(place)
    made: dict[tuple[fx.Node, torch.device], fx.Node] = {}
    for node in free:
        for user in node.users:
            key = (node, device_of(user)) if user not in numbers else None
            if key is not None and key not in made:
                made[key] = copy.placeholder(f"{node.name}_value")
                made[key].meta["example_value"] = as_tensor(node.meta["example_value"], key[1])
    for node in gm.graph.nodes:
        if node not in known and not (node in numbers and roots(node, numbers) <= gone):
            here = device_of(node)
            given = {n: made[n, here] for n in node.all_input_nodes if n in taken}
            known[node] = copied(copy, node, {**known, **given} if given else known, taken)
    module = fx.GraphModule(gm, copy)
    module.meta.update(gm.meta)
    make = inputs_maker(places, gone, list(made), numbers, greatest(gm.graph))
    return Lifted(module, make)


def copied(
    graph: fx.Graph, node: fx.Node, known: dict[fx.Node, fx.Node], free: dict[fx.Node, None]
) -> fx.Node:
    """A node of the new graph, where some of its numbers are tensors."""
    numbers = [given for given in node.all_input_nodes if given in free]
    made = graph.node_copy(node, known.__getitem__)
    if any(not takes_tensor(node, number) for number in numbers):
        rule = rule_of(node, numbers[0])
        assert rule is not None
        made.op, made.target = "call_function", WithNumbers(node, rule, free)
    return made


def without_shared_roots(
    ends: list[fx.Node], free: list[fx.Node], numbers: dict[fx.Node, None]
) -> list[fx.Node]:
    """The free ones none of whose inputs is needed as a number elsewhere."""
    while True:
        stay = {place for node in ends if node not in free for place in roots(node, numbers)}
        left = [node for node in free if not roots(node, numbers) & stay]
        if len(left) == len(free):
            return left
        free = left


def number_nodes(graph: fx.Graph) -> dict[fx.Node, None]:
    """Number inputs, and arithmetic on nothing but these and constants, in order."""
    numbers: dict[fx.Node, None] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            if type(node.meta.get("example_value")) in (int, float):
                numbers[node] = None
        elif node.op == "call_function" and node.target in ON_NUMBERS:
            inputs = node.all_input_nodes
            known = inputs and all(arg in numbers for arg in inputs) and not node.kwargs
            if known and type(node.meta.get("example_value")) in (int, float):
                numbers[node] = None
    return numbers


def roots(node: fx.Node, numbers: dict[fx.Node, None]) -> set[fx.Node]:
    """The inputs that a number is made of."""
    if node.op == "placeholder":
        return {node}
    return {place for arg in node.all_input_nodes for place in roots(arg, numbers)}


def takes(user: fx.Node, number: fx.Node) -> bool:
    """True where the number may be a tensor, maybe with another operator."""
    return takes_tensor(user, number) or rule_of(user, number) is not None


def takes_tensor(user: fx.Node, number: fx.Node) -> bool:
    """True where a tensor of no dimension gives what the number gives."""
    if user.op not in ("call_function", "call_method") or user.target not in ARITHMETIC:
        return False
    if user.kwargs or len(user.args) != 2:
        return False
    other = user.args[0] if user.args[1] is number else user.args[1]
    value = other.meta.get("example_value") if isinstance(other, fx.Node) else None
    if not isinstance(value, torch.Tensor) or user.args[0] is user.args[1]:
        return False
    if user.target is operator.truediv and user.args[0] is number:
        return False  # a product with the reciprocal
    in_place = str(getattr(user.target, "__name__", user.target)).startswith("i")
    if (in_place or str(user.target).endswith("_")) and user.args[0] is number:
        return False
    return value.dtype in DTYPES and value.dim() > 0 and value.device.type == "cpu"


def device_of(user: fx.Node) -> torch.device:
    """Where an operator computes: there its numbers are tensors."""
    values = [user.meta.get("example_value"), *[n.meta.get("example_value") for n in (
        user.all_input_nodes)]]  # fmt: skip
    for value in values:
        while isinstance(value, (list, tuple)) and value:
            value = value[0]
        if isinstance(value, torch.Tensor):
            return value.device
    return CPU


def as_tensor(value: int | float, device: torch.device = CPU) -> torch.Tensor:
    """The number as a tensor; ints and floats keep their kind."""
    dtype = torch.int64 if type(value) is int else torch.float64
    if device.type == "cpu":
        return torch.scalar_tensor(value, dtype=dtype, device=device)
    with torch.inference_mode(False):  # it may outlive this call
        return torch.full((), value, dtype=dtype, device=device)


class Held:
    """A number in the memory of a device: new memory for each new value, so that nobody waits for
    what still reads the old one."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.known: tuple[Any, Any, torch.Tensor] | None = None

    def __call__(self, value: int | float) -> torch.Tensor:
        if torch._C._cuda_isCurrentStreamCapturing():
            return as_tensor(value, self.device)  # of the memory of that graph
        stream = torch._C._cuda_getCurrentRawStream(self.device.index or 0)
        known, bits = self.known, (type(value), value if type(value) is int else PACK(value))
        if known is None or known[:2] != (stream, bits):
            known = self.known = (stream, bits, as_tensor(value, self.device))
        return known[2]


def greatest(graph: fx.Graph) -> float:
    """The greatest number that all dtypes of a graph hold: for greater ones, eager raises here and
    there."""
    dtypes = {
        value.dtype for node in graph.nodes
        if isinstance(value := node.meta.get("example_value"), torch.Tensor)
        and value.dtype.is_floating_point
    }
    return min([torch.finfo(dtype).max for dtype in dtypes] or [math.inf])


def inputs_maker(
    places: list[fx.Node], gone: set[fx.Node], made: list[tuple[fx.Node, torch.device]],
    numbers: dict[fx.Node, None], most: float,
) -> Callable[[tuple[Any, ...]], list[Any]]:
    """Computes the numbers of each call. Errors: OverflowError for one beyond `most`."""
    passed = [index for index, place in enumerate(places) if place not in gone]
    steps = [node for node in numbers if node.op != "placeholder" and roots(node, numbers) <= gone]
    given = [(index, place) for index, place in enumerate(places) if place in gone]
    free = [
        (node, Held(device) if device.type == "cuda" else as_tensor) for node, device in made
    ]

    def make(inputs: tuple[Any, ...]) -> list[Any]:
        values = {place: inputs[index] for index, place in given}
        for node in steps:
            arguments = fx.map_arg(node.args, values.__getitem__)
            values[node] = node.target(*arguments)  # type: ignore[operator]
        for value in values.values():
            if type(value) is float and most < abs(value) < math.inf:
                raise OverflowError(value)
        return [*[inputs[index] for index in passed], *[held(values[node]) for node, held in free]]

    return make
