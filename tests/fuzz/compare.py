"""Runs one program eagerly and compiled and says whether anybody could tell the two apart.

Each run gets its own module globals (so that global effects are comparable) and its own copies of the
arguments. Compared: result or exception (type, arguments, cause, notes), the arguments afterwards, the module's globals,
printed output, torch's global state; values by type and content, with aliasing between all of them (objects and
tensor storages), strides and requires_grad included.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import itertools
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tests.fuzz.program import PRELUDE, Program

_names = itertools.count()


@dataclass(frozen=True)
class Outcome:
    """Everything observable of one call sequence, as one nested tuple."""

    view: Any


class Viewer:
    """Turns an object graph into comparable nested tuples; a second visit gives a back reference."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        self.storages: dict[int, int] = {}
        self.keep: list[Any] = []

    def view(self, value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes, torch.dtype, torch.device)):
            return (type(value).__name__, repr(value))
        if value is Ellipsis or isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.ModuleType)):
            return (type(value).__name__, getattr(value, "__name__", "..."))
        if isinstance(value, type):
            return ("type", value.__name__)
        if id(value) in self.seen:
            return ("again", self.seen[id(value)])
        self.seen[id(value)] = len(self.seen)
        self.keep.append(value)
        return (type(value).__name__, *self.contents(value))

    def contents(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, torch.Tensor):
            return self.tensor(value)
        parts: list[Any] = []
        if isinstance(value, dict):
            parts.append([(self.view(k), self.view(v)) for k, v in value.items()])
        elif isinstance(value, (set, frozenset)):
            parts.append(sorted(repr(self.view(v)) for v in value))
        elif isinstance(value, (list, tuple)) or type(value).__name__ == "deque":
            parts.append([self.view(v) for v in value])
        elif isinstance(value, BaseException):
            parts.append([self.view(v) for v in value.args])
            parts.append(self.view(value.__cause__))
            parts.append(getattr(value, "__notes__", None))
        elif isinstance(value, types.MethodType):
            parts.append((value.__func__.__name__, self.view(value.__self__)))
        if hasattr(value, "__dict__") and not isinstance(value, BaseException):
            parts.append({k: self.view(v) for k, v in vars(value).items()})
        return tuple(parts)

    def tensor(self, value: torch.Tensor) -> tuple[Any, ...]:
        storage = value.untyped_storage().data_ptr()
        alias = self.storages.setdefault(storage, len(self.storages)) if storage else -1
        data = [repr(v) for v in value.detach().flatten().tolist()]
        return (tuple(value.shape), value.stride(), str(value.dtype), value.requires_grad, alias, data)


def make_arguments(module: types.SimpleNamespace, call: int) -> list[Any]:
    generator = torch.Generator().manual_seed(call // 2)
    tensor = lambda: torch.randn(2, 3, generator=generator)  # noqa: E731
    x = tensor()
    lst: list[Any] = [1, x, 3]
    box = module.Box(2, lst) if call % 3 else module.SubBox(1)
    return [x, tensor(), lst, {"a": tensor(), "k": 4}, box, 2 + call // 2, "abc"]


@functools.cache
def freeze() -> None:
    """What was imported is not looked at by each collection."""
    gc.collect()
    gc.freeze()


def collect() -> None:
    """Frees generators whose frames lie in cycles."""
    freeze()
    gc.collect()


def without_frames(error: BaseException) -> BaseException:
    """The exception, none of whose tracebacks (eager's and compiled code's differ) holds a frame's locals."""
    seen: set[Any] = set()
    work: list[Any] = [error]
    while work:
        part = work.pop()
        if part is not None and part not in seen:
            seen.add(part)
            part.__traceback__ = None
            work += [part.__cause__, part.__context__, *getattr(part, "exceptions", ())]
    return error


def observe(program: Program, wrap: Callable[[Any], Any], graph_break: Callable[[], None], calls: int) -> Outcome:
    """Runs the program `calls` times in one fresh module; argument values change with the call."""
    module = types.ModuleType(f"fuzzed_{next(_names)}")
    module.__dict__["graph_break"] = graph_break
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(compile(PRELUDE, "<prelude>", "exec"), module.__dict__)
    exec(compile(program.prelude, "<prelude>", "exec"), module.__dict__)
    exec(compile(program.source(), f"<program {module.__name__}>", "exec"), module.__dict__)
    f = wrap(module.__dict__["f"])
    views = []
    for call in range(calls):
        arguments = make_arguments(module, call)  # type: ignore[arg-type]
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out):
                outcome = ("returned", f(*arguments))
        except Exception as error:
            outcome = ("raised", without_frames(error))
        collect()
        viewer = Viewer()
        state = [module.__dict__[k] for k in ("EVENTS", "COUNT", "SHARED", "TABLE")]
        state += [vars(module.__dict__["OTHER"])] if program.prelude else []
        views.append((viewer.view(outcome), viewer.view(arguments), viewer.view(state), out.getvalue(),
                      torch.is_grad_enabled()))
        torch.set_grad_enabled(True)
    del sys.modules[module.__name__]
    return Outcome(views)


def differs(program: Program, compile_function: Callable[[Any], Any], graph_break: Callable[[], None], calls: int = 4) -> str:
    """"" where eager and compiled agree; otherwise a text with the first difference."""
    source = program.source()
    try:
        compile(source, "<fuzz>", "exec")
    except SyntaxError:
        return ""
    want = observe(program, lambda f: f, lambda: None, calls)
    got = observe(program, compile_function, graph_break, calls)
    if want == got:
        return ""
    for call, (a, b) in enumerate(zip(want.view, got.view)):
        if a != b:
            return f"call {call}:\n  eager    {first_difference(a, b)[0]}\n  compiled {first_difference(a, b)[1]}"
    return "different"


def first_difference(a: Any, b: Any) -> tuple[Any, Any]:
    """The smallest enclosing pieces in which the two views differ."""
    if type(a) is type(b) and isinstance(a, (tuple, list)) and len(a) == len(b):
        for p, q in zip(a, b):
            if p != q:
                return first_difference(p, q)
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        for key in a:
            if a[key] != b[key]:
                return first_difference(a[key], b[key])
    return a, b
