"""The settings of a trace: the user's options, and what earlier calls have shown."""

from __future__ import annotations

from collections.abc import Mapping

from dynamo.base.config import config
from dynamo.codegen.continuation import Continuations
from dynamo.guards.kinds import cell_bound
from dynamo.guards.shape_code import Fact
from dynamo.guards.sources import is_buffer
from dynamo.hook import FrameState
from dynamo.options import CompileOptions
from dynamo.shapes.marks import Mark
from dynamo.symbolic.core.context import CodeCache, CompileContext

# A trace takes in more than what a continuation begins with.
LEAST_STEPS = 100


def context_of(
    frame: FrameState, options: CompileOptions, compile_id: str,
    changed: Mapping[Fact, int | float], codes: CodeCache, continuations: Continuations,
) -> CompileContext:
    """changed: see `Converter.__call__`."""
    carried = continuations.carried(frame.code)
    changed_tables = {fact: count for fact, count in changed.items() if fact.what == "values"}
    return CompileContext(
        codes, options, max(config.max_steps, LEAST_STEPS), compile_id,
        changed={**dict.fromkeys(carried), **(changed if learns(options) else changed_tables)},
        carried=carried,
        learns=learns(options), everything_dynamic=is_dynamic(options),
        declared=declared_marks(frame, options),
        no_arguments=not learns(options) or is_dynamic(options) or not all(
            is_buffer(fact.source) for fact in changed_tables),
    )


def declared_marks(
    frame: FrameState, options: CompileOptions
) -> Mapping[int, Mapping[int, Mark]]:
    """What `dynamic=` says of the tensors that this frame gets."""
    if options.dims is None:
        return {}
    cells = {name: cell.cell_contents for name, cell in frame.cells.items() if cell_bound(cell)}
    return options.dims.marks(frame.code, {**cells, **frame.locals})


def learns(options: CompileOptions) -> bool:
    """True where what changes becomes symbolic."""
    return config.automatic_dynamic_shapes and options.dynamic is not False or is_dynamic(options)


def is_dynamic(options: CompileOptions) -> bool:
    """True where sizes are symbolic from the first compile."""
    if options.dynamic is None:
        return not config.assume_static_by_default
    return options.dynamic
