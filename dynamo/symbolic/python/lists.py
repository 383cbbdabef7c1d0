"""Sequences: list, tuple, named tuple, torch.Size, deque.

A sequence from a source is read at the first use of `items`: type and length are guarded then, and
each item gets a Var of its own (guarded in its turn when it is used).
"""

from __future__ import annotations

import collections
import sys
import types
from collections.abc import Hashable, Iterable
from typing import Any

import torch

from dynamo.base.errors import Break
from dynamo.base.words import counted, noun
from dynamo.guards.sources import AttrSource, DictSource, ItemSource, Source
from dynamo.symbolic.core.constant import ConstVar, part_value
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.large import MOST_ITEMS
from dynamo.symbolic.core.lookup import find_in_mro, instance_dict, name_in_c
from dynamo.symbolic.core.type_methods import NativeVar
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.core.wrapping import wraps, wraps_if
from dynamo.symbolic.python.ranges import SliceVar

# What is stored into a slice is read before the slice's place in the list is settled.
NEW_ITEMS_FIRST = sys.version_info >= (3, 13)


class SequenceVar(NativeVar):
    """Base of what holds its items in order.

    real: an existing sequence whose items are still unread (then `trace` and `source` are set).
    """

    kind: type = tuple

    def __init__(
        self,
        items: Iterable[Var] = (),
        source: Source | None = None,
        *,
        real: Any = None,
        trace: Evaluation | None = None,
    ) -> None:
        super().__init__(source)
        self._items: list[Var] = list(items)
        self._real = real
        self._trace = trace
        self._seen: dict[int, Var] = {}  # items that were read alone

    @property
    def items(self) -> list[Var]:
        if self._trace is not None:
            self._read()
        return self._items

    def _read(self) -> None:
        trace, source = self._trace, self.source
        assert trace is not None and source is not None
        if self.kind.__len__(self._real) > MOST_ITEMS:  # type: ignore[attr-defined]
            raise Break("value_too_large", f"{noun(self.kind.__name__)} with many items")
        self._trace = None
        trace.guard("TYPE", source, type(self._real))
        values = list(self.kind.__iter__(self._real))  # type: ignore[attr-defined]
        trace.guard("LENGTH", source, len(values))
        self._items = [
            trace.wrap(value, ItemSource(source, index)) for index, value in enumerate(values)
        ]

    @property
    def is_unread(self) -> bool:
        """True while nothing of the real sequence has been looked at."""
        return self._trace is not None

    def is_exact(self) -> bool:
        """False for the items of an instance of a subclass."""
        return self._real is None or type(self._real) is self.kind

    def describe(self) -> str:
        name = noun(type(self).__name__.removesuffix("Var"))
        return name if self._trace is not None else f"{name} of {counted(len(self._items), 'item')}"

    def python_type(self) -> type:
        if self._trace is not None:
            self._trace.guard("TYPE", self.source, type(self._real))
        return self.kind

    def children(self) -> Iterable[Var]:
        return (*self._seen.values(), *self._items)

    def as_proxy(self) -> Any:
        return self.rebuild([item.as_proxy() for item in self.items])

    def as_fake(self) -> Any:
        return self.rebuild([item.as_fake() for item in self.items])

    def rebuild(self, values: list[Any]) -> Any:
        """The real container with these values, for graph arguments."""
        return self.kind(values)

    def truth(self, tx: Frame) -> bool:
        if self._trace is None or type(self._real) is not self.kind or not self._real:
            return bool(self.items)
        self._trace.guard("TYPE", self.source, type(self._real))
        self._trace.guard("BOOL_TRUTH", self.source, True)
        return True

    def length(self, tx: Frame) -> Var:
        return ConstVar(len(self.items))

    def iterate(self, tx: Frame) -> Var:
        self.python_type()  # the iterator may never be used
        return tx.trace.make.sequence_iterator(tx, self)

    def unpack(self, tx: Frame) -> list[Var]:
        return list(self.items)

    def index(self, tx: Frame, key: Var, what: str = "") -> int | slice:
        """A checked index, or a slice of constants. The key is asked first: it may change what is
        indexed."""
        if isinstance(key, SliceVar):
            return key.resolve(tx)
        position = tx.trace.as_index(tx, key)
        kind = tuple if issubclass(self.kind, tuple) else self.kind
        what = what if kind is list else ""
        size = len(self.items)  # what follows has this type: reading the items guards it
        if position is None or not -sys.maxsize <= position + 1 <= sys.maxsize + 1:
            raise Break("index_unknown", f"{self!r}[{key!r}]")
        if not -size <= position < size:
            tx.trace.raise_exception(IndexError, f"{kind.__name__} {what}index out of range")
        return position

    def read_alone(self, key: Var) -> Var | None:
        """An item of an unread list: how many others there are is not looked at."""
        if self._trace is None or self.source is None or type(self._real) is not list:
            return None
        index = key.value if type(key) is ConstVar else None
        if type(index) is not int or not -len(self._real) <= index < len(self._real):
            return None
        if index not in self._seen:
            source = ItemSource(self.source, index)
            self._trace.guard("TYPE", self.source, list)
            self._trace.guard("PRESENT", source)
            self._seen[index] = self._trace.wrap(self._real[index], source)
        return self._seen[index]

    def get_item(self, tx: Frame, key: Var) -> Var:
        alone = self.read_alone(key)
        if alone is not None:
            return alone
        where = self.index(tx, key)
        found = self.items[where]
        if type(self) is TupleVar and isinstance(where, slice) and self.is_exact():
            if where.indices(len(self.items)) == (0, len(self.items), 1):
                return self
        return self.clone(found) if isinstance(found, list) else found

    def clone(self, items: list[Var]) -> Var:
        """What slicing, adding and repeating give."""
        return type(self)(items)


class TupleVar(SequenceVar):
    """Exactly `tuple`, or the items of an instance of a subclass (`is_part`)."""

    kind: type = tuple
    is_part = False

    @classmethod
    def part(cls, items: Iterable[Var]) -> TupleVar:
        """The items of a new instance of a subclass."""
        made = cls(items)
        made.is_part = True
        return made

    def is_exact(self) -> bool:
        return not self.is_part and super().is_exact()

    def is_constant(self) -> bool:
        return all(item.is_constant() for item in self.items)

    def as_constant(self) -> Any:
        return tuple(part_value(item) for item in self.items)

    def hash_key(self, tx: Frame) -> Hashable:
        if self.is_constant():
            return ("constant", self.as_constant())
        return ("tuple", *(item.hash_key(tx) for item in self.items))

    def is_same(self, tx: Frame, other: Var) -> bool:
        if self is not other and isinstance(other, TupleVar):
            if not self.items and not other.items:
                return True
            if self.is_constant() and other.is_constant():
                raise Break("identity_of_constant", repr(self))
        return self is other


class SizeVar(TupleVar):
    """`torch.Size`."""

    kind = torch.Size

    def as_proxy(self) -> Any:
        """A plain tuple where an item is a node: torch.Size takes ints only."""
        items = tuple(item.as_proxy() for item in self.items)
        return torch.Size(items) if all(type(item) is int for item in items) else items

    def as_constant(self) -> Any:
        return torch.Size([item.as_constant() for item in self.items])


class NamedTupleVar(TupleVar):
    """An instance of a class made by `namedtuple` / `NamedTuple`, or a torch.return_types value.

    fields: names of the items.
    """

    def __init__(
        self,
        cls: type,
        items: Iterable[Var] = (),
        source: Source | None = None,
        *,
        real: Any = None,
        trace: Evaluation | None = None,
    ) -> None:
        super().__init__(items, source, real=real, trace=trace)
        self.cls = cls
        self.fields: tuple[str, ...] = field_names(cls)

    def _read(self) -> None:
        trace = self._trace
        super()._read()
        assert trace is not None
        self.guard_class(trace)

    def guard_class(self, trace: Evaluation) -> None:
        """Guards that the class gets no methods: items are read as those of a tuple."""
        trace.attributes.guard_names(self.cls)

    def truth(self, tx: Frame) -> bool:
        self.guard_class(tx.trace)
        return super().truth(tx)

    def python_type(self) -> type:
        super().python_type()
        return self.cls

    def as_constant(self) -> Any:
        values = [part_value(item) for item in self.items]
        return self.rebuild(values) if self._real is None else self._real

    def rebuild(self, values: list[Any]) -> Any:
        if is_structseq(self.cls):
            try:
                return self.cls(values)  # type: ignore[call-arg]
            except TypeError as error:  # sys.version_info can't be made again
                raise Break("not_a_graph_argument", repr(self)) from error
        return tuple.__new__(self.cls, values)

    def get_attr(self, tx: Frame, name: str) -> Var:
        if name in self.fields and is_structseq(self.cls):
            return self.items[self.fields.index(name)]
        if self.cls.__dictoffset__ and name not in self.fields:
            self._check_own(tx.trace, name)
        return tx.trace.attributes.get_class_attr(tx, self, name)

    def _check_own(self, trace: Evaluation, name: str) -> None:
        """Instances of a subclass may have attributes of their own, which are not modelled."""
        own = (instance_dict(self._real) if self.source is not None else None) or {}
        if name == "__dict__" or name in own:
            raise Break("attribute_unknown", f"{name} of {self!r}")
        if self.source is not None:
            trace.guard("DICT_LACKS", DictSource(self.source), name)

    def call_method(
        self, tx: Frame, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        if name.startswith("__"):
            return super().call_method(tx, name, args, kwargs)
        return tx.call_attribute(self, name, args, kwargs)

    def clone(self, items: list[Var]) -> Var:
        return TupleVar(items)


def is_structseq(cls: type) -> bool:
    """True for C-level named tuples (torch.return_types.max)."""
    return hasattr(cls, "n_sequence_fields")


def field_names(cls: type) -> tuple[str, ...]:
    """Names of the items of a named tuple class."""
    if is_structseq(cls):
        names = [
            name for name, value in vars(cls).items() if type(value).__name__ == "member_descriptor"
        ]
        return tuple(names)
    return tuple(cls._fields)  # type: ignore[attr-defined]


MOST_WRITTEN = 1000  # items of a list from outside that compiled code changes


class ListVar(SequenceVar):
    """Exactly `list`.

    added: what was put at the end while nothing else was read: how long the list is does not count.
    """

    kind: type = list
    added: tuple[Var, ...] = ()

    def grow(self, tx: Frame, items: list[Var]) -> None:
        """`append` and `extend` with known items."""
        trace, source = self._trace, self.source
        plain = type(self._real) is self.kind
        if trace is None or not plain:
            self.change(tx).extend(items)
            return
        trace.guard("TYPE", source, self.kind)
        self.added = (*self.added, *items)
        trace.effects.grow(self.kind.extend, self, items)  # type: ignore[attr-defined]

    def _read(self) -> None:
        trace, added = self._trace, self.added
        super()._read()
        if added:
            self.added = ()
            self._items += added
            assert trace is not None
            if len(self._real) > MOST_WRITTEN:
                raise Break("long_list_changed", f"it has {len(self._real)} items")
            trace.effects.change_contents(self)

    def children(self) -> Iterable[Var]:
        return (*super().children(), *self.added)

    def read_alone(self, key: Var) -> Var | None:
        index = key.value if type(key) is ConstVar else None
        if self.added and type(index) is int and index < 0:
            if index >= -len(self.added):
                return self.added[index]
            key = ConstVar(index + len(self.added))
        return super().read_alone(key)

    def hash_key(self, tx: Frame) -> Hashable:
        tx.trace.raise_exception(TypeError, f"unhashable type: '{name_in_c(self.python_type())}'")

    def change(self, tx: Frame) -> list[Var]:
        """The items, to be mutated now; new code writes all of them again."""
        size = list.__len__(self._real) if isinstance(self._real, list) else 0
        if size > MOST_WRITTEN:
            raise Break("long_list_changed", f"it has {size} items")
        items = self.items
        tx.trace.effects.change_contents(self)
        return items

    def set_item(self, tx: Frame, key: Var, value: Var) -> None:
        if isinstance(key, SliceVar):
            where = key.resolve(tx)
            if where.step in (None, 1) and not NEW_ITEMS_FIRST:  # reading them may change the list
                start, stop, _ = where.indices(len(self.items))
                where = slice(start, max(start, stop))
            new = self._assigned(tx, value)
            self._check_extended(where, len(new))
            self.change(tx)[where] = new
            return
        position = self.index(tx, key, "assignment ")
        assert isinstance(position, int)
        self.change(tx)[position] = value

    def _assigned(self, tx: Frame, value: Var) -> list[Var]:
        """The items that are stored into a slice."""
        try:
            return value.iterate(tx).unpack(tx)
        except ObservedException as error:
            raise Break("index_unknown", f"{self!r}[..] = {value!r}") from error

    def _check_extended(self, where: slice, count: int) -> None:
        size = len(range(*where.indices(len(self.items))))
        if where.step not in (None, 1) and size != count:
            raise Break("index_unknown", f"{count} items into {size} places of {self!r}")

    def del_item(self, tx: Frame, key: Var) -> None:
        position = self.index(tx, key, "assignment ")
        del self.change(tx)[position]


class DequeVar(ListVar):
    """`collections.deque`; items in a list, `limit` is its maxlen.

    changes: how often what iterators look at has changed.
    """

    kind = collections.deque
    changes = 0

    def __init__(
        self,
        items: Iterable[Var] = (),
        source: Source | None = None,
        *,
        limit: int | None = None,
        real: Any = None,
        trace: Evaluation | None = None,
    ) -> None:
        super().__init__(items, source, real=real, trace=trace)
        self.limit = limit

    def _read(self) -> None:
        trace = self._trace
        assert trace is not None and self.source is not None
        super()._read()
        trace.guard("CONST", AttrSource(self.source, "maxlen"), self.limit)
        if self.limit is not None:
            del self._items[: -self.limit or len(self._items)]

    def change(self, tx: Frame) -> list[Var]:
        self.changes += 1
        return super().change(tx)

    def index(self, tx: Frame, key: Var, what: str = "") -> int | slice:
        refuse_slice(self, key)
        return super().index(tx, key, what)

    def set_item(self, tx: Frame, key: Var, value: Var) -> None:
        refuse_slice(self, key)
        before = self.changes
        super().set_item(tx, key, value)
        self.changes = before

    def rebuild(self, values: list[Any]) -> Any:
        return collections.deque(values, self.limit)

    def clone(self, items: list[Var]) -> Var:
        surplus = 0 if self.limit is None else max(len(items) - self.limit, 0)
        return DequeVar(items[surplus:], limit=self.limit)

    def get_attr(self, tx: Frame, name: str) -> Var:
        if name == "maxlen" and not self.is_unread:
            return ConstVar(self.limit)
        return super().get_attr(tx, name)


def refuse_slice(var: DequeVar, key: Var) -> None:
    """Deques have none: an error of the program."""
    if isinstance(key, SliceVar):
        raise Break("index_unknown", f"{var!r}[{key!r}]")


# Special methods of a named tuple that no operation on it asks.
UNREAD = frozenset("""__new__ __init__ __repr__ __str__ __format__ __getnewargs__ __replace__
    __reduce__ __reduce_ex__ __copy__ __deepcopy__ __getstate__ __setstate__
    __init_subclass__ __class_getitem__ __annotate__ __annotate_func__""".split())


# What an operation asks also where it is no function: None, or a partial.
READ = (vars(tuple).keys() | {"__bool__"}) - UNREAD - {"__doc__"}
HEAP_TYPE = 1 << 9


def is_named_tuple(value: Any) -> bool:
    """True for instances of namedtuple classes that have no operation of their own."""
    cls = type(value)
    if not issubclass(cls, tuple):
        return False
    if is_structseq(cls):  # some hold more than their items, by names that do not count these
        return cls.n_fields == cls.n_sequence_fields and not cls.n_unnamed_fields  # type: ignore[attr-defined,no-any-return]
    return is_named_tuple_class(cls)


def is_named_tuple_class(cls: type) -> bool:
    """True where instances are read, compared and added as tuples are."""
    if type(find_in_mro(cls, "_fields")) is not tuple or find_in_mro(cls, "_make") is None:
        return False
    return not any(
        name.startswith("__") and name not in UNREAD
        and (isinstance(value, types.FunctionType) or name in READ)
        for part in cls.__mro__ if part.__flags__ & HEAP_TYPE for name, value in vars(part).items())


@wraps(list)
def wrap_list(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """An existing list, unread."""
    return ListVar((), source, real=value, trace=trace)


@wraps(collections.deque)
def wrap_deque(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """An existing deque, which may be appended to."""
    return DequeVar((), source, limit=value.maxlen, real=value, trace=trace)


@wraps(tuple)
def wrap_tuple(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """An existing tuple, unread."""
    return TupleVar((), source, real=value, trace=trace)


@wraps(torch.Size)
def wrap_size(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """An existing torch.Size, unread."""
    return SizeVar((), source, real=value, trace=trace)


@wraps_if(30, is_named_tuple)
def wrap_named_tuple(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """An existing named tuple, unread."""
    return NamedTupleVar(type(value), (), source, real=value, trace=trace)
