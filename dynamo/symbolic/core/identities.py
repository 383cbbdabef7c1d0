"""What a trace knows of objects that are distinguished by identity: keys of dicts, and `id()`."""

from __future__ import annotations

from typing import Any

from dynamo.base.errors import Break
from dynamo.symbolic.core.frame import Evaluation
from dynamo.symbolic.core.var import Var

MOST_IDENTIFIED = 100


class Identities:
    """One per trace.

    keyed: objects from outside that were looked up by identity; real_keys: those that stand in real
        dicts. identified: those whose `id()` was taken; takes_ids: any was, and ids are numbers
        that few rows know. hashed: the kinds of keys so far, see `note_key`.
    """

    def __init__(self, trace: Evaluation) -> None:
        self.trace = trace
        self.keyed: dict[Var, None] = {}
        self.real_keys: dict[Var, None] = {}
        self.identified: dict[Var, None] = {}
        self.takes_ids = False
        self.hashed: set[str] = set()

    def hash_of(self, var: Var) -> Any:
        """The hash key of a key that stands in a dict from outside."""
        is_keyed = var in self.keyed
        key = var.hash_key(self.trace.frames[-1])
        if not is_keyed and self.keyed.pop(var, 0) is None:
            self.real_keys[var] = None
        return key

    def identity_key(self, var: Var) -> Any:
        """The hash key of an object that equals itself alone."""
        if var.source is not None:
            var.python_type()  # another value may be unhashable, or equal to a key
            self.keyed[var] = None
        return ("identity", var)

    def guard_id(self, var: Var) -> None:
        """`id()` of an object from outside was taken: it must stay another than those before."""
        if var in self.identified:
            return
        if len(self.identified) >= MOST_IDENTIFIED:
            raise Break("hash_unknown", f"id() of more than {MOST_IDENTIFIED} objects")
        for other in self.identified:
            if other.python_type() is var.python_type():
                self.trace.guard("NOT_SAME", other.source, var.source)
        self.identified[var] = None

    def note_key(self, kind: str) -> None:
        """A key of a container is an "id", or a number that may be one ("address"); which are
        equal is not known."""
        self.hashed.add(kind)
        if len(self.hashed) > 1:
            raise Break("hash_unknown", "id() of an object beside numbers that may be one")


def identity_key(trace: Evaluation, var: Var) -> Any:
    """The hash key of an object that equals itself alone."""
    return trace.state(Identities).identity_key(var)
