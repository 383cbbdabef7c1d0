"""An entry: new code with its guards, and what it keeps for people."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch.utils._device import DeviceContext

from dynamo import hook
from dynamo.base import logs
from dynamo.base.counters import timed
from dynamo.base.loading import collection_paused
from dynamo.base.subclasses import as_in_program
from dynamo.guards.build import ProgramText, assemble, program_text
from dynamo.guards.listing import lines, python_lines, verbose_lines
from dynamo.guards.records import Guard, released
from dynamo.guards.sources import Source
from dynamo.symbolic.core.effects import outside_changes
from dynamo.symbolic.core.trace_result import TraceResult
from dynamo.symbolic.core.unguarded import without_copies


@dataclass
class EntryRecord:
    """What an entry keeps for people: its guards and its compile id.

    listed: the guards, or what makes them when somebody asks.
    changes: what it does to objects that existed before, in words.
    modes: the modes that it was compiled in, which are guarded by identity.
    """

    listed: tuple[Guard, ...] | Callable[[], tuple[Guard, ...]]
    compile_id: str
    keepalive: Any = None
    changes: tuple[str, ...] = ()
    modes: tuple[Any, ...] = ()

    @property
    def guards(self) -> tuple[Guard, ...]:
        if callable(self.listed):
            self.listed = self.listed()
        return self.listed


class Checks(NamedTuple):
    """The guards of an entry, and the program that looks at them."""

    guards: tuple[Guard, ...]
    program: ProgramText


def make_checks(result: TraceResult, collect: list[Source]) -> Checks:
    """collect: where the inputs of the graph come from."""
    with timed("guards"), collection_paused():
        guards = tuple(without_copies(result.guards))
        return Checks(guards, program_text(guards, collect))


def make_entry(
    frame: hook.FrameState, result: TraceResult, checks: Checks, code: CodeType, direct: Any,
    compile_id: str,
) -> hook.Entry:
    """direct: see `hook.Entry`."""
    guards = checks.guards
    with timed("guards"), collection_paused():
        program = assemble(checks.program)
    logs.log("guards").emit(lambda: "\n".join(guard_lines(frame, guards, program)), compile_id)
    logs.log("verbose_guards").emit(lambda: "\n".join(verbose_lines(guards)), compile_id)
    record = EntryRecord(
        tuple(map(released, guards)), compile_id, frame.code,
        outside_changes(result.effects), known_modes())
    return hook.Entry(code, program, record, direct=direct)


def function_modes() -> tuple[Any, ...]:
    """The modes that see torch functions in this thread, outermost first."""
    count = torch._C._len_torch_function_stack()
    return tuple(torch._C._get_function_stack_at(number) for number in range(count))


def known_modes() -> tuple[Any, ...]:
    """What the guard of them needs alive: a default device, the class of another."""
    return tuple(mode if isinstance(mode, DeviceContext) else type(mode)
                 for mode in function_modes())


def guard_lines(frame: hook.FrameState, guards: Iterable[Guard], program: Any) -> list[str]:
    """What an entry assumes, then what of it runs Python code, which a first run tells."""
    with as_in_program():
        program.run(frame.locals, frame.globals, frame.builtins, frame.cells)
    found = python_lines(guards, program)
    return [*lines(guards), *(f"runs Python code: {line}" for line in found)]
