"""`explain(f)(*args)`: what compiling did with a function, as a report that a person can act on."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch

from dynamo import hook
from dynamo.api import compile
from dynamo.base import counters, events
from dynamo.base.breaks import summarize
from dynamo.base.config import config
from dynamo.base.events import Event
from dynamo.base.words import counted, described
from dynamo.guards.listing import python_lines, verbose_lines
from dynamo.guards.records import Guard
from dynamo.guards.sources import LocalSource
from dynamo.testing import CompileCounter


@dataclass(frozen=True)
class BreakCost:
    """One graph break, and what it costs.

    text: the user's line, what happened, what to do. stack: the user's lines, outermost first.
    operations_before, operations_after: operations in the graphs that it separates.
    seconds_lost: compile time that went into attempts to trace through it.
    """

    code: str
    text: str
    stack: tuple[str, ...]
    operations_before: int
    operations_after: int
    seconds_lost: float

    @property
    def reason(self) -> str:
        """torch's name for the text."""
        return self.text

    @property
    def user_stack(self) -> tuple[str, ...]:
        """torch's name for the stack."""
        return self.stack

    def __str__(self) -> str:
        before = counted(self.operations_before, "operation")
        return (f"{self.text}\n  Cost: separates {before} from {self.operations_after}; "
                f"{self.seconds_lost:.3f} s of compile time lost.")


SHOWN_GUARDS = 10  # lines of all functions together in the text of an explanation


@dataclass(frozen=True)
class Explanation:
    """graphs: captured graphs in order; breaks: reason -> how often; costs: each break in order;
    seconds: by stage, this call only; guards: what each compiled function assumes, and why;
    python_guards: what of it is checked by running Python code (all else is checked in C).
    not_compiled: the line, what happened, and the reason, for all that the backend did not compile;
    left_to_aten: compile id -> operators that the backend calls in ATen, and why."""

    graphs: tuple[torch.fx.GraphModule, ...]
    breaks: dict[str, int]
    costs: tuple[BreakCost, ...]
    seconds: dict[str, float]
    guards: dict[str, tuple[str, ...]] = field(default_factory=dict)
    python_guards: dict[str, tuple[str, ...]] = field(default_factory=dict)
    not_compiled: tuple[str, ...] = ()
    left_to_aten: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def graph_count(self) -> int:
        return len(self.graphs)

    @property
    def op_count(self) -> int:
        """Operations in all graphs."""
        return sum(map(len, self.ops_per_graph))

    @property
    def ops_per_graph(self) -> list[list[Any]]:
        """What each graph calls: a function, or the name of a method or module."""
        return [[node.target for node in module.graph.nodes if node.op.startswith("call_")]
                for module in self.graphs]

    @property
    def graph_break_count(self) -> int:
        return sum(self.breaks.values())

    @property
    def break_reasons(self) -> list[BreakCost]:
        """torch's name for the breaks, in order."""
        return list(self.costs)

    @property
    def out_guards(self) -> list[str]:
        """All guards, each as a text."""
        return [line for guards in self.guards.values() for line in guards]

    @property
    def compile_times(self) -> str:
        """A line for each stage."""
        return "\n".join(f"{stage}: {seconds:.3f} s" for stage, seconds in self.seconds.items())

    def __str__(self) -> str:
        operations = counted(self.op_count, "operation")
        lines = [f"{counted(self.graph_count, 'graph')} with {operations}, "
                 f"{counted(self.graph_break_count, 'graph break')}, "
                 f"compiled in {self.seconds.get('convert', 0.0):.2f} s"]
        lines += [f"  {counted(count, 'time')}: {summarize(reason)}"
                  for reason, count in self.breaks.items() if count > 1]
        lines += [f"{number}. {cost}" for number, cost in enumerate(self.costs, 1)]
        lines += [f"  not compiled: {text}" for text in self.not_compiled]
        for compile_id, operators in self.left_to_aten.items():
            lines += [f"  fallbacks to ATen in graph {compile_id}:",
                      *(f"    {text}" for text in operators)]
        lines += [f"  stage {stage}: {seconds:.3f} s" for stage, seconds in self.seconds.items()]
        for name, guards in self.python_guards.items():
            lines += [f"  guards of {name} that run Python code (the others run in C):",
                      *(f"    {line}" for line in guards)]
        return "\n".join(lines + self._first_guards())

    def _first_guards(self) -> list[str]:
        """The functions in order, as far as the lines go; then how many are left."""
        lines, left = [], SHOWN_GUARDS
        for name, guards in self.guards.items():
            if left:
                lines += [f"  guards of {name}:", *(f"    {line}" for line in guards[:left])]
                left -= len(guards[:left])
        if rest := sum(map(len, self.guards.values())) - (SHOWN_GUARDS - left):
            lines.append(f"    and {counted(rest, 'line')} more: print(explained.all_guards)")
        return lines

    @property
    def all_guards(self) -> str:
        """The guards of each compiled function, with the reason and the user's line of each."""
        return "\n".join(line for name, guards in self.guards.items()
                         for line in (f"guards of {name}:", *(f"  {line}" for line in guards)))


def explain(
    f: Any, *, backend: str | Callable[..., Any] = "eager", **arguments: Any
) -> Callable[..., Explanation]:
    """Compiles a function or module, and calls it once with the arguments given.

    backend: what compiles the graphs; without it they are only captured. arguments: others of
    `compile`.

    >>> print(str(explain(lambda x: x + 1)(torch.ones(2))).splitlines()[0].rsplit(",", 1)[0])
    1 graph with 1 operation, 0 graph breaks
    """
    if not callable(f) or isinstance(f, type):
        raise TypeError(f"explain takes a function, a method or an nn.Module, not {described(f)}")

    def call(*args: Any, **kwargs: Any) -> Explanation:
        counter = CompileCounter(backend)
        with config.patch(background=False):
            compiled = compile(f, backend=counter, **arguments)
        breaks, seconds = ends_of_graphs(), counters.compile_times()
        start = time.time()
        compiled(*args, **kwargs)
        return Explanation(
            tuple(counter.graphs),
            dict(ends_of_graphs() - breaks),
            costs_of([event for event in events.events("frame") if event.time >= start]),
            {s: t - seconds.get(s, 0.0) for s, t in counters.compile_times().items()
             if t > seconds.get(s, 0.0)},
            guards_of(compiled, lambda guards, _: verbose_lines(guards)),
            guards_of(compiled, python_lines),
            not_compiled_in([event for event in events.events("not_compiled")
                             if event.time >= start]),
            left_to_aten_in([event for event in events.events("left_to_aten")
                             if event.time >= start]),
        )

    return call


def ends_of_graphs() -> Counter[str]:
    """Why graphs have ended until now, those that the program has asked for included."""
    return counters.counters["graph_break"] + counters.counters["between_graphs"]


def guards_of(
    compiled: Any, show: Callable[[tuple[Guard, ...], Any], list[str]]
) -> dict[str, tuple[str, ...]]:
    """What to show of the guards of all entries of a compiled function or module, by function.

    show: lines of text from guards and their program."""
    policy = getattr(type(compiled), "_policy", None)
    region = getattr(compiled, "region", None) if policy is None else policy.region
    if region is None:
        return {}
    entries = [(code, entry.keepalive, entry.program) for code in region.codes()
               for entry in hook.entries(code, region)]
    entries.sort(key=lambda row: [int(part) for part in row[1].compile_id.split("/")])
    shown = {
        f"{part_of_program(code, record.guards)} [{record.compile_id}]":
            tuple(show(record.guards, program))
        for code, record, program in entries
    }
    return {name: found for name, found in shown.items() if found}


def part_of_program(code: CodeType, guards: tuple[Guard, ...]) -> str:
    """A function as the program names it (a module's call by its `forward`), with the line where a
    part behind a break begins."""
    if code is torch.nn.Module._call_impl.__code__:
        kinds = [g.payload for g in guards if g.kind == "TYPE" and g.source == LocalSource("self")]
        return f"{kinds[0].text}.forward" if kinds else code.co_qualname
    behind = re.match(r"__resume_(\d+)_", code.co_qualname)
    return f"{code.co_name} from line {behind[1]}" if behind else code.co_qualname


def not_compiled_in(recorded: list[Event]) -> tuple[str, ...]:
    """What happened where, each with how often."""
    rows = Counter(
        f"{str(event.data['place']).splitlines()[0]}: {event.data['what']}: {event.data['reason']}"
        for event in recorded
    )
    return tuple(f"{text} ({counted(n, 'time')})" if n > 1 else text for text, n in rows.items())


def left_to_aten_in(recorded: list[Event]) -> dict[str, tuple[str, ...]]:
    """Operators with reasons, by compile id."""
    rows: dict[str, Counter[str]] = {}
    for event in recorded:
        texts = rows.setdefault(event.compile_id, Counter())
        texts.update(f"{operator}: {reason}" for operator, reason in event.data["operators"])
    return {
        compile_id: tuple(f"{text} ({counted(n, 'time')})" if n > 1 else text
                          for text, n in texts.items())
        for compile_id, texts in rows.items()
    }


def costs_of(frames: list[Event]) -> tuple[BreakCost, ...]:
    """The breaks among traced frames, in order."""
    frames = [event for event in frames if not event.data.get("break", {}).get("repeated")]
    found = []
    for index, event in enumerate(frames):
        row = event.data.get("break")
        if row is None:
            continue
        later = frames[index + 1 :]
        resumed = [item for item in later if item.data["frame"].startswith("__resume_")]
        following = (resumed or later)[:1]
        found.append(BreakCost(
            row["code"], row["text"], tuple(row["stack"]), event.data["operations"],
            following[0].data["operations"] if following else 0, row["seconds_lost"],
        ))
    return tuple(found)
