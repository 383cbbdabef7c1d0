"""`Trace`: the state of one attempt to trace a frame, shared by all symbolic frames of it.

Comes in: the compile context. It collects the graph, the guards and the effects, keeps one Var per
real object (so that aliasing is kept), and answers what trackers and opcode handlers ask of it:
wrapping, constants, globals, calls by the rule table, exceptions.
"""

from __future__ import annotations

import builtins
import collections
import contextlib
import enum
import sys
import types
import weakref
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from dynamo import _C
from dynamo.base.errors import Break
from dynamo.base.instances import is_class
from dynamo.base.user_lines import TORCH
from dynamo.guards.records import GuardSet, UserLine
from dynamo.guards.sources import (
    AttrSource,
    BuiltinSource,
    DictSource,
    GlobalSource,
    GlobalsSource,
    ItemSource,
    ModuleSource,
    ObjectSource,
    Source,
)
from dynamo.shapes.worlds import make_world
from dynamo.symbolic import modelled
from dynamo.symbolic.effects import Effects
from dynamo.symbolic.graph import GraphBuilder
from dynamo.symbolic.noticed import Noticed
from dynamo.symbolic.protocol import ObjectProtocol
from dynamo.symbolic.rules import decided, devices, table, torch_functions
from dynamo.symbolic.stack_values import OpaqueVar
from dynamo.symbolic.symbols import Symbols
from dynamo.symbolic.variables.base import ObservedException, Var
from dynamo.symbolic.variables.binders import is_settled
from dynamo.symbolic.variables.constant import ConstVar
from dynamo.symbolic.variables.dicts import DictVar, SetVar
from dynamo.symbolic.variables.exceptions import ExceptionVar
from dynamo.symbolic.variables.generators import GeneratorVar
from dynamo.symbolic.variables.iterators import SequenceIteratorVar
from dynamo.symbolic.variables.lists import ListVar, SizeVar, TupleVar
from dynamo.symbolic.variables.lookup import builtins_of, full_name, is_own_method
from dynamo.symbolic.variables.objects import ObjectVar
from dynamo.symbolic.variables.python_modules import FIXED_ROOTS, asks_program, has_attribute
from dynamo.symbolic.variables.tensor import TensorVar
from dynamo.symbolic.variables.wrapping import sees_lookups, wrap_value

if TYPE_CHECKING:
    from dynamo.symbolic.machine import SymbolicFrame

assert modelled.COMPLETE


class Trace(ObjectProtocol):
    """One attempt.

    context: the compile context (config, lessons of earlier attempts).
    frames: the symbolic frames, root first; kept by the machine.
    steps: instructions executed so far, over all frames; kept by the machine, as is the number of
        calls that instructions make of themselves.
    forced_breaks: steps before which this attempt must break.
    handles: True once a frame has `try`, `with` or the like.
    arrays: tensors in the memory of numpy arrays from outside. tables: inputs of known values.
    passed_iterator: that of the loop whose body the trace begins with, when it begins there.
    suspended: frames of generators that wait inside of a `try` or `with`, and their Vars, which die
        when the program lets go of them.
    """

    def __init__(self, context: Any = None) -> None:
        super().__init__()
        self.context = context
        self.frames: list[SymbolicFrame] = []
        self.steps = 0
        self.calls = 0
        self.handles = False
        self.forced_breaks: frozenset[int] = frozenset()
        self.noticed: Noticed | None = None
        self.passed_iterator: Source | None = None
        self.suspended: dict[SymbolicFrame, weakref.ref[GeneratorVar]] = {}
        self.guards = GuardSet()
        self.effects = Effects()
        self.graph = GraphBuilder(self.user_stack, self.step_now)
        self.world = make_world(bool(getattr(context, "symbolic", False)))
        self.symbols = Symbols(self, context)
        self._known: dict[int, tuple[Any, Var]] = {}
        self._found: list[Var] | None = None  # what `wrap` gave, while that is noted
        self.owners: dict[int, ObjectVar] = {}  # by the ids of their instance dicts
        self._copies: dict[int, tuple[Any, Var]] = {}  # of what lies in models of made classes
        self._globals_sources: dict[int, tuple[Any, Source]] = {}
        self._builtin_sources: dict[str, Source] = {}
        self._said: dict[tuple[str, int, int], tuple[Source | None, Any]] = {}
        self._root_globals: dict[str, Any] | None = None
        self.grad_mode_at_start = torch.is_grad_enabled()
        self.inference_mode = self.saw_inference_mode = torch.is_inference_mode_enabled()
        self.guard("GLOBAL_STATE", None, _C.global_state())

    def release(self) -> None:
        """Lets go of the program's values: the trace is part of cycles, and dies late."""
        self._known.clear()
        self._said.clear()
        self.owners.clear()
        self._copies.clear()
        self.suspended.clear()
        self.noticed = None
        self.made.clear()
        self.tensor_inputs.clear()
        self.looked_at.clear()
        self.arrays.clear()
        self.tables.clear()
        self.mutated.clear()
        self.watched.clear()
        self.asked.clear()
        self.deep_copied.clear()
        self.identified.clear()
        self.keyed.clear()
        self.real_keys.clear()
        self.effects = Effects()
        self.guards = GuardSet()  # the result has those of this trace
        self.world.forget_reals()

    # -- places -----------------------------------------------------------------------------

    def user_stack(self) -> tuple[UserLine, ...]:
        """The user's lines, outermost first."""
        return tuple(frame.user_line() for frame in self.frames)

    def user_line(self) -> UserLine | None:
        """Of the innermost frame that is not torch's own, which the user can't change."""
        own = (f for f in reversed(self.frames) if not f.code.co_filename.startswith(TORCH))
        frame = next(own, self.frames[-1] if self.frames else None)
        return None if frame is None else frame.user_line()

    def step_now(self) -> int:
        """The number of the innermost frame's instruction."""
        return self.frames[-1].step_at_start if self.frames else self.steps

    # -- guards -----------------------------------------------------------------------------

    def guard(self, kind: str, source: Source | None, payload: Any = None) -> None:
        """Assumes something about the real value at `source`."""
        said = kind, id(source), id(payload)
        if said in self._said:
            return
        if isinstance(source, ObjectSource) and kind in ("TYPE", "ID", "CODE"):
            return
        if source is not None and (is_in_constant_tuple(source) or self.made.is_inside(source)):
            return
        self._said[said] = source, payload  # they live as long as their ids count
        self.guards.add_at(self.user_line, kind, source, payload)
        if kind in ("TYPE", "ID") and is_class(payload):
            self.guard_bases(payload)

    def guard_bases(self, cls: type) -> None:
        """Assumes that a class keeps its bases (and they theirs), where it has any but `object`."""
        order = type.__dict__["__mro__"].__get__(cls)
        if len(order) > 2 and not is_settled(cls):
            place = AttrSource(ObjectSource(cls, cls.__qualname__), "__mro__")
            self.guards.add_at(self.user_line, "LENGTH", place, len(order))
            for at, base in enumerate(order[1:-1], 1):
                self.guards.add_at(self.user_line, "ID", ItemSource(place, at), base)

    # -- values -----------------------------------------------------------------------------

    def wrap_named(self, value: Any, source: Source) -> Var:
        """`wrap` for a value found by a name that may be gone later: reading it would raise then,
        also where nothing of the value is looked at."""
        self.guard("PRESENT", source)
        return self.wrap(value, source)

    def wrap(self, value: Any, source: Source | None) -> Var:
        """The Var of a real value that is found at `source`; one Var per object."""
        var = self._wrap(value, source)
        if self._found is not None:
            self._found.append(var)
        return var

    @contextlib.contextmanager
    def noting_found(self) -> Iterator[list[Var]]:
        """Inside, the list gets the Vars of all real values that are looked at."""
        outer, self._found = self._found, []
        try:
            yield self._found
        finally:
            if outer is not None:
                outer.extend(self._found)
            self._found = outer

    def _wrap(self, value: Any, source: Source | None) -> Var:
        key = id(value)
        # The program may hold the same number or empty tuple elsewhere, where it needs a guard.
        copied = bool(self.made.vars) and not sees_lookups(value) and (
            type(value) in COPIED_FROM_MODELS and self.made.is_inside(source) is not None)
        known = (self._copies if copied else self._known).get(key)
        if known is not None:
            var = known[1]
            if source is None and var.source is not None and issubclass(type(value), NAMED):
                self.guard("ID", var.source, value)  # at a later call it must be there, too
            elif source is not None and var.source is not None and (
                var.source is not source and var.source != source
            ):
                self.guard("SAME", source, var.source)
            return var
        if copied:
            var = SetVar() if type(value) is set else self.constant(value)
            self._copies[key] = (value, var)
            return var
        if key in self.collecting:
            raise Break("call_of_unknown_function", "what lists the warnings")
        if source is None:
            source = ObjectSource(value, getattr(value, "__name__", type(value).__name__))
        var = wrap_value(self, value, source)
        if not isinstance(var, ConstVar):
            self._known[key] = (value, var)
        return var

    def known(self) -> Iterable[tuple[Any, Var]]:
        """The objects that the trace has met, with their Vars."""
        return self._known.values()

    def known_var(self, value: Any) -> Var | None:
        """The Var of a real object that the trace has met."""
        known = self._known.get(id(value))
        return None if known is None else known[1]

    def note_owner(self, own: dict[str, Any], var: ObjectVar) -> None:
        """The instance dict of a real object is looked at, or written."""
        other = self.owners.get(id(own), var)
        if other is not var or isinstance(self.known_var(own), DictVar):
            # neither would see the other's changes
            raise Break("attribute_unknown", f"a name in the dict of {var!r}, also met by itself")
        self.owners[id(own)] = var

    def real_values(self) -> dict[Var, Any]:
        """The real objects that the trace has met, by their Vars."""
        return {var: value for value, var in self._known.values()}

    def wrap_or_pass_on(self, value: Any, source: Source) -> Var:
        """The Var of a value; one that can't be modelled may still be passed on."""
        try:
            return self.wrap(value, source)
        except Break as reason:
            opaque = OpaqueVar(self, value, source, reason)
            self.remember(value, opaque)
            return opaque

    def remember(self, value: Any, var: Var) -> None:
        """Makes `var` the Var of a real object (for trackers made by hand)."""
        self._known[id(value)] = (value, var)

    def constant(self, value: Any) -> Var:
        """A Var for a value computed while tracing; containers become new containers."""
        if type(value) is slice:
            return self.wrap(value, None)
        if type(value) is torch.Size:
            return SizeVar([self.constant(item) for item in value])
        if type(value) is tuple:
            return TupleVar([self.constant(item) for item in value])
        if type(value) is list:
            return ListVar([self.constant(item) for item in value])
        if type(value) is dict:
            pairs = [(self.constant(key), self.constant(item)) for key, item in value.items()]
            return DictVar.from_pairs(self.frames[-1], pairs)
        if type(value) in PLAIN_CONSTANTS:
            return ConstVar(value)
        if type(value) in SYMBOLIC_TYPES:
            return self.symbols.wrap_symbolic(value)
        return self.wrap(value, None)

    def iterator(self, items: Iterable[Var], text: ConstVar | None = None) -> Var:
        """An iterator over known items, those of a str or bytes if it is given."""
        return SequenceIteratorVar(TupleVar(list(items)), text)

    # -- globals ----------------------------------------------------------------------------

    def globals_source(self, module_globals: dict[str, Any]) -> Source:
        """How the globals dict of a function is fetched."""
        known = self._globals_sources.get(id(module_globals))
        if known is not None:
            return known[1]
        if self.frames and module_globals is self.frames[0].globals:
            source: Source = GlobalsSource()
        else:
            import_name = module_globals.get("__name__")
            module = modelled.find_module(import_name)
            if module is not None and module.__dict__ is module_globals:
                source = DictSource(ModuleSource(str(import_name)))
            else:
                source = ObjectSource(module_globals, f"<globals of {import_name}>")
        self._globals_sources[id(module_globals)] = (module_globals, source)
        return source

    def global_source(self, module_globals: dict[str, Any], name: str) -> Source:
        source = self.globals_source(module_globals)
        return GlobalSource(name) if isinstance(source, GlobalsSource) else ItemSource(source, name)

    def load_global(self, tx: SymbolicFrame, name: str) -> Var:
        """A module-level or built-in name, as LOAD_GLOBAL finds it."""
        module_globals = tx.globals
        written, value = self.effects.written_global(module_globals, name)
        if written and value is not None:
            return value
        if not written and name in module_globals:
            return self.wrap_named(
                module_globals[name], self.global_source(module_globals, name))
        names = builtins_of(module_globals)
        if not written:
            self.guard("DICT_LACKS", self.globals_source(module_globals), name)
        replaced, value = self.effects.written_global(names, name)
        if value is not None:
            return value
        if replaced or name not in names:
            if not replaced and names is builtins_of({}):
                self.guard("DICT_LACKS", DictSource(ModuleSource("builtins")), name)
            self.raise_name_error(name, f"name '{name}' is not defined")
        source = self._builtin_sources.setdefault(name, BuiltinSource(name))
        if names is builtins_of(self.frames[0].globals):
            self.guard("ID", source, names[name])
        return self.wrap(names[name], source)

    def expect_builtin(self, tx: SymbolicFrame, known: Any) -> None:
        """What an instruction asks for without naming it is the interpreter's own function."""
        names, name = builtins_of(tx.globals), known.__name__
        if self.effects.written_global(names, name)[0] or names.get(name) is not known:
            raise Break("call_of_unknown_function", f"{name} of the program")
        if names is builtins_of(self.frames[0].globals):
            self.guard("ID", BuiltinSource(name), known)

    def store_global(self, tx: SymbolicFrame, name: str, value: Var) -> None:
        self.effects.store_global(tx.globals, name, value)

    def delete_global(self, tx: SymbolicFrame, name: str) -> None:
        written, value = self.effects.written_global(tx.globals, name)
        present = value is not None if written else name in tx.globals
        if not written:
            kind = "DICT_HAS" if present else "DICT_LACKS"
            self.guard(kind, self.globals_source(tx.globals), name)
        if not present:
            self.raise_name_error(name, f"name '{name}' is not defined")
        self.effects.store_global(tx.globals, name, None)

    # -- calls ------------------------------------------------------------------------------

    def check_length(self) -> None:
        """Breaks where the trace has more instructions and calls than it may have."""
        if self.steps + self.calls > self.context.max_steps:
            raise Break("trace_too_long", f"{self.steps + self.calls} instructions")

    def call(self, tx: SymbolicFrame, function: Any, /, *args: Var, **kwargs: Var) -> Var:
        """Calls a real built-in with Vars."""
        return self.call_real(tx, function, list(args), kwargs)

    def call_real(
        self, tx: SymbolicFrame, function: Any, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        """Calls a real callable by the rule table or as a graph operation."""
        result = decided.call_decided(tx, function, args, kwargs)
        if result is not None:
            return result
        if function is dict.__getitem__ and len(args) == 2 and not kwargs:
            found = self.call_missing(tx, args[0], args[1])
            if found is not None:
                return found
        owner = getattr(function, "__objclass__", None)
        if kwargs and owner in NO_KEYWORDS and function.__name__ not in KEYWORDS:
            raise Break("argument_mismatch", f"{function.__qualname__}() takes no keywords")
        if owner is not None and args and args[0].methods_by_name:
            return args[0].call_method(tx, function.__name__, args[1:], kwargs)
        if owner is not None and args and owner is not object:
            content = getattr(args[0], "content", None)
            if content is not None and issubclass(content.python_type(), owner) and (
                function not in MADE_BY_CLASS and not self._asks_class(function, args[0])
            ):
                args = [content, *args[1:]]
        if owner is dict and function.__name__ in vars(collections.OrderedDict):
            if args and args[0].python_type() is collections.OrderedDict:  # it has two orders
                raise Break("call_of_unknown_function", f"{full_name(function)}({args[0]!r})")
        try:
            result = table.apply(tx, function, args, kwargs)
        except TypeError as error:
            if "unhashable" not in str(error):
                raise
            result = None
        if result is not None:
            return result
        if torch_functions.is_graph_function(function):
            return torch_functions.call_in_graph(tx, function, args, kwargs)
        shown = ", ".join([*map(repr, args), *(f"{key}={arg!r}" for key, arg in kwargs.items())])
        raise Break("call_of_unknown_function", f"{full_name(function)}({shown})")

    def _asks_class(self, function: Any, var: Var) -> bool:
        """True where a method of OrderedDict calls methods of the program's own subclass."""
        return function in ASKING_CLASS and any(
            is_own_method(self.attributes.find_special(var.python_type(), name))
            for name in ASKED_OF_CLASS)

    def call_type_method(
        self, tx: SymbolicFrame, var: Var, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        """`var.name(*args)` where the type of var is built in."""
        cls = var.python_type()
        raw = modelled.find_in_mro(cls, name)
        if raw is None:
            self.raise_exception(
                AttributeError, f"'{modelled.told_name(cls)}' object has no attribute '{name}'"
            )
        if isinstance(raw, types.ClassMethodDescriptorType | staticmethod):
            return self.call_real(tx, getattr(cls, name), args, kwargs)
        if not isinstance(raw, METHOD_DESCRIPTORS):
            return tx.call_attribute(var, name, args, kwargs)
        return self.call_real(tx, raw, [var, *args], kwargs)

    def raise_exception(self, cls: type[BaseException], *args: Any) -> NoReturn:
        """Raises an exception of the traced program; args are Vars or constants."""
        if cls is TypeError and (self.symbols.unknowns.origins or self.takes_ids):
            raise Break("unknown_number", str(args[0]))  # a row that does not know such numbers
        values = [arg if isinstance(arg, Var) else self.constant(arg) for arg in args]
        raise ObservedException(ExceptionVar(cls, values))

    def raise_as(self, error: Exception) -> NoReturn:
        """Raises in the traced program what a real call has raised."""
        if vars(error):  # what its `__init__` has set, as that of re.error does
            raise Break("exception_state", type(error).__qualname__) from error
        self.raise_exception(type(error), *error.args)

    def raise_name_error(self, name: str, text: str) -> NoReturn:
        """Raises NameError in the traced program; it knows the name."""
        error = ExceptionVar(NameError, [ConstVar(text)])
        error.name_once(name=ConstVar(name))
        raise ObservedException(error)

    # -- with and import -------------------------------------------------------------------

    def enter_context(self, tx: SymbolicFrame, manager: Var) -> tuple[Var, Var]:
        """The bound `__exit__` of what a `with` block enters and what `__enter__` gives."""
        manager = devices.as_context(manager)
        if isinstance(manager, WITH_A_PLAIN_TYPE):
            self._check_context(manager.python_type())
        if isinstance(manager, ObjectVar):  # both are read before one is called
            enter, leave = [
                self.attributes.bind(tx, manager, manager.cls, name) for name in WITH_METHODS]
            return leave, enter.call(tx, [], {})
        return manager.get_attr(tx, "__exit__"), manager.call_method(tx, "__enter__", [], {})

    def _check_context(self, cls: type) -> None:
        """The class must have both methods before one is called; the instance does not count."""
        text = f"'{modelled.told_name(cls)}' object does not support the context manager protocol"
        if self.attributes.find_special(cls, "__enter__") is None:
            self.raise_exception(TypeError, text)
        if self.attributes.find_special(cls, "__exit__") is None:
            self.raise_exception(TypeError, f"{text} (missed __exit__ method)")

    def import_module(
        self, tx: SymbolicFrame, name: str, fromlist: tuple[str, ...] | None, level: int
    ) -> Var:
        """`import name`, for modules that are already imported."""
        self.expect_builtin(tx, IMPORT)
        package = tx.globals.get("__package__") if level else None
        full = modelled.absolute_name(name, package, level)
        if self.known_var(sys.modules) in self.effects.targets():
            raise Break("import_of_new_module", f"{full}, behind a change of sys.modules")
        module = modelled.find_module(full)
        if module is None:
            raise Break("import_of_new_module", full)
        if not fromlist and not level:
            full = full.partition(".")[0]
        found = modelled.find_module(full)
        if found is None:
            raise Break("import_of_new_module", full)
        if full.partition(".")[0] not in FIXED_ROOTS:
            self.guard("ID", ModuleSource(full), found)
        var = self.wrap(found, ModuleSource(full))
        asks = asks_program(module)
        if fromlist and not (asks and not var.has_attr(tx, "__path__")):  # is it a package?
            for item in fromlist:
                has = var.has_attr(tx, item) if asks else has_attribute(module, item)
                if not has and modelled.find_module(f"{full}.{item}") is None:
                    raise Break("import_of_new_module", f"{full}.{item}")
        return var

    def import_from(self, tx: SymbolicFrame, module: Var, name: str) -> Var:
        """`from module import name`."""
        try:
            return module.get_attr(tx, name)
        except ObservedException:  # `sys.modules` is asked next, and the error is another one
            raise Break("import_of_new_module", f"{name} from {module!r}") from None


# Built-in types whose methods take no keywords, but for these.
NO_KEYWORDS = frozenset(
    {list, tuple, dict, set, frozenset, collections.deque, collections.defaultdict})
KEYWORDS = frozenset({"sort", "update", "__init__"})
METHOD_DESCRIPTORS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.FunctionType,
)
# Methods of containers that call the class of a subclass's instance.
MADE_BY_CLASS = (collections.OrderedDict.copy, collections.defaultdict.copy,
                 collections.defaultdict.__copy__)  # type: ignore[attr-defined]
# Those of OrderedDict that store, read and delete through the class of a subclass's instance.
ASKING_CLASS = tuple(
    getattr(collections.OrderedDict, name)
    for name in ("__init__", "update", "setdefault", "pop", "popitem"))
ASKED_OF_CLASS = ("__setitem__", "__getitem__", "__delitem__", "__contains__")
IMPORT = builtins.__import__
WITH_METHODS = ("__enter__", "__exit__")
SYMBOLIC_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)
PLAIN_CONSTANTS = frozenset(modelled.CONSTANT_TYPES)
# What lies in the model of a class and needs no place (the set is the one that `__repr__` of a
# dataclass keeps against recursion: nobody else sees it).
WITH_A_PLAIN_TYPE = (ObjectVar, TensorVar, ConstVar, ListVar, TupleVar, DictVar, SetVar)
# Found by their names, not only where they were met first.
NAMED = (
    type, enum.Enum, types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType,
    types.WrapperDescriptorType, types.ClassMethodDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType, types.MethodWrapperType, types.ModuleType, property,
)
COPIED_FROM_MODELS = PLAIN_CONSTANTS | {tuple, set}


def is_in_constant_tuple(source: Source) -> bool:
    """True for a tuple of the program's constants and what is in it: it can't change."""
    while isinstance(source, ItemSource):
        source = source.base
    return isinstance(source, ObjectSource) and source.name == "constant"
