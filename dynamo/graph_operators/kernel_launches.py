"""Launches of Triton kernels with tensors that have no data.

Code of the program that runs while a graph is made of it (`forward` and `backward` of an autograd
function) launches its kernels with fakes. Inside `launches_recorded()` such a launch calls the
kernel's operator instead (`kernel_calls`), which whoever records sees like any operator. Launches
with data are what they were, in other threads, too.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dynamo.graph_operators.kernel_calls import (
    CLASSES,
    DIMENSIONS,
    KernelCall,
    configurations,
    defaults_of,
    hooks_of,
    is_descriptor,
    layers_of,
    operators,
    parameters_of,
)

REAL = (torch.Tensor, torch.nn.Parameter)


class Patches:
    """How many blocks are open, and what `run` was before the first one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.depth = 0
        self.before: list[tuple[type, Callable[..., Any]]] = []

    def enter(self) -> None:
        with self.lock:
            self.depth += 1
            if self.depth == 1:
                for module, name in CLASSES:
                    cls = getattr(sys.modules.get(module), name, None)
                    if cls is not None:
                        self.before.append((cls, cls.run))
                        cls.run = recorded(cls.run)

    def leave(self) -> None:
        with self.lock:
            self.depth -= 1
            if not self.depth:
                for cls, run in self.before:
                    cls.run = run  # type: ignore[attr-defined]
                self.before.clear()


patches = Patches()


@contextlib.contextmanager
def launches_recorded() -> Iterator[None]:
    """See the top of the file."""
    patches.enter()
    try:
        yield
    finally:
        patches.leave()


def recorded(run: Callable[..., Any]) -> Callable[..., Any]:
    def launch(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(map(has_no_data, (*args, *kwargs.values()))):
            return run(kernel, *args, **kwargs)
        return call_operator(kernel, args, kwargs)

    return launch


def has_no_data(value: Any) -> bool:
    if is_descriptor(type(value)):
        return has_no_data(value.base)
    return isinstance(value, torch.Tensor) and (
        type(value) not in REAL or torch._is_functional_tensor(value))


def call_operator(kernel: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Errors: NotImplementedError for a call that is no operator."""
    if any(map(hooks_of, layers_of(kernel))):
        raise NotImplementedError("a kernel with hooks")
    grid = kwargs.pop("grid")
    kwargs.pop("warmup", None)
    parameters = parameters_of(kernel)
    named = dict(zip(parameters, args, strict=False)) | kwargs
    given = {name: value for name, value in named.items()
             if kind_of(value) and not parameters.get(name, True)}
    constants = tuple((name, value) for name, value in named.items() if name not in given)
    sizes = {(): grid} if not callable(grid) else {
        chosen: grid(meta_of(kernel, defaults_of(kernel) | named | dict(chosen)))
        for chosen in configurations(kernel)
    }
    kinds = tuple(map(kind_of, given.values()))
    call = KernelCall(tuple(given), kinds, constants, tuple(sizes), tuple(blocks_of(given)))
    whole = [size for grid in sizes.values() for size in (*grid, 1, 1)[:DIMENSIONS]]
    parts = [part for value in given.values() for part in parts_of(value)]
    operators.of(kernel, call)(*parts, whole)


def blocks_of(given: dict[str, Any]) -> Iterator[tuple[str, tuple[tuple[int, ...], str]]]:
    for name, value in given.items():
        if is_descriptor(type(value)):
            yield name, (tuple(value.block_shape), value.padding)


def parts_of(value: Any) -> list[Any]:
    """What the operator takes of an argument."""
    if is_descriptor(type(value)):
        return [value.base, list(value.shape), list(value.strides)]
    return [value]


def kind_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return "tensor"
    if is_descriptor(type(value)):
        return "descriptor"
    if isinstance(value, bool):
        return "bool"
    kinds = {int: "int", torch.SymInt: "int", float: "float"}
    return kinds.get(type(value), "")


def meta_of(kernel: Any, given: dict[str, Any]) -> dict[str, Any]:
    """What a grid's function gets."""
    for layer in layers_of(kernel):
        for name, function in getattr(layer, "values", {}).items():
            given[name] = function(dict(given))
    names = parameters_of(kernel)
    return {name: value for name, value in given.items() if name in names}
