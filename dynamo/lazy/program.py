"""Compiled traces: a table of programs by key, and the policy of what is compiled when.

In: a trace and the numbers of its tensors that are wanted. Out: those tensors. A key that is known
runs the compiled graph, nothing is built (LazyTensor paper, section 4). The first trace of its
operations is compiled at once. One that differs only in sizes or constants runs operator by
operator the first time, and is compiled when it comes again: a loop whose sizes grow at each step
would otherwise compile at each step.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from dynamo.aot.boxed import call_with, picking_arguments
from dynamo.backends.registry import is_own
from dynamo.base.counters import timed
from dynamo.base.fallbacks import CALL, GRAPH, Site, compiling_at, failed
from dynamo.lazy import _C
from dynamo.lazy.graph import build, interpret
from dynamo.lazy.report import REPORT
from dynamo.lazy.trace import Trace
from dynamo.lazy.weights import weights_of, with_weights

Compiled = Callable[..., Any]
# Chosen, not measured: compiles of the same operations with other sizes, programs that are cached,
# and variants of one.
MOST_SIZES = 8
MOST_PROGRAMS = 512
MOST_VARIANTS = 4
HIT, COMPILED, STEPS = "hit", "compiled", "operator by operator"


@dataclass(frozen=True, slots=True)
class Variant:
    """A graph. returned: the numbers of the tensors that it returns. weights: positions of inputs
    where it gets the ordinary tensors themselves."""

    returned: tuple[int, ...]
    compiled: Compiled
    weights: frozenset[int] = frozenset()


@dataclass(slots=True)
class Program:
    """The graphs of one key."""

    variants: list[Variant] = field(default_factory=list)
    failed: bool = False

    def find(self, live: Sequence[int]) -> Variant | None:
        """A graph that returns these, and perhaps others."""
        wanted = set(live)
        for variant in self.variants:
            if wanted.issubset(variant.returned):
                return variant
        return None


@dataclass(slots=True)
class Family:
    """Traces of the same operations: how many keys were compiled, and which were seen."""

    compiled: int = 0
    seen: set[Any] = field(default_factory=set)


class Programs:
    """backend: `(graph, example inputs) -> callable`."""

    def __init__(self, backend: Compiled, options: dict[str, Any]) -> None:
        self.backend, self.options = backend, options
        self.programs: dict[Any, Program] = {}
        self.families: dict[Any, Family] = {}

    def run(self, trace: Trace, live: Sequence[int], keep: Any, place: str) -> str:
        """Computes a trace; `keep(number, tensor)` gets what is wanted. Says how it was done.

        Errors: those of the program's operators.
        """
        key = trace.key()
        program = self.programs.get(key)
        with below():
            found = None if program is None else program.find(live)
            if found is None:
                if not self._worth(key, program, trace):
                    REPORT.count("by_operator")
                    _step_by_step(trace, keep)
                    return STEPS
                program = self._program(key)
                found = self._compile(program, trace, live, place)
                if found is None:
                    REPORT.count("by_operator")
                    _step_by_step(trace, keep)
                    return STEPS
                how = COMPILED
            else:
                REPORT.count("hits")
                how = HIT
            return how if self._run(program, found, trace, keep, place) else STEPS

    def _run(
        self, program: Program | None, variant: Variant, trace: Trace, keep: Any, place: str
    ) -> bool:
        """Calls a compiled graph. False where that failed and eager did it: a defect, after which
        the program runs operator by operator."""
        reals = _reals(trace, variant.weights)
        error = _call(variant, reals, trace.numbers, keep, trace.writes)
        if error is None:
            return True
        _step_by_step(trace, keep)  # raises what eager raises
        if program is not None:
            program.failed, program.variants = True, []
        self._tell(CALL, error, "fails when it is called, and runs operator by operator", place)
        return False

    def _tell(self, kind: str, error: Exception, what: str, place: str) -> None:
        """Counts a defect and warns of it once. Errors: it, where errors are not suppressed."""
        REPORT.count("failures")
        name = getattr(self.backend, "__name__", repr(self.backend))
        whose = "dynamo" if is_own(self.backend) else f"the backend {name!r}"
        failed(kind, error, f"lazy: the trace that ends here {what}", place, at_call=kind == CALL,
               whose=whose)

    def _program(self, key: Any) -> Program:
        if key not in self.programs:
            if len(self.programs) >= MOST_PROGRAMS:
                self.programs.pop(next(iter(self.programs)))
            self.programs[key] = Program()
        return self.programs[key]

    def _worth(self, key: Any, program: Program | None, trace: Trace) -> bool:
        if program is not None:
            return not program.failed and len(program.variants) < MOST_VARIANTS
        operations = tuple(rule.func for rule in trace.rules)
        family = self.families.setdefault((operations, key[1]), Family())
        fresh = hash(key) not in family.seen
        family.seen.add(hash(key))
        if family.compiled >= MOST_SIZES or (family.compiled and fresh):
            return False
        family.compiled += 1
        return True

    def _compile(
        self, program: Program, trace: Trace, live: Sequence[int], place: str
    ) -> Variant | None:
        weights = weights_of(trace, live)
        inputs = _inputs(_reals(trace, weights), trace.numbers)
        try:
            with timed("lazy"), compiling_at(Site(place)):
                facts = {value.index: value.facts for value in trace.inputs}
                pairs = trace.shared() if trace.writes else ()
                module, taken = build(trace.rules, trace.wires, trace.places, live, pairs, facts)
                _mark(module, [at in weights for at in taken])
                compiled = self.backend(module, [inputs[at] for at in taken], **self.options)
                if len(taken) < len(inputs):
                    compiled = picking_arguments(compiled, taken)
        except Exception as error:
            program.failed = True
            self._tell(GRAPH, error, "does not compile, and runs operator by operator", place)
            return None
        REPORT.count("compiles")
        program.variants.append(Variant(tuple(live), compiled, weights))
        return program.variants[-1]


def _mark(module: torch.fx.GraphModule, weights: Sequence[bool]) -> None:
    """Tells a backend which inputs are weights, as `dynamo` does of those that a module holds."""
    nodes = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, is_weight in zip(nodes, weights, strict=True):
        if is_weight:
            node.meta["held_by_module"] = True


def _reals(trace: Trace, weights: frozenset[int]) -> list[Any]:
    reals: list[Any] = [value.real for value in trace.inputs]
    return with_weights(reals, [value.ordinary for value in trace.inputs], weights)


def rerun(
    variant: Variant, reals: list[Any], numbers: list[float], keep: Any,
    writes: bool,
) -> bool:
    """Runs the graph of a trace that was followed. False where it has to run in another way."""
    return _C.below(_call, variant, reals, numbers, keep, writes) is None


def _call(
    variant: Variant, reals: list[Any], numbers: list[float], keep: Any,
    writes: bool,
) -> Exception | None:
    """The error of a graph that has failed, and has written nothing."""
    given = _inputs(reals, numbers)
    if writes:
        results = call_with(variant.compiled, given)
    else:
        try:
            results = variant.compiled(*given)
        except Exception as error:
            return error
    for number, tensor in zip(variant.returned, results, strict=True):
        keep(number, tensor)
    return None


def _inputs(reals: list[Any], numbers: list[float]) -> list[Any]:
    if not numbers:
        return list(reals)
    packed = torch.tensor(numbers, dtype=torch.float64)
    devices = {real.device for real in reals if real.is_cuda}
    return [*reals, packed.to(devices.pop()) if len(devices) == 1 else packed]


def _step_by_step(trace: Trace, keep: Any) -> None:
    inputs = [value.real for value in trace.inputs]
    interpret(trace.rules, trace.wires, trace.places, inputs, trace.numbers, keep)  # type: ignore[arg-type]


@contextlib.contextmanager
def in_dtype(dtype: torch.dtype) -> Iterator[None]:
    """With the default dtype that the operations were recorded with."""
    before = torch.get_default_dtype()
    if before is dtype:
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def below() -> Iterator[None]:
    """The state in which operators run below autograd: no modes, no casts, no history."""
    with contextlib.ExitStack() as stack:
        if torch._C._len_torch_dispatch_stack():
            stack.enter_context(_disable_current_modes())
        if torch._C._len_torch_function_stack():
            stack.enter_context(torch._C.DisableTorchFunction())
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch._C._ForceDispatchKeyGuard(*KEYS))
        stack.enter_context(torch.no_grad())
        yield


def _usual_keys() -> tuple[Any, Any]:
    """What a thread that has done nothing yet includes and excludes. A trace may end inside of
    autograd or of autocast, where a compiler's own tensors would miss what is excluded."""
    found: list[Any] = []

    def read() -> None:
        found.append(torch._C._dispatch_tls_local_include_set())
        found.append(torch._C._dispatch_tls_local_exclude_set())

    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    return found[0], found[1]


KEYS = _usual_keys()
