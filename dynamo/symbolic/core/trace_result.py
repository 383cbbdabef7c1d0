"""`TraceResult`: what the evaluator hands on. A frozen record; codegen makes bytecode from it.

Nothing here knows how values are rebuilt: an exit names Vars, and `codegen/rebuild.py` has a row
per Var class that says how the new bytecode makes the real object.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

from dynamo.base.errors import Break
from dynamo.guards.records import GuardSet, UserLine
from dynamo.symbolic.core.graph import GraphRecord
from dynamo.symbolic.core.unguarded import Met
from dynamo.symbolic.core.var import Var

# -- effects, in program order ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Effect:
    """Base of what the new bytecode must do to real objects after the graph call."""


@dataclass(frozen=True, slots=True)
class StoreAttrEffect(Effect):
    """`object.name = value` without running user code (value None: delete).

    raw: True bypasses `__setattr__` (object.__setattr__), because the user's own ran in the trace.
    renewed: it was deleted before, and so stands last.
    """

    target: Var
    name: str
    value: Var | None
    raw: bool = True
    renewed: bool = False


@dataclass(frozen=True, slots=True)
class ContentsEffect(Effect):
    """The real list/dict/set/deque behind `target` gets the Var's final contents."""

    target: Var


@dataclass(frozen=True, slots=True)
class GrowEffect(Effect):
    """`method(target, items)`: the real list, deque or set behind `target`, of which nothing was
    read, gets more items."""

    method: Any
    target: Var
    items: tuple[Var, ...]


@dataclass(frozen=True, slots=True)
class StoreItemEffect(Effect):
    """`target[key] = value` of a real dict whose keys were not read; the key is a constant."""

    target: Var
    key: Var
    value: Var


@dataclass(frozen=True, slots=True)
class StoreGlobalEffect(Effect):
    """`globals[name] = value` (None: delete); module_globals is the real dict, kept by the code.

    renewed: as for attributes.
    """

    module_globals: dict[str, Any]
    name: str
    value: Var | None
    renewed: bool = False


@dataclass(frozen=True, slots=True)
class StoreClassAttrEffect(Effect):
    """`cls.name = value` of an existing class, whose metaclass has no part in it."""

    cls: type
    name: str
    value: Var


@dataclass(frozen=True, slots=True)
class StoreCellEffect(Effect):
    """`cell.cell_contents = value` of a cell that existed before the frame (None: emptied)."""

    cell: Var
    value: Var | None


@dataclass(frozen=True, slots=True)
class ConsumeEffect(Effect):
    """`count` items were taken from the real iterator behind `iterator`."""

    iterator: Var
    count: int


@dataclass(frozen=True, slots=True)
class CallEffect(Effect):
    """A call that is replayed in order with constant arguments (`torch._C._set_grad_enabled`), or
    with the Vars of symbolic numbers and texts."""

    function: Any
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class RegisterEffect(Effect):
    """`function(target, value)`, which gives `result`: a hook that is registered on a tensor.

    value: None where the function takes the target alone; result: None where nothing is given;
    is_of_gradient: it is for backward alone, and no code of forward is run by it.
    """

    function: Any
    target: Var
    value: Var | None
    result: Var | None
    is_of_gradient: bool


@dataclass(frozen=True, slots=True)
class DrawEffect(Effect):
    """`function(target, *args)`, which draws `result` from a generator of Python's `random`.

    Draws come first in the new code, in their order: the graph gets the number as an input.
    """

    function: Any
    target: Var
    args: tuple[Any, ...]
    result: Var


# -- exits -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FrameState:
    """One symbolic frame at a break.

    code: its code object; function: real function object or None (for name and defaults).
    instruction: index into the decoded instructions, of the breaking instruction in the innermost
        frame and of the call that awaits its result in the others.
    stack: Vars from bottom to top *before* the breaking instruction (for outer frames: after the
        call has taken its operands). NullVar stands for CPython's NULL.
    locals: bound fast locals by name; cells: cell Vars by name, cell variables before free ones.
    globals: the real globals dict.
    """

    code: CodeType
    instruction: int
    stack: tuple[Var, ...]
    locals: dict[str, Var]
    cells: dict[str, Var]
    globals: dict[str, Any]
    line: UserLine


@dataclass(frozen=True, slots=True)
class ReturnExit:
    """The root frame returns `value`."""

    value: Var


@dataclass(frozen=True, slots=True)
class BreakExit:
    """The trace ends before an instruction; `frames` from the innermost to the root.

    branches: True where the instruction is a conditional jump (two continuations).
    keeps_all: True where objects must live as long as in eager from here on.
    """

    reason: Break
    frames: tuple[FrameState, ...]
    branches: bool
    keeps_all: bool = False


@dataclass(frozen=True, slots=True)
class TraceResult:
    """One traced frame.

    graph: None where no tensor operation was met.
    handles: True where a traced frame has `try`, `with` or the like.
    symbolic_axes: dimensions of tensors that reach a continuation and follow from declared sizes.
    met: what another process has to look at, None where nothing is kept for one.
    live_outputs is chosen later by codegen: every TensorVar that the exit or an effect reaches.
    """

    code: CodeType
    graph: GraphRecord | None
    guards: GuardSet
    effects: tuple[Effect, ...]
    exit: ReturnExit | BreakExit
    steps: int
    handles: bool
    symbolic_axes: Mapping[Var, tuple[int, ...]]
    met: Met | None = None
