"""Built-ins about classes and attributes: `type`, `isinstance`, `getattr`, `super` and the methods
of `object` and `type`."""

from __future__ import annotations

import abc
import builtins
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from dynamo.base.errors import Break
from dynamo.guards.registrations import REGISTRATIONS
from dynamo.guards.sources import REGISTERED, AttrSource, CallSource, ObjectSource
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import (
    find_in_mro,
    find_owner,
    is_derived,
    is_own_method,
    module_of,
    name_in_c,
)
from dynamo.symbolic.core.table import NONE, first_rule, rule
from dynamo.symbolic.core.unguarded import Unguarded
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.python.aliases import AliasVar
from dynamo.symbolic.python.binders import is_settled
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.construction import Construction
from dynamo.symbolic.python.exceptions import ExceptionVar, read_attribute
from dynamo.symbolic.python.lists import ListVar, TupleVar
from dynamo.symbolic.python.objects import HEAP_TYPE, ObjectVar
from dynamo.symbolic.python.sameness import guarded_type
from dynamo.symbolic.python.supers import SuperVar


@rule([type])
def type_(tx: Frame, /, *args: Var, **kwargs: Var) -> Var | None:
    if len(args) != 1:
        return None
    return tx.trace.wrap(args[0].python_type(), None)


@rule([type.__call__])
def type_call(tx: Frame, cls: Var, /, *args: Var, **kwargs: Var) -> Var:
    assert isinstance(cls, ClassVar)
    return tx.trace.state(Construction).construct_plain(tx, cls, list(args), kwargs)


def any_class(
    tx: Frame, function: str, subject: Var, classes: Var, test: Callable[[type], bool]
) -> bool:
    """Whether a class passes of those that isinstance and issubclass take: they stop at the first,
    so that what stands behind it may be no class. Other objects are asked themselves
    (`typing.Dict`)."""
    if isinstance(classes, ClassVar):
        return test(classes.cls)
    if isinstance(classes, TupleVar):
        return any(any_class(tx, function, subject, item, test) for item in classes.items)
    if isinstance(classes, AliasVar) and isinstance(classes.as_constant(), types.UnionType):
        return any(test(kind) for kind in classes.as_constant().__args__)
    if isinstance(classes, ConstVar):
        guarded_type(tx, classes)
        what = "type" if function == "isinstance" else "class"
        some = "types" if what == "type" else "classes"
        tx.trace.raise_exception(
            TypeError, f"{function}() arg 2 must be a {what}, a tuple of {some}, or a union")
    name = OWN_CHECKS[function]
    if isinstance(classes, ObjectVar) and isinstance(
        tx.trace.attributes.find_special(classes.python_type(), name), types.FunctionType
    ):
        method = tx.trace.attributes.bind(tx, classes, classes.python_type(), name)
        return tx.call(method, [subject], {}).truth(tx)
    raise Break("call_of_unknown_function", f"{function} with {classes!r}")


OWN_CHECKS = {"isinstance": "__instancecheck__", "issubclass": "__subclasscheck__"}


@rule([isinstance])
def isinstance_(tx: Frame, var: Var, classes: Var) -> Var:
    cls = var.python_type()
    return ConstVar(any_class(
        tx, "isinstance", var, classes, lambda kind: bool(is_instance(tx, var, cls, kind))))


def is_instance(tx: Frame, var: Var, cls: type, kinds: type) -> bool:
    if cls is kinds:
        return True
    if kinds is Any:
        tx.trace.raise_exception(TypeError, "typing.Any cannot be used with isinstance()")
    check = own_check(tx, kinds, "__instancecheck__")
    if check is not None:
        return tx.call(check, [var], {}).truth(tx)
    if kinds is torch.nn.Parameter or kinds is torch.nn.Buffer:
        return issubclass(cls, kinds) or has_flag(tx, var, kinds)
    if var.is_tensor and isinstance(kinds, TENSOR_TYPE):
        facts = ("dtype", "layout", "is_cuda")  # torch.FloatTensor and the like
        return all(getattr(var.as_fake(), fact) == getattr(kinds, fact) for fact in facts)
    if isinstance(kinds, abc.ABCMeta):
        if own_check(tx, kinds, "__subclasscheck__") is not None:
            raise Break("call_of_unknown_function", f"isinstance({var!r}, {kinds.__qualname__})")
        if isinstance(var, ObjectVar):  # what the class says is asked first, and may raise
            said = var.get_attr(tx, "__class__")
            if not isinstance(said, ClassVar):
                raise Break("attribute_unknown", f"__class__ of {var!r}")
        check_abstract(tx, cls, kinds)
    if is_derived(cls, kinds):
        return True
    check_protocol(tx, var, kinds)
    read = read_class(tx, var, cls)
    return any([is_subclass(tx, kind, kinds) for kind in {cls, read}])


def check_abstract(tx: Frame, cls: type, kinds: type) -> None:
    """Breaks where an abstract class may answer otherwise than those of Python do: it keeps classes
    in sets, and asks itself for `__subclasscheck__`."""
    attributes = tx.trace.attributes
    for kind in {type(cls), type(kinds)}:
        for name in ("__hash__", "__eq__", "__getattribute__"):
            if attributes.find_special(kind, name) is not getattr(type, name):
                raise Break("call_of_unknown_function", f"isinstance by {kind.__qualname__}")
    if find_owner(kinds, "__subclasscheck__") is not None:
        raise Break("call_of_unknown_function", f"isinstance by {kinds.__qualname__}")
    attributes.guard_search(kinds, "__subclasscheck__", None)


def check_protocol(tx: Frame, var: Var, kinds: type) -> None:
    """Breaks where a protocol asks the instance for its attributes, or refuses."""
    if not issubclass(type(kinds), type(typing.Protocol)) or kinds is typing.Protocol or (
        not find_in_mro(kinds, "_is_protocol")
    ):
        return
    members = typing._get_protocol_attrs(kinds)  # type: ignore[attr-defined]
    methods_only = all(callable(getattr(kinds, name, None)) for name in members)
    by_class = not isinstance(var, ObjectVar) or (
        all(find_in_mro(var.cls, name) is not None for name in members))
    if not (find_in_mro(kinds, "_is_runtime_protocol") and methods_only and by_class):
        raise Break("call_of_unknown_function", f"isinstance({var!r}, {kinds.__qualname__})")


def read_class(tx: Frame, var: Var, cls: type) -> type:
    """What `var.__class__` gives, which a class may compute."""
    if not isinstance(var, ObjectVar):
        if issubclass(cls, weakref.ProxyTypes) or (
            is_own_method(find_in_mro(cls, "__getattribute__"))
        ):
            raise Break("attribute_unknown", f"__class__ of {var!r}")
        return cls
    read = tx.trace.attributes.unless_missing(tx, lambda: var.get_attr(tx, "__class__"))
    return read.cls if isinstance(read, ClassVar) else cls


def is_subclass(tx: Frame, cls: type, kinds: type) -> bool:
    """What `issubclass` says, or the part of `isinstance` that looks at classes alone."""
    found: bool = tx.trace.run_real(lambda: issubclass(cls, kinds))
    if isinstance(kinds, abc.ABCMeta) and not (found and is_derived(cls, kinds)):
        tx.trace.state(Unguarded).is_subclass(cls, kinds, found)
        if not found:
            guard_registrations(tx, cls, kinds)
    return found


def guard_registrations(tx: Frame, cls: type, abstract: type) -> None:
    """Guards that the class is not registered with the abstract one."""
    if not (is_settled(cls) and is_settled(abstract)):
        REGISTRATIONS.deny(cls, abstract)
        tx.trace.guard("CONST", REGISTERED, REGISTRATIONS())


def own_check(tx: Frame, kind: type, name: str) -> Var | None:
    """The method by which a metaclass says what belongs to its classes, None for known ones."""
    found = find_owner(type(kind), name)
    assert found is not None
    is_known = module_of(found[1]) in KNOWN_CHECKS if isinstance(
        found[1], types.FunctionType) else found[0] in (type, TENSOR_TYPE)
    if not is_known or kind.__dict__.get("__module__") in OPAQUE:
        # Of the program, or of a library in C; the base class asks a registry.
        return tx.trace.attributes.bind(tx, tx.trace.wrap(kind, None), type(kind), name)
    tx.trace.attributes.guard_search(type(kind), name, found[0])
    return None


def has_flag(tx: Frame, var: Var, kind: type) -> bool:
    """True for a tensor from outside that says itself that it is a parameter or buffer."""
    name = "_is_param" if kind is torch.nn.Parameter else "_is_buffer"
    if not var.is_tensor:
        return False
    if getattr(var, "real", None) is None:
        return name in getattr(var, "written", ())
    return var.has_attr(tx, name) and var.get_attr(tx, name).truth(tx)


TENSOR_TYPE = type(torch.FloatTensor)
# Placements, meshes: the module up to torch 2.13, and its name since. It differs from `type` for
# substitutes in an export alone.
OPAQUE = frozenset({"torch._opaque_base", "torch._custom_class_base"})
KNOWN_CHECKS = OPAQUE | {"abc", "typing", "torch", "torch._C", "torch.nn.parameter", "enum",
                         "torch.autograd.variable", "_py_abc"}


@rule(type.__subclasses__, ClassVar)
def subclasses(tx: Frame, cls: ClassVar) -> Var:
    """Those that there are now; the next call looks again."""
    source = CallSource(AttrSource(cls.source or ObjectSource(cls.cls, "class"), "__subclasses__"))
    return ListVar(tx.trace.wrap(type.__subclasses__(cls.cls), source).unpack(tx))


@rule(type.mro, ClassVar)
def order_of_bases(tx: Frame, cls: ClassVar) -> Var:
    return ListVar(cls.get_attr(tx, "__mro__").unpack(tx))


@rule([issubclass])
def issubclass_(tx: Frame, cls: Var, classes: Var) -> Var:
    cls.python_type()
    if isinstance(cls, ObjectVar):  # which may have `__bases__`
        raise Break("call_of_unknown_function", f"issubclass({cls!r}, {classes!r})")
    if not isinstance(cls, ClassVar) and not isinstance(classes, ClassVar | TupleVar):
        refuse_as_class(tx, cls)
    return ConstVar(any_class(
        tx, "issubclass", cls, classes, lambda kind: is_subclass_of(tx, cls, kind)))


def refuse_as_class(tx: Frame, var: Var) -> NoReturn:
    guarded_type(tx, var)  # another value may be a class
    tx.trace.raise_exception(TypeError, "issubclass() arg 1 must be a class")


def is_subclass_of(tx: Frame, cls: Var, kinds: type) -> bool:
    check = own_check(tx, kinds, "__subclasscheck__")
    if check is not None:
        return tx.call(check, [cls], {}).truth(tx)
    if not isinstance(cls, ClassVar):
        refuse_as_class(tx, cls)
    if isinstance(kinds, abc.ABCMeta):
        check_abstract(tx, cls.cls, kinds)
    return is_subclass(tx, cls.cls, kinds)


def attribute_name(tx: Frame, name: Var) -> str:
    """The name of an attribute; an error of the program where it is no text."""
    kind = name.python_type()
    if not issubclass(kind, str):
        message = f"attribute name must be string, not '{name_in_c(kind)}'"
        tx.trace.raise_exception(TypeError, message)
    return name.as_constant()  # type: ignore[no-any-return]


@rule([getattr])
def getattr_(tx: Frame, var: Var, name: Var, *default: Var) -> Var:
    wanted = attribute_name(tx, name)
    if not default:
        return read_attribute(tx, var, wanted)
    try:
        return var.get_attr(tx, wanted)
    except ObservedException as error:
        if issubclass(error.value.python_type(), AttributeError):
            return default[0]
        raise


@rule([hasattr])
def hasattr_(tx: Frame, var: Var, name: Var) -> Var:
    return ConstVar(var.has_attr(tx, attribute_name(tx, name)))


@rule([setattr])
def setattr_(tx: Frame, var: Var, name: Var, value: Var) -> Var:
    var.set_attr(tx, attribute_name(tx, name), value)
    return NONE


@rule([delattr])
def delattr_(tx: Frame, var: Var, name: Var) -> Var:
    var.del_attr(tx, attribute_name(tx, name))
    return NONE


def refuse_class(var: Var, name: str) -> None:
    """Breaks where a method of `object` writes attributes of a class, which Python forbids."""
    if isinstance(var, ClassVar):
        raise Break("argument_mismatch", f"object.{name}({var!r})")


@rule([object.__setattr__])
def object_setattr(tx: Frame, var: Var, name: Var, value: Var) -> Var:
    if isinstance(var, ObjectVar):
        tx.trace.attributes.set_plain(tx, var, attribute_name(tx, name), value)
    else:
        refuse_class(var, "__setattr__")
        var.set_attr(tx, attribute_name(tx, name), value)
    return NONE


@rule([object.__delattr__])
def object_delattr(tx: Frame, var: Var, name: Var) -> Var:
    if isinstance(var, ObjectVar):
        tx.trace.attributes.delete_plain(tx, var, attribute_name(tx, name))
    else:
        refuse_class(var, "__delattr__")
        var.del_attr(tx, attribute_name(tx, name))
    return NONE


@rule([object.__getattribute__])
def object_getattribute(tx: Frame, var: Var, name: Var) -> Var:
    if not isinstance(var, ObjectVar):
        return var.get_attr(tx, attribute_name(tx, name))
    found = tx.trace.attributes.get_plain(tx, var, attribute_name(tx, name))
    if found is None:
        text = f"'{name_in_c(var.cls)}' object has no attribute '{attribute_name(tx, name)}'"
        missing = ExceptionVar(AttributeError, [ConstVar(text)])
        missing.name_once(name=name, obj=var)
        raise ObservedException(missing)
    return found


# Built-in exceptions that keep their arguments and nothing else.
PLAIN_EXCEPTIONS = tuple(
    cls for cls in vars(builtins).values()
    if isinstance(cls, type) and issubclass(cls, BaseException) and not issubclass(
        cls, (OSError, ImportError, SyntaxError, UnicodeError, StopIteration, SystemExit, NameError,
              AttributeError, BaseExceptionGroup))
)


@rule([object.__init__])
def object_init(tx: Frame, var: Var, /, *args: Var, **kwargs: Var) -> Var:
    if args or kwargs:
        cls = var.python_type()
        own_new, own_init = makes_itself(cls)
        if own_init or not own_new:
            name = "object" if own_init else cls.__name__
            tx.trace.raise_exception(TypeError, f"{name}.__init__() takes exactly one argument "
                                                "(the instance to initialize)")
    return NONE


@rule(list({cls.__init__ for cls in PLAIN_EXCEPTIONS}))
def exception_init(tx: Frame, var: Var, /, *args: Var, **kwargs: Var) -> Var:
    if not isinstance(var, ExceptionVar) or kwargs:  # one from outside gets new arguments, too
        raise Break("call_of_unknown_function", f"__init__ of {var!r}")
    tx.trace.effects.tick()
    var.args = list(args)
    return NONE


def makes_itself(cls: type) -> tuple[bool, bool]:
    """Whether the class has a `__new__` and an `__init__` of its own."""
    return (find_in_mro(cls, "__new__") is not object.__new__,
            find_in_mro(cls, "__init__") is not object.__init__)


def refuses_others(maker: type) -> None:
    """A row for `maker.__new__(cls)`, which does not make instances of classes with more in C."""

    @first_rule([maker.__new__])
    def check(tx: Frame, cls: Var, /, *args: Var, **kwargs: Var) -> Var | None:
        base = cls.cls if isinstance(cls, ClassVar) else None
        while base is not None and base.__flags__ & HEAP_TYPE:
            base = base.__base__
        fits = base is not None and (
            issubclass(cls.cls, maker)  # type: ignore[attr-defined]
            if issubclass(maker, BaseException) else base.__new__ is maker.__new__
        )
        if not fits:
            raise Break("argument_mismatch", f"{maker.__name__}.__new__({cls!r})")
        return None


MAKERS: tuple[type, ...] = (object, list, dict, set, tuple, *PLAIN_EXCEPTIONS)
for _maker in MAKERS:
    refuses_others(_maker)


@rule([object.__new__, *{cls.__new__ for cls in PLAIN_EXCEPTIONS}, list.__new__, dict.__new__,
       set.__new__])
def object_new(tx: Frame, cls: Var, /, *args: Var, **kwargs: Var) -> Var:
    if not isinstance(cls, ClassVar):
        raise Break("argument_mismatch", f"__new__({cls!r})")
    if (args or kwargs) and not issubclass(cls.cls, BaseException | list | dict | set):
        own_new, own_init = makes_itself(cls.cls)
        if own_new:
            tx.trace.raise_exception(
                TypeError, "object.__new__() takes exactly one argument (the type to instantiate)")
        if not own_init:
            tx.trace.raise_exception(TypeError, f"{cls.cls.__name__}() takes no arguments")
    return tx.trace.state(Construction).new_object(tx, cls.cls, list(args))


@rule([object.__dict__["__init_subclass__"]])
def init_subclass(tx: Frame, cls: Var, /, **keywords: Var) -> Var:
    if keywords:
        assert isinstance(cls, ClassVar)
        message = f"{cls.cls.__name__}.__init_subclass__() takes no keyword arguments"
        tx.trace.raise_exception(TypeError, message)
    return NONE


@rule([super])
def super_(tx: Frame, *args: Var) -> Var:
    if not args:
        cell = tx.cells.get("__class__")
        first = tx.code.co_varnames[0] if tx.code.co_argcount else None
        if cell is None or first is None:
            tx.trace.raise_exception(RuntimeError, "super(): no arguments")
        start = cell.peek(tx.trace)
        if start is None:
            tx.trace.raise_exception(RuntimeError, "super(): empty __class__ cell")
        receiver = tx.load_local(first)
        if receiver is None:
            tx.trace.raise_exception(RuntimeError, "super(): arg[0] deleted")
        args = (start, receiver)
    start, receiver = args if len(args) == 2 else (args[0], NONE)
    unbound = receiver.is_constant() and receiver.as_constant() is None
    if not isinstance(start, ClassVar) or unbound:
        raise Break("argument_mismatch", f"super{args}")
    if isinstance(receiver, ClassVar) and is_derived(receiver.cls, start.cls):
        return SuperVar(start, receiver, receiver.cls)
    if not is_derived(receiver.python_type(), start.cls):
        raise Break("argument_mismatch", f"super{args}")
    return SuperVar(start, receiver, receiver.python_type())
