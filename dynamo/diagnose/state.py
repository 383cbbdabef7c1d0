"""What a function can reach and change: its tensors and containers, saved and put back.

In: a function and its arguments. Out: a `State`, which tells what has changed and undoes it, so
that one call can be made several times from the same start. Exists because copies of a module are
other objects: what refers to the original (closures, globals, optimizers) would not see them.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

MOST_OBJECTS = 50_000
PLAIN = (int, float, complex, str, bytes, bool, type(None), type, types.ModuleType,
         torch.dtype, torch.device, torch.layout, torch.memory_format)
CONTAINERS = (list, dict, set, deque)


def is_strided(value: Any) -> bool:
    """True for a tensor with memory of its own that can be copied byte by byte."""
    return (
        isinstance(value, torch.Tensor) and value.layout is torch.strided
        and type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        and value.device.type != "meta"
    )


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue  # not bound yet
    if str(function.__module__).partition(".")[0] == "torch":
        return
    for name in dict.fromkeys(_names_in(function.__code__)):
        value = function.__globals__.get(name)
        if isinstance(value, (torch.Tensor, torch.nn.Module, types.FunctionType, *CONTAINERS)):
            yield name, value
    for number, value in enumerate(function.__defaults__ or ()):
        yield f"default {number}", value


def parts_of(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """What an object holds, each with the words for it."""
    if isinstance(value, torch.Tensor):
        if value.is_leaf and value.grad is not None:
            yield f"{path}.grad", value.grad
        return
    if isinstance(value, types.FunctionType):
        yield from _of_function(value)
    elif isinstance(value, types.MethodType):
        yield path, value.__self__
        yield path, value.__func__
    elif isinstance(value, functools.partial):
        yield path, value.func
        yield f"{path} arguments", value.args
        yield f"{path} arguments", value.keywords
    elif isinstance(value, dict):
        yield from ((f"{path}[{key!r}]", item) for key, item in list(value.items()))
    elif isinstance(value, (list, tuple, deque)):
        yield from ((f"{path}[{number}]", item) for number, item in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        yield from ((f"{path} item", item) for item in value)
    elif isinstance(value, torch.nn.Module):
        for name, item in list(vars(value).items()):
            if name in ("_parameters", "_buffers", "_modules"):
                yield from ((f"{path}.{key}", part) for key, part in item.items())
            else:
                yield f"{path}.{name}", item
    elif not isinstance(value, types.BuiltinFunctionType):
        own = getattr(value, "__dict__", None)
        if type(own) is dict:
            yield from ((f"{path}.{name}", item) for name, item in list(own.items()))


def reachable(roots: Iterable[tuple[str, Any]]) -> dict[int, tuple[str, Any]]:
    """Tensors and mutable objects, by identity, each with the first way to it."""
    found: dict[int, tuple[str, Any]] = {}
    waiting = deque(roots)
    while waiting and len(found) < MOST_OBJECTS:
        path, value = waiting.popleft()
        if isinstance(value, PLAIN) or id(value) in found:
            continue
        found[id(value)] = path, value
        waiting.extend(parts_of(value, path))
    return found


@dataclass
class SavedTensor:
    """A tensor as it was; `alias` shares its memory."""

    tensor: torch.Tensor
    path: str
    alias: torch.Tensor
    content: torch.Tensor
    version_leaf: bool
    requires_grad: bool
    grad: torch.Tensor | None


@dataclass
class SavedContainer:
    """A container, or the `__dict__` of an object, with the items that it had."""

    container: Any
    path: str
    items: Any

    def now(self) -> Any:
        return _items(self.container)

    def changed(self) -> bool:
        before, now = self.items, self.now()
        return len(before) != len(now) or any(
            a is not b for one, two in zip(before, now, strict=True)
            for a, b in zip(one, two, strict=True))


def _items(container: Any) -> list[tuple[Any, ...]]:
    if isinstance(container, dict):
        return list(container.items())
    return [(item,) for item in container]


class State:
    """Everything that a call may change, as it was when this object was made."""

    def __init__(self, roots: Iterable[tuple[str, Any]]) -> None:
        self.known = reachable(roots)
        self.tensors: list[SavedTensor] = []
        self.containers: list[SavedContainer] = []
        storages: dict[int, torch.Tensor] = {}
        for path, value in self.known.values():
            if is_strided(value):
                self.tensors.append(_saved(value, path, storages))
                continue
            if isinstance(value, CONTAINERS):
                self.containers.append(SavedContainer(value, path, _items(value)))
            elif not isinstance(value, (types.FunctionType, tuple, frozenset)):
                own = getattr(value, "__dict__", None)
                if type(own) is dict:
                    self._keep_dict(own, path)
                if isinstance(value, torch.nn.Module):
                    for name in ("_parameters", "_buffers", "_modules"):
                        self._keep_dict(vars(value)[name], path)

    def _keep_dict(self, own: dict[str, Any], path: str) -> None:
        self.containers.append(SavedContainer(own, path, _items(own)))

    def put_back(self) -> None:
        """Everything as it was."""
        for container in self.containers:
            if container.changed():
                _fill(container.container, container.items)
        with torch.no_grad():
            for saved in self.tensors:
                _put_back(saved)
            for saved in self.tensors:  # now: they have their own dtypes again
                if saved.tensor.is_leaf and saved.tensor.grad is not saved.grad:
                    saved.tensor.grad = saved.grad

    def widen(self) -> None:
        """Tensors hold the same values in double precision, until they are put back."""
        wide: dict[int, torch.Tensor] = {}
        for saved in self.tensors:
            dtype = WIDER.get(saved.tensor.dtype)
            if dtype is None:
                continue
            alias, key = saved.alias, saved.alias.untyped_storage().data_ptr()
            if key not in wide or wide[key].dtype is not dtype:
                count = alias.untyped_storage().nbytes() // alias.element_size()
                flat = alias.as_strided((count,), (1,), 0)
                wide[key] = flat.to(dtype)
            saved.tensor.grad = None
            saved.tensor.data = wide[key].as_strided(
                alias.size(), alias.stride(), alias.storage_offset())
            if saved.grad is not None:
                saved.tensor.grad = saved.grad.detach().to(dtype)


WIDER = {
    torch.float32: torch.float64, torch.float16: torch.float64, torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
}


def _saved(value: torch.Tensor, path: str, storages: dict[int, torch.Tensor]) -> SavedTensor:
    alias = value.detach()
    key = alias.untyped_storage()._cdata
    if key not in storages:
        content = torch.empty(0, dtype=torch.uint8, device=value.device)
        content.set_(alias.untyped_storage().clone())  # type: ignore[call-overload]
        storages[key] = content
    grad = value.grad if value.is_leaf else None
    return SavedTensor(
        value, path, alias, storages[key], value.is_leaf, value.requires_grad, grad)


def _put_back(saved: SavedTensor) -> None:
    tensor, alias = saved.tensor, saved.alias
    storage = alias.untyped_storage()
    if storage.nbytes() != saved.content.numel():
        storage.resize_(saved.content.numel())
    storage.copy_(saved.content.untyped_storage())
    moved = (
        tensor.dtype is not alias.dtype or tensor.size() != alias.size()
        or tensor.stride() != alias.stride() or tensor.storage_offset() != alias.storage_offset()
        or tensor.untyped_storage()._cdata != storage._cdata
    )
    if saved.version_leaf and not tensor.is_leaf:
        tensor.detach_()
    if moved:
        if tensor.is_leaf:
            tensor.grad = None
        tensor.data = alias
    if tensor.is_leaf and tensor.requires_grad is not saved.requires_grad:
        tensor.requires_grad_(saved.requires_grad)


def _fill(container: Any, items: list[tuple[Any, ...]]) -> None:
    container.clear()
    if isinstance(container, dict):
        container.update(items)
    elif isinstance(container, set):
        container.update(item for (item,) in items)
    else:
        container.extend(item for (item,) in items)
