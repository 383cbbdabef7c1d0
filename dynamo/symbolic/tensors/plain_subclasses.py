"""Subclasses of torch.Tensor without a dispatch of their own, as `x.as_subclass(MyTensor)` makes.

In a graph they are plain tensors: the tracker knows the class, and what leaves the trace gets it.
Those with attributes of their own keep them in `TensorVar.written` and in the real `__dict__`.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import torch
from torch import fx

from dynamo.base.errors import Break
from dynamo.base.subclasses import OVERRIDE, PLAIN, is_plain_subclass, is_wrapper_class
from dynamo.guards.sources import Source
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.lookup import find_owner, module_of
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wrap_named, wraps_if
from dynamo.symbolic.python.binders import RawAttribute, is_data_descriptor, part_of_property
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.functions import BuiltinVar, MethodVar, keywords_of
from dynamo.symbolic.python.lists import ListVar, NamedTupleVar, SizeVar, TupleVar
from dynamo.symbolic.tensors import wrappers
from dynamo.symbolic.tensors.constant_objects import place_of
from dynamo.symbolic.tensors.hooks import set_requires_grad
from dynamo.symbolic.tensors.overriding import NOWRAP, Off, real_function
from dynamo.symbolic.tensors.tensor import TensorVar
from dynamo.symbolic.tensors.torch_functions import in_transform, put_in_graph


@wraps_if(9, lambda value: is_plain_subclass(type(value)))
def wrap_subclass(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """One from outside, unread."""
    if value.is_nested:
        raise Break("tensor_not_modelled", "a nested tensor")
    cls = type(value)
    for name in (OVERRIDE, "__setattr__"):
        trace.attributes.find_special(cls, name)
    return TensorVar(None, None, source, real=value, trace=trace, cls=cls)


# -- attributes ----------------------------------------------------------------------------------


def is_torchs(entry: tuple[type, Any] | None) -> bool:
    """True for an attribute that all tensors have, or none."""
    return entry is None or issubclass(torch.Tensor, entry[0])


def get_attr(tx: Frame, var: TensorVar, name: str) -> Var | None:
    """`tensor.name` of a subclass; None where all tensors have it alike."""
    if name in var.written:
        return var.written[name]
    attributes = tx.trace.attributes
    if name == OVERRIDE:
        return attributes.bind(tx, var, var.cls, name)
    if is_wrapper_class(var.cls):
        return wrappers.get_attr(tx, var, name)
    found = find_owner(var.cls, name)
    if found is not None and not is_torchs(found) and is_data_descriptor(found[1]):
        return attributes.bind(tx, var, var.cls, name)
    real = var.real
    if is_torchs(found) and found is not None:
        return None
    if real is not None and var.source is not None and name in real.__dict__:
        return wrap_named(tx.trace, real.__dict__[name], place_of(real, var.source, name))
    if found is None:
        return None
    return attributes.bind(tx, var, var.cls, name)


def write_own(tx: Frame, var: TensorVar, name: str, value: Var) -> bool:
    """Whether `tensor.name = value` of a subclass is done. Errors: Break where it can't be."""
    if var.cls in PLAIN:
        return False
    shown = Break("attribute_store_unknown", f"{name} of {var!r}")
    if find_owner(torch.Tensor, name) is not None:
        if var.overrides and var.source is not None:  # the store itself would ask again
            raise shown
        return False
    found = find_owner(var.cls, name)
    if not is_torchs(find_owner(var.cls, "__setattr__")) or in_transform():
        raise shown
    if found is not None and isinstance(found[1], property):
        raw = RawAttribute(found[1], found[0], name, var.cls, var)
        tx.call(part_of_property(tx, raw, "fset"), [var, value], {})
        return True
    if found is not None and is_data_descriptor(found[1]):
        raise shown
    if is_wrapper_class(var.cls) and hasattr(var.fake, name):  # its flattening may read it
        raise shown
    tx.trace.effects.store_attr(var, name, value, raw=False)
    var.written[name] = value
    return True


# -- making them ---------------------------------------------------------------------------------


def is_target(cls: type) -> bool:
    return cls is torch.Tensor or is_plain_subclass(cls)


@rule(torch.Tensor.as_subclass, TensorVar, ClassVar)
def as_subclass(tx: Frame, var: TensorVar, cls: ClassVar) -> Var | None:
    """Another tensor in the same memory."""
    if is_wrapper_class(var.cls) or not is_target(cls.cls):
        raise Break("tensor_subclass", f"{var!r} as a {cls.cls.__qualname__}")
    return alias(tx, var, cls.cls)


@rule(torch.Tensor._make_subclass, ClassVar, TensorVar)
def make_subclass(
    tx: Frame, cls: ClassVar, data: TensorVar, requires_grad: Var = ConstVar(False)  # noqa: B008
) -> Var | None:
    """The same, without a history."""
    if is_wrapper_class(data.cls) or not is_plain_subclass(cls.cls):
        raise Break("tensor_subclass", f"{data!r} as a {cls.cls.__qualname__}")
    made = put_in_graph(tx, torch.Tensor.detach, [data], {})
    assert isinstance(made, TensorVar)
    made = with_class(tx, made, cls.cls)
    if requires_grad.truth(tx):
        set_requires_grad(tx, made, ConstVar(True))
    return made


def with_class(tx: Frame, var: TensorVar, cls: type) -> TensorVar:
    """What an operation has just made, as a tensor of another class."""
    tx.trace.attributes.find_special(cls, OVERRIDE)
    tx.trace.attributes.find_special(cls, "__setattr__")
    var.cls = cls
    return var


def alias(tx: Frame, var: TensorVar, cls: type) -> TensorVar:
    """Another tensor in the same memory."""
    made = put_in_graph(tx, torch.ops.aten.alias.default, [var], {})
    assert isinstance(made, TensorVar)
    return with_class(tx, made, cls)


# -- what torch.Tensor answers -------------------------------------------------------------------


@rule(torch.Tensor.__torch_function__.__func__)  # type: ignore[attr-defined]
def default_answer(
    tx: Frame, cls: Var, func: Var, types: Var, args: Var | None = None, kwargs: Var | None = None
) -> Var | None:
    """Calls the function with the asking turned off; tensors among the results get the class."""
    if not isinstance(cls, ClassVar):
        return None
    kinds = [kind.cls for kind in types.unpack(tx) if isinstance(kind, ClassVar)]
    if not all(issubclass(cls.cls, kind) for kind in kinds):
        return ConstVar(NotImplemented)
    given = [] if args is None else args.unpack(tx)
    none = kwargs is None or kwargs.is_constant() and kwargs.as_constant() is None
    named = {} if none or kwargs is None else keywords_of(tx, kwargs)
    mark = tx.trace.graph.mark()
    with Off(tx.trace):
        result = tx.call(func, given, named)
    known = real_function(func)
    if known is not None and known in NOWRAP:
        return result
    is_torchs = isinstance(func, MethodVar | BuiltinVar) or module_of(
        getattr(func, "real", None)).partition(".")[0] == "torch"
    fresh = tx.trace.graph.operations_after(mark) if is_torchs else {}
    return converted(tx, result, cls.cls, fresh)


def converted(tx: Frame, result: Var, cls: type, fresh: Container[fx.Node]) -> Var:
    """The result, its tensors of this class or of a subclass of it. fresh: nodes whose tensors
    nobody else has."""
    if cls is torch.Tensor:
        return result
    if isinstance(result, TensorVar):
        if issubclass(result.python_type(), cls):
            return result
        if not is_plain_subclass(cls) or is_wrapper_class(result.cls):
            raise Break("tensor_subclass", f"{result!r} as a {cls.__qualname__}")
        has_grad = result.fake.is_leaf and result.fake.requires_grad  # its alias is no leaf
        if result.node not in fresh or has_grad:
            return alias(tx, result, cls)
        return with_class(tx, result, cls)
    if isinstance(result, SizeVar) or not isinstance(result, ListVar | TupleVar | NamedTupleVar):
        return result
    items = [converted(tx, item, cls, fresh) for item in result.items]
    if isinstance(result, NamedTupleVar):
        return NamedTupleVar(result.python_type(), items)
    return result.clone(items)


TensorVar.subclass_attribute = staticmethod(get_attr)
