"""How the new bytecode makes, or loads, classes."""

from __future__ import annotations

from dynamo.base.errors import Break
from dynamo.codegen.rebuild import Rebuilder, rebuilds
from dynamo.symbolic.python import classes, made_classes
from dynamo.symbolic.python.objects import EnumVar


@rebuilds(classes.ClassVar)
def class_(rebuilder: Rebuilder, var: classes.ClassVar) -> None:
    rebuilder.emitter.load_const(var.cls)


@rebuilds(made_classes.MadePartVar)
def class_part(rebuilder: Rebuilder, var: made_classes.MadePartVar) -> None:
    rebuilder.call_keywords(var.function, var.args, var.kwargs)


def bare_class(rebuilder: Rebuilder, var: made_classes.MadeClassVar) -> None:
    emitter = rebuilder.emitter
    emitter.start_call_const(made_classes.make_bare)
    if var.kind_var is not None:
        rebuilder.load(var.kind_var)
    else:
        emitter.load_const(var.kind)
    emitter.load_const(var.cls.__name__)
    rebuilder.build("BUILD_TUPLE", var.bases)
    emitter.load_const(tuple(var.names))
    emitter.load_const(var.fixed)
    emitter.call(5)


@rebuilds(EnumVar)
def enum_member(rebuilder: Rebuilder, var: EnumVar) -> None:
    """A member of an enumeration that the trace has made."""
    if var.class_var is None:
        rebuilder.emitter.load_const(var.real)
    else:
        rebuilder.call_const(getattr, var.class_var, var.real.name)


@rebuilds(made_classes.MadeClassVar)
def made_class(rebuilder: Rebuilder, var: made_classes.MadeClassVar) -> None:
    """An empty class, which is then filled: its parts may refer to it."""
    emitter = rebuilder.emitter
    for base in var.bases:  # a base makes its subclasses, of which this is one
        rebuilder.load(base)
        emitter.emit("POP_TOP")
    if var in rebuilder.places:
        emitter.load_fast(rebuilder.places[var])
        return
    open_bases = any(base in rebuilder.unfinished for base in var.bases)
    if open_bases and var.recipe is not None:
        raise Break("rebuild_unknown", f"{var!r}, to which its base refers")
    if var.recipe is not None:
        rebuilder.call_const(var.recipe[0], *var.recipe[1])
    else:
        bare_class(rebuilder, var)
    rebuilder.places.pop(var, None)  # a recipe has made that one of a class that lacked parts
    rebuilder.keep(var)
    rebuilder.unfinished[var] = []
    for name, value in var.entries.items():
        if name not in var.fixed:
            is_part = isinstance(value, made_classes.MadePartVar)
            store = made_classes.store_part if is_part else made_classes.store_entry
            rebuilder.call_const(store, var, name, value)
            emitter.emit("POP_TOP")
    finish_after_bases(rebuilder, var)
    for subclass in var.subclasses:
        rebuilder.load(subclass)
        emitter.emit("POP_TOP")


def finish_after_bases(rebuilder: Rebuilder, var: made_classes.MadeClassVar) -> None:
    """What is done with the whole class (`dataclass` reads the bases' fields), then with the
    classes that have waited for it."""
    for base in var.bases:
        if base in rebuilder.unfinished:
            rebuilder.unfinished[base].append(var)
            return
    for function, args in ((made_classes.finish, ()), *var.decorators):
        rebuilder.call_const(function, var, *args)
        rebuilder.emitter.emit("POP_TOP")
    for waiting in rebuilder.unfinished.pop(var):
        assert isinstance(waiting, made_classes.MadeClassVar)
        finish_after_bases(rebuilder, waiting)
