"""Attributes of functions."""

from __future__ import annotations

import sys
import types

from dynamo.base.errors import Break
from dynamo.guards.sources import AttrSource
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import find_in_mro
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wrap_named
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.functions import ANNOTATE, WRITABLE_PARTS, FunctionVar, MethodVar
from dynamo.symbolic.python.objects import InstanceDictVar

# What is guarded as far as it is read: another function with the same code may have the same.
READ_ALONE = frozenset(
    "__code__ __defaults__ __kwdefaults__ __name__ __qualname__ __module__ __doc__".split())


def get_attr(tx: Frame, var: FunctionVar, name: str) -> Var:
    """`function.name`."""
    if name == "__dict__":
        var.python_type()
        return InstanceDictVar(var)
    if name in var.written:
        value = var.written[name]
        if value is not None:
            return value
        tx.trace.raise_exception(
            AttributeError, f"'function' object has no attribute '{name}'")
    if name == "__annotations__" and ANNOTATE in var.written:
        # The dict would be another one than that which the real function makes for itself later.
        raise Break("attribute_unknown", f"{name} of {var!r}, whose {ANNOTATE} is set")
    if var.real is not None and var.source is not None:
        if name == "__class__":
            return tx.trace.wrap(var.python_type(), None)
        if name == "__get__":
            var.python_type()
            return MethodVar(tx.trace.wrap(types.FunctionType.__get__, None), var)
        if name in READ_ALONE or not hasattr(var.real, name):
            var.guard()
        else:
            var.guard_identity(tx.trace)
        if not hasattr(var.real, name):
            tx.trace.guard("LACKS_ATTR", var.source, name)
        value = tx.trace.run_real(lambda: getattr(var.real, name))
        if isinstance(value, types.MethodWrapperType):
            return MethodVar(tx.trace.wrap(getattr(types.FunctionType, name), None), var)
        return wrap_named(tx.trace, value, AttrSource(var.source, name))
    if name in ("__name__", "__qualname__"):
        code_name = "co_name" if name == "__name__" else "co_qualname"
        return ConstVar(getattr(var.code, code_name))
    if name == "__module__":
        return ConstVar(var.globals.get("__name__"))
    if name == "__code__":
        return ConstVar(var.code)
    if name == "__defaults__":
        return var.defaults_tuple(tx) if var.defaults(tx) else ConstVar(None)
    if name == "__doc__":
        consts = var.code.co_consts
        return ConstVar(consts[0] if consts and isinstance(consts[0], str) else None)
    if name == "__type_params__" and sys.version_info >= (3, 12):
        return tx.trace.make.tuple([])
    if name == "__annotations__":
        return annotations_of(tx, var)
    if name == ANNOTATE in WRITABLE_PARTS and var.real is None:
        return annotate_of(var)
    if find_in_mro(types.FunctionType, name) is None:
        tx.trace.raise_exception(
            AttributeError, f"'function' object has no attribute '{name}'")
    raise Break("attribute_unknown", f"{name} of {var!r}")


def annotations_of(tx: Frame, var: FunctionVar) -> Var:
    """`__annotations__` of a function that the trace has made: one dict."""
    if isinstance(var.annotations, FunctionVar):  # the function that makes them, as values (1)
        var.annotations = var.annotations.call(tx, [ConstVar(1)], {})
    if not isinstance(var.annotations, DictVar):
        parts = [] if var.annotations is None else var.annotations.unpack(tx)
        pairs = list(zip(parts[::2], parts[1::2], strict=True))
        var.annotations = DictVar.from_pairs(tx, pairs)
    return var.annotations


def annotate_of(var: FunctionVar) -> Var:
    """`__annotate__` of a function that the trace has made: what makes its annotations, or None."""
    if isinstance(var.annotations, FunctionVar):
        return var.annotations
    if isinstance(var.annotations, DictVar):  # made already, by a function that is gone
        raise Break("attribute_unknown", f"__annotate__ of {var!r}, whose annotations are read")
    return ConstVar(None)
