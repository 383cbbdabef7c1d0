"""What is not compiled though it was asked for: counted, reported once with its line, or raised.

Two kinds. A *refusal*: a graph, or a part of it, that no stage brings to kernels runs as captured
or as ATen operators. A *defect*: something of ours has failed, and eager does not. Both are counted
in `counters["not_compiled"]` by a reason that begins with one of `KINDS`.

In: the place in the program (`Site`, for what is compiled now; `line_of` nodes) and what happened.
Out: a message; an error where the user wants one.

    >>> refused(GRAPH, "its sizes depend on data", "model.py:7", quiet=True)
    >>> counters.counters["not_compiled"]["graph runs as captured: its sizes depend on data"]
    1
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from dynamo.base import counters, events, logs
from dynamo.base.config import config
from dynamo.base.errors import InternalError, Unsupported
from dynamo.base.signals import is_of_signal
from dynamo.base.user_lines import user_line
from dynamo.base.wrong_fakes import ADVICE as WRONG_FAKE

GRAPH = "graph runs as captured"
SUBGRAPH = "subgraph runs as captured"
SIZES = "graph runs as captured for further sizes or numbers"
BACKWARD = "backward runs as ATen"
DERIVATIVE = "second derivative runs as captured"
ATEN_SIZES = "graph runs as ATen for further sizes"
KERNEL = "kernel runs as ATen"
SYMBOLIC = "no code for all sizes"
CALL = "call failed"
KINDS = (GRAPH, SUBGRAPH, SIZES, BACKWARD, DERIVATIVE, ATEN_SIZES, KERNEL, SYMBOLIC, CALL)

AT = "dynamo_at"  # of an error: the user's line of the operation that it is about
ADVICE = {
    CALL: "DYNAMO_SUPPRESS_ERRORS=0 raises it.",
    DERIVATIVE: (
        "What to do: call torch.autograd.grad(..., create_graph=True) within the compiled "
        "function, and requires_grad_ before all that is differentiated: then gradients are part "
        "of the graph."),
    KERNEL: "It is slower there. DYNAMO_LOGS=output_code shows the generated code.",
}
USUAL = (
    "What to do: keep what is named here out of compiled functions (dynamo.disable), or say "
    'backend="eager" for this function; fullgraph=True makes this an error, DYNAMO_LOGS=graph_code '
    "shows the graph."
)


@dataclass(frozen=True, slots=True)
class Site:
    """The function that is compiled now. place: its file, line and name; strict: it has to be
    compiled as one graph; compile: which compile that is."""

    place: str = ""
    strict: bool = False
    compile: logs.Compile = logs.NO_COMPILE


NOWHERE = Site()
_site: ContextVar[Site] = ContextVar("site", default=NOWHERE)


@contextlib.contextmanager
def compiling_at(site: Site) -> Iterator[None]:
    """What is compiled inside of the block belongs to that function."""
    token = _site.set(site)
    try:
        yield
    finally:
        _site.reset(token)


def site_now() -> Site:
    """The function that this thread compiles."""
    return _site.get()


def line_of(nodes: Iterable[Any]) -> str:
    """The user's line of the first operation that has one, with its text."""
    for node in nodes:
        found = user_line(node.meta.get("stack_trace"))
        if found:
            return found
    return ""


def place_of(error: BaseException, nodes: Iterable[Any]) -> str:
    """The user's line of the operation that an error is about, or of the first of a graph."""
    return str(error.__dict__.get(AT) or "") or line_of(nodes)


def refused(
    kind: str, reason: str, place: str = "", *, quiet: bool = False, strict: bool | None = None
) -> None:
    """Counts a refusal, and tells it once for each place and reason.

    quiet: the user has asked for no kernels. strict: raise it (default: as the site has it).
    Errors: Unsupported.
    """
    place = place or site_now().place or "a graph"
    text = f"{place}\n  {kind[:1].upper()}{kind[1:]}: {reason}."
    strict = site_now().strict if strict is None else strict
    if strict and config.fullgraph_compiles and not quiet:
        raise Unsupported(f"{text}\n  fullgraph=True allows no such thing "
                          "(config.fullgraph_compiles).")
    _count(kind, reason, place)
    if not quiet and counters.once((place, kind, reason)):
        logs.tell(f"{text}\n  {ADVICE.get(kind, USUAL)}")


def failed(
    kind: str, error: Exception, text: str, place: str = "", *, strict: bool | None = None,
    at_call: bool = False, fake: str = "", whose: str = "dynamo",
) -> None:
    """Counts a defect, and warns of it once for each place and class of error.

    text: what has failed, and what runs in its place. strict: raise the error (default: as the site
    has it). at_call: a compiled function is called, by code that runs a part again after errors.
    fake: what of the program is wrong, a fake kernel, and not of ours (see `wrong_fakes`). whose:
    the defect is, a backend's of the program perhaps.
    Errors: the error (InternalError at a call) where errors are not suppressed.
    """
    place = place or site_now().place or "a graph"
    if is_of_signal(error):
        raise error
    if not config.suppress_errors or (site_now().strict if strict is None else strict):
        if fake:
            raise InternalError(f"{place}\n  {fake}.\n  {WRONG_FAKE}") from error
        if at_call:
            raise InternalError(f"{place}\n  {text} ({type(error).__name__}: {error}).") from error
        raise error
    name = "a wrong fake kernel" if fake else type(error).__name__
    _count(kind, name, place)
    if not counters.once((place, kind, fake or name)):
        return
    if fake:
        warnings.warn(f"{place}\n  {fake}; {text}.\n  {WRONG_FAKE}", stacklevel=3)
        return
    if isinstance(error, OSError):
        advice = (f"A file in the cache folder {config.cache_dir} can't be written or read: "
                  "DYNAMO_CACHE_DIR names another folder.")
    else:
        advice = f"This is a defect of {whose}; DYNAMO_SUPPRESS_ERRORS=0 raises it."
    warnings.warn(f"{place}\n  dynamo: {text} ({name}: {error}). {advice}", stacklevel=3)


def left_to_aten(operators: Sequence[tuple[str, str]]) -> None:
    """Records the operators of a graph without kernels of ours, with the reasons: for reports."""
    if operators:
        data = {"operators": [list(row) for row in operators]}
        events.record(events.Event("left_to_aten", logs.compile_id_now(), data))


def _count(kind: str, reason: str, place: str) -> None:
    counters.counters["not_compiled"][f"{kind}: {reason}"] += 1
    data = {"what": kind, "reason": reason, "place": place}
    events.record(events.Event("not_compiled", logs.compile_id_now(), data))
    for name in ("inductor", "perf_hints"):
        logs.log(name).emit(lambda: f"{kind}: {reason} ({place.splitlines()[0]})")
