"""`CompileContext`: what the attempts to trace one frame share, and what they have learned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch

from dynamo.base.errors import Break, ConstraintViolation
from dynamo.bytecode.decode import Decoded, decode
from dynamo.bytecode.liveness import Liveness
from dynamo.guards.shape_code import Fact
from dynamo.guards.sources import ItemSource, Source, is_buffer, is_small_buffer
from dynamo.shapes.marks import Mark

MOST_CHANGES = 1  # of a buffer whose values are known: each is another compiled program


class CodeCache:
    """What is known of code objects, by identity (equal ones may have different constants)."""

    def __init__(self) -> None:
        self._decoded: dict[int, tuple[CodeType, Decoded]] = {}
        self._liveness: dict[int, tuple[CodeType, Liveness]] = {}
        self._endless: dict[int, CodeType] = {}

    def decode(self, code: CodeType) -> Decoded:
        known = self._decoded.get(id(code))
        if known is None:
            known = self._decoded[id(code)] = (code, decode(code))
        return known[1]

    def liveness(self, code: CodeType) -> Liveness:
        known = self._liveness.get(id(code))
        if known is None:
            known = self._liveness[id(code)] = (code, Liveness(self.decode(code)))
        return known[1]

    def is_endless(self, code: CodeType) -> bool:
        """True for functions that were seen to call themselves again and again."""
        return id(code) in self._endless

    def mark_endless(self, code: CodeType) -> None:
        self._endless[id(code)] = code


@dataclass
class CompileContext:
    """One compile of one frame.

    forced: steps before which the next attempt must break, each with the break that caused it.
    seconds_lost: time spent on attempts that were given up.
    raised_at: the step at which each handled exception (a Var) of this attempt was raised.
    settings: the region's options and the configuration when the compile began.
    changed: numbers and sizes that had several values so far, with the first one where it is known;
        they become symbolic. carried: those of them that follow from sizes declared before a graph
        break.
    learns: so do numbers that are known to change (see `sizes.is_schedule`).
    everything_dynamic: sizes and arguments are symbolic from the first compile.
    symbolic: an attempt met a size that is to be symbolic. static_sizes: one showed that sizes
        can't be, because of static_because; violated: what that violates. breaks_transforms: it was
        a transform of torch.func beside sizes declared dynamic, which breaks the graph. fixed:
        facts that an attempt could not keep symbolic. decided: those that one could not keep
        unbacked.
    declared: what `dynamic=` said of the arguments' dimensions, by the identity of the tensor.
    plain_arrays: an attempt wrote into an input that shares memory with a numpy array; those are
        only passed on then.
    tables: inputs of which the values are to be known, see `tables.py`; buffers: names of those
        that are buffers, of all modules; no_tables: an attempt showed that this does not help;
        no_arguments: nothing is learnt of earlier calls, or an argument had other values in one.
    refusals: operations that were tried, and whether eager refuses them (`shapes/trials.py`).
    cacheable: the trace is to be cached for later processes, which need to know what it has met.
    """

    codes: CodeCache
    settings: Any = None
    max_steps: int = 400_000
    compile_id: str = ""
    forced: dict[int, Break] = field(default_factory=dict)
    seconds_lost: float = 0.0
    raised_at: dict[Any, int] = field(default_factory=dict)
    changed: Mapping[Fact, int | float | None] = field(default_factory=dict)
    carried: frozenset[Fact] = frozenset()
    learns: bool = False
    everything_dynamic: bool = False
    symbolic: bool = False
    static_sizes: bool = False
    static_because: str = ""
    breaks_transforms: bool = False
    violated: ConstraintViolation | None = None
    fixed: frozenset[Fact] = frozenset()
    decided: frozenset[Fact] = frozenset()
    plain_arrays: bool = False
    tables: frozenset[Source] = frozenset()
    buffers: frozenset[str] = frozenset()
    no_tables: bool = False
    no_arguments: bool = False
    declared: Mapping[int, Mapping[int, Mark]] = field(default_factory=dict)
    refusals: dict[Any, bool] = field(default_factory=dict)
    cacheable: bool = False

    def wants_values(self, source: Source, real: torch.Tensor) -> bool:
        """Whether the values of an input are to be known."""
        if source in self.tables:
            return True
        named = isinstance(source, ItemSource) and source.key in self.buffers
        return named and is_buffer(source) and self.may_know_buffer(source, real)

    def may_know_buffer(self, source: Source, real: torch.Tensor) -> bool:
        """Whether the values of a buffer may be known: it is small, and has not changed often."""
        changes = self.changed.get(Fact(source, "values")) or 0
        return is_small_buffer(real) and changes <= MOST_CHANGES

    def check_length(self, steps: int) -> None:
        """Breaks where a trace has more instructions and calls than it may have."""
        if steps > self.max_steps:
            raise Break("trace_too_long", f"{steps} instructions")

