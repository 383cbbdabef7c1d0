"""Numbers on the CPU that a graph computes and writes into others: one program for all of them.

In: a functional ATen graph with fakes, most of whose tensors are on a GPU. Out: the same graph
(changed in place), where what it writes into inputs that are float32 or float64 numbers on the CPU
is one `dynamo_jit::compute_numbers_`, as far as it is arithmetic on such numbers. NAdam without
`capturable` is such a program: a product on the CPU for each parameter, of which each step computes
the next one by ten operators.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import fx

from dynamo.aot.fakes import facts_of, is_fake
from dynamo.aot.graphs import is_literal
from inductor.operators.device_numbers import COMPUTE_NUMBERS, Operation

aten = torch.ops.aten
DTYPES = (torch.float32, torch.float64)
BINARY = {
    aten.add.Tensor: Operation.ADD, aten.add.Scalar: Operation.ADD,
    aten.sub.Tensor: Operation.SUB, aten.sub.Scalar: Operation.SUB,
    aten.mul.Tensor: Operation.MUL, aten.mul.Scalar: Operation.MUL,
    aten.div.Tensor: Operation.DIV, aten.div.Scalar: Operation.DIV,
    aten.rsub.Tensor: Operation.SUB, aten.rsub.Scalar: Operation.SUB,
    aten.pow.Scalar: Operation.POW, aten.pow.Tensor_Scalar: Operation.POW,
    aten.clamp_min.default: Operation.MAX, aten.clamp_max.default: Operation.MIN,
}  # fmt: skip
SWAPPED = (aten.rsub.Tensor, aten.rsub.Scalar)
UNARY = {
    aten._to_copy.default: Operation.COPY, aten.clone.default: Operation.COPY,
    aten.alias.default: Operation.COPY, aten.detach.default: Operation.COPY,
    aten.neg.default: Operation.NEG, aten.sqrt.default: Operation.SQRT,
    aten.reciprocal.default: Operation.RECIPROCAL,
}  # fmt: skip
# Of these, ATen has kernels without a power.
SPECIAL_EXPONENTS = frozenset((-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0))
FEWEST_STEPS = 2  # a single one is a call of ATen, too
Place = tuple[Literal["read", "constant", "step"], int]


def write_numbers_at_once(module: fx.GraphModule) -> None:
    """See the top of the file."""
    program = _Program(module)
    found = module.graph.find_nodes(op="call_function", target=aten.copy_.default)
    writes = [node for node in found if program.add(node)]
    if len(program.steps) < FEWEST_STEPS:
        return
    with module.graph.inserting_after(writes[-1]):
        made = module.graph.call_function(COMPUTE_NUMBERS, program.arguments())
    made.meta = {**writes[-1].meta, "val": None}
    for write in writes:
        module.graph.erase_node(write)
    module.graph.eliminate_dead_code()


def constant_of(module: fx.GraphModule, value: Any) -> Any:
    """The number that a constant tensor on the CPU holds; what is no node is itself, None for any
    other node or tensor."""
    if not isinstance(value, fx.Node):
        return value
    known = value.op == "get_attr" and is_literal(value)
    held = getattr(module, str(value.target)) if known else None
    if not isinstance(held, torch.Tensor) or held.numel() != 1 or held.is_cuda:
        return None
    return held.item()


class _Program:
    """The steps from what is read to what is written. While it is made, values are numbered within
    their kinds."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.module = module
        self.written: list[fx.Node] = []
        self.ends: list[Place] = []
        self.read: list[fx.Node] = []
        self.constants: list[float] = []
        self.steps: list[tuple[Operation, bool, Place, Place]] = []
        self.places: dict[fx.Node, Place] = {}

    def add(self, write: fx.Node) -> bool:
        """Whether the program does this write, too."""
        goal, value = write.args[0], write.args[1]
        if not isinstance(goal, fx.Node) or goal.op != "placeholder" or not _is_float(goal):
            return False
        if not isinstance(value, fx.Node) or not self._can_compute(value, set()):
            return False
        self.written.append(goal)
        self.ends.append(self._place(value))
        return True

    def arguments(self) -> tuple[Any, ...]:
        """Of the operator."""
        begins = {"read": 0, "constant": len(self.read),
                  "step": len(self.read) + len(self.constants)}

        def number(place: Place) -> int:
            return begins[place[0]] + place[1]

        steps = [part for operation, is_double, a, b in self.steps
                 for part in (int(operation), int(is_double), number(a), number(b))]
        return self.written, self.read, self.constants, steps, [*map(number, self.ends)]

    def _can_compute(self, root: fx.Node, seen: set[fx.Node]) -> bool:
        work = [root]
        while work:
            node = work.pop()
            if node in seen or node in self.places:
                continue
            seen.add(node)
            if node.op == "get_attr" and _is_exact(constant_of(self.module, node)):
                continue
            if not _is_float(node):
                return False
            if node.op == "placeholder":
                continue
            if node.op != "call_function" or not self._is_arithmetic(node):
                return False
            work += node.all_input_nodes
        return True

    def _is_arithmetic(self, node: fx.Node) -> bool:
        more = {name: value for name, value in node.kwargs.items() if name != "dtype"}
        if more and more != {"alpha": 1}:
            return False
        if node.target in UNARY:
            return len(node.args) == 1
        if not all(isinstance(arg, fx.Node) or _is_exact(arg) for arg in node.args):
            return False
        if node.target is aten.copy.default or node.target is aten.clamp.default:
            return True
        if node.target not in BINARY or len(node.args) != 2:
            return False
        return node.target is not aten.pow.Tensor_Scalar or node.args[1] not in SPECIAL_EXPONENTS

    def _place(self, root: fx.Node) -> Place:
        """Where the value of a node is; steps for it are there from now on."""
        work = [root]
        while work:
            node = work[-1]
            missing = [one for one in node.all_input_nodes if one not in self.places]
            if missing:
                work += missing
                continue
            work.pop()
            if node not in self.places:
                self.places[node] = self._new_place(node)
        return self.places[root]

    def _new_place(self, node: fx.Node) -> Place:
        if node.op == "placeholder":
            self.read.append(node)
            return "read", len(self.read) - 1
        if node.op == "get_attr":
            return self._constant(constant_of(self.module, node))
        target: Any = node.target
        operands = [self.places[arg] if isinstance(arg, fx.Node) else self._constant(arg)
                    for arg in node.args]
        is_double = facts_of(node.meta["val"]).dtype is torch.float64
        if target in SWAPPED:
            operands.reverse()
        if target is aten.copy.default:
            return self._step(Operation.COPY, is_double, operands[1], operands[1])
        if target is aten.clamp.default:
            low = self._step(Operation.MAX, is_double, *operands[:2])
            return self._step(Operation.MIN, is_double, low, operands[2]) if operands[2:] else low
        operation = UNARY[target] if target in UNARY else BINARY[target]
        return self._step(operation, is_double, operands[0], operands[-1])

    def _step(self, operation: Operation, is_double: bool, a: Place, b: Place) -> Place:
        self.steps.append((operation, is_double, a, b))
        return "step", len(self.steps) - 1

    def _constant(self, value: Any) -> Place:
        self.constants.append(float(value))
        return "constant", len(self.constants) - 1


def _is_exact(value: Any) -> bool:
    """Whether float64 holds a number of Python's."""
    return type(value) is float or type(value) is int and abs(value) <= 1 << 53


def _is_float(node: fx.Node) -> bool:
    """Whether it is a number on the CPU that steps can hold."""
    value = node.meta.get("val")
    if not is_fake(value):
        return False
    facts = facts_of(value)
    return facts.device.type == "cpu" and not facts.size and facts.dtype in DTYPES
