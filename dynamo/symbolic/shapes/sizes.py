"""Which dimensions of tensors from outside are symbolic: those that changed, or were declared so.

In: what the trace knows of the dimensions (facts that changed, marks, options). Out: their symbols,
with guards: each size at least 2, equal ones where one symbol stands for both (duck shaping),
strides as the expressions they look like.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from dynamo.base.config import config
from dynamo.base.ragged_sizes import SEQUENCE_LENGTHS
from dynamo.guards.shape_code import Fact
from dynamo.guards.sources import ArraySource, GlobalSource, ItemSource, LocalSource, Source
from dynamo.shapes.marks import UNBACKED, Mark, marks_of
from dynamo.symbolic.core.stack_values import UnreadVar
from dynamo.symbolic.core.var import Var

if TYPE_CHECKING:
    from dynamo.symbolic.shapes.symbols import Symbols

UNMARKED = Mark("automatic")
AUTOMATIC_UNBACKED = Mark("automatic unbacked")
DECLARED = ("dynamic", *UNBACKED)
UNBACKED_KINDS = ("automatic unbacked", *UNBACKED)


def dynamic_dims(symbols: Symbols, real: torch.Tensor, source: Source) -> Mapping[int, Mark]:
    """The dimensions that are to be symbolic, with what the user said of them."""
    context = symbols.context
    if context is None or real.dim() == 0:
        return {}
    marks = {**marks_by_name(source, real.dim()), **marks_of(real)}
    marks |= context.declared.get(id(real), {})
    if getattr(source, "name", None) in SEQUENCE_LENGTHS:  # which torch marks, and may be 0 or 1
        marks = dict.fromkeys(marks, Mark("maybe"))
    found: dict[int, Mark] = {}
    everything = symbols.everything and (is_argument(source) or source in symbols.parts)
    everything = everything and not isinstance(real, torch.nn.Parameter)
    unbacked = config.automatic_dynamic_shapes == "unbacked"
    for axis, size in enumerate(real.shape):
        fact, mark = Fact(source, "size", axis), marks.get(axis, UNMARKED)
        if mark.kind in DECLARED and not (mark.kind == "unbacked" and fact in context.fixed):
            check_declared(symbols, fact, size, mark)
            found[axis] = mark
        elif mark.kind == "static" or fact in context.fixed:
            continue
        elif unbacked and fact in symbols.changed and mark is UNMARKED and (
            fact not in context.decided
        ):
            found[axis] = AUTOMATIC_UNBACKED
        elif size not in (0, 1) and (
            everything or mark.kind == "maybe" or fact in symbols.changed
        ):
            found[axis] = mark
    return {} if context.static_sizes else found


def check_declared(symbols: Symbols, fact: Fact, size: int, mark: Mark) -> None:
    """Errors: ConstraintViolation where this call's size is none that was declared."""
    if symbols.context.static_sizes:
        symbols.violated(fact, symbols.context.static_because, symbols.place())
    if mark.kind == "dynamic" and size in (0, 1):
        symbols.violate(fact, f"is {size}, and sizes 0 and 1 are constants,",
                        "Make the first call with a larger size, or use mark_unbacked.")
    low, high = mark.low, mark.high
    if (low is not None and size < low) or (high is not None and size > high):
        symbols.violate(fact, f"is {size}, outside of {span(mark)},",
                        "Call it with a size of that range, or declare a larger range.")


@functools.cache
def entries_of(setting: str) -> tuple[tuple[str, int | None], ...]:
    """The names of a setting, each with the dimension that it is about; None for all.

    >>> entries_of("L['x']:0, y")
    (("L['x']", 0), ('y', None))
    """
    found = []
    for entry in filter(None, setting.replace(" ", "").split(",")):
        name, colon, axis = entry.rpartition(":")
        found.append((name, int(axis)) if colon and axis.isdecimal() else (entry, None))
    return tuple(found)


def is_named(source: Source, name: str) -> bool:
    r"""True where a setting means this source: by the name in messages (`x`, `self.weight`), by
    torch's name (`L['x']`, `G['x']`), or by a pattern of torch's names.

    >>> is_named(LocalSource("x"), "x"), is_named(LocalSource("x"), r"L\['.'\]")
    (True, True)
    """
    text = source.text()
    head = re.match(r"\w*", text)
    assert head is not None
    scope = "G" if any(isinstance(part, GlobalSource) for part in source.chain()) else "L"
    full = f"{scope}[{head.group()!r}]{text[head.end():]}"
    if name in (text, full):
        return True
    try:
        return re.match(name, full) is not None
    except re.error:
        return False


def marks_by_name(source: Source, dims: int) -> dict[int, Mark]:
    """What `config.dynamic_sources` and `config.unbacked_sources` say of a tensor's dimensions."""
    found: dict[int, Mark] = {}
    for setting, kind in ((config.dynamic_sources, "maybe"), (config.unbacked_sources, "unbacked")):
        for name, axis in entries_of(setting):
            if is_named(source, name):
                axes = range(dims) if axis is None else range(axis, min(axis + 1, dims))
                found |= dict.fromkeys(axes, Mark(kind))
    return found


def is_named_number(source: Source) -> bool:
    """True for a number that one of the two settings names."""
    settings = (config.dynamic_sources, config.unbacked_sources)
    return any(is_named(source, name) for text in settings for name, _ in entries_of(text))


def span(mark: Mark) -> str:
    """The range of a mark, in words."""
    ends = [f"at least {mark.low}"] if mark.low is not None else []
    ends += [f"at most {mark.high}"] if mark.high is not None else []
    return f"{mark.name}: {' and '.join(ends)}" if mark.name else " and ".join(ends)


def symbolic_size(symbols: Symbols, fact: Fact, value: int, mark: Mark) -> Any:
    """The symbol of a size; equal sizes share one, except those that were marked, and those that
    are known to have been different."""
    name = symbols.name(fact, value)
    if mark is UNMARKED:
        duck = (value, symbols.changed.get(fact))
        return shared(symbols, name, symbols.ducks.setdefault(duck, name))
    if mark.kind in DECLARED:
        symbols.declared[name] = fact
    if mark.kind == "strict":
        symbols.strict.add(name)
    first = symbols.dims.setdefault(mark.name, name) if mark.name else name
    if symbols.values[first] != value:
        other = symbols.facts[first].text()
        symbols.violate(fact, f"is {value}, while {other}, {mark.name!r} too, "
                        f"is {symbols.values[first]},", "Dimensions of one name have one size.")
    if mark.kind in UNBACKED_KINDS:
        symbols.unbacked.declared.add(name)
    symbol = shared(symbols, name, first, mark.kind in UNBACKED_KINDS)
    if mark.low is not None:
        bound(symbols, name, f"({name} >= {mark.low})", symbol >= mark.low)
    if mark.high is not None:
        bound(symbols, name, f"({name} <= {mark.high})", symbol <= mark.high)
    return symbol


def bound(symbols: Symbols, name: str, text: str, condition: Any) -> None:
    """The end of a declared range: guarded, and known of an unbacked size."""
    if name not in symbols.unbacked.declared:
        symbols.decide(text)
        return
    symbols.assume(text)
    world = symbols.trace.world
    world.run(torch._check, condition)
    world.new_checks()  # it is guarded


def shared(symbols: Symbols, name: str, first: str, unbacked: bool = False) -> Any:
    """A new symbol of that name, or the first one's, guarded to be equal."""
    world = symbols.trace.world
    if first != name:
        symbols.assume(f"({name} == {first})")
        world.symbols[name] = world.symbols[first]
        return world.symbols[first]
    if unbacked:
        return world.unbacked_size(name)
    symbol = world.size(name, symbols.values[name])
    symbols.assume(f"({name} >= 2)")
    return symbol


def infer_strides(
    sizes: tuple[int, ...], strides: tuple[int, ...], symbolic: list[Any],
    other: Callable[[int], Any] | None = None,
) -> list[Any]:
    """Strides as products of sizes where their values are such products, from the inside out.
    other: gives the symbol, or the number, of a stride that is none.

    >>> infer_strides((2, 3, 4), (12, 4, 1), [2, 3, 4])
    [12, 4, 1]
    """
    products: dict[int, Any] = {}
    found: list[Any] = list(strides)
    for axis in sorted(range(len(sizes)), key=lambda axis: (strides[axis], -axis)):
        stride = strides[axis]
        if stride > 1 or type(products.get(stride)) not in (int, type(None)):
            if other is not None and stride > 1 and stride not in products:
                products[stride] = other(axis)
            found[axis] = products.get(stride, stride)
        if stride > 0:
            products.setdefault(stride * max(sizes[axis], 1), found[axis] * symbolic[axis])
    return found


def symbolic_stride(symbols: Symbols, source: Source, axis: int, stride: int) -> Any:
    """The symbol of a stride that had several values, as that of a part of a longer tensor has."""
    fact = Fact(source, "stride", axis)
    if fact not in symbols.changed or fact in symbols.context.fixed:
        return stride
    return symbolic_size(symbols, fact, stride, UNMARKED)


def is_argument(source: Source) -> bool:
    """True for arguments of the frame and what containers among them hold."""
    while isinstance(source, ItemSource | ArraySource):
        source = source.base
    return isinstance(source, LocalSource)


SCHEDULES = {("param_groups", "lr"): float, ("state", "step"): int}


def is_schedule(kind: type, source: Source) -> bool:
    """True for a learning rate and for a step counter of an optimizer, which change by nature.

    >>> groups = ItemSource(LocalSource("optimizer"), "param_groups")
    >>> is_schedule(float, ItemSource(ItemSource(groups, 0), "lr"))
    True
    """
    key = getattr(source, "key", None)
    names = {getattr(part, "key", getattr(part, "name", None)) for part in source.chain()}
    return any(key == last and kind is wanted and first in names
               for (first, last), wanted in SCHEDULES.items())


def symbolic_axes(symbols: Symbols, roots: Iterable[Var]) -> dict[Var, tuple[int, ...]]:
    """The dimensions of tensors whose sizes follow from declared ones, before a graph break too."""
    context = symbols.context
    names = {name for name, fact in symbols.facts.items() if fact in context.carried}
    names |= symbols.declared.keys()
    found = {}
    for var in roots:
        if isinstance(var, UnreadVar):
            carried = (fact.index for fact in context.carried if fact.source == var.source)
            axes = (*context.declared.get(id(var.value), ()), *carried)
        elif names and isinstance(fake := getattr(var, "fake", None), torch.Tensor):
            axes = tuple(axis for axis, size in enumerate(fake.shape) if _is_made_of(
                symbols, size, names))
        else:
            continue
        if axes:
            found[var] = axes
    return found


def _is_made_of(symbols: Symbols, size: Any, names: set[str]) -> bool:
    if not isinstance(size, torch.SymInt):
        return False
    return not names.isdisjoint(symbols.trace.world.names_in(size.node.expr))
