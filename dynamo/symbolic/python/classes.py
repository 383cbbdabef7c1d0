"""Classes as values, and what calling one does."""

from __future__ import annotations

import enum
import types
from collections.abc import Hashable, Iterable
from typing import Any

import torch

from dynamo.base.errors import Break
from dynamo.guards.sources import ObjectSource, Source
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.lookup import find_owner, module_of
from dynamo.symbolic.core.unguarded import Unguarded
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wraps_if
from dynamo.symbolic.python.demands import as_demanded

IMMUTABLE_TYPE = 1 << 8  # of built-in types, no attribute of which can be set
# What torch's functions take these classes for: `x.to(int)`.
DTYPES: dict[type, torch.dtype] = {
    bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128,
}


class ClassVar(Var):
    """An existing class."""

    def __init__(self, cls: type, source: Source | None, trace: Evaluation | None) -> None:
        super().__init__(source)
        self._cls = cls
        self._trace = trace

    @property
    def cls(self) -> type:
        """The class; reading it guards that it is this one."""
        if self._trace is not None:
            trace, self._trace = self._trace, None
            if self.source is not None and not trace.is_fixed_place(self.source):
                trace.guard("ID", self.source, self._cls)
            elif self.source is not None and not isinstance(self.source, ObjectSource):
                trace.state(Unguarded).read(self.source, self._cls)
        return self._cls

    tells_place = False

    def describe(self) -> str:
        return f"the class {self._cls.__qualname__}"

    def python_type(self) -> type:
        return type(self.cls)

    def children(self) -> Iterable[Var]:
        return ()

    def truth(self, tx: Frame) -> bool:
        if issubclass(self.cls, enum.Enum) or type(self.cls) is type:
            return True
        for name in ("__bool__", "__len__"):
            found = self.by_metaclass(tx, name)
            if found is not None:
                return as_demanded(tx, name, type(self.cls), found).truth(tx)
        return bool(self.cls)

    def as_fake(self) -> Any:
        return self.cls if self.cls in DTYPES else super().as_fake()

    def get_attr(self, tx: Frame, name: str) -> Var:
        return tx.trace.attributes.get_from_class(tx, self, name)

    def has_attr(self, tx: Frame, name: str) -> bool:
        has = super().has_attr(tx, name)
        if has:
            tx.trace.attributes.guard_presence(self.cls, name)
        return has

    def set_attr(self, tx: Frame, name: str, value: Var) -> None:
        if self.cls.__flags__ & IMMUTABLE_TYPE:
            tx.trace.run_real(lambda: type.__setattr__(self.cls, name, None))
        tx.trace.attributes.set_on_class(tx, self.cls, name, value)

    def del_attr(self, tx: Frame, name: str) -> None:
        if self.cls.__flags__ & IMMUTABLE_TYPE:
            tx.trace.run_real(lambda: type.__delattr__(self.cls, name))
        raise Break("class_attribute_store", f"del {self.cls.__qualname__}.{name}")

    def call(self, tx: Frame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        return tx.trace.construct(tx, self, args, kwargs)

    def by_metaclass(self, tx: Frame, name: str, *args: Var) -> Var | None:
        """A special method that the metaclass has, called; None where it has none."""
        found = tx.trace.attributes.find_special(type(self.cls), name)
        if found is None or issubclass(self.cls, enum.Enum):
            return None
        method = tx.trace.attributes.bind(tx, self, type(self.cls), name)
        return tx.call(method, list(args), {})

    def iterate(self, tx: Frame) -> Var:
        found = self.by_metaclass(tx, "__iter__")
        if found is not None:
            return found
        if issubclass(self.cls, enum.Enum):
            return tx.trace.make.iterator([tx.trace.wrap(member, None) for member in self.cls])
        raise Break("iteration_unknown", repr(self))

    def length(self, tx: Frame) -> Var:
        if issubclass(self.cls, enum.Enum):
            return tx.trace.constant(len(self.cls))
        found = self.by_metaclass(tx, "__len__")
        if found is not None:
            return as_demanded(tx, "__len__", type(self.cls), found)
        raise Break("length_unknown", repr(self))

    def has_own_length(self) -> bool:
        """True where `list(cls)` asks code of the metaclass how many there are."""
        return not issubclass(self.cls, enum.Enum) and any(
            find_owner(type(self.cls), name) for name in ("__len__", "__length_hint__"))

    def contains(self, tx: Frame, item: Var) -> Var:
        if issubclass(self.cls, enum.Enum) and item.is_constant():
            return tx.trace.constant(tx.trace.run_real(
                lambda: item.as_constant() in self.cls))  # type: ignore[operator]
        found = self.by_metaclass(tx, "__contains__", item)
        if found is not None:
            return ConstVar(found.truth(tx))
        raise Break("iteration_unknown", repr(self))

    def get_item(self, tx: Frame, key: Var) -> Var:
        if issubclass(self.cls, enum.Enum):
            try:
                return tx.trace.wrap(self.cls[key.as_constant()], None)
            except KeyError as error:
                tx.trace.raise_exception(KeyError, *error.args)
        found = self.by_metaclass(tx, "__getitem__", key)
        if found is not None:
            return found
        if issubclass(self.cls, torch.Tensor):
            raise Break("generic_alias_of_tensor", repr(self))
        tx.trace.attributes.find_special(self.cls, "__class_getitem__")
        maker = find_owner(self.cls, "__class_getitem__")
        if maker is not None and isinstance(maker[1], classmethod) and (
            isinstance(maker[1].__func__, types.FunctionType) and module_of(maker[0]) != "typing"
        ):
            return tx.call(self.get_attr(tx, "__class_getitem__"), [key], {})
        return tx.trace.generic_alias(tx, self, key)

    def hash_key(self, tx: Frame) -> Hashable:
        return ("constant", self.cls)

    def is_same(self, tx: Frame, other: Var) -> bool:
        return self is other or (isinstance(other, ClassVar) and other.cls is self.cls)


@wraps_if(0, lambda value: issubclass(type(value), type))
def wrap_class(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """A class."""
    return ClassVar(value, source, trace)
