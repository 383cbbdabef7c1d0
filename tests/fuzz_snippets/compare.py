"""Runs one program plainly and compiled, several times with other arguments, and says where the two differ."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import itertools
import random
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

import dynamo
from tests.fuzz.compare import Viewer, first_difference, freeze, without_frames
from tests.fuzz_snippets.compose import PRELUDE, Program

_names = itertools.count()


class Box:
    """An object that programs write to."""

    def __init__(self, value: Any) -> None:
        self.v = value


class Told(Viewer):
    """Exceptions are seen with all that depends on them."""

    def contents(self, value: Any) -> tuple[Any, ...]:
        if isinstance(value, BaseException):
            return ([self.view(v) for v in value.args], self.text(value), self.view(value.__cause__), self.view(value.__context__),
                    value.__suppress_context__, {k: self.view(v) for k, v in vars(value).items()})
        if isinstance(value, torch.Generator):
            return (value.initial_seed(), hash(bytes(value.get_state().numpy())))
        return super().contents(value)

    def text(self, value: BaseException) -> str:
        try:
            return str(value)
        except Exception as error:
            return type(error).__name__

    def tensor(self, value: torch.Tensor) -> tuple[Any, ...]:
        grad = self.view(value.grad) if value.is_leaf and value.grad is not None else None
        return (*super().tensor(value), value.is_leaf, grad, value.storage_offset())


def arguments(call: int) -> list[Any]:
    """Two calls have arguments of one kind, then kinds change."""
    generator = torch.Generator().manual_seed(call // 2)
    shape = (2, 3) if call < 3 else (4, 3)
    x, y = torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)
    n = (2, 2, 5, 2.5, True)[call]
    items = [1, x, 3] if call != 2 else [1, "a"]
    return [x, y, items, {"a": y if call != 3 else x, "k": n}, Box(n), n, ("abc", "abc", "q", "", "abc")[call], []]


def lines(error: BaseException, file: str) -> list[int]:
    """The lines of the program in an exception's traceback."""
    found, part = [], error.__traceback__
    while part is not None:
        if part.tb_frame.f_code.co_filename == file:
            found.append(part.tb_lineno)
        part = part.tb_next
    return found


def opaque(value: Any) -> Any:
    return value


def observe(program: Program, wrap: Callable[[Any], Any], graph_break: Callable[[], None], calls: int) -> list[Any]:
    """What can be seen of each call."""
    module = types.ModuleType(f"snippets_{next(_names)}")
    sys.modules[module.__name__] = module
    space = module.__dict__
    space.update(graph_break=graph_break, disabled=dynamo.disable(opaque), ctypes=ctypes)
    file = f"<program {module.__name__}>"
    torch.default_generator.manual_seed(7)
    random.seed(7)
    exec(compile(PRELUDE, "<prelude>", "exec"), space)
    exec(compile(program.source(), file, "exec"), space)
    f, views = wrap(space["f"]), []
    for call in range(calls):
        given = arguments(call)
        printed = io.StringIO()
        torch.default_generator.manual_seed(call)
        random.seed(call)
        where: list[int] = []
        with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(printed):
            warnings.simplefilter("always")
            try:
                outcome = ("returned", f(*given))
            except Exception as error:
                where = lines(error, file)[-1:]
                outcome = ("raised", without_frames(error))
        freeze()
        gc.collect()
        viewer = Told()
        views.append((viewer.view(outcome), viewer.view(given), viewer.view(space["LOG"]), printed.getvalue(), where,
                      [(w.category.__name__, str(w.message)) for w in warned], random.random(), torch.rand(1).item(),
                      (torch.is_grad_enabled(), torch.get_default_dtype(), torch.is_autocast_enabled("cpu"))))
        space["LOG"].clear()
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)
    del sys.modules[module.__name__]
    return views


def differs(program: Program, backend: str, calls: int = 5) -> str:
    """"" where both agree; otherwise a text with the first difference."""
    try:
        compile(program.source(), "<program>", "exec")
    except SyntaxError:
        return ""
    dynamo.reset()
    want = observe(program, lambda f: f, lambda: None, calls)
    got = observe(program, lambda f: dynamo.compile(f, backend=backend), dynamo.graph_break, calls)
    if want == got or want != observe(program, lambda f: f, lambda: None, calls):
        return ""  # equal, or plain Python does not agree with itself
    for call, (a, b) in enumerate(zip(want, got)):
        if a != b:
            left, right = first_difference(a, b)
            return f"call {call}:\n  plain    {str(left)[:600]}\n  compiled {str(right)[:600]}"
    return ""
