"""Module-level and built-in names of the frames of a trace."""

from __future__ import annotations

from typing import Any

from dynamo.base.errors import Break
from dynamo.guards.sources import (
    BuiltinSource,
    DictSource,
    GlobalSource,
    GlobalsSource,
    ItemSource,
    ModuleSource,
    ObjectSource,
    Source,
)
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.lookup import builtins_of, find_module
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wrap_named
from dynamo.symbolic.python.exceptions import raise_name_error


class GlobalNames:
    """One per trace."""

    def __init__(self, trace: Evaluation) -> None:
        self.trace = trace
        self._sources: dict[int, tuple[Any, Source]] = {}
        self._builtin_sources: dict[str, Source] = {}

    def source(self, module_globals: dict[str, Any]) -> Source:
        """How the globals dict of a function is fetched."""
        known = self._sources.get(id(module_globals))
        if known is not None:
            return known[1]
        if self.trace.frames and module_globals is self.trace.frames[0].globals:
            source: Source = GlobalsSource()
        else:
            import_name = module_globals.get("__name__")
            module = find_module(import_name)
            if module is not None and module.__dict__ is module_globals:
                source = DictSource(ModuleSource(str(import_name)))
            else:
                source = ObjectSource(module_globals, f"<globals of {import_name}>")
        self._sources[id(module_globals)] = (module_globals, source)
        return source

    def source_of(self, module_globals: dict[str, Any], name: str) -> Source:
        source = self.source(module_globals)
        return GlobalSource(name) if isinstance(source, GlobalsSource) else ItemSource(source, name)

    def load(self, tx: Frame, name: str) -> Var:
        """A module-level or built-in name, as LOAD_GLOBAL finds it."""
        module_globals = tx.globals
        written, value = self.trace.effects.written_global(module_globals, name)
        if written and value is not None:
            return value
        if not written and name in module_globals:
            return wrap_named(
                self.trace, module_globals[name], self.source_of(module_globals, name))
        names = builtins_of(module_globals)
        if not written:
            self.trace.guard("DICT_LACKS", self.source(module_globals), name)
        replaced, value = self.trace.effects.written_global(names, name)
        if value is not None:
            return value
        if replaced or name not in names:
            if not replaced and names is builtins_of({}):
                self.trace.guard("DICT_LACKS", DictSource(ModuleSource("builtins")), name)
            raise_name_error(name, f"name '{name}' is not defined")
        source = self._builtin_sources.setdefault(name, BuiltinSource(name))
        if names is builtins_of(self.trace.frames[0].globals):
            self.trace.guard("ID", source, names[name])
        return self.trace.wrap(names[name], source)

    def expect_builtin(self, tx: Frame, known: Any) -> None:
        """What an instruction asks for without naming it is the interpreter's own function."""
        names, name = builtins_of(tx.globals), known.__name__
        if self.trace.effects.written_global(names, name)[0] or names.get(name) is not known:
            raise Break("call_of_unknown_function", f"{name} of the program")
        if names is builtins_of(self.trace.frames[0].globals):
            self.trace.guard("ID", BuiltinSource(name), known)

    def store(self, tx: Frame, name: str, value: Var) -> None:
        self.trace.effects.store_global(tx.globals, name, value)

    def delete(self, tx: Frame, name: str) -> None:
        written, value = self.trace.effects.written_global(tx.globals, name)
        present = value is not None if written else name in tx.globals
        if not written:
            kind = "DICT_HAS" if present else "DICT_LACKS"
            self.trace.guard(kind, self.source(tx.globals), name)
        if not present:
            raise_name_error(name, f"name '{name}' is not defined")
        self.trace.effects.store_global(tx.globals, name, None)
