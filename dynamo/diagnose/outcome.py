"""One run of a function, as a record: results, effects, gradients, each by a path in words.

In: a callable and a tree of arguments. Out: an `Outcome`; what the run has changed is undone.
"""

from __future__ import annotations

import dataclasses
import random
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dynamo.diagnose.copies import Copier
from dynamo.diagnose.state import PLAIN, State

SEED = 20_231
DEEPEST = 6


@dataclass(frozen=True, slots=True)
class TensorLeaf:
    """A tensor of a run. memory: path of the first tensor with the same memory; same: of the first
    that is the same object."""

    value: torch.Tensor
    stride: tuple[int, ...]
    requires_grad: bool
    memory: str
    same: str
    offset: int


@dataclass
class Outcome:
    """leaves: path -> TensorLeaf or plain value; error: what the run has raised."""

    leaves: dict[str, Any] = field(default_factory=dict)
    error: BaseException | None = None
    gradients: dict[str, torch.Tensor | None] = field(default_factory=dict)
    gradient_error: BaseException | None = None


class Reader:
    """Reads a tree of values into leaves."""

    def __init__(self, outcome: Outcome, known: dict[int, str]) -> None:
        self.outcome, self.known = outcome, known
        self._memory: dict[int, str] = {}
        self._same: dict[int, str] = {}
        self._alive: list[Any] = []
        self.differentiable: list[torch.Tensor] = []

    def read(self, value: Any, path: str, depth: int = 0) -> None:
        if isinstance(value, torch.Tensor):
            self._tensor(value, path)
            return
        if depth and id(value) in self.known:
            self.outcome.leaves[path] = f"the object {self.known[id(value)]}"
            return
        parts = None if depth > DEEPEST else list(_parts(value, path))
        kind = type(value).__name__
        if parts:
            self.outcome.leaves[f"type of {path}"] = f"{kind} with {len(parts)} items"
            for name, part in parts:
                self.read(part, name, depth + 1)
        elif isinstance(value, PLAIN) or isinstance(value, torch.Size):
            self.outcome.leaves[path] = value
        else:
            self.outcome.leaves[path] = kind

    def note(self, value: torch.Tensor, path: str) -> None:
        """Gives the memory of a tensor a name."""
        self._alive.append(value)
        self._same.setdefault(id(value), path)
        if value.layout is torch.strided and value.untyped_storage().nbytes():
            self._memory.setdefault(value.untyped_storage()._cdata, path)

    def _tensor(self, value: torch.Tensor, path: str) -> None:
        self._alive.append(value)
        strided = value.layout is torch.strided
        memory = path
        if strided and value.untyped_storage().nbytes():
            memory = self._memory.setdefault(value.untyped_storage()._cdata, path)
        with torch.no_grad():
            copy = value.detach().clone()
        self.outcome.leaves[path] = TensorLeaf(
            copy, value.stride() if strided else (), value.requires_grad, memory,
            self._same.setdefault(id(value), path), int(value.storage_offset()) if strided else 0)
        if value.requires_grad and (value.is_floating_point() or value.is_complex()):
            self.differentiable.append(value)


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"{path}[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        yield from ((f"{path}.{name}", getattr(value, name)) for name in value._fields)
    elif isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
        yield from ((f"{path}[{number}]", item) for number, item in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for item in dataclasses.fields(value):
            yield f"{path}.{item.name}", getattr(value, item.name, None)
    elif not isinstance(value, (*PLAIN, types.FunctionType, types.MethodType, torch.nn.Module)):
        own = getattr(value, "__dict__", None)
        if type(own) is dict:
            yield from ((f"{path}.{name}", item) for name, item in own.items())


def run_once(
    call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], roots: Any,
    names: tuple[str, ...] = (), wide: bool = False,
) -> Outcome:
    """Calls on copies of the arguments, takes gradients, and puts everything back.

    roots: what `call` reaches besides its tensors among the arguments; names: of the arguments;
    wide: in double precision.
    """
    outcome = Outcome()
    state = State(roots)
    known = {key: path for key, (path, _) in state.known.items()}
    copier = Copier(lambda tensor: id(tensor) in known, wide)
    given, named = copier.tree((args, kwargs))
    reader = Reader(outcome, known)
    default = torch.get_default_dtype()
    numbers = random.getstate()
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        if wide:
            state.widen()
            torch.set_default_dtype(torch.float64)
        for path, value in _arguments(given, named, names):
            _note_all(reader, value, path)
        for saved in state.tensors:
            reader.note(saved.tensor, saved.path)
        with torch.random.fork_rng(gpus):
            torch.manual_seed(SEED)
            random.seed(SEED)
            try:
                result = call(*given, **named)
            except Exception as error:
                outcome.error = error
            else:
                reader.read(result, "result")
        results = list(reader.differentiable)
        _read_effects(reader, state, given, named, names)
        if outcome.error is None:
            _take_gradients(outcome, results, copier, state)
    finally:
        torch.set_default_dtype(default)
        state.put_back()
        random.setstate(numbers)
    return outcome


def _arguments(
    args: tuple[Any, ...], kwargs: dict[str, Any], names: tuple[str, ...]
) -> Iterator[tuple[str, Any]]:
    for number, value in enumerate(args):
        yield names[number] if number < len(names) else f"argument {number}", value
    yield from kwargs.items()


def _note_all(reader: Reader, value: Any, path: str) -> None:
    for place, leaf in pytree.tree_flatten_with_path(value)[0]:
        if isinstance(leaf, torch.Tensor):
            reader.note(leaf, path + pytree.keystr(place))


def _read_effects(
    reader: Reader, state: State, args: tuple[Any, ...], kwargs: dict[str, Any],
    names: tuple[str, ...],
) -> None:
    for path, value in _arguments(args, kwargs, names):
        if isinstance(value, (torch.Tensor, list, dict, tuple)):
            reader.read(value, f"{path} after the call")
    for saved in state.tensors:
        reader.read(saved.tensor, f"{saved.path} after the call")
        if saved.version_leaf and saved.tensor.is_leaf and saved.tensor.grad is not None:
            reader.read(saved.tensor.grad, f"{saved.path}.grad after the call")
    for container in state.containers:
        if container.changed():
            now = container.container
            reader.read(dict(now) if isinstance(now, dict) else list(now),
                        f"{container.path} after the call")


def _take_gradients(
    outcome: Outcome, results: list[torch.Tensor], copier: Copier, state: State
) -> None:
    """Gradients of the results, by random cotangents that are the same for each run."""
    leaves = [(f"gradient of tensor argument {n}", t) for n, t in enumerate(copier.leaves)]
    leaves += [(f"gradient of {saved.path}", saved.tensor) for saved in state.tensors
               if saved.requires_grad and saved.tensor.is_leaf and saved.tensor.requires_grad]
    results = [r for r in results if r.grad_fn is not None]
    if not results or not leaves:
        return
    generator = torch.Generator().manual_seed(SEED)
    cotangents = [
        torch.randn(r.shape, dtype=torch.float64, generator=generator).to(r.device, r.dtype)
        for r in results
    ]
    try:
        found = torch.autograd.grad(
            results, [leaf for _, leaf in leaves], cotangents, allow_unused=True)
    except Exception as error:
        outcome.gradient_error = error
        return
    for (path, _), gradient in zip(leaves, found, strict=True):
        outcome.gradients[path] = None if gradient is None else gradient.detach().clone()
