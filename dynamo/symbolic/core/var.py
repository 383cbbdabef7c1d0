"""`Var`: what the evaluator knows of one Python value, and the protocol that all trackers follow.

A Var *is* one object identity of the traced program: two names bound to one list hold one Var, and
a mutation changes that Var in place (after telling `tx.trace.effects`, so that the real object
is changed too when the frame ends). A Var never emits bytecode and never touches real user objects
except to read them at trace time.

`tx` is the `Frame` (see `symbolic/machine/frame.py`) that executes the current instruction;
`tx.trace` is the `Trace` (see `symbolic/machine/trace.py`) that all frames of one attempt share.

Rules for writers of trackers and rules:

* What is not modelled raises `Break(code, detail)`; never guess.
* Check everything before you change anything: a Break after a mutation costs a restart of the
  trace.
* A Python exception that the program would see is `ObservedException`, raised through
  `tx.trace.raise_exception(TypeError, "message")`; handlers of the traced program catch it.
* Inside a rule, call other callables by `tx.call(fn, args, kwargs)`. Return
  `fn.call(tx, args, kwargs)` directly only where the result is passed on untouched (a bound method
  forwarding to its function): such tail calls can be broken inside and resumed.
* Whatever a Var read from a real object must be guarded: `tx.trace.guard(kind, source, payload)`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

from dynamo.base.errors import Break, Signal
from dynamo.base.words import noun
from dynamo.guards.sources import Source
from dynamo.symbolic.core.large import break_where_many
from dynamo.symbolic.core.lookup import name_in_c, no_deletion

if TYPE_CHECKING:
    from dynamo.symbolic.core.frame import Frame


class ObservedException(Signal):
    """A Python exception of the traced program, travelling through symbolic frames.

    value: Var of the exception instance; kept_in: the frame in which it was raised again as it
    was, which adds nothing to its traceback; step: the number of the instruction that raised it.
    """

    def __init__(
        self, value: Var, kept_in: Frame | None = None, step: int | None = None
    ) -> None:
        super().__init__(value)
        self.value = value
        self.kept_in = kept_in
        self.step = step


class Var:
    """Base of all trackers.

    source: how the original object is fetched in the real frame; None for values made in the trace.
    """

    source: Source | None
    # True where `call_method` knows the methods of a built-in type and no rule of the table does.
    methods_by_name = False
    # True for `TensorVar`, which this package does not know.
    is_tensor = False
    # True for a constant that a graph can't write down: a mesh of devices, say.
    is_value = False
    # True where only the run knows which object it is: asked first by `a is b`.
    hides_identity = False

    def __init__(self, source: Source | None = None) -> None:
        self.source = source

    # False where `describe` says already which value it is.
    tells_place = True

    def __repr__(self) -> str:
        """The value for a user: `xs[0], a tensor (float32, shape (2, 3))`."""
        where = f"{self.source}, " if self.source is not None and self.tells_place else ""
        return where + self.describe()

    def describe(self) -> str:
        """What it is, in words of Python and torch."""
        return noun(type(self).__name__.removesuffix("Var"))

    # -- facts -----------------------------------------------------------------------------

    def python_type(self) -> type:
        """Exact type of the value in the real program."""
        raise Break("type_unknown", type(self).__name__)

    def is_constant(self) -> bool:
        """True where `as_constant` gives the whole value (None, numbers, str, dtype, tuples of
        constants, ...)."""
        return False

    def as_constant(self) -> Any:
        raise Break("not_a_constant", repr(self))

    def as_proxy(self) -> Any:
        """The value as an argument of an fx node: a Node, a constant, or a nest of these."""
        if self.is_constant():
            return self.as_constant()
        raise Break("not_a_graph_argument", repr(self))

    def as_fake(self) -> Any:
        """The value as an argument for running the operation on fake tensors."""
        if self.is_constant():
            return self.as_constant()
        raise Break("not_a_graph_argument", repr(self))

    def children(self) -> Iterable[Var]:
        """The Vars that this value refers to (what escapes together with it)."""
        return ()

    # -- Python's object protocol --------------------------------------------------------------

    def truth(self, tx: Frame) -> bool:
        """`bool(self)`. Raises Break("data_dependent_branch") where only the data can tell."""
        if self.is_constant():
            return bool(self.as_constant())
        raise Break("truth_unknown", repr(self))

    def get_attr(self, tx: Frame, name: str) -> Var:
        raise Break("attribute_unknown", f"{name} of {self!r}")

    def set_attr(self, tx: Frame, name: str, value: Var) -> None:
        raise Break("attribute_store_unknown", f"{name} of {self!r}")

    def del_attr(self, tx: Frame, name: str) -> None:
        raise Break("attribute_store_unknown", f"{name} of {self!r}")

    def has_attr(self, tx: Frame, name: str) -> bool:
        """`hasattr(self, name)`."""
        try:
            self.get_attr(tx, name)
        except ObservedException as error:
            if issubclass(error.value.python_type(), AttributeError):
                return False
            raise
        return True

    def call(self, tx: Frame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        raise Break("call_of_unknown_value", repr(self))

    def call_method(
        self, tx: Frame, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        """`self.name(*args, **kwargs)`; overridden where a method needs no bound-method object."""
        return tx.call_attribute(self, name, args, kwargs)

    def get_item(self, tx: Frame, key: Var) -> Var:
        return self._call_special(tx, "__getitem__", "'{}' object is not subscriptable", key)

    def set_item(self, tx: Frame, key: Var, value: Var) -> None:
        self._call_special(
            tx, "__setitem__", "'{}' object does not support item assignment", key, value)

    def del_item(self, tx: Frame, key: Var) -> None:
        missing = no_deletion(self.python_type(), key.python_type())
        self._call_special(tx, "__delitem__", missing, key)

    def length(self, tx: Frame) -> Var:
        return self._call_special(tx, "__len__", "object of type '{}' has no len()")

    def _call_special(self, tx: Frame, name: str, missing: str, *args: Var) -> Var:
        """The method of an operator; the TypeError of the operator where the class has none."""
        kind = self.python_type()
        if not hasattr(kind, name):
            tx.trace.raise_exception(TypeError, missing.format(name_in_c(kind)))
        return self.call_method(tx, name, list(args), {})

    def contains(self, tx: Frame, item: Var) -> Var:
        return self.call_method(tx, "__contains__", [item], {})

    def iterate(self, tx: Frame) -> Var:
        """`iter(self)`: a Var with `next_item`."""
        raise Break("iteration_unknown", repr(self))

    def next_item(self, tx: Frame) -> Var:
        """`next(self)`; raises ObservedException(StopIteration) at the end."""
        raise Break("iteration_unknown", repr(self))

    def unpack(self, tx: Frame) -> list[Var]:
        """All items of `iter(self)`, which is exhausted by it."""
        return self.iterate(tx).remaining_items(tx)

    def remaining_items(self, tx: Frame) -> list[Var]:
        """All items that an iterator still gives; it is not asked for an iterator again."""
        items: list[Var] = []
        while True:
            try:
                items.append(self.next_item(tx))
                break_where_many(len(items))
            except ObservedException as error:
                if issubclass(error.value.python_type(), StopIteration):
                    return items
                raise

    def hash_key(self, tx: Frame) -> Hashable:
        """A key that equals another Var's exactly when the two values are equal and hash alike."""
        if self.is_constant():
            value = self.as_constant()
            hash(value)
            return ("constant", value)
        raise Break("hash_unknown", repr(self))

    def is_same(self, tx: Frame, other: Var) -> bool:
        """`self is other`."""
        return self is other
