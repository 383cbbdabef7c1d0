"""torch's kernels in Python, run without loading torch.compile.

Kernels for meta tensors and decompositions are functions of `torch._refs`, many of them behind
`torch._disable_dynamo`, which imports torch's compiler at its first call (two seconds) to switch it
off. As long as the program has not imported it, there is nothing to switch off.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import torch
import torch._meta_registrations  # with it come all modules of references

COMPILER = ".".join(("torch", "_dynamo"))
DECIDED = "__dynamo_disable"  # where the wrapper keeps, on what it wraps, what it calls


def run_as_they_are() -> None:
    """Lets the references of torch run as they are until torch.compile is loaded."""
    seen: set[FunctionType] = set()
    modules = [name for name in sys.modules if name.split(".")[:2] == ["torch", "_refs"]]
    for name in modules:
        for value in list(vars(sys.modules[name]).values()):
            for wrapper in _wrappers(value, seen):
                _run_as_it_is(wrapper)


def _wrappers(value: Any, seen: set[FunctionType]) -> Iterator[FunctionType]:
    """What `torch._disable_dynamo` made, among the functions that a function calls."""
    if not isinstance(value, FunctionType) or value in seen:
        return
    seen.add(value)
    code = value.__code__
    made_there = code.co_filename == torch._disable_dynamo.__code__.co_filename
    if made_there and "fn" in code.co_freevars:
        yield value
    for cell in value.__closure__ or ():
        yield from _wrappers(cell.cell_contents, seen)


def _run_as_it_is(wrapper: FunctionType) -> None:
    cells = dict(zip(wrapper.__code__.co_freevars, wrapper.__closure__ or (), strict=True))
    function: Callable[..., Any] = cells["fn"].cell_contents

    def run(*args: Any, **kwargs: Any) -> Any:
        if COMPILER not in sys.modules:
            return function(*args, **kwargs)
        if vars(function).get(DECIDED) is run:
            delattr(function, DECIDED)
        return wrapper(*args, **kwargs)  # decides now as it would have at first

    vars(function).setdefault(DECIDED, run)
