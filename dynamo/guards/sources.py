"""Where a value comes from: one object with all its readings.

A `Source` is a path from the frame to a value: `LocalSource("x")`, then `AttrSource(.., "weight")`.
The guard program walks it, the new bytecode fetches it, a log prints it. Sources are
hashable values; equal paths are equal objects, so a tree of them shares its prefixes.

    >>> s = ItemSource(AttrSource(LocalSource("self"), "layers"), 0)
    >>> s.text()
    'self.layers[0]'
    >>> s.fetch(Scope(locals={"self": type("M", (), {"layers": [7]})}, globals={}, builtins={}))
    7
"""

from __future__ import annotations

import sys
import types
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from dynamo import _C
from dynamo._C import read_item
from dynamo.base.instances import is_class, own_dict, thread_dict
from dynamo.base.ragged_sizes import said_by
from dynamo.guards.registrations import REGISTRATIONS
from dynamo.guards.states import state_of, upcoming
from dynamo.guards.weak import strongly, weakly

REGISTRIES = ("_modules", "_parameters", "_buffers")  # where a module keeps what are its attributes
S = TypeVar("S", bound="Source")
OPERAND = "__stack_"  # arguments of the part behind a break: what its first line had evaluated


@dataclass(frozen=True, slots=True)
class Scope:
    """What a frame can see. locals: fast locals by name, cells for cell and free variables are
    under `cells` (name -> cell object)."""

    locals: Mapping[str, Any]
    globals: Mapping[str, Any]
    builtins: Mapping[str, Any]
    cells: Mapping[str, Any] | None = None


class Source:
    """Base: subclasses define `text` (how a user would write it) and `fetch` (plain-Python
    reading; raises what Python raises when the path is gone)."""

    __slots__ = ("_hash",)  # see `hashed_once`

    def text(self) -> str:
        raise NotImplementedError

    def fetch(self, scope: Scope) -> Any:
        raise NotImplementedError

    def parent(self) -> Source | None:
        return getattr(self, "base", None)

    def chain(self) -> Iterator[Source]:
        """The source itself, then its bases up to the root."""
        node: Source | None = self
        while node is not None:
            yield node
            node = node.parent()

    def root(self) -> Source:
        node = self
        while (base := node.parent()) is not None:
            node = base
        return node

    def __str__(self) -> str:
        return self.text()


def hashed_once(cls: type[S]) -> type[S]:
    """A class of sources that keep their hash: paths are long, and keys all over a trace."""
    find = cls.__hash__

    def remembered(self: S) -> int:
        try:
            return self._hash  # type: ignore[attr-defined, no-any-return]
        except AttributeError:
            found = find(self)
            object.__setattr__(self, "_hash", found)
            return found

    cls.__hash__ = remembered  # type: ignore[assignment, method-assign]
    return cls


# -- roots ---------------------------------------------------------------------------------


@hashed_once
@dataclass(frozen=True, slots=True)
class LocalSource(Source):
    """A fast local (an argument, for a frame at its start)."""

    name: str

    def text(self) -> str:
        number = self.name.removeprefix(OPERAND)
        return self.name if number == self.name else f"<operand {number} of the line>"

    def fetch(self, scope: Scope) -> Any:
        return scope.locals[self.name]


@hashed_once
@dataclass(frozen=True, slots=True)
class CellSource(Source):
    """The cell object of a free or cell variable of the frame (not its contents: see
    CellContentsSource)."""

    name: str

    def text(self) -> str:
        return f"<cell {self.name}>"

    def fetch(self, scope: Scope) -> Any:
        assert scope.cells is not None
        return scope.cells[self.name]


@hashed_once
@dataclass(frozen=True, slots=True)
class GlobalsSource(Source):
    """The frame's globals dict itself."""

    def text(self) -> str:
        return "globals()"

    def fetch(self, scope: Scope) -> Any:
        return scope.globals


@hashed_once
@dataclass(frozen=True, slots=True)
class GlobalSource(Source):
    """A name in the frame's globals."""

    name: str

    def text(self) -> str:
        return self.name

    def fetch(self, scope: Scope) -> Any:
        return scope.globals[self.name]


@hashed_once
@dataclass(frozen=True, slots=True)
class BuiltinSource(Source):
    """A name in the frame's builtins."""

    name: str

    def text(self) -> str:
        return self.name

    def fetch(self, scope: Scope) -> Any:
        return scope.builtins[self.name]


@hashed_once
@dataclass(frozen=True, slots=True)
class ModuleSource(Source):
    """An imported Python module, found in sys.modules."""

    name: str

    def text(self) -> str:
        return self.name

    def fetch(self, scope: Scope) -> Any:
        return sys.modules[self.name]


@dataclass(frozen=True, slots=True, eq=False)
class ObjectSource(Source):
    """An object that needs no place: a class (it is not kept alive), a function found through a
    class, a constant of the compiler. Equal only for the same object."""

    held: Any
    name: str
    identity: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "identity", id(self.held))
        if is_class(self.held):
            object.__setattr__(self, "held", weakly(self.held))

    @property
    def value(self) -> Any:
        return strongly(self.held)

    def text(self) -> str:
        return self.name

    def fetch(self, scope: Scope) -> Any:
        return self.value

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        if not isinstance(other, ObjectSource) or other.identity != self.identity:
            return False
        return other.value is self.value and self.value is not None

    def __hash__(self) -> int:
        return hash((ObjectSource, self.identity))


@hashed_once
@dataclass(frozen=True, slots=True)
class DrawSource(Source):
    """A random number that the new code has drawn by the time it calls the graph, as a tensor."""

    number: int
    dtype: torch.dtype

    def text(self) -> str:
        return f"random_{self.number}"

    def fetch(self, scope: Scope) -> Any:
        return torch.zeros((), dtype=self.dtype)


# -- steps ---------------------------------------------------------------------------------


@hashed_once
@dataclass(frozen=True, slots=True)
class AttrSource(Source):
    """`base.name` by ordinary attribute access. Instance dict entries that need no descriptor
    are better written ItemSource(DictSource(base), name): those can be skipped by dict version."""

    base: Source
    name: str

    def text(self) -> str:
        return f"{self.base.text()}.{self.name}"

    def fetch(self, scope: Scope) -> Any:
        return getattr(self.base.fetch(scope), self.name)


@hashed_once
@dataclass(frozen=True, slots=True)
class DictSource(Source):
    """`base.__dict__`, read without running descriptors (the instance dict). hidden: the class has
    something else of this name."""

    base: Source
    hidden: bool = False

    def text(self) -> str:
        return f"{self.base.text()}.__dict__"

    def fetch(self, scope: Scope) -> Any:
        value = self.base.fetch(scope)
        if self.hidden:
            return own_dict(value)
        find = type if issubclass(type(value), type) else object  # not what a class defines itself
        return find.__getattribute__(value, "__dict__")


READ_BY_KEY = dict | list | tuple | deque | types.MappingProxyType


@hashed_once
@dataclass(frozen=True, slots=True)
class ItemSource(Source):
    """`base[key]` of an exact list, tuple, deque or dict (or a subclass that does not override
    `__getitem__`), key an int, str or another hashable constant. Reads the container directly
    (`read_item`), never an override."""

    base: Source
    key: Any

    def text(self) -> str:
        if isinstance(self.base, DictSource | ThreadDictSource) and isinstance(self.key, str):
            return f"{self.base.base.text()}.{self.key}"
        if self.registry() is not None:
            module, name = self.base.base.base.text(), str(self.key)  # type: ignore[attr-defined]
            return f"{module}[{name}]" if name.isdecimal() else f"{module}.{name}"
        return f"{self.base.text()}[{self.key!r}]"

    def registry(self) -> str | None:
        """The registry of an `nn.Module` (`_parameters`, `_modules` ..) that this is an item of."""
        place = self.base
        if isinstance(place, ItemSource) and isinstance(place.base, DictSource):
            return place.key if place.key in REGISTRIES else None
        return None

    def fetch(self, scope: Scope) -> Any:
        container = self.base.fetch(scope)
        if not issubclass(type(container), READ_BY_KEY):
            raise TypeError(f"{type(container).__name__} is no dict, list or tuple")
        return read_item(container, self.key)


def order_of(mapping: dict[Any, Any]) -> type[dict[Any, Any]]:
    """The type whose methods tell a dict's order: that of an OrderedDict is its own."""
    return OrderedDict if isinstance(mapping, OrderedDict) else dict


def nth_key(mapping: dict[Any, Any], index: int) -> Any:
    """The index-th key of a dict, in its order."""
    return list(order_of(mapping).keys(mapping))[index]


def nth_value(mapping: dict[Any, Any], index: int) -> Any:
    """The index-th value of a dict, in its order."""
    return list(order_of(mapping).values(mapping))[index]


@hashed_once
@dataclass(frozen=True, slots=True)
class DictKeySource(Source):
    """The index-th key of a dict, in its order (for keys that are not constants)."""

    base: Source
    index: int

    def text(self) -> str:
        return f"list({self.base.text()})[{self.index}]"

    def fetch(self, scope: Scope) -> Any:
        return nth_key(self.base.fetch(scope), self.index)


@hashed_once
@dataclass(frozen=True, slots=True)
class DictValueSource(Source):
    """The value under the index-th key of a dict, in its order."""

    base: Source
    index: int

    def text(self) -> str:
        return f"list({self.base.text()}.values())[{self.index}]"

    def fetch(self, scope: Scope) -> Any:
        return nth_value(self.base.fetch(scope), self.index)


@hashed_once
@dataclass(frozen=True, slots=True)
class CellContentsSource(Source):
    """`cell.cell_contents`."""

    base: Source

    def text(self) -> str:
        if isinstance(self.base, CellSource):
            return self.base.name
        return f"{self.base.text()}.cell_contents"

    def fetch(self, scope: Scope) -> Any:
        return self.base.fetch(scope).cell_contents


@hashed_once
@dataclass(frozen=True, slots=True)
class TypeSource(Source):
    """`type(base)`."""

    base: Source

    def text(self) -> str:
        return f"type({self.base.text()})"

    def fetch(self, scope: Scope) -> Any:
        return type(self.base.fetch(scope))


@hashed_once
@dataclass(frozen=True, slots=True)
class WeakRefSource(Source):
    """`base()` of a weakref.ref."""

    base: Source

    def text(self) -> str:
        return f"{self.base.text()}()"

    def fetch(self, scope: Scope) -> Any:
        return self.base.fetch(scope)()


@hashed_once
@dataclass(frozen=True, slots=True)
class ArraySource(Source):
    """The tensor in the memory of `base`, a numpy array that is aligned and may be written to.

    kind: numpy's class of arrays.
    """

    base: Source
    kind: type

    def text(self) -> str:
        return self.base.text()

    def fetch(self, scope: Scope) -> Any:
        return as_tensor(self.base.fetch(scope), self.kind)


def as_tensor(array: Any, kind: Any) -> torch.Tensor:
    """`torch.from_numpy`, which raises TypeError or ValueError for most kinds of arrays."""
    if type(array) is not kind or not (array.flags.aligned and array.flags.writeable):
        raise TypeError("no ordinary array")
    return torch.from_numpy(array)


@hashed_once
@dataclass(frozen=True, slots=True)
class CallSource(Source):
    """`base()` of a built-in function that runs no code of the program."""

    base: Source

    def text(self) -> str:
        return f"{self.base.text()}()"

    def fetch(self, scope: Scope) -> Any:
        return self.base.fetch(scope)()


# Changes with a class that is registered with an abstract one against what a trace assumed.
REGISTERED = CallSource(ObjectSource(REGISTRATIONS, "registrations of abstract classes"))


@hashed_once
@dataclass(frozen=True, slots=True)
class StateSource(Source):
    """What an iterator or a set does not show as attributes: see `state_of`."""

    base: Source

    def text(self) -> str:
        return f"<state of {self.base.text()}>"

    def fetch(self, scope: Scope) -> Any:
        return state_of(self.base.fetch(scope))


@hashed_once
@dataclass(frozen=True, slots=True)
class ThreadDictSource(Source):
    """The dict that a `threading.local` has in this thread."""

    base: Source

    def text(self) -> str:
        return f"{self.base.text()}.__dict__"

    def fetch(self, scope: Scope) -> Any:
        return thread_dict(self.base.fetch(scope))


@hashed_once
@dataclass(frozen=True, slots=True)
class TableSource(Source):
    """The numbers in a small table, a tensor: see `table_values`."""

    base: Source

    def text(self) -> str:
        return f"{self.base.text()}.tolist()"

    def fetch(self, scope: Scope) -> Any:
        return table_values(self.base.fetch(scope))


REMEMBERED = 512  # layouts, for each guard


class SameAs:
    """Whether a value equals one that was seen, class and all; asked of others."""

    def __init__(self, seen: Any) -> None:
        self.seen = seen

    def __call__(self, value: Any) -> bool:
        return equal_values(value, self.seen)


class SameLayout(SameAs):
    """The same of what is never changed, as the layout of a distributed tensor. What was equal is
    remembered: equal blocks of a model share a graph, and each has layouts of its own."""

    def __init__(self, seen: Any) -> None:
        super().__init__(seen)
        self.equal: dict[int, Any] = {id(seen): seen}

    def __call__(self, value: Any) -> bool:
        if self.equal.get(id(value)) is value:
            return True
        equal = equal_values(value, self.seen)
        if equal and len(self.equal) < REMEMBERED:
            self.equal[id(value)] = value
        return equal


class Flattened(SameAs):
    """Whether a wrapper tensor's `__tensor_flatten__` says what it has said of one."""

    def __call__(self, value: Any) -> bool:
        return equal_values(flattened(value), self.seen)


class SameNested(SameAs):
    """Whether a nested tensor is like one that was seen; guards on its inner tensors say the rest.
    """

    def __call__(self, value: Any) -> bool:
        return bool(facts_of_nested(value) == self.seen)


def facts_of_nested(value: Any) -> tuple[Any, ...]:
    """Dispatch keys, dtype, device, requires_grad, and what `said_by` tells."""
    return (*_C.tensor_facts(value), *said_by(value))


def flattened(value: Any) -> tuple[tuple[str, ...], Any, list[Any]]:
    """Names of the inner tensors, the context, and what stands among them and is no tensor."""
    names, context = value.__tensor_flatten__()
    inner = [getattr(value, name) for name in names]
    others = [part for part in inner if not isinstance(part, torch.Tensor)]
    return tuple(names), context, others


def equal_values(mine: Any, theirs: Any) -> bool:
    """Equal and of one class, item by item in what holds others."""
    if mine is theirs:
        return True
    if type(mine) is not type(theirs):
        return False
    if type(mine) in (list, tuple):
        return len(mine) == len(theirs) and all(map(equal_values, mine, theirs))
    if type(mine) is dict:
        return mine.keys() == theirs.keys() and all(
            equal_values(value, theirs[key]) for key, value in mine.items())
    return bool(mine == theirs)


@hashed_once
@dataclass(frozen=True, slots=True)
class EqualSource(Source):
    """Whether `base` is what it was, by a function of Python's."""

    base: Source
    said: SameAs

    def text(self) -> str:
        suffix = ".__tensor_flatten__()" if isinstance(self.said, Flattened) else ""
        return f"<{self.base.text()}{suffix} as before>"

    def fetch(self, scope: Scope) -> Any:
        return self.said(self.base.fetch(scope))


@hashed_once
@dataclass(frozen=True, slots=True)
class AsPlain(Source):
    """The tensor `base`, whose class overrides torch's functions, as a plain one of its memory."""

    base: Source

    def text(self) -> str:
        return self.base.text()

    def fetch(self, scope: Scope) -> Any:
        return as_plain(self.base.fetch(scope))


def as_plain(tensor: Any) -> torch.Tensor:
    """A torch.Tensor in the memory of another one; autograd sees through it."""
    return torch.Tensor.as_subclass(tensor, torch.Tensor)


LARGEST_TABLE = 64  # numbers
WIDEST_TABLE = 4  # numbers in a row
HELD = (torch.Tensor, torch.nn.Parameter)
VALUES_OF_BUFFERS = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
)  # fmt: skip


def has_memory(tensor: torch.Tensor) -> bool:
    return tensor.is_cpu or tensor.is_cuda


def is_table(tensor: torch.Tensor) -> bool:
    """True for a tensor with a few rows of two to four integers. On a GPU its guard waits for the
    device, as the program does where it reads the numbers."""
    if type(tensor) is not torch.Tensor or not has_memory(tensor) or tensor.dim() != 2:
        return False
    return tensor.dtype in (torch.int32, torch.int64) and (
        0 < tensor.numel() <= LARGEST_TABLE and 2 <= tensor.shape[1] <= WIDEST_TABLE)


def is_small_buffer(tensor: torch.Tensor) -> bool:
    """True for a few integers or flags, as a module may hold them."""
    if type(tensor) not in HELD or not has_memory(tensor) or tensor.dim() > 2:
        return False
    return tensor.dtype in VALUES_OF_BUFFERS and 0 < tensor.numel() <= LARGEST_TABLE


def table_values(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The rows of a table, the numbers of a vector, or the one number. Errors: TypeError for what
    can't be such a tensor; the rest is guarded before."""
    if type(tensor) not in HELD or not has_memory(tensor) or tensor.dim() > 2:
        raise TypeError("no table")
    values = tensor.tolist()
    if tensor.dim() == 2:
        return tuple(map(tuple, values))
    return tuple(values) if tensor.dim() else (values,)


def is_buffer(source: Source) -> bool:
    """Whether it is what an `nn.Module` has registered (some keep shapes as parameters), or a
    global of the program."""
    if isinstance(source, GlobalSource):
        return True
    return isinstance(source, ItemSource) and source.registry() in ("_buffers", "_parameters")


@hashed_once
@dataclass(frozen=True, slots=True)
class UpcomingSource(Source):
    """`(next item,)` of a built-in iterator, which stays where it is; `()` at its end.

    index: how many items lie before it.
    """

    base: Source
    index: int

    def text(self) -> str:
        return f"<next{f' but {self.index}' if self.index else ''} of {self.base.text()}>"

    def fetch(self, scope: Scope) -> Any:
        return upcoming(self.base.fetch(scope), self.index)
