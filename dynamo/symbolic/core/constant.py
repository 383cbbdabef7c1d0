"""Constants: values without identity that matter, known completely while tracing.

`ConstVar` holds None, numbers, strings, dtypes, devices and the like. One that comes from a source
is guarded when its value is first looked at, so that an argument that is only passed on costs no
guard. `NullVar` is CPython's NULL on the value stack.
"""

from __future__ import annotations

import re
import types
from collections.abc import Hashable
from typing import Any

import torch
from torch.torch_version import TorchVersion

from dynamo.base.errors import Break
from dynamo.base.words import shown
from dynamo.guards.sources import Source
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.identities import Identities
from dynamo.symbolic.core.lookup import module_of, name_in_c
from dynamo.symbolic.core.type_methods import NativeVar
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wraps, wraps_if

VALUE_TYPES: tuple[type, ...] = (
    type(None),
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(Ellipsis),
    type(NotImplemented),
)
TORCH_VALUE_TYPES: tuple[type, ...] = (
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.qscheme,
    torch.finfo,
    torch.iinfo,
)
# Types whose equality is compared by the CONST guard; the other constants are compared by identity.
GUARDED_BY_VALUE = frozenset(VALUE_TYPES) | {torch.device}


MOST_BITS = 1024  # of an int in a graph, which is shown as text: more has no operation


class ConstVar(NativeVar):
    """A constant. `value` guards it when it came from a source."""

    __slots__ = ("_trace", "_value")

    def __init__(
        self, value: Any, source: Source | None = None, trace: Evaluation | None = None
    ) -> None:
        super().__init__(source)
        self._value = value
        self._trace = trace

    @property
    def value(self) -> Any:
        if self._trace is not None and self.source is not None:
            by_value = type(self._value) in GUARDED_BY_VALUE
            self._trace.guard("CONST" if by_value else "ID", self.source, self._value)
            if not is_nan(self._value):  # it is fetched again: another one is not the same
                self._trace = None
        return self._value

    def this_value(self) -> Any:
        """The value where its identity counts: containers tell NaNs apart by it."""
        value = self.value
        if self._trace is not None and self.source is not None:
            self._trace.guard("ID", self.source, value)
        return value

    tells_place = False

    def describe(self) -> str:
        return shown(self._value)

    def python_type(self) -> type:
        if self._trace is not None and self.source is not None:
            self._trace.guard("TYPE", self.source, type(self._value))
        return type(self._value)

    def is_constant(self) -> bool:
        return True

    def as_constant(self) -> Any:
        return self.value

    def holds_symbolic(self) -> bool:
        """True for what the new bytecode makes of a symbolic number."""
        return False

    def as_proxy(self) -> Any:
        if type(self.value) is int and self.value.bit_length() > MOST_BITS:
            raise Break("not_a_graph_argument", repr(self))
        return self.value

    def truth(self, tx: Frame) -> bool:
        return bool(self.value)

    def call(self, tx: Frame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        tx.trace.raise_exception(
            TypeError, f"'{name_in_c(type(self.value))}' object is not callable"
        )

    def iterate(self, tx: Frame) -> Var:
        if type(self.value) is tuple:  # a key of a dict from outside
            return tx.trace.constant(self.value).iterate(tx)
        if not isinstance(self.value, str | bytes):
            tx.trace.raise_exception(
                TypeError, f"'{name_in_c(type(self.value))}' object is not iterable"
            )
        return tx.trace.make.iterator([ConstVar(item) for item in self.value], self)

    def hash_key(self, tx: Frame) -> Hashable:
        if may_be_address(self.value):
            tx.trace.state(Identities).note_key("address")
        value = self.this_value()
        if type(value).__hash__ is None:
            tx.trace.run_real(lambda: hash(value))
        return ("constant", value)

    def is_same(self, tx: Frame, other: Var) -> bool:
        if self is other:
            return True
        if not other.is_constant():
            return False
        mine, theirs = self.this_value(), part_value(other)
        if mine is theirs:
            return True
        if type(mine) is type(theirs) and isinstance(mine, IDENTITY_UNSURE) and mine == theirs:
            # Two equal strings or large ints may or may not be one object in the real program.
            if type(mine) is int and -5 <= mine <= 256:
                return True
            raise Break("identity_of_constant", shown(mine))
        return False


def part_value(var: Var) -> Any:
    """The value of a constant as a part of a container."""
    return var.this_value() if isinstance(var, ConstVar) else var.as_constant()


def is_nan(value: Any) -> bool:
    """True for numbers that equal nothing: containers find them by their identity alone."""
    return type(value) in (float, complex) and value != value


def may_be_address(value: Any) -> bool:
    """True for what may be, or hold, the `id` of an object."""
    if type(value) is tuple:
        return any(map(may_be_address, value))
    return type(value) is int and value >= LEAST_ADDRESS


LEAST_ADDRESS = 1 << 16
IDENTITY_UNSURE = (int, float, complex, str, bytes)


class NullVar(Var):
    """CPython's NULL on the value stack."""

    __slots__ = ()

    def describe(self) -> str:
        return "NULL"


@wraps(re.Match)
def wrap_match(trace: Evaluation, value: re.Match[Any], source: Source | None) -> Var:
    """What a regular expression has found in a text; in a buffer that text may change."""
    if not isinstance(value.string, str | bytes):
        raise Break("value_unknown", f"a match in a {type(value.string).__name__}")
    return ConstVar(value, source, trace)


@wraps(*VALUE_TYPES, *TORCH_VALUE_TYPES, types.CodeType, re.Pattern, TorchVersion)
def wrap_constant(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """Numbers, strings, None, dtypes, devices, layouts, regular expressions."""
    if type(value) in (int, float):
        number = trace.symbols.wrap_number(value, source)
        if number is not None:
            return number
    return ConstVar(value, source, trace)


def _is_torch_enum(value: Any) -> bool:
    cls = type(value)
    return module_of(cls).startswith("torch") and isinstance(
        getattr(cls, "__members__", None), dict
    )


@wraps_if(6, _is_torch_enum)
def wrap_torch_enum(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """Members of enumerations that torch defines in C++ (`SDPBackend`)."""
    return ConstVar(value, source, trace)
