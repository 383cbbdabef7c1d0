"""Python modules as values: `torch`, `math`, the user's own."""

from __future__ import annotations

import dis
import os
import sysconfig
import types
import warnings
from collections.abc import Hashable
from typing import Any

import dynamo.base
from dynamo.base.errors import Break
from dynamo.guards.sources import AttrSource, DictSource, ItemSource, ObjectSource, Source
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.identities import identity_key
from dynamo.symbolic.core.lookup import find_in_mro, is_own_method
from dynamo.symbolic.core.unguarded import Unguarded
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wrap_named, wraps_if

# Modules whose functions and classes are taken as fixed: nothing rebinds `torch.add` between two
# calls. Their plain values are guarded like any other.
FIXED_ROOTS = frozenset({"torch", "math", "operator", "builtins", "itertools", "functools"})


IMPORT = dis.opmap["IMPORT_NAME"]
IMPORTERS = frozenset({"import_module", "__import__"})
# Modules of installed packages find there what they import late: the same at each time.
LIBRARIES = (
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    os.path.dirname(os.path.abspath(dynamo.base.__file__ or "")).removesuffix("base"),
)


class PythonModuleVar(Var):
    """An imported module."""

    def __init__(
        self, module: types.ModuleType, source: Source | None, trace: Evaluation | None
    ) -> None:
        super().__init__(source)
        self._module = module
        self._trace = trace
        self.written: dict[str, Var | None] = {}

    @property
    def module(self) -> types.ModuleType:
        """The module; reading it guards that it is this one."""
        if self._trace is not None:
            trace, self._trace = self._trace, None
            trace.guard("ID", self.source, self._module)
            if root_of(self._module) not in FIXED_ROOTS:
                trace.guard("TYPE", self.source, type(self._module))
        return self._module

    tells_place = False

    def describe(self) -> str:
        return f"the module {self._module.__dict__.get('__name__')}"

    def python_type(self) -> type:
        return type(self.module)

    def truth(self, tx: Frame) -> bool:
        kind = type(self.module)
        if any(find_in_mro(kind, name) is not None for name in ("__bool__", "__len__")):
            raise Break("call_of_unknown_function", f"bool({self!r})")
        return True

    def get_attr(self, tx: Frame, name: str) -> Var:
        module = self.module
        attributes = module.__dict__
        written, pending = tx.trace.effects.written_global(attributes, name)
        if written and pending is not None:
            return pending
        root = root_of(module)
        kind = find_in_mro(type(module), name)
        if kind is None and (written or name not in attributes) and root not in FIXED_ROOTS:
            fallback = self._fallback(tx, name)
            if fallback is not None:
                return fallback.call(tx, [ConstVar(name)], {})
        if written:
            raise Break("attribute_unknown", f"{name} of {self!r}, which was deleted")
        if name not in attributes or hasattr(kind, "__set__"):
            return self._computed(tx, name)
        value = attributes[name]
        if root in FIXED_ROOTS and (callable(value) or isinstance(value, types.ModuleType)):
            tx.trace.state(Unguarded).read_name(module, name, value)
            return tx.trace.wrap(value, ObjectSource(value, f"{module.__name__}.{name}"))
        assert self.source is not None
        return wrap_named(tx.trace, value, ItemSource(DictSource(self.source), name))

    def _fallback(self, tx: Frame, name: str) -> Var | None:
        """The module's own `__getattr__`, where it has one that Python code defines."""
        attributes = self._module.__dict__
        written, pending = tx.trace.effects.written_global(attributes, "__getattr__")
        if not written and not has_traced_getattr(self._module):
            return None
        if type(self._module) is not types.ModuleType or self.source is None or (
            written and pending is None
        ):
            raise Break("attribute_unknown", f"{name} of {self!r}")
        if name not in attributes:
            tx.trace.guard("DICT_LACKS", DictSource(self.source), name)
        return self.get_attr(tx, "__getattr__")

    def _computed(self, tx: Frame, name: str) -> Var:
        """`__class__` and the like, and what a library's `__getattr__` gives."""
        try:
            value = read_of_library(self._module, name)
        except AttributeError as error:
            if self.source is not None:
                tx.trace.guard("DICT_LACKS", DictSource(self.source), name)
            tx.trace.raise_exception(AttributeError, *error.args)
        finally:
            if "__getattr__" not in self.module.__dict__ and self.source is not None:
                tx.trace.guard("DICT_LACKS", DictSource(self.source), "__getattr__")
        assert self.source is not None
        return tx.trace.wrap(value, AttrSource(self.source, name))

    def check_store(self, name: str) -> None:
        """Breaks where a store does more than to change the dict."""
        kind = type(self.module)
        hidden = find_in_mro(kind, name)
        methods = (find_in_mro(kind, method) for method in ("__setattr__", "__delattr__"))
        if any(map(is_own_method, methods)) or (
            hidden is not None and find_in_mro(type(hidden), "__set__") is not None
        ):
            raise Break("attribute_store_unknown", f"{name} of {self!r}")

    def set_attr(self, tx: Frame, name: str, value: Var) -> None:
        self.check_store(name)
        tx.trace.effects.store_global(self.module.__dict__, name, value)

    def del_attr(self, tx: Frame, name: str) -> None:
        self.check_store(name)
        self.get_attr(tx, name)
        tx.trace.effects.store_global(self.module.__dict__, name, None)

    def hash_key(self, tx: Frame) -> Hashable:
        return identity_key(tx.trace, self)


def has_traced_getattr(module: types.ModuleType) -> bool:
    """True where a function answers for attributes that the module lacks that has to be traced: of
    the program, or of a library that does not only import."""
    own = module.__dict__.get("__getattr__")
    return type(own) is types.FunctionType and not (
        own.__code__.co_filename.startswith(LIBRARIES) and imports(own.__code__)
    )


def imports(code: types.CodeType) -> bool:
    return IMPORT in code.co_code[::2] or not IMPORTERS.isdisjoint(code.co_names)


def read_of_library(module: types.ModuleType, name: str) -> Any:
    """`getattr(module, name)`; Break where a `__getattr__` warns, which is for the program."""
    if name in module.__dict__ or "__getattr__" not in module.__dict__:
        return attribute(module, name)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        value = attribute(module, name)
    if warned:
        module.__dict__.pop(name, None)  # kept by some, which warn once: now the program reads
        raise Break("attribute_unknown", f"{name} of {root_of(module)}, which warns")
    return value


def attribute(module: types.ModuleType, name: str) -> Any:
    """`getattr(module, name)`; Break where it fails by another error than AttributeError."""
    try:
        return getattr(module, name)
    except AttributeError:
        raise
    except Exception as error:
        raise Break("attribute_unknown", f"{name} of {root_of(module)}, which fails") from error


def has_attribute(module: types.ModuleType, name: str) -> bool:
    """`hasattr(module, name)`, with that Break."""
    try:
        read_of_library(module, name)
    except AttributeError:
        return False
    return True


def root_of(module: types.ModuleType) -> str:
    """The package that a module is in; one that is being made has no name yet."""
    return str(module.__dict__.get("__name__")).partition(".")[0]


@wraps_if(1, lambda value: issubclass(type(value), types.ModuleType))
def wrap_module(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """An imported module."""
    return PythonModuleVar(value, source, trace)
