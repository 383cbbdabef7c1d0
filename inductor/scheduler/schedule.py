"""`Schedule`: which kernels run in which order, what each contains, and what lives how long.

In: made by `inductor.scheduler` from a `LoopGraph`. Out: read by code generation. Grammar:

    Schedule := steps(Step*)
    Step     := Kernel | KernelList | TemplateKernel | FusedConvolution | GemmChain
              | ConvolutionChain | ExternKernel | MultiOutput
    Kernel   := outer(extent*) stages(LoopBody*) locals(Local*) nodes(name*)

A kernel is a nest of outer loops `o0`, `o1`, .. (all iterations independent of each other: they may
run in parallel and in any order) around a sequence of stages. A stage is a `LoopBody`: its own
`i` and `r` loops stand inside of the outer loops, its indices use `o`, `i`, `r` and indirect
variables. Stages run one after the other for each outer iteration; a stage may read what an earlier
stage of the same outer iteration wrote, and nothing that another outer iteration wrote.

    for o0, o1 in outer:            # parallel
        for i.., r.. in stage 0: ...
        for i.., r.. in stage 1: ...

In a stage without reduction ranges every op runs for each i. With reduction ranges: ops that
depend on an r variable (through index or operands) run for each (i, r), stores among them too; a
`reduction` op gives one value for each i, and what depends on it without depending on r runs after
the r loops.
A stage never reads (other than through a value) an element that it stores itself.

A Local is memory of one outer iteration: `elements` is 1 (a scalar, index 0) or the number of
iterations of a stage, and then every load and store of it uses as index the row-major position of
the stage's own loops (`local_position`), in the same order of loops in all stages that touch it.

A KernelList (on a GPU; see `scheduler/lists.py`) is one launch of several kernels, none of which
needs another one, and which do the same with other buffers, of sizes of their own:

    KernelList := kernels(Kernel*)

A TemplateKernel is one generated function that computes GEMMs (a convolution is one of
its images, read through a window) tile by tile, and what is done with each element of them before
it is stored (on a GPU; see `codegen/triton/template.py`):

    TemplateKernel := parts(Part*) blocks
    Part           := gemms(Gemm*) epilogue(Kernel?) kept(name*)

The parts have the same left operand, right operands with the same strides, and stand side by side.
The GEMMs of one part have equal sizes; its epilogue is a kernel of one stage with one iteration
for each element, which reads the GEMMs at its own place only. stored: the GEMMs that are stored
as well.

A FusedConvolution is a convolution of our own (on a CPU; see `kernels/cpu/convolution.py`) with a
kernel of one stage that has one iteration for each element of the result, reads that at its own
place only, and runs for a part of it as soon as this has been stored in `target`:

    FusedConvolution := call(ExternKernel) epilogue(Kernel) target

Chains (on a CPU) are steps that are computed together, part by part, so that what one stores for
the next one alone, `between`, is never there as a whole. A GemmChain is two GEMMs of our own,
with or without epilogues, in bands of rows (`kernels/cpu/gemm_chain.py`); a ConvolutionChain is
convolutions of our own in strips of lines (`kernels/cpu/convolution_chain.py`):

    GemmChain     := links(TemplateKernel | ExternKernel, TemplateKernel | ExternKernel) between
    ConvolutionChain := links((FusedConvolution | ExternKernel)*) between
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from inductor.ir.body import LoopBody, short_dtype
from inductor.ir.graph import ExternKernel, MultiOutput, Origins, ViewRef, joined_origins
from inductor.ir.index import Index, constant, variable


@dataclass(frozen=True, slots=True)
class Local:
    """Memory inside of a kernel that nothing outside sees."""

    name: str
    dtype: torch.dtype
    elements: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """One generated function. `nodes`: the buffers of the loop graph that it computes."""

    name: str
    outer: tuple[int, ...]
    stages: tuple[LoopBody, ...]
    locals: tuple[Local, ...] = ()
    nodes: tuple[str, ...] = ()
    origins: Origins = field(default=Origins(), compare=False)

    def reads(self) -> tuple[str, ...]:
        """Buffers loaded, locals left out, in order of first use."""
        return self._buffers("load")

    def writes(self) -> tuple[str, ...]:
        """Buffers stored into, locals left out; accumulating stores (mode "add") included."""
        return self._buffers("store")

    def _buffers(self, what: str) -> tuple[str, ...]:
        own = {local.name for local in self.locals}
        found = (op.buffer for stage in self.stages for op in stage.ops if op.name == what)
        return tuple(dict.fromkeys(name for name in found if name not in own))

    def may_fail(self) -> bool:
        """Whether an index of the data is checked in it."""
        return any(
            op.name == "indirect" and getattr(op.imm, "check", False)
            for stage in self.stages
            for op in stage.ops
        )

    def __str__(self) -> str:
        loops = ", ".join(f"o{n} < {extent}" for n, extent in enumerate(self.outer))
        lines = [f"{self.name}: {', '.join(self.nodes)}"]
        lines += [f"  local {x.name}: {short_dtype(x.dtype)}[{x.elements}]" for x in self.locals]
        lines.append(f"  for {loops}:" if loops else "  once:")
        for stage in self.stages:
            lines += ["    " + line for line in str(stage).splitlines()]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class KernelList:
    """Kernels of one launch; see the top of the file."""

    name: str
    kernels: tuple[Kernel, ...]

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the loop graph that they compute."""
        return tuple(name for kernel in self.kernels for name in kernel.nodes)

    @property
    def origins(self) -> Origins:
        return joined_origins([kernel.origins for kernel in self.kernels])

    def reads(self) -> tuple[str, ...]:
        """Buffers that some kernel loads."""
        return tuple(dict.fromkeys(name for kernel in self.kernels for name in kernel.reads()))

    def writes(self) -> tuple[str, ...]:
        """Buffers that some kernel stores into."""
        return tuple(dict.fromkeys(name for kernel in self.kernels for name in kernel.writes()))

    def __str__(self) -> str:
        others = ", ".join(kernel.name for kernel in self.kernels)
        return f"{self.name}: one launch of {others}, of which the first is\n{self.kernels[0]}"


@dataclass(frozen=True, slots=True)
class Window:
    """How a convolution reads its images: row (b, y, x) and column (i, j, c) of the left operand
    are channel c of image b at height y * stride - padding + i * dilation (the width alike), and 0
    outside of the image. size: of i and j; result: of y and x. Each has height and width. groups:
    so many equal ranges of columns of the result read a range of channels each, the first the
    first; c then counts from where that begins.
    """

    size: tuple[int, int]
    result: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int = 1

    def __str__(self) -> str:
        words = [f"window {self.size[0]}x{self.size[1]}"]
        words += [f"stride {self.stride}"] * (self.stride != (1, 1))
        words += [f"padding {self.padding}"] * (self.padding != (0, 0))
        words += [f"dilation {self.dilation}"] * (self.dilation != (1, 1))
        words += [f"{self.groups} groups"] * (self.groups != 1)
        return ", ".join(words)


@dataclass(frozen=True, slots=True)
class Gemm:
    """left [batch, m, k] times right [batch, k, n], plus a bias that broadcasts to the result.

    call: the operator that computes it otherwise. Where batch is 1 the views may have two axes.
    rounds_first: the result is rounded before the bias is added, and then again. window: of a
    convolution, of which left [images, height, width, channels] is read through it, and right is
    [window's height, window's width, channels, n]; the channels are those of one group.
    """

    call: ExternKernel
    dtype: torch.dtype
    batch: int
    m: int
    n: int
    k: int
    left: ViewRef
    right: ViewRef
    bias: ViewRef | None
    rounds_first: bool = False
    window: Window | None = None

    @property
    def name(self) -> str:
        """The buffer that holds the result."""
        return self.call.name

    @property
    def groups(self) -> int:
        return 1 if self.window is None else self.window.groups

    @property
    def columns(self) -> int:
        """Of the result, those of one group."""
        return self.n if self.groups == 1 else self.n // self.groups


@dataclass(frozen=True, slots=True)
class Blocks:
    """How a template is cut: a tile of rows x columns for each program, `depth` at a time.

    group: so many tiles above one another run together. persistent: each program does several
    tiles, and `resident` programs share a multiprocessor. descriptors: operands come through the
    device's copy engine (TMA). splits: so many programs share the sum of a tile; a second function
    adds what they found.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    group: int = 8
    persistent: bool = False
    resident: int = 1
    descriptors: bool = False
    splits: int = 1

    def __str__(self) -> str:
        words = [f"{self.rows}x{self.columns}x{self.depth}", f"{self.warps} warps"]
        words += [f"{self.stages} stages"] + [f"{self.splits} splits"] * (self.splits > 1)
        words += [f"persistent by {self.resident}"] * self.persistent
        return ", ".join(words + ["descriptors"] * self.descriptors)


@dataclass(frozen=True, slots=True)
class Part:
    """GEMMs and what becomes of them; see the top of the file.

    prologue: a kernel that computes the left operand element by element, which is stored nowhere.
    weights: the same of the right operands, one for each GEMM, or none at all.
    target: where a GEMM on a CPU stores its result for the epilogue, if that is not stored: a
    buffer that the epilogue stores at the same places.
    """

    gemms: tuple[Gemm, ...]
    epilogue: Kernel | None = None
    stored: tuple[str, ...] = ()
    prologue: Kernel | None = None
    target: str = ""
    weights: tuple[Kernel, ...] = ()


@dataclass(frozen=True, slots=True)
class TemplateKernel:
    """GEMMs with what follows them, in one function; see the top of the file."""

    name: str
    parts: tuple[Part, ...]
    blocks: Blocks | None = None

    def gemms(self) -> tuple[Gemm, ...]:
        return tuple(gemm for part in self.parts for gemm in part.gemms)

    def epilogues(self) -> tuple[Kernel, ...]:
        return tuple(part.epilogue for part in self.parts if part.epilogue is not None)

    def prologues(self) -> tuple[Kernel, ...]:
        """Those of left operands, then those of weights."""
        left = [part.prologue for part in self.parts if part.prologue is not None]
        return (*left, *self.weights())

    def weights(self) -> tuple[Kernel, ...]:
        return tuple(kernel for part in self.parts for kernel in part.weights)

    def reads(self) -> tuple[str, ...]:
        """Buffers that must have been written before."""
        own = {gemm.name for gemm in self.gemms()}
        own |= {name for kernel in self.prologues() for name in kernel.writes()}
        found = [name for gemm in self.gemms() for name in gemm.call.reads()]
        found += [name for kernel in self.prologues() for name in kernel.reads()]
        found += [name for kernel in self.epilogues() for name in kernel.reads()]
        return tuple(dict.fromkeys(name for name in found if name not in own))

    def writes(self) -> tuple[str, ...]:
        """Buffers stored into."""
        stored = [name for part in self.parts for name in part.stored]
        stored += [name for kernel in self.epilogues() for name in kernel.writes()]
        return tuple(dict.fromkeys(stored))

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the loop graph that it computes."""
        found = [name for kernel in self.prologues() for name in kernel.nodes]
        found += [gemm.name for gemm in self.gemms()]
        return (*found, *(name for kernel in self.epilogues() for name in kernel.nodes))

    @property
    def origins(self) -> Origins:
        calls = [gemm.call.origins for gemm in self.gemms()]
        kernels = (*self.prologues(), *self.epilogues())
        return joined_origins([*calls, *(kernel.origins for kernel in kernels)])

    def __str__(self) -> str:
        lines = [f"{self.name}: a template for {', '.join(self.nodes)} ({self.blocks})"]
        for part in self.parts:
            for kernel in (part.prologue, *part.weights):
                if kernel is not None:
                    lines += ["  " + line for line in str(kernel).splitlines()]
            for each in part.gemms:
                sizes = f"{each.batch}x{each.m}x{each.n}x{each.k}"
                bias = f" + {each.bias}" if each.bias is not None else ""
                sizes += f", {each.window}" if each.window is not None else ""
                lines.append(f"  {each.name} = {each.left} @ {each.right}{bias} ({sizes})")
            if part.epilogue is not None:
                lines += ["  " + line for line in str(part.epilogue).splitlines()]
            lines += [f"  {name} is stored" for name in part.stored]
            lines += [f"  in {part.target}"] * bool(part.target)
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class FusedConvolution:
    """A convolution of our own and what follows it; see the top of the file.

    target: the buffer that holds the result for the epilogue: the call's own, which is kept then,
    or one that the epilogue stores at the same places.
    """

    call: ExternKernel
    epilogue: Kernel
    target: str

    @property
    def name(self) -> str:
        """That of the kernel."""
        return self.epilogue.name

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the loop graph that it computes."""
        return (self.call.name, *self.epilogue.nodes)

    @property
    def origins(self) -> Origins:
        return joined_origins([self.call.origins, self.epilogue.origins])

    def reads(self) -> tuple[str, ...]:
        """Buffers that must have been written before."""
        found = (*self.call.reads(), *self.epilogue.reads())
        return tuple(dict.fromkeys(name for name in found if name != self.call.name))

    def writes(self) -> tuple[str, ...]:
        """Buffers stored into."""
        return tuple(dict.fromkeys((self.target, *self.epilogue.writes())))

    def __str__(self) -> str:
        head = f"{self.call.name} = {self.call.target}({', '.join(self.call.reads())})"
        lines = [f"{head} in {self.target}, tile by tile with", str(self.epilogue)]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Chain:
    """Steps that are computed together; see the top of the file."""

    links: tuple[TemplateKernel | FusedConvolution | ExternKernel, ...]
    between: tuple[str, ...]

    @property
    def name(self) -> str:
        """Those of all links."""
        return "+".join(link.name for link in self.links)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the loop graph that it computes."""
        found: list[str] = []
        for link in self.links:
            found += (link.name,) if isinstance(link, ExternKernel) else link.nodes
        return tuple(found)

    @property
    def origins(self) -> Origins:
        return joined_origins([link.origins for link in self.links])

    def reads(self) -> tuple[str, ...]:
        """Buffers that must have been written before."""
        own = set(self.writes())
        found = [name for link in self.links for name in link.reads()]
        return tuple(dict.fromkeys(name for name in found if name not in own))

    def writes(self) -> tuple[str, ...]:
        """Buffers stored into; what lies between among them."""
        found: list[str] = []
        for link in self.links:
            found += (link.name,) if isinstance(link, ExternKernel) else link.writes()
        return tuple(dict.fromkeys(found))

    def __str__(self) -> str:
        lines = [f"part by part, with {', '.join(self.between)} between:"]
        for link in self.links:
            text = str(link)
            if isinstance(link, ExternKernel):
                text = f"{link.name} = {link.target}({', '.join(link.reads())})"
            lines += ["  " + line for line in text.splitlines()]
        return "\n".join(lines)


class GemmChain(Chain):
    """Two GEMMs in bands of rows."""

    __slots__ = ()
    links: tuple[TemplateKernel | ExternKernel, ...]


class ConvolutionChain(Chain):
    """Convolutions in strips of lines."""

    __slots__ = ()
    links: tuple[FusedConvolution | ExternKernel, ...]


Generated = (
    Kernel | KernelList | TemplateKernel | FusedConvolution | GemmChain | ConvolutionChain
)
"""Steps with code of their own."""
Step = Generated | ExternKernel | MultiOutput


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Steps in order of execution. refusals: (buffer, buffer, why they were not fused)."""

    steps: tuple[Step, ...]
    refusals: tuple[tuple[str, str, str], ...] = ()

    def kernels(self) -> Iterator[Kernel]:
        return (step for step in self.steps if isinstance(step, Kernel))

    def single_steps(self) -> Iterator[Step]:
        """The steps, and for each chain those in it."""
        for step in self.steps:
            yield from step.links if isinstance(step, Chain) else (step,)

    def fused_convolutions(self) -> Iterator[FusedConvolution]:
        """Those in chains among them."""
        return (step for step in self.single_steps() if isinstance(step, FusedConvolution))

    def templates(self) -> Iterator[TemplateKernel]:
        """Those in chains among them."""
        return (step for step in self.single_steps() if isinstance(step, TemplateKernel))

    def chains(self) -> Iterator[Chain]:
        return (step for step in self.steps if isinstance(step, Chain))

    def __str__(self) -> str:
        lines = []
        for step in self.steps:
            if isinstance(step, Generated):
                lines.append(str(step))
            elif isinstance(step, ExternKernel):
                lines.append(f"{step.name} = {step.target}({', '.join(step.reads())})")
        return "\n".join(lines)


def outer_variables(outer: tuple[int, ...]) -> tuple[Index, ...]:
    """The index of each outer loop (constant 0 for an extent of 1)."""
    return tuple(variable(f"o{n}", extent) for n, extent in enumerate(outer))


def local_position(stage: LoopBody) -> Index:
    """Row-major position of the current (i, r) in the stage's own loops."""
    total = constant(0)
    loops = [(f"i{n}", size) for n, size in enumerate(stage.ranges)]
    loops += [(f"r{n}", size) for n, size in enumerate(stage.reduction_ranges)]
    for name, size in loops:
        total = total * size + variable(name, size)
    return total
