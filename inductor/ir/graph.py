"""`LoopGraph`: a whole tensor program as named buffers, in the order in which they can be computed.

In: made by `inductor.lowering`. Out: read by the scheduler and by code generation. Grammar:

    LoopGraph   := inputs(InputBuffer*) constants(ConstantBuffer*) nodes(Node*) outputs(Output*)
    Node        := ComputedBuffer      a loop nest that writes one buffer
                 | ExternKernel        a call into a library; writes one buffer, several, or mutates
                 | MultiOutput         one tensor out of the results of an ExternKernel
    Output      := ViewRef | int | float | bool | None
    ViewRef     := buffer name + size, stride, offset: a tensor that looks at the buffer's storage

Names: `arg0`.. (inputs, in the order of the placeholders), `const0`.., `buf0`.. (nodes). The layout
of a buffer names elements of its own storage; loads and stores in bodies index that storage
directly (layout offset and strides are already part of the index), in elements.

A node may read only what stands before it. A ComputedBuffer of kind "scatter" and an ExternKernel
with `mutates` change a buffer that exists already: readers before it see the old contents, readers
after it the new, so the order of nodes is also an order of effects for those buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dynamo.base.errors import VerifyError
from inductor.ir.body import LoopBody, short_dtype


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the elements of a tensor lie: size and stride in elements, offset into the storage."""

    device: torch.device
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0

    def numel(self) -> int:
        count = 1
        for extent in self.size:
            count *= extent
        return count

    def storage_elements(self) -> int:
        """Elements that the storage must hold, from its beginning."""
        last = self.offset
        for extent, step in zip(self.size, self.stride, strict=True):
            if extent == 0:
                return 0
            last += (extent - 1) * step
        return last + 1

    def __str__(self) -> str:
        text = f"{short_dtype(self.dtype)}{list(self.size)}:{list(self.stride)}"
        text += f"+{self.offset}" if self.offset else ""
        return text + f"@{self.device}"


def contiguous(size: Sequence[int], dtype: torch.dtype, device: torch.device) -> Layout:
    """A dense row-major layout."""
    stride, step = [], 1
    for extent in reversed(size):
        stride.append(step)
        step *= max(extent, 1)
    return Layout(device, dtype, tuple(size), tuple(reversed(stride)))


@dataclass(frozen=True, slots=True)
class ViewRef:
    """A tensor over the storage of `buffer` (dtype as the buffer's unless given)."""

    buffer: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    def __str__(self) -> str:
        tail = f"+{self.offset}" if self.offset else ""
        return f"{self.buffer}{list(self.size)}:{list(self.stride)}{tail}"


@dataclass(frozen=True, slots=True)
class Origins:
    """Which fx nodes a buffer came from, and the user's lines (`file:line`), for names and logs;
    ranges: the names of the `record_function`s around each."""

    nodes: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    ranges: tuple[tuple[str, ...], ...] = ()


def joined_origins(origins: Sequence[Origins]) -> Origins:
    """The union, each once, in order."""

    def join(lists: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(item for items in lists for item in items))

    return Origins(
        join([o.nodes for o in origins]),
        join([o.lines for o in origins]),
        join([o.targets for o in origins]),
        join([o.ranges for o in origins]),
    )


@dataclass(frozen=True, slots=True)
class InputBuffer:
    """An input tensor: `position` is the place of its placeholder. packed: it is in an order that
    only oneDNN knows, for whose operators alone it is; sizes and strides are those of what it
    was made of."""

    name: str
    layout: Layout
    position: int
    packed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class ConstantBuffer:
    """A tensor that is part of the program."""

    name: str
    layout: Layout
    value: torch.Tensor


@dataclass(frozen=True, slots=True)
class ComputedBuffer:
    """A loop nest that writes `name`.

    kind: "pointwise" (one store for each element), "reduction" (the body has reduction ranges),
    "scatter" (stores into the existing buffer `mutates` at computed places).
    free: the strides were chosen by us and nothing outside relies on them.
    """

    name: str
    layout: Layout
    body: LoopBody
    kind: str
    origins: Origins = field(default=Origins(), compare=False)
    free: bool = True
    mutates: str = ""

    def reads(self) -> tuple[str, ...]:
        return self.body.buffers_read()


Argument = (
    ViewRef | torch.dtype | torch.device | torch.layout | torch.memory_format | str | int | float
    | bool | tuple["Argument", ...] | None
)


@dataclass(frozen=True, slots=True)
class ExternKernel:
    """A call of an ATen operator.

    target: an OpOverload; results must be as if `target(*args, **kwargs)` was called (a code
    generator may choose another library function that computes the same).
    layout: of the result; None where there are several results (each used one has a MultiOutput) or
    none. The result may be stored directly where `name` lives if the kernel can write into a given
    output of that layout, else what it returns becomes `name`.
    mutates: names of buffers that the call writes in place.
    ours: a product (`aten.mm` or `aten.addmm` of float32) or a convolution for which no operator is
    called, but our own (`kernels/cpu/gemm.py`, `convolution.py`); in packages, what
    `codegen/cpp/own_calls.py` prints, too. panels: the input buffer, if
    any (a convolution has one), that holds its weight in the order in which that reads it.
    winograd: such a convolution, by fewer products (`kernels/cpu/winograd.py`).
    holds: of a wait for a collective, buffers that this reads until then.
    """

    name: str
    layout: Layout | None
    target: torch._ops.OpOverload
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...] = ()
    mutates: tuple[str, ...] = ()
    origins: Origins = field(default=Origins(), compare=False)
    reason: str = ""
    ours: bool = False
    panels: str = ""
    winograd: bool = False
    holds: tuple[str, ...] = ()

    def views(self) -> Iterator[ViewRef]:
        """All tensors among the arguments."""
        yield from _views(self.args)
        yield from _views(tuple(value for _, value in self.kwargs))

    def reads(self) -> tuple[str, ...]:
        """Buffers that must be as they are until it has run."""
        return tuple(dict.fromkeys((*(view.buffer for view in self.views()), *self.holds)))

    def values_by_argument(self) -> list[Argument]:
        """One value for each argument of the schema, defaults filled in."""
        given = dict(self.kwargs)
        rest = self.target._schema.arguments[len(self.args) :]
        return [*self.args, *(given.get(one.name, one.default_value) for one in rest)]


@dataclass(frozen=True, slots=True)
class MultiOutput:
    """Tensor number `index` of what the ExternKernel `extern` returned."""

    name: str
    layout: Layout
    extern: str
    index: int
    origins: Origins = field(default=Origins(), compare=False)

    def reads(self) -> tuple[str, ...]:
        return (self.extern,)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a further input holds: what `make` returns for the inputs at `positions`.

    compared: positions of inputs that eager writes without counting a version.
    """

    positions: tuple[int, ...]
    make: Callable[..., torch.Tensor]
    compared: tuple[int, ...] = ()


Node = ComputedBuffer | ExternKernel | MultiOutput
Output = ViewRef | int | float | bool | None


@dataclass(frozen=True, slots=True, eq=False)
class LoopGraph:
    """A program: see the grammar at the top of the file. `str(graph)` is readable text.

    prepared: what the last inputs hold; they are made of the others before a call.
    """

    inputs: tuple[InputBuffer | None, ...]
    constants: tuple[ConstantBuffer, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    device: torch.device
    prepared: tuple[Prepared, ...] = ()

    def layouts(self) -> dict[str, Layout]:
        """Layout of every tensor buffer by name."""
        found = {b.name: b.layout for b in self.inputs if b is not None}
        found.update({b.name: b.layout for b in self.constants})
        for node in self.nodes:
            if node.layout is not None and not getattr(node, "mutates", None):
                found[node.name] = node.layout
        return found

    def __str__(self) -> str:
        lines = [f"{b.name}: {b.layout}" for b in self.inputs if b is not None]
        lines += [f"{b.name}: {b.layout} (constant)" for b in self.constants]
        for node in self.nodes:
            lines.append(_print_node(node))
        lines.append(f"return {', '.join(str(output) for output in self.outputs)}")
        return "\n".join(lines)


def _views(value: Any) -> Iterator[ViewRef]:
    if isinstance(value, ViewRef):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _views(item)


def _print_argument(value: Argument) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(_print_argument(item) for item in value)})"
    return str(value) if isinstance(value, ViewRef) else repr(value)


def _print_node(node: Node) -> str:
    if isinstance(node, ComputedBuffer):
        body = "\n".join("  " + line for line in str(node.body).splitlines())
        target = f" into {node.mutates}" if node.mutates else ""
        return f"{node.name}: {node.layout} {node.kind}{target}\n{body}"
    if isinstance(node, MultiOutput):
        return f"{node.name}: {node.layout} = {node.extern}[{node.index}]"
    parts = [_print_argument(arg) for arg in node.args]
    parts += [f"{key}={_print_argument(value)}" for key, value in node.kwargs]
    parts += [f"holds {name}" for name in node.holds]
    ours = " (our own)" if node.ours else ""
    return f"{node.name}: {node.layout} = {node.target}({', '.join(parts)}){ours}"


def verify(graph: LoopGraph) -> None:
    """Raise VerifyError unless each node reads only what exists and stores where it should."""
    layouts = graph.layouts()
    defined = {b.name for b in graph.inputs if b is not None} | {b.name for b in graph.constants}
    for node in graph.nodes:
        for name in node.reads():
            if name not in defined:
                raise VerifyError(f"{node.name} reads {name}, which is not computed before it")
        if node.name in defined:
            raise VerifyError(f"{node.name} is defined twice")
        if isinstance(node, ComputedBuffer):
            _verify_body(node, layouts)
        defined.add(node.name)
    for output in graph.outputs:
        if isinstance(output, ViewRef) and (
            output.buffer not in defined or output.buffer not in layouts
        ):
            raise VerifyError(f"output {output} is not computed")


def _verify_body(node: ComputedBuffer, layouts: dict[str, Layout]) -> None:
    goal = node.mutates or node.name
    stores = list(node.body.stores())
    if not stores:
        raise VerifyError(f"{node.name} stores nothing")
    empty = 0 in node.body.ranges or 0 in node.body.reduction_ranges
    for position, op in enumerate(node.body.ops):
        if any(arg >= position for arg in op.args):
            raise VerifyError(f"{node.name}: %{position} uses a later operation")
        if op.name == "store" and op.buffer != goal:
            raise VerifyError(f"{node.name} stores into {op.buffer}")
        if op.name in ("load", "store") and not empty and op.index is not None:
            limit = layouts[op.buffer].storage_elements()
            if op.args[: op.name == "load"]:
                continue
            if op.index.low < 0 or op.index.high >= limit:
                raise VerifyError(f"{node.name}: %{position} {op} leaves the buffer of {limit}")
