"""From a functional ATen fx graph to a `LoopGraph`.

In: a GraphModule whose nodes have fakes in `meta["val"]` (see `dynamo.aot`). Out: the loop graph,
and which operators fell back to ATen. One function of the table `LOWERINGS` runs for each node; an
operator without one, or for which it declines, becomes a call into ATen.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dynamo.aot.graphs import is_literal
from dynamo.aot.records import PART, Unsupported
from dynamo.aot.repeats import bounded_values, decided_values, is_exact
from dynamo.base.fallbacks import AT, line_of
from dynamo.base.user_lines import ranges_in, user_place
from dynamo.graph_operators.written_operators import written_places
from dynamo.shapes.fake import Fake
from inductor.fx_passes.in_place import PLACE
from inductor.ir.extent import Real, hint_of
from inductor.ir.graph import (
    InputBuffer,
    Layout,
    LoopGraph,
    MultiOutput,
    Node,
    Origins,
    Output,
    ViewRef,
    verify,
)
from inductor.lowering import activations as activations
from inductor.lowering import creation as creation
from inductor.lowering import depthwise as depthwise
from inductor.lowering import dropout_mask as dropout_mask
from inductor.lowering import factors as factors
from inductor.lowering import gemms as gemms
from inductor.lowering import indexing as indexing
from inductor.lowering import int4pack as int4pack
from inductor.lowering import pointwise as pointwise
from inductor.lowering import pooling as pooling
from inductor.lowering import reductions as reductions
from inductor.lowering import routing as routing
from inductor.lowering import scans as scans
from inductor.lowering import scatter as scatter
from inductor.lowering import views as views
from inductor.lowering.builder import LARGE, MOST_COST, Builder, converting, layout_of
from inductor.lowering.registry import LIBRARY_LOWERINGS, LOWERINGS, Call
from inductor.lowering.sizes import Symbols, has_symbols, is_tensor
from inductor.lowering.tensor import HALVES, Compute, Tensor
from inductor.operators.factor_ops import FACTOR

aten = torch.ops.aten


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """A loop graph; fallbacks: (operator, reason) of each call that fell back to ATen; symbols: of
    the sizes that are known when it is called."""

    graph: LoopGraph
    fallbacks: tuple[tuple[str, str], ...]
    symbols: Symbols | None = None


# Library calls that are meant to be library calls: not counted as fallbacks.
LIBRARY = {
    "mm", "addmm", "bmm", "baddbmm", "convolution", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "convolution_backward", "mv", "dot", "addmv",
    "_scaled_dot_product_fused_attention_overrideable", "_efficient_attention_backward",
    "_scaled_dot_product_flash_attention_for_cpu_backward", "_embedding_bag",
    "_scaled_mm", "_int_mm", "_weight_int8pack_mm", "_weight_int4pack_mm", "_grouped_mm",
    "_scaled_grouped_mm", "numbers_on",
    "attention", "attention_backward", "flex_attention", "flex_attention_backward", "philox_state",
    "topk_of_rows", "window_sums", "zero_counters",
}  # fmt: skip


# Operators whose lowering makes a constant of a number and asks nothing of it.
TAKES_REALS = frozenset((
    aten.mul.Tensor, aten.mul.Scalar, aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor,
    aten.sub.Scalar, aten.rsub.Scalar, aten.div.Tensor, aten.div.Scalar, aten.full.default,
    aten.full_like.default, aten.new_full.default, aten.scalar_tensor.default, aten.fill.Scalar,
))  # fmt: skip


# What takes 8-bit floats where a device converts them.
OF_SMALL_FLOATS = frozenset((
    aten._to_copy.default, torch.ops.prims.convert_element_type.default, aten.clone.default,
    aten.contiguous.default, aten._scaled_mm.default,
))  # fmt: skip
MOST_RECOMPUTED = 64  # operations, for an element that several kernels of a GPU compute
# What is stored is held, and keeps kernels apart that read the same; by how much that counts more
# than what is read is chosen by counting bytes that programs' kernels move, whatever the device.
STORED_COSTS = 1.25
LOOKED_AHEAD = 4  # operations in a row whose reads are looked for; chosen, not measured


def lower_graph(
    module: torch.fx.GraphModule, hints: Sequence[int] | None = None, inline: bool = True,
    in_memory_order: bool = True, convolves: bool = True,
) -> Lowered:
    """Lower every node of `module`; the tensors that it returns are the outputs of the result.

    hints: values of the symbols, if the sizes of the graph are some; default: those of its capture.
    inline: results of operators may be computed where they are read. in_memory_order,
    convolves: see `Builder`.
    """
    return _Run(module, hints, inline, in_memory_order, convolves).lower()


class _Run:
    def __init__(
        self, module: torch.fx.GraphModule, hints: Sequence[int] | None, inline: bool,
        in_memory_order: bool, convolves: bool,
    ) -> None:
        self.module = module
        self.inline = inline
        self.builder = Builder(_device_of(module), in_memory_order, convolves=convolves)
        self.values: dict[torch.fx.Node, Any] = {}
        self.numbers: dict[torch.fx.Node, torch.Tensor] = {}  # constants that kernels compute with
        self.inputs: list[InputBuffer | None] = []
        self.fallbacks: list[tuple[str, str]] = []
        self.outputs: list[Output] = []
        self.wanted: dict[torch.fx.Node, int] = {}  # by how many nodes that are not lowered yet
        self.places: dict[str, str] = {}  # buffers by the names that `PLACE` gives
        self.decided = decided_values(module.graph)
        self.bounded = bounded_values(module.graph)
        self.symbols = Symbols()
        self.is_symbolic = has_symbols(module)
        if self.is_symbolic:
            self.symbols.enter_inputs(module, hints)

    def lower(self) -> Lowered:
        for node in self.module.graph.nodes:
            for given in node.all_input_nodes:
                self.wanted[given] -= 1
                if not self.wanted[given]:
                    del self.wanted[given]
            try:
                getattr(self, node.op)(node)
            except Exception as error:
                error.__dict__.setdefault(AT, line_of([node]))
                raise
            if node.users:
                self.wanted[node] = len(node.users)
        graph = LoopGraph(
            tuple(self.inputs),
            tuple(self.builder.constants),
            _used(self.builder.nodes, self.outputs),
            tuple(self.outputs),
            self.builder.device,
        )
        verify(graph)
        symbols = self.symbols if self.is_symbolic else None
        return Lowered(graph, tuple(self.fallbacks), symbols)

    def placeholder(self, node: torch.fx.Node) -> None:
        fake = self._described(node)
        position = len(self.inputs)
        if not is_tensor(fake):
            self.inputs.append(None)
            self.values[node] = fake
            return
        name = f"arg{position}"
        layout = layout_of(fake)
        own = Layout(layout.device, layout.dtype, layout.size, layout.stride)
        self.inputs.append(InputBuffer(name, own, position))
        self.places[node.name] = name
        self.values[node] = self.builder.stored(layout, name)

    def get_attr(self, node: torch.fx.Node) -> None:
        value: Any = self.module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        known = is_literal(node) and value.device.type == "cpu" and not value.dtype.is_complex
        if known and value.numel() == 1:
            number = value.item()
            call = Call(self.builder, aten.full.default, value, len(node.users))
            lazy = creation.filled(call, number)
            at_home = value.device == self.builder.device
            if lazy is not NotImplemented and (at_home or not value.dim()):
                self.values[node] = lazy
                self.numbers[node] = value
                return
        at_home = is_literal(node) and value.device == self.builder.device
        steps = creation.steps_of(value) if at_home and all(map(_is_read, node.users)) else None
        self.values[node] = (
            self.builder.constant(value, layout_of(value)) if steps is None
            else creation.in_steps(self.builder, layout_of(value), *steps))

    def call_function(self, node: torch.fx.Node) -> None:
        if isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat)):
            self.values[node] = self._described(node)
            return
        args = self._values_of(node.args)
        kwargs = self._values_of(node.kwargs)
        target: Any = node.target
        if not isinstance(target, torch._ops.OpOverload):
            self.values[node] = target(*args, **kwargs)  # getitem
            return
        self.builder.origins = _origins(node)
        result = self._described(node)
        parts: list[Any] = [u.args[1] for u in node.users if u.target is operator.getitem]
        call = Call(
            self.builder, target, result, len(node.users), is_part=PART in node.meta,
            taken=frozenset(parts))
        function = LOWERINGS.get(target) or LIBRARY_LOWERINGS.get(target)
        if target._schema.is_mutable and target.namespace not in ("aten", "prims"):
            self._write_arguments(node, call, args, kwargs)
            return
        if target._schema.is_mutable and isinstance(args[0], Tensor):
            self.values[node] = self._write(node, call, args, kwargs)
            return
        value: Any = NotImplemented
        known = len(self.builder.nodes)
        if function is None:
            call.reason = "no lowering"
        elif self._foreign(node):
            call.reason = "tensors of several devices"
        elif not target.is_view and self._odd(node):
            call.reason = "a dtype without kernels"
        elif target not in TAKES_REALS and any(isinstance(arg, Real) for arg in args):
            call.reason = "a float that is computed from sizes"
        else:
            value = function(call, *args, **kwargs)
        if node in self.decided or node in self.bounded:
            self._round(value, _rounding if node in self.decided else _narrowing)
        if value is NotImplemented:
            value = self._fall_back(node, call, args, kwargs)
        elif isinstance(value, Tensor):
            value = self._stored_if_shared(node, value)
            if not node.users or not self.inline:  # without users it runs for its errors
                value.root().realize()
        if PLACE in node.meta:
            if node.meta[PLACE] == node.name:
                value = self._apart(node, value, known)
            self._check_place(node, value)
        self.values[node] = value

    def output(self, node: torch.fx.Node) -> None:
        taken: set[str] = set()
        results: Any = node.args[0]
        for given, item in zip(results, self._values_of(results), strict=True):
            if not isinstance(item, Tensor):
                self.outputs.append(item)
                continue
            number = self.numbers.get(given)
            if number is not None and number.device != self.builder.device:
                # A kernel's result would be on the graph's device.
                item = self.builder.extern(
                    aten.clone.default, (self._values_of(given, True),), {},
                    self._described(given), "another device")
            view = item.realize()
            shown = self.builder.looked_at(view.buffer)
            if view.buffer.startswith("arg") or view.buffer in taken or any(
                name.startswith("const") for name in shown
            ):
                view = self._copy_of(item, given)
            taken.add(view.buffer)
            self.outputs.append(view)

    # -- parts ------------------------------------------------------------------------------------

    def _described(self, node: torch.fx.Node) -> Any:
        value = node.meta.get("val")
        first = value[0] if isinstance(value, (list, tuple)) and value else value
        if type(first) is Fake and not self.is_symbolic:
            return value
        # Without symbols, too: what a capture for all sizes has fixed may be a SymInt.
        return self.symbols.describe(value)

    def _values_of(self, value: Any, of_library: bool = False) -> Any:
        """of_library: a constant number is the tensor that it was, on its own device."""
        if isinstance(value, torch.fx.Node):
            if of_library and value in self.numbers:
                number = self.numbers[value]
                return self.builder.constant(number, layout_of(number))
            return self.values[value]
        if isinstance(value, (list, tuple)):
            return tuple(self._values_of(item, of_library) for item in value)
        if isinstance(value, dict):
            return {name: self._values_of(item, of_library) for name, item in value.items()}
        return value

    def _copy_of(self, tensor: Tensor, node: torch.fx.Node) -> ViewRef:
        if self._foreign(node) or pointwise.is_odd(tensor.dtype, self.builder.device):
            clone = aten.clone.default
            return self.builder.extern(clone, (tensor,), {}, self._described(node)).realize()
        copy = Tensor(tensor.layout, self.builder, compute=tensor.load, reads=tensor.reads)
        return self.builder.store(copy)

    def _foreign(self, node: torch.fx.Node) -> bool:
        """Whether the operator touches another device than the graph's."""
        device = self.builder.device
        given = [n for n in node.all_input_nodes if n not in self.numbers]
        fakes = [n.meta.get("val") for n in given] + [node.meta["val"]]
        return any(isinstance(fake, torch.Tensor) and fake.device != device for fake in fakes)

    def _odd(self, node: torch.fx.Node) -> bool:
        """Whether a tensor has a dtype that bodies do not know. Few
        operators take 8-bit floats."""
        fakes = [n.meta.get("val") for n in node.all_input_nodes] + [node.meta["val"]]
        tensors = [fake for fake in fakes if isinstance(fake, torch.Tensor)]
        if node.target in OF_SMALL_FLOATS:
            return any(pointwise.is_odd(x.dtype, self.builder.device) for x in tensors)
        return any(pointwise.is_odd(tensor.dtype) for tensor in tensors)

    def _fall_back(self, node: torch.fx.Node, call: Call, args: Any, kwargs: Any) -> Any:
        target = call.target
        self._count_fallback(target, call.reason)
        if any(n.op == "get_attr" for n in node.all_input_nodes):
            args, kwargs = self._values_of(node.args, True), self._values_of(node.kwargs, True)
        return self.builder.extern(target, args, kwargs, self._described(node), call.reason)

    def _round(self, value: Any, rounding: Callable[[Compute, torch.dtype], Compute]) -> None:
        """Computed values as eager has them, in half precision: see `repeats`."""
        for tensor in self._tensors_of(value):
            if tensor.compute is not None and tensor.dtype in HALVES:
                tensor.compute = rounding(tensor.compute, tensor.dtype)

    def _stored_if_shared(self, node: torch.fx.Node, value: Tensor) -> Tensor:
        """Stores what several nodes use, unless it is cheaper to compute it again. Of a factor that
        is decided: the terms of a product use it, which are one kernel."""
        if value.view is not None or len(node.users) < 2 or node.target is FACTOR:
            return value
        root = value if value.base is None else value.root()
        if root.cost <= 1 and (root.cost == 0 or len(root.reads) < 2):
            return value
        if self.builder.device.type != "cpu":
            recomputes = self._recompute_moves_less(node, root)
            if recomputes and (node not in self.decided or self._is_exact(node)):
                return value
            if node.target is aten._to_copy.default and value.base is None:
                given: Tensor = self.values[node.args[0]]  # type: ignore[index]
                if given.dtype.itemsize < value.dtype.itemsize:
                    given.root().realize()
                    return converting(given, value.dtype)
        root.realize()
        return value

    def _recompute_moves_less(self, node: torch.fx.Node, value: Tensor) -> bool:
        """On a GPU: whether kernels that compute a value anew move fewer bytes than those that
        load it. One of them computes it in any case; what they read anyway costs nothing."""
        users = [user for user in _kernels_of(node) if user is None or not _picks_few(user, node)]
        count = value.layout.numel()
        alone = type(count) is int and count == 1  # computed once by each program
        large = hint_of(count) * value.dtype.itemsize >= LARGE
        most = MOST_COST if alone or large else MOST_RECOMPUTED
        if value.cost > most or not all(users):
            return False
        most_read = self.builder.bytes_read(value)
        saved = len(users) * hint_of(count) * value.dtype.itemsize
        if (len(users) - 1) * most_read < saved:
            return True
        each = [self.builder.bytes_read(value, self._read_beside(user, node))
                for user in users if user is not None]
        extra = sum(each) - min(each)  # the one that reads least would store it
        return min(each) < most_read and extra <= STORED_COSTS * saved

    def _read_beside(self, user: torch.fx.Node, node: torch.fx.Node) -> set[str]:
        """Buffers that a kernel with this use of a node reads for other values, element by element:
        of the use, and of those behind it that are sure to be in the same kernel."""
        found: set[str] = set()
        given, count = node, _count(node)
        for _ in range(LOOKED_AHEAD):
            for other in user.all_input_nodes:
                if other is not given:
                    self._add_reads(other, count, found)
            if len(user.users) != 1 or _count(user) != count:
                break
            given, (user,) = user, user.users
            if not (_is_kernel(user) or getattr(user.target, "is_view", False)):
                break
        return found

    def _add_reads(self, node: torch.fx.Node, count: Any, found: set[str]) -> None:
        """What a kernel reads to have a value; nothing where that may yet be stored."""
        work = [(node, LOOKED_AHEAD)]
        while work:
            current, left = work.pop()
            value = self.values.get(current)
            if isinstance(value, Tensor):
                root = value.root()
                found |= root.reads if root.view is None else {root.view.buffer}
            elif left and _is_kernel(current) and _count(current) == count and (
                    len(current.users) == 1):
                work += [(given, left - 1) for given in current.all_input_nodes]

    def _is_exact(self, node: torch.fx.Node) -> bool:
        """Whether each kernel that computes a value finds the same bits."""
        work = [node]
        while work:
            current = work.pop()
            if not is_exact(current):
                return False
            for given in current.all_input_nodes:
                value = self.values[given]
                if not isinstance(value, Tensor) or value.view is None:
                    work.append(given)
        return True

    # -- writes in place --------------------------------------------------------------------------

    def _write(self, node: torch.fx.Node, call: Call, args: Any, kwargs: Any) -> Tensor:
        """An operator that writes into its first argument."""
        goal: Tensor = args[0]
        if PLACE in node.meta:
            self._check_place(node, goal)
        view = goal.realize()
        self._read_before(view.buffer)
        if call.target is aten.copy_.default and not self._odd(node) and not self._foreign(node):
            self.builder.store_into(view, converting(args[1], goal.dtype))
            return goal
        for tensor in self._tensors_of((args[1:], kwargs)):
            if any(view.buffer in self.builder.looked_at(name) for name in tensor.reads):
                tensor.realize()
        function = LOWERINGS.get(call.target)
        value = NotImplemented
        if function is None:
            call.reason = "no lowering"
        elif self._foreign(node):
            call.reason = "tensors of several devices"
        elif self._odd(node):
            call.reason = "a dtype without kernels"
        else:
            value = function(call, *args, **kwargs)
        if value is NotImplemented:
            self._count_fallback(call.target, call.reason)
            self.builder.extern_into(
                call.target, args, kwargs, (view.buffer,), call.reason)
        return goal

    def _count_fallback(self, target: torch._ops.OpOverload, reason: str) -> None:
        """Of operators, in place or not, that kernels of ours would compute."""
        if target._schema.name.split("::")[1].removesuffix("_") not in LIBRARY:
            self.fallbacks.append((str(target), reason))

    def _write_arguments(self, node: torch.fx.Node, call: Call, args: Any, kwargs: Any) -> None:
        """An operator of a library, which returns nothing."""
        places = written_places(call.target)
        goals = [*self._tensors_of([args[n] for n in places])]
        written = [one for n in places for one in _nodes_of(node.args[n])]
        for goal, one in zip(goals, written, strict=True):
            if goal.realize().buffer != self.places.get(one.meta.get(PLACE, one.name)):
                raise Unsupported(f"{one} does not lie in memory of its own")
        buffers = tuple(goal.realize().buffer for goal in goals)
        for buffer in buffers:
            self._read_before(buffer)
        for tensor in self._tensors_of((args, kwargs)):
            tensor.realize()
        self.builder.extern_into(call.target, args, kwargs, buffers, "an operator of a library")

    def _tensors_of(self, value: Any) -> Iterator[Tensor]:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple, dict)):
            for item in value.values() if isinstance(value, dict) else value:
                yield from self._tensors_of(item)

    def _apart(self, node: torch.fx.Node, value: Tensor, known: int) -> Tensor:
        """The value of a node in memory that is nobody else's. known: nodes before it."""
        made = {other.name for other in self.builder.nodes[known:]}
        shown = value.base is not None or value.view is not None and value.view.buffer not in made
        if shown or any(value is given for given in self._tensors_of(self._values_of(node.args))):
            value = self.builder.stored(value.layout, self._copy_of(value, node).buffer)
        self.places[node.name] = value.realize().buffer
        return value

    def _check_place(self, node: torch.fx.Node, value: Any) -> None:
        """Errors: Unsupported where a node does not lie in the memory where it should."""
        place = self.places[node.meta[PLACE]]
        for tensor in self._tensors_of(value):
            if tensor.view is None or tensor.view.buffer != place:
                raise Unsupported(f"{node.name} is no view of {node.meta[PLACE]}")

    def _read_before(self, buffer: str) -> None:
        """What later nodes want of a buffer's contents is computed before they change."""
        for other in list(self.wanted):
            value = self.values[other]
            for tensor in self._tensors_of(value):
                if not any(buffer in self.builder.looked_at(name) for name in tensor.reads):
                    continue
                if tensor.view is None:
                    tensor.realize()
                elif other.op == "call_function" and PLACE not in other.meta and tensor is value:
                    view = self._copy_of(tensor, other)
                    self.values[other] = self.builder.stored(tensor.layout, view.buffer)


def _nodes_of(value: Any) -> Iterator[torch.fx.Node]:
    """The nodes of an argument: itself, or the members of a list."""
    for one in value if isinstance(value, (list, tuple)) else (value,):
        if isinstance(one, torch.fx.Node):
            yield one


def _kernels_of(node: torch.fx.Node) -> Iterator[torch.fx.Node | None]:
    """Each use of a node behind its views, if it is a kernel of ours that need not find the value
    in memory; else None."""
    for user in node.users:
        if user.op == "call_function" and getattr(user.target, "is_view", False):
            yield from _kernels_of(user)
        else:
            yield user if _is_kernel(user) else None


def _is_kernel(node: torch.fx.Node) -> bool:
    target: Any = node.target
    return (
        node.op == "call_function" and target in LOWERINGS and PLACE not in node.meta
        and target._schema.name.split("::")[1] not in LIBRARY
    )


def _picks_few(user: torch.fx.Node, node: torch.fx.Node) -> bool:
    """Whether a reader of a tensor computes a few elements of it where it wants them."""
    if user.target not in (aten.index.Tensor, aten.gather.default):
        return False
    few, all_of_them = _count(user), _count(node)
    return type(few) is type(all_of_them) is int and few * indexing.FEW < all_of_them


def _count(node: torch.fx.Node) -> Any:
    """Elements of a node's value; None where it is no tensor."""
    value = node.meta.get("val")
    return value.numel() if isinstance(value, torch.Tensor) else None


def _used(nodes: Sequence[Node], outputs: Sequence[Output]) -> tuple[Node, ...]:
    """The nodes without results of library calls that nothing reads: an operator may return None
    for what nobody asked it for (a log-sum-exp of attention), where its fake has a tensor."""
    read = {output.buffer for output in outputs if isinstance(output, ViewRef)}
    for node in nodes:
        written = getattr(node, "mutates", ())
        read.update(node.reads(), (written,) if isinstance(written, str) else written)
    return tuple(n for n in nodes if not isinstance(n, MultiOutput) or n.name in read)


def _device_of(module: torch.fx.GraphModule) -> torch.device:
    """The device of the graph: the first that is not the CPU."""
    for node in module.graph.nodes:
        fake = node.meta.get("val")
        if isinstance(fake, torch.Tensor) and fake.device.type != "cpu":
            return fake.device
    return torch.device("cpu")


def _is_read(user: torch.fx.Node) -> bool:
    """Whether an operation that is lowered reads what it is given, and does not write into it."""
    target = user.target
    return target in LOWERINGS and not target._schema.is_mutable  # type: ignore[union-attr]


def _origins(node: torch.fx.Node) -> Origins:
    trace = node.meta.get("stack_trace")
    place, ranges = user_place(trace), ranges_in(trace)
    lines = () if place is None else (f"{place[0]}:{place[1]}",)
    return Origins((node.name,), lines, (str(node.target),), (ranges,) if ranges else ())


def values_of(module: torch.fx.GraphModule) -> tuple[list[Tensor], dict[int, str]] | None:
    """What a module returns, as tensors that are computed where they are used, and the names of its
    inputs by position; None where something would have to be stored or called."""
    run = _Values(module, None, True, True, False)
    run.builder = Builder(run.builder.device, stores=False, convolves=False)
    run.lower_values()
    if run.builder.nodes or run.builder.constants or run.is_symbolic:
        return None
    names = {item.position: item.name for item in run.inputs if item is not None}
    return run.results, names


class _Values(_Run):
    """Lowers to values of which none is stored."""

    results: list[Tensor]

    def lower_values(self) -> None:
        for node in self.module.graph.nodes:
            getattr(self, node.op)(node)

    def call_function(self, node: torch.fx.Node) -> None:
        if node.users:  # others would run for their errors
            super().call_function(node)

    def output(self, node: torch.fx.Node) -> None:
        self.results = list(self._values_of(node.args[0]))

    def _stored_if_shared(self, node: torch.fx.Node, value: Tensor) -> Tensor:
        """What several nodes use is traced once for each index."""
        if len(node.users) > 1 and value.compute is not None:
            value.compute = _remembering(value.compute)
        return value


def _rounding(compute: Compute, dtype: torch.dtype) -> Compute:
    """Something is decided by it: what leads to it is computed exactly."""
    return lambda ops, indices: ops.rounded(compute(ops, indices), dtype)


def _narrowing(compute: Compute, dtype: torch.dtype) -> Compute:
    """It is rounded as it is where it is stored."""
    def narrowed(ops: Any, indices: Any) -> Any:
        value = compute(ops, indices)
        return ops.to_dtype(ops.to_dtype(value, dtype), value.dtype)

    return narrowed


def _remembering(compute: Any) -> Any:
    known: dict[Any, Any] = {}

    def once(ops: Any, indices: Any) -> Any:
        key = (id(ops), indices, ops._mask)
        if key not in known:
            known[key] = (ops, compute(ops, indices))  # with `ops`, whose id stays its own
        return known[key][1]

    return once
