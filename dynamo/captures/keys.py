"""The key of a frame: what is cheap to read and decides which cached traces may fit it.

In: a frame that is about to be traced, and what the user asked for. Out: the parts of a key, as
texts; or `Uncacheable`, which says why traces of this frame are not cached. A key that is too short
costs the time to look at a trace that does not fit: rows and guards decide, not the key. But for
what no guard sees (settings, versions, this package's own source), which stands here in full.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterable
from types import CellType
from typing import Any

import torch

from dynamo import hook
from dynamo.backends.registry import lookup_backend
from dynamo.base import logs, recordings
from dynamo.base.config import config
from dynamo.base.decisions import decisions, stance_now
from dynamo.base.strictness import is_strict
from dynamo.captures.fingerprints import Kinds, digest_of_code, name_of, title_of
from dynamo.codegen.continuation import Continuations
from dynamo.options import CompileOptions
from dynamo.shapes.marks import marks_of
from dynamo.store.gpu_facts import parts_of_gpus
from dynamo.store.records import Uncacheable
from dynamo.store.versions import versions
from dynamo.symbolic.core.context import CompileContext

# Decisions about functions, which have no text.
DECIDED = ("in_graph", "not_in_graph", "constant", "substitute", "skipped")
# Logs of what a hit leaves out.
STAGES = ("bytecode", "graph", "graph_code", "guards", "verbose_guards", "effects", "dynamic")
# Settings that decide nothing of a trace.
ELSEWHERE = frozenset(("cache_dir", "cache_megabytes", "capture_cache", "progress", "verbose",
                       "suppress_errors", "recompile_limit", "accumulated_recompile_limit",
                       "fail_on_recompile_limit_hit", "error_on_recompile", "report"))  # fmt: skip
DEEP, MANY = 4, 64  # how far, and how many items of a container, a summary looks
BY_VALUE = Kinds(bool, str, type(None))
KEYS = Kinds(str, int, bool)
OPTIONS = Kinds(bool, int, float, str, type(None))
EMPTY = CellType()
SYMBOLIC = 2  # smaller sizes are constants in each trace


def parts_of_frame(
    frame: hook.FrameState, context: CompileContext, continuations: Continuations, requested: bool
) -> dict[str, str]:
    """The parts of the key. requested: whether the frame is what the user compiles. Errors:
    Uncacheable."""
    options: CompileOptions = context.settings
    _check_state(options)
    code = digest_of_code(frame.code)
    if continuations.is_continuation(frame.code):
        known = continuations.record(frame.code)
        code += f" {known.instruction} {known.layout} {known.form}"
    return {
        "function": f"{frame.code.co_qualname} ({frame.code.co_filename})",
        "code": f"{code} {requested}",
        "values": _text_of_values(frame, bool(context.everything_dynamic or context.changed)),
        "options": repr((options.mode, sorted(options.options.items()), options.fullgraph,
                         options.dynamic)),  # fmt: skip
        "settings": repr([row for row in sorted(config.snapshot().items())
                          if row[0] not in ELSEWHERE]),  # fmt: skip
        "lessons": _text_of_lessons(context),
        "strict": str(is_strict()),
        **parts_of_gpus(),
        **_parts_of_process(),
    }


def _check_state(options: CompileOptions) -> None:
    """Errors: Uncacheable where something is on that a cached trace knows nothing of."""
    if options.backend_name != "inductor" or options.backend is not lookup_backend("inductor"):
        raise Uncacheable(f"the backend is {options.backend_name}")
    for name, value in options.options.items():
        if type(value) not in OPTIONS:
            raise Uncacheable(f"the option {name} is a {title_of(type(value))}")
    if options.options.get("graph_cache") is False:
        raise Uncacheable("the option graph_cache is False")
    if options.verify or options.background or options.dims is not None:
        raise Uncacheable("it is compiled with verify, background or dimensions by name")
    if config.debug_dir or config.repro or recordings.wanted():
        raise Uncacheable("a report or debug folder is wanted, in which each stage is shown")
    if stance_now().name != "default" or stance_now().backend is not None:
        raise Uncacheable("a stance is set")
    for kind in DECIDED:
        if decisions.any(kind):
            raise Uncacheable(f"the program has decided about functions ({kind})")
    if torch._C._len_torch_function_stack():
        raise Uncacheable("a mode sees torch's functions")


def hint_of(frame: hook.FrameState) -> str:
    """Plain values that tell apart frames of one key, as those of the layers of a model. They say
    which cached trace is looked at first, and nothing else: what a trace never reads may differ."""
    values = [(name, cell.cell_contents) for name, cell in frame.cells.items() if cell != EMPTY]
    rows: list[Any] = _plain(values)
    for value in frame.locals.values():
        if issubclass(type(value), torch.nn.Module):
            rows.append(_plain(object.__getattribute__(value, "__dict__").items()))
    return hashlib.blake2b(repr(rows).encode(), digest_size=8).hexdigest()


def _plain(items: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    return [item for item in items if type(item[1]) in OPTIONS]


def may_read() -> bool:
    """False where a log shows stages that a hit leaves out."""
    return not any(logs.log(name).enabled for name in STAGES)


def _text_of_lessons(context: CompileContext) -> str:
    """What earlier calls have taught."""
    if context.declared:
        raise Uncacheable("dimensions are declared by dynamic=")
    # The values themselves are sizes that the trace leaves open: guards tell what it needs of them.
    changed = sorted(
        (repr(fact), str(value) if fact.what == "values" else type(value).__name__)
        for fact, value in context.changed.items())
    return repr((changed, sorted(map(repr, context.carried)), context.learns,
                 context.everything_dynamic, context.no_tables, context.no_arguments,
                 context.max_steps))  # fmt: skip


@functools.cache
def _parts_of_process() -> dict[str, str]:
    """What holds for a process: versions, flags, and what is installed."""
    return {
        **versions(),
        "flags": f"{sys.implementation.cache_tag} {sys.flags}",
        "installed": repr([_about(sysconfig.get_path(name)) for name in ("purelib", "platlib")]),
        "processors": f"{_count_of_gpus()} {os.cpu_count()}",
    }


def _count_of_gpus() -> int:
    """How many GPUs there are, which starts none of them."""
    return torch._C._cuda_getDeviceCount() if torch.cuda.is_available() else 0


def _about(folder: str) -> tuple[str, list[str]]:
    """A folder of packages, and what is in it: names of theirs tell versions."""
    return folder, sorted(name for name in os.listdir(folder) if name != "__pycache__")


def _text_of_values(frame: hook.FrameState, is_open: bool) -> str:
    """is_open: sizes may be symbols in the trace, so that one of other sizes may fit as well."""
    rows = [f"{name}: {_text(value, 0, is_open)}" for name, value in frame.locals.items()]
    module = frame.globals.get("__name__")
    return "\n".join([*rows, " ".join(frame.cells), module if type(module) is str else ""])


def _text(value: Any, depth: int, is_open: bool) -> str:
    """Sizes, types and flags: equal in all processes for values that are alike."""
    kind = type(value)
    if kind in BY_VALUE:
        return repr(value)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return _text_of_tensor(value, is_open)
    name = ".".join(name_of(kind))
    if depth < DEEP:
        if kind is tuple or kind is list:
            parts = [_text(item, depth + 1, is_open) for item in value[:MANY]]
            return f"{name}[{', '.join(parts)}]"
        if kind is dict and len(value) <= MANY:
            rows = [(_key(key), _text(item, depth + 1, is_open)) for key, item in value.items()]
            return f"{name}{rows}"
    if issubclass(kind, torch.nn.Module):
        return f"{name} {object.__getattribute__(value, '__dict__').get('training') is True}"
    return name


def _key(key: Any) -> str:
    return repr(key) if type(key) in KEYS else title_of(type(key))


def _text_of_tensor(value: torch.Tensor, is_open: bool) -> str:
    if value.layout is not torch.strided or value.is_nested:  # its sizes are no numbers
        return f"{type(value).__name__} {value.layout}"
    marks = sorted(marks_of(value).items())
    layout = f"{tuple(value.shape)} {value.stride()}"
    if is_open or marks:
        layout = f"{[size if size < SYMBOLIC else 'n' for size in value.shape]}"
    return (f"{type(value).__name__} {value.dtype} {layout} {value.device} {value.requires_grad} "
            f"{marks or ''}")
