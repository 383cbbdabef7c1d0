"""Calling graphs whose sizes are known at a call only: kernels for all, a launcher for each sizes.

`ForAllSizes` - in: an ATen graph with SymInts in `meta["val"]`, and the compiler for it at given
hints; out: a callable for all sizes. New sizes are bound: shapes, strides and the memory plan are
evaluated and a launcher is made, which takes no compiler. Sizes at which an assumption of the
compile does not hold get a variant of their own, compiled with them as hints; beyond
`MOST_VARIANTS` the graph runs as ATen operators.

`Program` does the same one level up, for what the ATen graph of a captured one assumes.
"""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import expression_of, symbols_shown
from dynamo.aot.plain_graphs import CachedGraph
from dynamo.aot.recipes import noted
from dynamo.aot.records import Retrace, SymbolTable, Unsupported
from dynamo.aot.symbols import assumption_check
from dynamo.base import logs
from dynamo.base.counters import timed
from dynamo.base.fallbacks import ATEN_SIZES, SIZES, line_of, refused
from dynamo.base.generated import function_of
from dynamo.base.graph_copies import copy_module
from inductor import metrics
from inductor.ir.extent import Sizes
from inductor.lowering.sizes import Source

Compiled = Callable[..., Any]
Check = Callable[..., bool]
CompileSymbolic = Callable[[fx.GraphModule, list[Any]], tuple[Check, Compiled]]
# Chosen, not measured: compiles of one graph, as `recompile_limit` has of frames; sizes that are
# unrolled or held in registers; answers that are cached for each graph.
MOST_VARIANTS = 8
MOST_BOUND = 128
MOST_KNOWN = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """Compiled code for all sizes at which its assumptions hold. bind: makes a callable for the
    values of the symbols. tensors: inputs that are some. broken: the assumption that fails. sizes:
    the symbols."""

    holds: Check
    broken: Callable[[tuple[int, ...]], str]
    bind: Callable[[tuple[int, ...]], Compiled]
    sources: tuple[Source, ...]
    tensors: tuple[int, ...]
    sizes: Sizes


class ForAllSizes:
    """A compiled graph; `call` takes its flat inputs, numbers among them.

    graph: of `count` inputs. compile_for: what compiles a variant of it, with sizes that it is
    likely for; first: the variant that there is.
    """

    def __init__(
        self, graph: CachedGraph, count: int, first: Variant,
        compile_for: Callable[[Sequence[int]], Variant],
    ) -> None:
        self.graph = graph
        self.compile_for = compile_for
        self.context = contextvars.copy_context()  # the settings of this compile
        self.lock = threading.Lock()
        self.variants = [first]
        self.known = functools.lru_cache(MOST_BOUND)(self._bind)
        self.call = _write_call(
            count, _key_of(first.sources), first.tensors, "unbound({inputs})",
            {"known": self.known, "unbound": self._run_as_aten},
        )  # fmt: skip
        if len(first.tensors) == count:
            self.call.launcher_for = self._launcher_for  # type: ignore[attr-defined]

    def _launcher_for(self, inputs: Sequence[Any]) -> Compiled | None:
        """What `call` comes to for inputs of these sizes, if these are tensors all."""
        return self.known(tuple([source.read(inputs) for source in self.variants[0].sources]))

    def _run_as_aten(self, *inputs: Any) -> Any:
        module = self.graph.module()
        refused(ATEN_SIZES, "see the log dynamic", line_of(module.graph.nodes), strict=False)
        return module.forward(*inputs)

    def _bind(self, key: tuple[int, ...]) -> Compiled | None:
        with self.lock, timed("inductor.bind"):
            variant = self._variant_for(key)
            if variant is None:
                return None
            metrics.count("sizes_bound")
            return variant.bind(key)

    def _variant_for(self, key: tuple[int, ...]) -> Variant | None:
        for variant in self.variants:
            if variant.holds(*key):
                return variant
        log = logs.log("dynamic")
        if len(self.variants) == MOST_VARIANTS:
            log.emit(lambda: f"a graph has {MOST_VARIANTS} variants; for {key} it runs as ATen")
            return None
        why = self.variants[-1].broken(key)
        log.emit(lambda: f"a graph is compiled once more, for {key}: {why} does not hold")
        try:
            variant = self.context.run(self.compile_for, key)
        except Unsupported as refusal:
            reason = refusal.reason
            log.emit(lambda: f"a graph runs as ATen operators for {key}: {reason}")
            return None
        self.variants.append(variant)
        return variant if variant.holds(*key) else None


class Program:
    """A captured graph as ATen graphs that each hold for many sizes, chosen by their assumptions;
    `call` has its inputs and outputs.

    compile_symbolic: makes a callable of a graph and the inputs at hand, and a function that tells
    for which inputs it holds; raises Unsupported.
    """

    def __init__(
        self, gm: fx.GraphModule, telling: Sequence[str], count: int,
        compile_symbolic: CompileSymbolic, variants: Sequence[tuple[Check, Compiled]],
    ) -> None:
        """telling: see `telling_of`. count: of the inputs. variants: those that there are."""
        self.gm = gm
        self.compile_symbolic = compile_symbolic
        self.lock = threading.Lock()
        self.variants = [*variants]
        self.known: dict[tuple[int, ...], Compiled] = {}
        self.call = _write_call(
            count, telling, range(count), "choose(({key}), ({inputs},))",
            {"known": self.known.get, "choose": self._choose},
        )  # fmt: skip
        metrics.count("symbolic_graphs")

    def _choose(self, key: tuple[int, ...], inputs: tuple[Any, ...]) -> Any:
        with self.lock:
            compiled = self._variant_for(inputs)
            launcher_for = getattr(compiled, "launcher_for", None)
            if launcher_for is not None:
                compiled = launcher_for(inputs) or compiled
            if len(self.known) >= (MOST_KNOWN if launcher_for is None else MOST_BOUND):
                self.known.clear()
            self.known[key] = compiled
        return compiled(*inputs)

    def _variant_for(self, inputs: tuple[Any, ...]) -> Compiled:
        for holds, compiled in self.variants:
            if holds(*inputs):
                return compiled
        why = "it has as many variants as it may"
        if len(self.variants) < MOST_VARIANTS:
            try:
                holds, compiled = self.compile_symbolic(copy_module(self.gm), list(inputs))
            except Unsupported as refusal:
                why = refusal.reason
            except Retrace as other:  # a gradient is of another class for these sizes
                why = str(other)
            else:
                self.variants.append((holds, compiled))
                return compiled
        logs.log("dynamic").emit(lambda: f"a symbolic graph runs as captured for a size: {why}")
        refused(SIZES, why, line_of(self.gm.graph.nodes), strict=False)
        return self.gm.forward


def program_for(
    gm: fx.GraphModule, example_inputs: list[Any], compile_symbolic: CompileSymbolic
) -> Compiled:
    """The call of a `Program` with a variant for the inputs at hand. Errors: Unsupported."""
    first = compile_symbolic(copy_module(gm), example_inputs)
    return program_of(
        gm, tuple(telling_of(gm, example_inputs)), len(example_inputs), compile_symbolic, (first,))


def program_of(
    gm: fx.GraphModule, telling: tuple[str, ...], count: int, compile_symbolic: CompileSymbolic,
    variants: tuple[tuple[Check, Compiled], ...],
) -> Compiled:
    """The call of this `Program`."""
    call = Program(gm, telling, count, compile_symbolic, variants).call
    return noted(  # type: ignore[no-any-return]
        call, program_of, gm, telling, count, compile_symbolic, variants)


def places_of(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> list[Source]:
    """Numbers among the inputs, and sizes and strides that the capture left open."""
    found = []
    nodes = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for number, (node, example) in enumerate(zip(nodes, example_inputs, strict=True)):
        if type(example) is int:
            found.append(Source(number, None))
        shown = node.meta.get("example_value")
        found += [Source(number, dim) for dim, size in enumerate(getattr(shown, "shape", ()))
                  if type(size) is not int]
        found += [Source(number, dim) for dim in _strides_shown(shown).values()]
    return found


def _strides_shown(shown: Any) -> dict[Any, int]:
    """Symbols that are strides of a tensor, and where."""
    found = symbols_shown(shown) if isinstance(shown, torch.Tensor) else []
    return {symbol: dim for symbol, dim in found if dim is not None and dim < 0}


def check_of(table: SymbolTable, places: Sequence[Source], fakes: Sequence[Any]) -> Check:
    """Whether inputs fit an ATen graph: what it assumed holds, and symbolic sizes that it took for
    constants (0 and 1, say) are these."""
    check = assumption_check(table)
    found = [(place, place.read(fakes)) for place in places]
    fixed = tuple([(place, value) for place, value in found if type(value) is int])
    return check_with(check, fixed) if fixed else check


def check_with(check: Check, fixed: tuple[tuple[Source, int], ...]) -> Check:
    """The check, and that these are what they were."""

    def whole(*inputs: Any) -> bool:
        return all(place.read(inputs) == value for place, value in fixed) and check(*inputs)

    return noted(whole, check_with, check, fixed)  # type: ignore[no-any-return]


CALL = """\
def call({inputs}):
    found = known(({key}))
    if found is None:
        return {missed}
    return found({given})
"""


def telling_of(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> list[str]:
    """What tells one set of sizes from others: numbers, and the shapes and strides in which a
    symbol is first met. Whoever calls has checked that the others follow from these, as in the
    capture."""
    found: list[str] = []
    seen: set[Any] = set()
    nodes = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for number, (node, example) in enumerate(zip(nodes, example_inputs, strict=True)):
        if type(example) is int:
            found.append(f"a{number}")
        shown = node.meta.get("example_value")
        sizes = map(expression_of, getattr(shown, "shape", ()))
        symbolic_sizes = [size for size in sizes if type(size) is not int and size.free_symbols]
        if any(not size.free_symbols <= seen for size in symbolic_sizes):
            found.append(f"a{number}.shape")
            seen.update(size for size in symbolic_sizes if size.is_Symbol)
        strides = _strides_shown(shown)
        if not strides.keys() <= seen:
            found.append(f"a{number}.stride()")
            seen.update(strides)
    return found


def _key_of(sources: Sequence[Source]) -> list[str]:
    """Texts that read the numbers and strides, each shape once."""
    found: list[str] = []
    read: set[int] = set()
    for source in sources:
        shape = f"s{source.input}" if source.input in read else f"(s{source.input} := {{}}.shape)"
        if source.dim is None:
            found.append(f"a{source.input}")
            continue
        if source.dim < 0:
            found.append(f"a{source.input}.stride({~source.dim})")
            continue
        found.append(f"{shape.format(f'a{source.input}')}[{source.dim}]")
        read.add(source.input)
    return found


def _write_call(
    count: int, parts: Sequence[str], given: Sequence[int], missed: str, scope: dict[str, Any]
) -> Compiled:
    """A function of `count` inputs `a0`, .. that looks up by `parts` of them (`known` of the scope)
    what to call with the inputs `given`; it runs at each call of a graph.

    missed: what it returns where nothing is found; it may use `inputs`, `key`.
    """
    words = {
        "inputs": ", ".join(f"a{number}" for number in range(count)),
        "key": "".join(f"{part}, " for part in parts),
        "given": ", ".join(f"a{number}" for number in given),
    }
    source = CALL.format(missed=missed.format(**words), **words)
    call: Compiled = function_of(source, "call", "sizes", scope)
    return call
