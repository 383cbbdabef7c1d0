"""Built-ins of instances of subclasses of int, float, complex, str, bytes and tuple."""

from __future__ import annotations

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar, is_nan
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import find_in_mro
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.value_classes import VALUES, overrides, value_base
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.objects import ObjectVar
from dynamo.symbolic.python.plain_values import make_value, value_in


def register_new(owner: type) -> None:
    @rule(owner.__new__)
    def new_value(tx: Frame, cls: Var, /, *args: Var, **kwargs: Var) -> Var:
        """`int.__new__(cls, ...)` and the like."""
        if not isinstance(cls, ClassVar) or not issubclass(cls.cls, owner):
            raise Break("argument_mismatch", f"{owner.__name__}.__new__({cls!r})")
        base = value_base(cls.cls)
        if base is None:
            return tx.trace.construct(tx, cls, list(args), kwargs)
        content = tx.trace.construct(tx, ClassVar(base, None, None), list(args), kwargs)
        made = make_value(cls.cls, content)
        if made is None:
            what = f"{base.__name__}.__new__({cls!r}, {content!r})"
            raise Break("call_of_unknown_function", what)
        return made


for _base in VALUES:
    if _base is not tuple:
        register_new(_base)


@rule([repr], ObjectVar)
def repr_of_value(tx: Frame, var: ObjectVar) -> Var | None:
    value = value_in(var)
    if value is None or overrides(var.cls, "__repr__"):
        return None
    return tx.trace.call(tx, repr, value)


@rule([format], ObjectVar)
def format_value(tx: Frame, var: ObjectVar, spec: Var = ConstVar("")) -> Var | None:  # noqa: B008
    value = value_in(var)
    if value is None or overrides(var.cls, "__format__"):
        return None
    if spec.as_constant() == "":
        return tx.trace.call(tx, str, var)
    return tx.trace.call(tx, format, value, spec)


@rule([hash], ObjectVar)
def hash_of_value(tx: Frame, var: ObjectVar) -> Var | None:
    value = value_in(var)
    if value is None or overrides(var.cls, "__hash__") or find_in_mro(var.cls, "__hash__") is None:
        return None
    if is_nan(value.as_constant()):  # it tells the object's place
        raise Break("hash_unknown", repr(var))
    return tx.trace.call(tx, hash, value)
