"""What a `with` statement enters."""

from __future__ import annotations

from dynamo.bytecode.versions import VERSION
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import name_in_c, name_with_module
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.lists import ListVar, TupleVar
from dynamo.symbolic.python.objects import ObjectVar
from dynamo.symbolic.python.sets import SetVar
from dynamo.symbolic.tensors import devices
from dynamo.symbolic.tensors.tensor import TensorVar

WITH_METHODS = ("__enter__", "__exit__")
WITH_A_PLAIN_TYPE = (ObjectVar, TensorVar, ConstVar, ListVar, TupleVar, DictVar, SetVar)


def enter_context(tx: Frame, manager: Var) -> tuple[Var, Var]:
    """The bound `__exit__` of what a `with` block enters and what `__enter__` gives."""
    manager = devices.as_context(manager)
    if isinstance(manager, WITH_A_PLAIN_TYPE):
        check_context(tx, manager.python_type())
    if isinstance(manager, ObjectVar):  # both are read before one is called
        order = WITH_METHODS[::-1] if VERSION.long_texts else WITH_METHODS  # of Python 3.14
        bound = {
            name: tx.trace.attributes.bind(tx, manager, manager.cls, name) for name in order}
        return bound["__exit__"], bound["__enter__"].call(tx, [], {})
    return manager.get_attr(tx, "__exit__"), manager.call_method(tx, "__enter__", [], {})


def check_context(tx: Frame, cls: type) -> None:
    """The class must have both methods before one is called; the instance does not count."""
    if VERSION.long_texts:
        for name in reversed(WITH_METHODS):
            if tx.trace.attributes.find_special(cls, name) is None:
                tx.trace.raise_exception(TypeError, no_manager(cls, name))
        return
    text = f"'{name_in_c(cls)}' object does not support the context manager protocol"
    if tx.trace.attributes.find_special(cls, "__enter__") is None:
        tx.trace.raise_exception(TypeError, text)
    if tx.trace.attributes.find_special(cls, "__exit__") is None:
        tx.trace.raise_exception(TypeError, f"{text} (missed __exit__ method)")


def no_manager(cls: type, missing: str) -> str:
    """What Python 3.14 says, with the module of the class and the method."""
    return (f"'{name_with_module(cls)}' object does not support the context manager protocol "
            f"(missed {missing} method)")
