"""Numbers that are computed on the CPU, beside tensors on a GPU.

In: a functional ATen graph with fakes whose tensors are on a GPU. Out: the same graph (changed in
place) where numbers on the CPU (tensors of no dimension) that operators of the GPU read are
computed there: what they are computed from is brought over in one copy, and the operators between
are repeated on it. Kernels then hold them like anything else, and many equal ones are one launch. A
step of an optimizer that is not `capturable` is such a program: a counter on the CPU for each
parameter, and a dozen operators from it to the two numbers that its update takes, each one a call
of ATen before, and the update, too, as it had operands on two devices.

What else needs a result on the CPU has it from there as before. Counters, to each of which the same
number is added, are written by one operator, and what else is computed of numbers and written into
such by another (`number_programs.py`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of, is_fake
from inductor.fx_passes.calls_with_fakes import Calls
from inductor.fx_passes.fakes import fake_runner
from inductor.fx_passes.number_programs import constant_of, write_numbers_at_once
from inductor.operators.device_numbers import ADD_TO_NUMBERS, NUMBERS_ON

aten = torch.ops.aten
# Takes a number from the CPU beside tensors of a GPU, and a kernel does it.
READERS = frozenset((
    aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.pow.Tensor_Tensor,
    aten.addcmul.default, aten.addcdiv.default, aten.lerp.Tensor, aten.where.self,
    aten.maximum.default, aten.minimum.default, aten.clamp.Tensor,
    aten.eq.Tensor, aten.ne.Tensor, aten.lt.Tensor, aten.le.Tensor, aten.gt.Tensor, aten.ge.Tensor,
))  # fmt: skip
# The same number on either device, but for the last bits of powers and the like.
REPEATED = READERS | frozenset((
    aten.add.Scalar, aten.sub.Scalar, aten.mul.Scalar, aten.div.Scalar, aten.rsub.Scalar,
    aten.rsub.Tensor, aten.pow.Scalar, aten.pow.Tensor_Scalar, aten.neg.default, aten.abs.default,
    aten.sqrt.default, aten.rsqrt.default, aten.reciprocal.default, aten.exp.default,
    aten.log.default, aten._to_copy.default, aten.clone.default, aten.alias.default,
    aten.detach.default, aten.clamp.default, aten.clamp_min.default, aten.clamp_max.default,
    aten.eq.Scalar, aten.ne.Scalar, aten.lt.Scalar, aten.le.Scalar, aten.gt.Scalar, aten.ge.Scalar,
))  # fmt: skip
DTYPES = frozenset((
    torch.float64, torch.float32, torch.int64, torch.int32, torch.bool, torch.float16,
    torch.bfloat16,
))  # fmt: skip


def compute_numbers_on_gpu(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    nodes = [*module.graph.nodes]
    if not any(_is_on_gpu(node) for node in nodes):
        return module
    readers = [node for node in nodes if _reads_numbers(node)]
    devices = {facts_of(node.meta["val"]).device for node in readers}
    if len(devices) == 1:
        _Twins(module.graph, readers, devices.pop()).bring_over()
        module.graph.eliminate_dead_code()
    _count_at_once(module)
    write_numbers_at_once(module)
    module.recompile()
    return module


def _is_on_gpu(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return is_fake(value) and facts_of(value).device.type == "cuda"


def _reads_numbers(node: fx.Node) -> bool:
    if node.op != "call_function" or not _is_on_gpu(node):
        return False
    if node.target is aten._to_copy.default:  # to the GPU; a result, or a view, owns its memory
        computes = all(user.target in READERS for user in node.users)
        plain = not {"layout", "pin_memory"} & {*node.kwargs}
        return computes and plain and _is_number(node.all_input_nodes[0])
    return node.target in READERS and any(map(_is_number, node.all_input_nodes))


def _is_number(node: fx.Node) -> bool:
    """Whether it is a number on the CPU that the program computes or is given. Constants are left:
    kernels hold these."""
    value = node.meta.get("val")
    if node.op == "get_attr" or not is_fake(value):
        return False
    facts = facts_of(value)
    return facts.device.type == "cpu" and not facts.size and facts.dtype in DTYPES


class _Twins:
    """The numbers of a graph on its GPU."""

    def __init__(self, graph: fx.Graph, readers: list[fx.Node], device: torch.device) -> None:
        self.graph = graph
        self.readers = readers
        self.device = device
        self.run: Callable[..., Any] = fake_runner(readers[0].meta["val"])
        self.twins: dict[fx.Node, fx.Node] = {}

    def bring_over(self) -> None:
        wanted, readers = self._wanted(), {*self.readers}
        waiting: list[fx.Node] = []  # to be brought over before the first of them is read there
        for node in [*self.graph.nodes]:
            if node in wanted and _shown(node) is None and not _is_repeated(node):
                waiting.append(node)
            elif node in wanted or node in readers:
                if not {*waiting}.isdisjoint(node.all_input_nodes) or _shown(node) in waiting:
                    with self.graph.inserting_before(node):
                        self._copy(waiting)
                    waiting = []
                if node in wanted:
                    self._repeat(node)
                else:
                    self._read(node)

    def _wanted(self) -> set[fx.Node]:
        """Numbers of which the GPU needs a twin."""
        wanted: set[fx.Node] = set()
        work = [given for node in self.readers for given in node.all_input_nodes]
        while work:
            node = work.pop()
            if node in wanted or not _is_number(node):
                continue
            wanted.add(node)
            shown = _shown(node)
            work += node.all_input_nodes if shown is None and _is_repeated(node) else \
                [shown] if shown is not None else []
        return wanted

    def _copy(self, nodes: list[fx.Node]) -> None:
        """Brings numbers over."""
        made = self.graph.call_function(NUMBERS_ON, (nodes, self.device))
        fakes = [self.run(aten._to_copy.default, node.meta["val"], device=self.device)
                 for node in nodes]
        made.meta = {"val": fakes}
        for at, (node, fake) in enumerate(zip(nodes, fakes, strict=True)):
            self.twins[node] = self.graph.call_function(operator.getitem, (made, at))
            self.twins[node].meta = {"val": fake}

    def _repeat(self, node: fx.Node) -> None:
        """The twin of a number, behind it."""
        shown = _shown(node)
        if shown is not None:
            self.twins[node] = self.twins[shown]
            return
        args: Any = fx.map_arg(node.args, lambda arg: self.twins.get(arg, arg))
        self.twins[node] = Calls(node, node.next)(node.target, *args, **node.kwargs)

    def _read(self, node: fx.Node) -> None:
        """Lets a reader read twins."""
        if node.target is not aten._to_copy.default:
            node.args = fx.map_arg(node.args, lambda arg: self.twins.get(arg, arg))
            return
        (number,) = node.all_input_nodes
        dtype = facts_of(node.meta["val"]).dtype
        call = Calls(node, node.next)
        copy = call(aten._to_copy.default, self.twins[number], dtype=dtype)
        node.replace_all_uses_with(copy)


def _is_repeated(node: fx.Node) -> bool:
    """Whether the operator does the same on the GPU, with the twins of what it reads. Sizes, and
    numbers that kernels are called with, are nowhere."""
    if node.op != "call_function" or node.target not in REPEATED:
        return False
    given = [one for one in node.all_input_nodes if is_fake(one.meta.get("val"))]
    placed = {"device", "layout", "pin_memory", "memory_format"} & {*node.kwargs}
    others = [one for one in given if not _is_number(one)]
    return not placed and len(others) < len(given) and all(one.op == "get_attr" for one in others)


def _shown(node: fx.Node) -> fx.Node | None:
    """The number of which this one is the part, where some were put together and taken apart."""
    if node.target is not operator.getitem:
        return None
    parts: Any = node.args[0]
    if parts.target is not aten.unbind.int or len(parts.args) > 1 and parts.args[1] != 0:
        return None
    whole = parts.args[0]
    if whole.target is not aten.stack.default or len(whole.args) > 1 and whole.args[1] != 0:
        return None
    shown: fx.Node = whole.args[0][node.args[1]]
    return shown if shown.meta["val"].dtype is node.meta["val"].dtype else None


def _count_at_once(module: fx.GraphModule) -> None:
    """Inputs on the CPU that end as themselves and the same number."""
    found: dict[tuple[torch.dtype, Any], list[fx.Node]] = {}
    for node in module.graph.find_nodes(op="call_function", target=aten.copy_.default):
        number = _added(module, node)
        if number is not None:
            found.setdefault((facts_of(node.args[0].meta["val"]).dtype, number), []).append(node)
    for (_, number), writes in found.items():
        if len(writes) > 1:
            with module.graph.inserting_after(writes[-1]):
                counters = [write.args[0] for write in writes]
                made = module.graph.call_function(ADD_TO_NUMBERS, (counters, number))
            made.meta = {**writes[-1].meta, "val": None}
            for write in writes:
                sum_of: Any = write.args[1]
                module.graph.erase_node(write)
                module.graph.erase_node(sum_of)


def _added(module: fx.GraphModule, write: fx.Node) -> int | float | None:
    """The number that a write adds to what was there before, if it is such a one."""
    counter, total = write.args[0], write.args[1]
    if not isinstance(counter, fx.Node) or counter.op != "placeholder" or not _is_number(counter):
        return None
    if not isinstance(total, fx.Node) or total.target is not aten.add.Tensor:
        return None
    if total.args[0] is not counter or total.kwargs.get("alpha", 1) != 1 or len(total.users) > 1:
        return None
    number = constant_of(module, total.args[1])
    dtype = facts_of(counter.meta["val"]).dtype
    fits = type(number) is int or type(number) is float and dtype.is_floating_point
    plain = dtype in (torch.float32, torch.float64, torch.int32, torch.int64)
    is_same = facts_of(total.meta["val"]).dtype is dtype
    return number if fits and plain and is_same else None  # type: ignore[return-value]
