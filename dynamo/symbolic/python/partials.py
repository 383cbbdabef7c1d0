"""`functools.partial`."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable
from typing import Any

from dynamo.guards.sources import AttrSource, Source
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.identities import identity_key
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wraps
from dynamo.symbolic.python.functions import keywords_of


class PartialVar(Var):
    """`functools.partial`: function, a tuple of arguments and a dict of keywords, which the program
    may change; exact type only.

    has_dict: it has attributes of its own, so that a partial of it keeps it whole; attributes:
    those that the trace has given to one that it made.
    """

    def __init__(
        self,
        function: Var,
        args: Var,
        keywords: Var,
        source: Source | None = None,
        has_dict: bool = False,
    ) -> None:
        super().__init__(source)
        self.function, self.args, self.keywords = function, args, keywords
        self.has_dict = has_dict
        self.attributes: dict[str, Var] = {}

    def describe(self) -> str:
        return f"a partial of {self.function!r}"

    def python_type(self) -> type:
        return functools.partial

    def children(self) -> Iterable[Var]:
        return (self.function, self.args, self.keywords, *self.attributes.values())

    def truth(self, tx: Frame) -> bool:
        return True

    def call(self, tx: Frame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        own = keywords_of(tx, self.keywords)
        return self.function.call(tx, [*self.args.unpack(tx), *args], {**own, **kwargs})

    def get_attr(self, tx: Frame, name: str) -> Var:
        if name in self.attributes:
            return self.attributes[name]
        if name == "func":
            return self.function
        if name == "args":
            return self.args
        if name == "keywords":
            return self.keywords
        if name in ("__name__", "__qualname__", "__wrapped__"):
            tx.trace.raise_exception(
                AttributeError, f"'functools.partial' object has no attribute '{name}'"
            )
        return super().get_attr(tx, name)

    def set_attr(self, tx: Frame, name: str, value: Var) -> None:
        if self.source is not None or hasattr(functools.partial, name):
            super().set_attr(tx, name, value)
        tx.trace.effects.tick()
        self.attributes[name] = value
        self.has_dict = True

    def hash_key(self, tx: Frame) -> Hashable:
        return identity_key(tx.trace, self)


@wraps(functools.partial)
def wrap_partial(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """An existing partial: its parts are read (and guarded) from it."""
    assert source is not None
    trace.guard("TYPE", source, functools.partial)
    return PartialVar(
        trace.wrap(value.func, AttrSource(source, "func")),
        trace.wrap(value.args, AttrSource(source, "args")),
        trace.wrap(value.keywords, AttrSource(source, "keywords")),
        source,
        has_dict=functools.partial(value).func is value,
    )
