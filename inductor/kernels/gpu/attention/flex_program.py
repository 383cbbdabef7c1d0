"""What the functions of a flex attention do to a tile of scores, as Triton functions.

In: a `FlexCall` and fakes of what it is called with. Out: a `FlexProgram`: Triton functions over a
tile of queries by keys, and over one of keys by queries. `score` gives the new scores, `mask` which
ones are seen, `slope` the gradient of the scores as they were from that of the new ones. Their
operations come from the loop IR: both graphs are recorded as ATen operators and lowered, with
nothing stored. `g` is the batch, `s` the head; `x` varies along the rows of a tile, `r0` along
its columns.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from dynamo.aot.api import simplify
from dynamo.aot.capture import capture_forward
from dynamo.aot.reference import ReferenceWorld
from dynamo.graph_operators.flex_calls import FlexCall
from inductor.codegen.triton.launch import Launch, NotPrintable, Stage
from inductor.codegen.triton.numbers import MOST_INT32, Numbers
from inductor.codegen.triton.print_stage import (
    Columns,
    Frame,
    Memory,
    StagePrinter,
    Text,
    Writer,
)
from inductor.codegen.triton.spelling import needs_int64
from inductor.fx_passes.table import decompositions
from inductor.ir.body import IndirectVar, Ops, _drop_dead
from inductor.ir.index import Index, flatten, variable
from inductor.kernels.gpu.attention.flex_narrow import narrowed
from inductor.lowering.run import values_of
from inductor.lowering.tensor import Tensor
from inductor.scheduler.schedule import Local

TILE = frozenset("xr")
SCORES, SLOPE, FIRST_READ = 0, 1, 2  # placeholders: scores, gradient of the new ones, what is read
RESULT = "result"
MOST_OPS = 400  # of score_mod or mask_mod; chosen, not measured: bounds the kernel's code
Four = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class FlexProgram:
    """text: the functions `flex_score`, `flex_mask`, `flex_slope`, and those for transposed tiles
    (`.._turned`). reads: which of the inputs behind the tables are parameters, in order. masked:
    whether there is a mask. checks: an index may be out of range. name: equal for equal texts."""

    text: str
    reads: tuple[int, ...]
    masked: bool
    checks: bool
    sizes: Four
    name: str


def program_of(
    call: FlexCall, size: Four, device: torch.device, given: Sequence[Any]
) -> FlexProgram | None:
    """The functions of a call; None where one needs more than a tile. given: fakes of what the
    graphs read. size: batch, heads, queries, keys."""
    functions: dict[str, Callable[..., Any]] = {"flex_score": call.changed_alone}
    if call.mask is not None:
        functions["flex_mask"] = lambda scores, slope, *reads: call.seen(reads)
    functions["flex_slope"] = call.slope
    printer = _Printer(size, [fake if isinstance(fake, torch.Tensor) else None for fake in given])
    parts = []
    for name, function in functions.items():
        value = recorded(function, size, device, given)
        if value is None:
            return None
        try:
            parts += [printer.print(name, value, turned) for turned in (False, True)]
        except NotPrintable:
            return None
    reads = tuple(sorted(printer.read))
    names = "".join(f"R{place}, " for place in reads)
    text = "".join(parts).replace("#READS", names)
    digest = hashlib.sha256(f"{text}{size}".encode()).hexdigest()[:16]
    return FlexProgram(text, reads, call.mask is not None, printer.checks, size, f"flex_{digest}")


def recorded(
    function: Callable[..., Any], size: Four, device: torch.device, given: Sequence[Any]
) -> Tensor | None:
    """The value of a function, as it is lowered."""
    graph = fx.Graph()
    names = ["scores", "slope", *(f"read{place}" for place in range(len(given)))]
    nodes = [graph.placeholder(name) for name in names]
    graph.output((graph.call_function(_named(function), tuple(nodes)),))
    world = ReferenceWorld()
    facts = world.cache.facts(size, _dense(size), 0, torch.float32, device)
    fakes: list[Any] = [world.make(facts), world.make(facts)]
    fakes += [_fake_like(world, item) for item in given]
    gm = fx.GraphModule(torch.nn.Module(), graph)
    with torch.no_grad():
        captured = capture_forward(gm, fakes, world=world)
        module = simplify(captured.module, decompositions(), world)
    if len(module.graph.nodes) > MOST_OPS:
        return None
    found = values_of(module)
    return None if found is None else found[0][0]


def _named(function: Callable[..., Any]) -> Callable[..., Any]:
    def part_of_flex(*args: Any) -> Any:
        return function(*args).clone()  # no view of an input

    return part_of_flex


def _fake_like(world: ReferenceWorld, value: Any) -> Any:
    """A fake of this world with the metadata of a tensor; numbers are themselves."""
    if not isinstance(value, torch.Tensor):
        return value
    size, stride = tuple(value.shape), tuple(value.stride())
    return world.make(world.cache.facts(size, stride, 0, value.dtype, value.device))


class _Printer:
    """Prints functions over tiles of scores. read: the parameters that they need."""

    def __init__(self, size: Four, given: Sequence[torch.Tensor | None]) -> None:
        self.size = size
        self.read: set[int] = set()
        self.checks = False
        self.parameters = {
            f"arg{place + FIRST_READ}": f"R{place}" for place in range(len(given))
        }
        spans = [sum((n - 1) * abs(step) for n, step in zip(x.shape, x.stride(), strict=True))
                 for x in given if x is not None]
        self.wide = any(span >= MOST_INT32 for span in spans)

    def print(self, name: str, value: Tensor, turned: bool) -> str:
        """One function. turned: rows of the tile are keys."""
        stage = self._stage(value, turned)
        queries, keys = self.size[2:]
        across = queries if turned else keys
        launch = Launch(name, 1, (stage,), (Local(RESULT, torch.float32, 2),), tiled=True)
        frame = Frame(
            launch, self.wide, False, "xmask", frozenset(), self.parameters, Numbers(self.wide)
        )
        memory = Memory()
        for place, text in ((SCORES, "score"), (SLOPE, "slope")):
            where = flatten(self._indices(turned), _dense(self.size))
            memory.stored[f"arg{place}"] = (where, "r0", Text(text, TILE))
        writer = Writer()
        columns = Columns("r0", "rmask0", "ACROSS", max(across, 2))
        try:
            StagePrinter(stage, columns, frame, writer, memory).print()
        except KeyError as error:
            raise NotPrintable(f"scores at another place: {error}") from error
        limits = (keys, queries) if turned else (queries, keys)
        lines = "\n".join(writer.lines).replace("XBLOCK", "DOWN")
        return FUNCTION.format(
            name=name + ("_turned" if turned else ""), rows=limits[0], columns=limits[1],
            lines=lines, result=memory.locals[RESULT].name,
        )  # fmt: skip

    def _indices(self, turned: bool) -> tuple[Index, Index, Index, Index]:
        names = ("g", "s", "r", "x") if turned else ("g", "s", "x", "r")
        b, h, q, k = (variable(name, n) for name, n in zip(names, self.size, strict=True))
        return b, h, q, k

    def _stage(self, value: Tensor, turned: bool) -> Stage:
        ops = Ops()
        indices = self._indices(turned)
        if value.size != self.size:
            raise NotPrintable(f"a function of scores that gives {value.layout}")
        found = value.load(ops, indices)
        ops.store(RESULT, 0, found)
        live = narrowed(_drop_dead(ops.recorded))
        if len(live) > MOST_OPS:
            raise NotPrintable("a function of scores that is too long")
        for op in live:
            if op.index is not None and op.buffer and op.buffer not in (RESULT, "arg0", "arg1"):
                self.read.add(int(op.buffer.removeprefix("arg")) - FIRST_READ)
                self.wide |= needs_int64(op.index)
            self.checks |= isinstance(op.imm, IndirectVar) and op.imm.check
        return Stage(live, 1, 2, False)


def _dense(size: Four) -> Four:
    _, heads, queries, keys = size
    return heads * queries * keys, queries * keys, keys, 1


FUNCTION = """
@triton.jit
def {name}(score, slope, g, s, x, r0, #READSDOWN: tl.constexpr, ACROSS: tl.constexpr):
    xmask = x < {rows}
    rmask0 = r0 < {columns}
{lines}
    return {result}

"""
