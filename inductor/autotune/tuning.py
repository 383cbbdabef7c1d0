"""Finds out what is fastest by running it: candidates are compiled side by side, run one by one.

In: questions, each with a key and the candidates to compute one thing. Out: for each question the
microseconds of each candidate that ran. Answers are cached on disk, so that another
process measures nothing. A candidate that fails (out of memory, too much of the device's shared
memory), or whose results are not those of the first candidate, is left out, and logged once.

A candidate is a small program: some steps of a schedule with random inputs (`part_of`).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from dynamo.base import logs
from dynamo.base.signals import is_of_signal
from dynamo.store.content import Key, Store, make_key
from inductor import metrics
from inductor.autotune.measure import random_sets, time_calls, uncached_bytes
from inductor.ir.extent import hint_of
from inductor.ir.graph import InputBuffer, Layout, LoopGraph, ViewRef
from inductor.scheduler.schedule import Kernel, Schedule, Step, TemplateKernel

MOST_REPORTED = 4  # the fastest
Times = dict[str, float]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to compute something: the text of a module that runs the graph. sizes: for which, of
    those that are known at a call only."""

    name: str
    graph: LoopGraph
    text: str
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """candidates: makes them; it is not called if the answer is known. tolerance: how far the
    results of others may be from those of the first one, as a part of the largest; 0 where nobody
    compares."""

    key: Key
    what: str
    candidates: Callable[[], Sequence[Candidate]]
    tolerance: float = 0.0


class Loader(Protocol):
    """`cuda.load_all`."""

    def __call__(
        self, modules: Sequence[tuple[str, LoopGraph]]
    ) -> Sequence[Callable[..., Any] | Exception]: ...


@dataclass(slots=True)
class Tuner:
    """Asks the store, then the device. load: compiles modules; timer: runs one."""

    store: Store
    load: Loader
    timer: Callable[..., float] = time_calls
    failed: set[str] = field(default_factory=set)

    def answers(self, questions: Sequence[Question]) -> list[Times]:
        """The microseconds of each candidate, by its name, for each question."""
        times = {q.key.digest: self._known(q.key) for q in questions}
        new = {q.key.digest: q for q in questions if times[q.key.digest] is None}
        if new:
            times.update(self._measured(list(new.values())))
        return [times[q.key.digest] or {} for q in questions]

    def copied_a_microsecond(self, device: torch.device) -> float:
        """Bytes that a large copy reads and writes in a microsecond: nothing is faster. 0 where
        that is not known."""
        if device.type != "cuda":
            return 0.0
        copied = uncached_bytes(device)
        key = make_question_key(device, {"copied": str(copied)})
        known = self._known(key)
        if known is None:
            try:
                sides = [torch.empty(copied, dtype=torch.int8, device=device) for _ in range(2)]
                known = {"copy": self.timer(torch.Tensor.copy_, [sides])}
            except torch.OutOfMemoryError:
                return 0.0
            self.store.keep_values(key, known)
        return 2 * copied / known["copy"]

    def _known(self, key: Key) -> Times | None:
        return self.store.values(key)  # type: ignore[no-any-return]

    def _measured(self, questions: list[Question]) -> dict[str, Times]:
        candidates = [(each, candidate) for each in questions for candidate in each.candidates()]
        loaded = self.load([(candidate.text, candidate.graph) for _, candidate in candidates])
        measured: dict[str, Times] = {question.key.digest: {} for question in questions}
        trial: _Trial | None = None
        pairs = zip(candidates, loaded, strict=True)
        for number, ((question, candidate), made) in enumerate(pairs):
            if trial is None or trial.question is not question:
                trial = _Trial(question, _sets_of(candidate.graph))
            self._show(f"{number + 1} of {len(candidates)}: {question.what}, {candidate.name}")
            took = self._timed(candidate, made, trial)
            if took is not None:
                measured[question.key.digest][candidate.name] = round(took, 3)
        self._show("")
        for question in questions:
            times = measured[question.key.digest]
            if times:
                self.store.keep_values(question.key, times)
                self.store.describe(question.key)
            logs.log("autotuning").emit(_report(question, times))
        metrics.count("measured", len(candidates))
        return measured

    def _timed(
        self, candidate: Candidate, made: Callable[..., Any] | Exception, trial: _Trial
    ) -> float | None:
        try:
            if isinstance(made, Exception):
                raise made
            call = made(*candidate.sizes)
            trial.compare(call)
            return self.timer(call, trial.sets)
        except Exception as error:  # what Triton raises has no common base
            if is_of_signal(error):
                raise
            self._report_failure(candidate, error)
            return None

    def _report_failure(self, candidate: Candidate, error: Exception) -> None:
        if isinstance(error, torch.OutOfMemoryError):
            torch.cuda.empty_cache()
        what = f"{type(error).__name__}: {str(error).splitlines()[:1]}"
        text = f"{candidate.name} is left out: {what}"
        if text not in self.failed:
            self.failed.add(text)
            metrics.count("measured_failed")
            logs.log("autotuning").emit(text)

    def _show(self, text: str) -> None:
        """A line that the next one replaces, where somebody looks at it."""
        if sys.stderr.isatty():
            line = f"dynamo measures {text}"[:99] if text else ""
            sys.stderr.write(f"\r{line:99}" + ("" if text else "\r"))
            sys.stderr.flush()


@dataclass(slots=True)
class _Trial:
    """The inputs for the candidates of one question, and what the first candidate made of them."""

    question: Question
    sets: list[list[torch.Tensor]]
    expected: tuple[torch.Tensor, ...] | None = None

    def compare(self, call: Callable[..., Any]) -> None:
        """Errors: ValueError where the results are not the expected ones."""
        if not self.question.tolerance:
            return
        results = call(*self.sets[0])
        if self.expected is None:
            self.expected = results
            return
        for one, other in zip(results, self.expected, strict=True):
            distance = float((_finite(one) - _finite(other)).abs().max())
            most = float(_finite(other).abs().max())
            if distance > self.question.tolerance * most:
                raise ValueError(f"results differ by {distance} of {most}")


def _finite(tensor: torch.Tensor) -> torch.Tensor:
    """What can be compared: 0 for what is no number, the greatest one for infinity."""
    if not tensor.dtype.is_floating_point:
        return tensor.float()
    most = torch.finfo(tensor.dtype).max
    return tensor.nan_to_num(0.0, most, -most).float()


def _sets_of(graph: LoopGraph) -> list[list[torch.Tensor]]:
    layouts = [buffer.layout for buffer in graph.inputs if buffer is not None]
    return random_sets([_at_hints(layout) for layout in layouts])


def _at_hints(layout: Layout) -> Layout:
    """With numbers for sizes that are known at a call only."""
    size, stride = (tuple(map(hint_of, each)) for each in (layout.size, layout.stride))
    return replace(layout, size=size, stride=stride, offset=hint_of(layout.offset))


def _report(question: Question, times: Times) -> str:
    ordered = sorted(times.items(), key=lambda item: item[1])
    text = ", ".join(f"{name} {took:.1f} us" for name, took in ordered[:MOST_REPORTED])
    return f"{question.what}: {text or 'nothing ran'}"


def part_of(graph: LoopGraph, steps: Sequence[Step]) -> tuple[LoopGraph, Schedule]:
    """Some steps as a program: inputs are what they read and do not compute."""
    made = {name for step in steps for name in _nodes_of(step)}
    layouts = graph.layouts()
    nodes = tuple(node for node in graph.nodes if node.name in made)
    own = {node.name for node in nodes if not getattr(node, "mutates", None)}
    touched = [name for step in steps for name in (*step.reads(), *_written(step))]
    inputs = tuple(
        InputBuffer(name, layouts[name], position)
        for position, name in enumerate(dict.fromkeys(n for n in touched if n not in own))
    )
    outputs = tuple(
        ViewRef(name, layouts[name].size, layouts[name].stride, 0, layouts[name].dtype)
        for name in dict.fromkeys(n for step in steps for n in _written(step) if n in own)
    )
    return LoopGraph(inputs, (), nodes, outputs, graph.device), Schedule(tuple(steps))


def _nodes_of(step: Step) -> tuple[str, ...]:
    return step.nodes if isinstance(step, (Kernel, TemplateKernel)) else (step.name,)


def _written(step: Step) -> tuple[str, ...]:
    return step.writes() if isinstance(step, (Kernel, TemplateKernel)) else (step.name,)


def make_question_key(device: torch.device, parts: dict[str, str]) -> Key:
    """A key that names the device and the versions of all that the time depends on."""
    return make_key("autotuning", parts | _machine(device))


@functools.cache
def _machine(device: torch.device) -> dict[str, str]:
    name = str(device.type)
    if device.type == "cuda":
        facts = torch.cuda.get_device_properties(device)
        name = f"{facts.name} {facts.major}.{facts.minor} {facts.multi_processor_count}"
    return {"device": name, "torch": torch.__version__, "triton": _triton_version()}


def _triton_version() -> str:
    import triton

    return str(triton.__version__)
