"""What happens where the function that a backend has made of a graph raises.

The captured graph runs on the same inputs. What raises there, too, is the program's error, and
comes out as it was. What does not is a defect of the compiler: the call gets eager's results, and
the defect is counted and reported (`base/fallbacks.py`); after the second one the graph runs as
captured for good. A graph that has written its inputs, or printed, can't run twice: its error comes
out; one of a class that no operation on tensors raises is a defect all the same, and the next call
runs as captured.

In: the compiled function, the captured graph. Out: a function that costs some nanoseconds more.
"""

from __future__ import annotations

import linecache
import threading
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import _StopRecomputationError

from dynamo._C import rescued_call
from dynamo.base.errors import DynamoError
from dynamo.base.failing_lines import note_stack, show_line, stack_of
from dynamo.base.fallbacks import AT, CALL, Site, failed, line_of
from dynamo.base.signals import is_of_signal
from dynamo.base.wrong_fakes import ADVICE as WRONG_FAKE
from dynamo.base.wrong_fakes import wrong_fake_in
from dynamo.graph_operators.cuts import Unforeseen

NO_DEFECTS = (DynamoError, Unforeseen, _StopRecomputationError, Warning)
# No operation on tensors raises these by what its tensors hold.
SURE = (AttributeError, NameError, AssertionError, KeyError, UnboundLocalError, ImportError)
MOST_FAILURES = 2
GENERATED = ("inductor_generated", "triton")


def rescued(
    compiled: Callable[..., Any], captured: Callable[..., Any], graph: fx.Graph, site: Site,
    twice: bool,
) -> Callable[..., Any]:
    """The compiled function with a look at its errors. twice: whether `captured`, the graph's own
    function, may run after `compiled` has run in part."""
    parts: list[Callable[..., Any]] = [compiled]
    place = line_of(graph.nodes)
    site = Site(place or site.place, site.strict)
    parts.append(_Rescue(parts, captured, site, twice, graph))
    return rescued_call(parts)


def located(compiled: Callable[..., Any]) -> Callable[..., Any]:
    """The function of a graph, whose errors show the line of the operation that raises."""
    return rescued_call([compiled, _show])


def _show(error: Exception, *inputs: Any) -> Any:
    if not isinstance(error, NO_DEFECTS):
        show_line(error)
    return NotImplemented


class _Rescue:
    """Called with an error and the inputs of the graph. parts: begin with what is called."""

    def __init__(
        self, parts: list[Callable[..., Any]], captured: Callable[..., Any], site: Site,
        twice: bool, graph: fx.Graph,
    ) -> None:
        self.parts, self.captured, self.site, self.twice = parts, captured, site, twice
        self.graph = graph
        self.failures = 0
        self.lock = threading.Lock()

    def __call__(self, error: Exception, *inputs: Any) -> Any:
        if isinstance(error, NO_DEFECTS) or is_of_signal(error):
            return NotImplemented
        if not self.twice:
            if isinstance(error, SURE):
                self._note(error, MOST_FAILURES, "the next call runs as captured")
            show_line(error, lambda: self.graph.nodes)
            return NotImplemented
        states = _generator_states()
        try:
            results = self.captured(*inputs)
        except Exception as own:
            if is_of_signal(own):
                raise
            _put_back(*states)
            if type(own) is type(error):
                error.args = own.args  # in eager's words
                note_stack(error, stack_of(own))
            wrong = self._wrong_fake(inputs)
            if wrong:  # it has taken another path than eager's, which raises nothing perhaps
                error.add_note(f"{wrong}.\n{WRONG_FAKE}")
            show_line(error, lambda: self.graph.nodes)
            return NotImplemented
        wrong = self._wrong_fake(inputs)
        self._note(error, 1, "the graph has run as captured", wrong)
        return results

    def _wrong_fake(self, inputs: tuple[Any, ...]) -> str:
        """What of the program's fake kernels is wrong, that has made the graph fail."""
        states = _generator_states()
        try:
            return wrong_fake_in(lambda: self.captured(*inputs))
        finally:
            _put_back(*states)

    def _note(self, error: Exception, by: int, instead: str, wrong: str = "") -> None:
        with self.lock:
            self.failures += by
            if self.failures >= MOST_FAILURES:
                self.parts[0] = self.captured
        text = f"the call of a compiled graph failed{_at(error)}; {instead}"
        if self.failures < MOST_FAILURES:
            text += ", and does so for good after one more failure"
        failed(CALL, error, text, self.site.place, strict=self.site.strict, at_call=True,
               fake=wrong)


def _at(error: Exception) -> str:
    """What of the generated code, or of the compiler, has failed."""
    named = error.__dict__.get(AT)
    if named:
        return f" at {named.splitlines()[0]}"
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    own = [f for f in frames if any(part in f.f_code.co_filename for part in GENERATED)]
    lines = traceback.extract_tb(error.__traceback__)
    for frame in reversed(own):
        for line in reversed(lines):
            if line.filename == frame.f_code.co_filename:
                return f" at {(line.line or linecache.getline(line.filename, 1)).strip()!r}"
    return f" in {lines[-1].name}" if lines else ""


def _generator_states() -> tuple[torch.Tensor, list[torch.Tensor]]:
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return torch.default_generator.get_state(), gpus


def _put_back(state: torch.Tensor, gpus: list[torch.Tensor]) -> None:
    torch.default_generator.set_state(state)
    if gpus:
        torch.cuda.set_rng_state_all(gpus)
