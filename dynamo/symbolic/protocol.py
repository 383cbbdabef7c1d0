"""What trackers and rules ask of a trace about objects: equality, indices, iteration, construction.

A base of `Trace`; it holds no state of its own besides `attributes`.
"""

from __future__ import annotations

import collections
import enum
import inspect
import operator
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from dynamo.base.decisions import is_in_graph
from dynamo.base.errors import Break, DynamoError, Signal
from dynamo.guards.kinds import TensorFacts
from dynamo.guards.sources import (
    AttrSource,
    BuiltinSource,
    CallSource,
    DictSource,
    GlobalSource,
    ItemSource,
    ModuleSource,
    ObjectSource,
    Source,
    StateSource,
)
from dynamo.guards.states import state_of
from dynamo.symbolic.rules import decided, table, tensors, torch_functions, transforms
from dynamo.symbolic.rules.library_classes import enum_member
from dynamo.symbolic.stack_values import OpaqueVar
from dynamo.symbolic.tables import ask_for_values
from dynamo.symbolic.variables.arrays import ArrayVar
from dynamo.symbolic.variables.attributes import Attributes
from dynamo.symbolic.variables.base import ObservedException, Var
from dynamo.symbolic.variables.binders import RawAttribute, is_settled
from dynamo.symbolic.variables.classes import ClassVar
from dynamo.symbolic.variables.constant import ConstVar, is_nan, part_value
from dynamo.symbolic.variables.demands import as_demanded
from dynamo.symbolic.variables.dict_views import MappingProxyVar
from dynamo.symbolic.variables.dicts import DictVar, SetVar
from dynamo.symbolic.variables.exceptions import ExceptionVar, make_group
from dynamo.symbolic.variables.functions import FunctionVar, MethodVar
from dynamo.symbolic.variables.iterators import (
    DequeIteratorVar,
    IndexIteratorVar,
    RangeIteratorVar,
    SequenceIteratorVar,
)
from dynamo.symbolic.variables.lists import DequeVar, ListVar, SequenceVar, TupleVar
from dynamo.symbolic.variables.lookup import (
    base_of,
    class_dict,
    find_in_mro,
    find_owner,
    full_name,
    is_derived,
    told_name,
)
from dynamo.symbolic.variables.made_classes import MadeClasses, MadeClassVar
from dynamo.symbolic.variables.modules import ModuleVar
from dynamo.symbolic.variables.objects import InstanceDictVar, ObjectVar, SuperVar
from dynamo.symbolic.variables.tensor import TensorVar
from dynamo.symbolic.variables.unknown import UnknownNumber
from dynamo.symbolic.variables.values import value_base, value_in, value_unless
from dynamo.symbolic.variables.wrapping import sees_lookups, wraps, wraps_if

if TYPE_CHECKING:
    from dynamo.symbolic.machine import SymbolicFrame
    from dynamo.symbolic.rules.picking import Pick

# Modules whose attributes are taken as fixed: nobody rebinds `torch.add` between two calls.
FIXED_ROOTS = frozenset({"torch", "math", "operator", "builtins", "itertools", "functools",
                         "collections", "contextlib", "types", "typing", "enum", "copy", "abc"})
CONTENT_TYPES: dict[type, Callable[[], Var]] = {
    list: ListVar, dict: DictVar, set: SetVar,
    collections.OrderedDict: lambda: DictVar(collections.OrderedDict),
}
MOST_IDENTIFIED = 100
WRAPPERS = (types.WrapperDescriptorType, types.MethodDescriptorType, types.BuiltinFunctionType)


class ObjectProtocol:
    """Python's object protocol over Vars, for one trace."""

    def __init__(self) -> None:
        self.attributes = Attributes(self)  # type: ignore[arg-type]
        self.contexts: list[Any] = []
        self.inference_mode = self.saw_inference_mode = False
        self.default_devices: list[torch.device] = []  # of the `with` blocks that are open
        self.tensor_inputs: list[TensorVar] = []
        self.arrays: list[TensorVar] = []
        self.tables: list[TensorVar] = []
        self.mutated: dict[TensorVar, None] = {}
        self.identified: dict[Var, None] = {}
        self.takes_ids = False  # ids are numbers that few rows know
        self.keyed: dict[Var, None] = {}  # looked up by identity; `real_keys` stand in real dicts
        self.real_keys: dict[Var, None] = {}
        self.watched: dict[TensorVar, Any] = {}  # tensors with new hooks, and their `grad_fn`
        self.new_gradients_read = 0  # how often the program has asked for a `grad` it has stored
        self.picks: list[Pick] = []  # copies that stand for views
        self.deep_copied: dict[Var, list[TensorVar]] = {}  # by the memo of `copy.deepcopy`
        self.made = MadeClasses(self)  # type: ignore[arg-type]
        self.hashed: set[str] = set()
        self.collecting: dict[int, Any] = {}  # lists that get a warning behind the graph, by id
        self.handled = sys.exception() is not None  # by a caller, or an outer block
        self.refers_weakly = False  # from then on the program can tell when an object dies
        self.known_fakes = transforms.KnownFakes(self)  # type: ignore[arg-type]

    # -- knowledge ----------------------------------------------------------------------------

    def is_modelled(self, function: Any) -> bool:
        """True where a call of the function is a row of the rule table or one graph node."""
        return (
            table.has_rule(function)
            or torch_functions.is_graph_function(function)
            or decided.is_decided(function)
        )

    def is_fixed_place(self, source: Source) -> bool:
        """True where nobody rebinds what is found at the source."""
        root = source.root()
        if isinstance(root, BuiltinSource | ObjectSource):
            return True
        if isinstance(root, ModuleSource):
            return root is not source and root.name.partition(".")[0] in FIXED_ROOTS
        if isinstance(root, GlobalSource) and root is not source:
            value = self.frames[0].globals.get(root.name)  # type: ignore[attr-defined]
            name = getattr(value, "__name__", "") if isinstance(value, types.ModuleType) else ""
            return name.partition(".")[0] in FIXED_ROOTS
        return False

    # -- equality and order ---------------------------------------------------------------------

    def equals(self, tx: SymbolicFrame, a: Var, b: Var) -> bool:
        """`bool(a == b)`."""
        return tx.trace.call(tx, operator.eq, a, b).truth(tx)

    def is_or_equals(self, tx: SymbolicFrame, a: Var, b: Var) -> bool:
        """`a is b or a == b`, as containers compare their items."""
        if a is b or self.equals(tx, a, b):
            return True
        if any(type(var) is not ConstVar or var.python_type() not in (float, complex)
               for var in (a, b)):
            return False  # numbers that are not fixed stay so
        first, second = part_value(a), part_value(b)
        return is_nan(first) and first is second

    def is_among(self, tx: SymbolicFrame, iterator: Var, item: Var) -> bool:
        """`item in iterator`, which is advanced no further than to the item."""
        while True:
            try:
                other = iterator.next_item(tx)
            except ObservedException as error:
                if issubclass(error.value.python_type(), StopIteration):
                    return False
                raise
            if self.is_or_equals(tx, other, item):
                return True

    def hash_of(self, var: Var) -> Any:
        """The hash key of a key that stands in a dict from outside."""
        asked = var in self.keyed
        key = var.hash_key(self.frames[-1])  # type: ignore[attr-defined]
        if not asked and self.keyed.pop(var, 0) is None:
            self.real_keys[var] = None
        return key

    def identity_key(self, var: Var) -> Any:
        """The hash key of an object that equals itself alone."""
        if var.source is not None:
            var.python_type()  # another value may be unhashable, or equal to a key
            self.keyed[var] = None
        return ("identity", var)

    def as_index(self, tx: SymbolicFrame, key: Var) -> int | None:
        """`operator.index(key)`, None where it has none."""
        if key.is_constant():
            number = key.as_constant()
            if isinstance(number, int):
                return int(number)
            try:
                return operator.index(number)  # numpy's integers are none of Python's
            except TypeError:
                return None
        value = value_in(key)
        if value is not None and issubclass(value.python_type(), int):
            return self.as_index(tx, value)  # no `__index__` of a subclass of int is asked
        if isinstance(key, ObjectVar) and self.attributes.find_special(
            key.python_type(), "__index__"
        ) is not None:
            return int(value_unless(key.call_special(tx, "__index__")).as_constant())
        if isinstance(key, TensorVar):
            known = self.world.constant_of(key.fake)  # type: ignore[attr-defined]
            if known is None:
                ask_for_values(self, [key])  # type: ignore[arg-type]
                raise Break("item", repr(key))
            return int(self.run_real(lambda: operator.index(known)))
        if isinstance(key, OpaqueVar | ArrayVar):
            raise Break("index_unknown", repr(key))
        if isinstance(key, UnknownNumber):
            raise Break("unknown_number", repr(key))
        return None

    # -- iteration ------------------------------------------------------------------------------

    def iterate_sequence(self, tx: SymbolicFrame, var: Var) -> Var:
        assert isinstance(var, SequenceVar)
        if isinstance(var, DequeVar):
            return DequeIteratorVar(var, False, tx.step_at_start)
        return SequenceIteratorVar(var)

    def unpack_sized(self, tx: SymbolicFrame, var: Var) -> list[Var]:
        """All items, as `list(var)` reads them, which asks an object how many there are first."""
        if not isinstance(var, ObjectVar) and not (
            isinstance(var, ClassVar) and var.tells_length()
        ):
            return var.unpack(tx)
        iterator = var.iterate(tx)
        self.length_hint(tx, var, ConstVar(8))
        return iterator.remaining_items(tx)

    def is_iterable(self, var: Var) -> bool:
        cls = var.python_type()
        return any(self.attributes.has_special(cls, name) for name in ("__iter__", "__getitem__"))

    def has_keys(self, tx: SymbolicFrame, var: Var) -> bool:
        """True for what `dict` and `**` take for a mapping."""
        if self.attributes.find_special(var.python_type(), "keys") is not None:
            return True
        if isinstance(var, ObjectVar | ClassVar | FunctionVar) and var.has_attr(tx, "keys"):
            raise Break("call_of_unknown_function", f"a dict of {var!r}, which has keys of its own")
        return False

    def length_hint(self, tx: SymbolicFrame, var: Var, default: Var) -> Var:
        """`operator.length_hint(var, default)` of what methods of the program say."""
        cls = var.python_type()
        for name in ("__len__", "__length_hint__"):
            found = self.attributes.find_special(cls, name)
            if isinstance(found, (types.NoneType, *WRAPPERS)):
                continue
            method = self.attributes.bind(tx, var, cls, name)
            try:
                result = tx.call(method, [], {})
                if name == "__len__":
                    return as_demanded(tx, name, cls, result)
            except ObservedException as error:
                if not issubclass(error.value.python_type(), TypeError):
                    raise
                continue
            if not (result.is_constant() and result.as_constant() is NotImplemented):
                return as_demanded(tx, name, cls, result)
        return default

    def iterate_range(self, value: range) -> Var:
        return RangeIteratorVar(value)

    def index_iterator(self, var: Var) -> Var:
        return IndexIteratorVar(var)

    # -- making values --------------------------------------------------------------------------

    def make_tuple(self, items: list[Var]) -> Var:
        return TupleVar(items)

    def make_dict(self, items: dict[str, Var]) -> Var:
        return DictVar.from_names(items)

    def make_exception(self, cls: type[BaseException], *args: Any) -> Var:
        return ExceptionVar(cls, [self.constant(arg) for arg in args])  # type: ignore[attr-defined]

    def as_exception(self, tx: SymbolicFrame, args: list[Var]) -> Var:
        """The exception that `throw(*args)` or `raise args[0]` means."""
        first = args[0]
        if len(args) > 1 and not (args[1].is_constant() and args[1].as_constant() is None):
            if not issubclass(args[1].python_type(), BaseException):
                raise Break("argument_mismatch", "throw(type, arguments)")
            return args[1]
        if isinstance(first, ClassVar) and issubclass(first.cls, BaseException):
            return self.exception_of(tx, first)
        if issubclass(first.python_type(), BaseException):
            return first
        tx.trace.raise_exception(TypeError, (
            "exceptions must be classes or instances deriving from BaseException, not "
            + told_name(first.python_type())))

    def exception_of(self, tx: SymbolicFrame, cls: ClassVar) -> Var:
        """The exception that raising its class raises."""
        made = tx.call(cls, [], {})
        if not issubclass(made.python_type(), BaseException):  # see `__new__`
            raise Break("call_of_unknown_function", f"{cls!r}, which makes no exception")
        return made

    def generic_alias(self, tx: SymbolicFrame, cls: ClassVar, key: Var) -> Var:
        """`list[int]` and the like."""
        parts = key.unpack(tx) if isinstance(key, TupleVar) else [key]
        alias_part(tx, cls)
        values = tuple(alias_part(tx, part) for part in parts)
        index = values if isinstance(key, TupleVar) else values[0]
        return tx.trace.wrap(self.run_real(lambda: cls.cls[index]), None)  # type: ignore[index]

    def run_real(self, function: Callable[[], Any]) -> Any:
        """The result of a real call; its exception is the traced program's."""
        try:
            return function()
        except (Signal, DynamoError):  # an argument was looked at
            raise
        except Exception as error:
            self.raise_as(error)  # type: ignore[attr-defined]

    def construct(
        self, tx: SymbolicFrame, var: ClassVar, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        """`cls(*args, **kwargs)`."""
        cls = var.cls
        result = decided.call_decided(tx, cls, args, kwargs)
        if result is None:
            result = table.apply(tx, cls, args, kwargs)
        if result is not None:
            return result
        self.attributes.find_special(type(cls), "__call__")
        found = find_owner(type(cls), "__call__")
        if found is not None and found[1] is dict:  # a TypedDict
            return tx.trace.call(tx, dict, *args, **kwargs)
        if found is not None and isinstance(found[1], types.FunctionType):
            if not issubclass(cls, enum.Enum):
                raw = RawAttribute(found[1], found[0], "__call__", type(cls), var)
                return self.attributes.bind_raw(tx, raw).call(tx, args, kwargs)
        return self.construct_plain(tx, var, args, kwargs)

    def construct_plain(
        self, tx: SymbolicFrame, var: ClassVar, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        """`type.__call__(cls, ...)`: `__new__`, then `__init__`."""
        cls = var.cls
        if issubclass(cls, enum.Enum):
            return enum_member(tx, cls, [arg.as_constant() for arg in args])
        if issubclass(cls, torch.Tensor | torch.jit.ScriptModule | LazyModuleMixin):
            raise Break("module_structure_change", cls.__qualname__)
        new = self.attributes.find_special(cls, "__new__")
        made_by_python = isinstance(getattr(new, "__func__", new), types.FunctionType)
        owner = find_owner(cls, "__new__")
        if not made_by_python and owner is not None and is_programs(owner[0]):
            raise Break("call_of_unknown_function", f"{owner[0].__qualname__}.__new__")
        if made_by_python:
            maker = self.attributes.bind(tx, None, cls, "__new__")
            made = tx.call(maker, [var, *args], kwargs)
            if not is_derived(made.python_type(), cls):
                return made
            cls = made.python_type()
        else:
            made = self._new_plain(tx, cls, args, kwargs)
        self.attributes.find_special(cls, "__init__")
        init = find_owner(cls, "__init__")
        if init is not None and not isinstance(init[1], types.WrapperDescriptorType):
            raw = RawAttribute(init[1], init[0], "__init__", cls, made)
            result = tx.call(self.attributes.bind_raw(tx, raw), args, kwargs).python_type()
            if result is not type(None):
                message = f"__init__() should return None, not '{told_name(result)}'"
                tx.trace.raise_exception(TypeError, message)
        elif value_base(cls) is not None or issubclass(cls, type):
            pass  # `__new__` has taken the arguments
        elif isinstance(made, ObjectVar) and made.content is not None:
            made.content = self.construct(tx, ClassVar(base_of(cls), None, None), args, kwargs)
        elif kwargs and isinstance(made, ExceptionVar):
            raise Break("argument_mismatch", f"{cls.__name__}() takes no keyword arguments")
        elif isinstance(made, ExceptionVar):
            made.args = list(args)
        elif not made_by_python and (kwargs or (args and new is object.__new__)):
            tx.trace.raise_exception(TypeError, f"{cls.__name__}() takes no arguments")
        return made

    def _new_plain(
        self, tx: SymbolicFrame, cls: type, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        if issubclass(cls, type):
            return self.call_real(tx, type.__new__, [ClassVar(cls, None, None), *args], kwargs)  # type: ignore[attr-defined,no-any-return]
        base = value_base(cls)
        if base is None or issubclass(cls, torch.Size):
            return self.new_object(tx, cls, args)
        new = tuple.__new__ if base is tuple else base.__new__
        is_struct = find_in_mro(cls, "__new__") is not vars(base)["__new__"]
        if is_struct or find_in_mro(cls, "__del__") is not None:
            raise Break("call_of_unknown_function", full_name(cls))
        made = self.call_real(tx, new, [ClassVar(cls, None, None), *args], kwargs)  # type: ignore[attr-defined]
        if cls in self.made.vars:
            made.class_var = self.made.vars[cls]
        return made  # type: ignore[no-any-return]

    def new_object(self, tx: SymbolicFrame, cls: type, args: list[Var]) -> Var:
        """`cls.__new__(cls, *args)` for a `__new__` of a built-in base."""
        if issubclass(cls, BaseExceptionGroup):
            made: Var = make_group(tx, cls, args)
        else:
            made = self._new_object(cls, args)
        made.class_var = self.made.vars.get(cls)
        return made

    def _new_object(self, cls: type, args: list[Var]) -> Var:
        if issubclass(cls, BaseException):
            if issubclass(cls, OSError | SyntaxError | ImportError | UnicodeError):
                raise Break("call_of_unknown_function", full_name(cls))
            return ExceptionVar(cls, list(args))
        static, closed = not cls.__flags__ & (1 << 9), cls.__flags__ & (1 << 7)  # no instances
        if static or closed or find_in_mro(cls, "__del__") is not None:
            raise Break("call_of_unknown_function", full_name(cls))
        base = base_of(cls)
        if base is object:
            if not is_made_by_object(cls):
                raise Break("call_of_unknown_function", full_name(cls))
            self.attributes.guard_abstract(cls)
            if cls.__flags__ & inspect.TPFLAGS_IS_ABSTRACT:
                self.run_real(lambda: object.__new__(cls))
            return ModuleVar(cls) if issubclass(cls, torch.nn.Module) else ObjectVar(cls)
        if base not in CONTENT_TYPES:
            raise Break("call_of_unknown_function", full_name(cls))
        return ObjectVar(cls, content=CONTENT_TYPES[base]())

    # -- attributes -------------------------------------------------------------------------------

    def call_missing(self, tx: SymbolicFrame, var: Var, key: Var) -> Var | None:
        """`__missing__(key)` of an instance of a subclass of dict that lacks the key."""
        content = getattr(var, "content", None)
        if not isinstance(var, ObjectVar) or not isinstance(content, DictVar):
            return None
        if self.attributes.find_special(var.python_type(), "__missing__") is None:
            return None
        if content.lookup(tx, key) is not None:
            return None
        return var.call_special(tx, "__missing__", key)

    def handled_outside(self) -> bool:
        """True where a caller, or a block around the part, handles an exception."""
        if not self.handled:
            handled = CallSource(ObjectSource(sys.exception, "sys.exception"))
            self.guard("ID", handled, None)  # type: ignore[attr-defined]
        return self.handled

    def get_class_attr(self, tx: SymbolicFrame, var: Var, name: str) -> Var:
        return self.attributes.get_class_attr(tx, var, name)

    def get_builtin_attr(self, tx: SymbolicFrame, var: Var, name: str) -> Var:
        return self.attributes.get_builtin_attr(tx, var, name)

    def get_function_attr(self, tx: SymbolicFrame, var: FunctionVar, name: str) -> Var:
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
        if var.real is not None and var.source is not None:
            if name == "__class__":
                return tx.trace.wrap(var.python_type(), None)
            if name == "__get__":
                var.python_type()
                return MethodVar(tx.trace.wrap(types.FunctionType.__get__, None), var)
            var.guard_identity(tx.trace)
            if not hasattr(var.real, name):
                tx.trace.guard("LACKS_ATTR", var.source, name)
            value = self.run_real(lambda: getattr(var.real, name))
            if isinstance(value, types.MethodWrapperType):
                return MethodVar(tx.trace.wrap(getattr(types.FunctionType, name), None), var)
            return tx.trace.wrap_named(value, AttrSource(var.source, name))
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
            return tx.trace.make_tuple([])
        if name == "__annotations__":
            return annotations_of(tx, var)
        if find_in_mro(types.FunctionType, name) is None:
            tx.trace.raise_exception(
                AttributeError, f"'function' object has no attribute '{name}'")
        raise Break("attribute_unknown", f"{name} of {var!r}")

    # -- tensors -----------------------------------------------------------------------------------

    def guard_tensor(self, var: TensorVar) -> None:
        """Guards the metadata of a tensor from outside."""
        assert var.real is not None
        self.guard("TENSOR", var.source, TensorFacts.of(var.real))  # type: ignore[attr-defined]

    def run_fake(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs an operation on fakes, and guards what it assumed of symbolic sizes."""
        world, symbols = self.world, self.symbols  # type: ignore[attr-defined]
        world.constants.varies = symbols.gave_hint or is_in_graph(function)
        world.constants.settled = False
        result = world.run(function, *args, **kwargs)
        symbols.keep_assumptions()
        return result

    def guard_history(self, var: TensorVar) -> None:
        """Guards whether a tensor from outside is a leaf, and which output it is."""
        if var.source is not None and var.fake.requires_grad and var.real is not None:
            for part in ("is_leaf", "output_nr"):
                place = AttrSource(var.source, part)
                self.guard("CONST", place, getattr(var.real, part))  # type: ignore[attr-defined]

    def add_input(self, var: TensorVar) -> None:
        """A tensor became a graph input: it must stay another one than the mutated ones."""
        for other in self.mutated:
            self.guard("NOT_SAME", other.source, var.source)  # type: ignore[attr-defined]
        self.tensor_inputs.append(var)

    def note_mutation(self, var: TensorVar) -> None:
        """A graph operation wrote into the tensor."""
        self.effects.tick()  # type: ignore[attr-defined]
        self.world.constants.forget(var.fake)  # type: ignore[attr-defined]
        if var.source is None or var in self.mutated:
            return
        self.mutated[var] = None
        self.guard_history(var)
        for other in self.tensor_inputs:
            if other is not var:
                self.guard("NOT_SAME", var.source, other.source)  # type: ignore[attr-defined]

    def check_watched(self) -> None:
        """Break where a tensor got another history after a hook was put on it."""
        for var, history in self.watched.items():
            if var.fake.grad_fn is not history:
                raise Break("hooked_tensor_changed", repr(var))

    def leave(self) -> None:
        """Leaves what the trace has entered and not left."""
        self.known_fakes.leave()
        while self.contexts:
            self.contexts.pop().__exit__(None, None, None)

    def set_inference_mode(self, mode: bool) -> None:
        """The traced program is in inference mode from here on, or not."""
        self.inference_mode = mode
        self.saw_inference_mode = True

    def call_in_transform(
        self, function: Any, args: list[Any], kwargs: dict[str, Any], tensors: list[TensorVar]
    ) -> Var | None:
        """An operation under torch.func's levels; None where they do not matter to it."""
        return transforms.call_below(self.frames[-1], function, args, kwargs, tensors)  # type: ignore[attr-defined]

    def same(self, tx: SymbolicFrame, a: Var, b: Var) -> bool:
        """`a is b`; that two values from outside are not is guarded."""
        if a.is_same(tx, b):
            return True
        if all(var.source is not None or isinstance(var, ConstVar) for var in (a, b)):
            kinds = [self.guarded_type(var) for var in (a, b)]
            if kinds[0] is kinds[1] and a.source is not None and b.source is not None:
                self.guard("NOT_SAME", a.source, b.source)  # type: ignore[attr-defined]
        return False

    def guarded_type(self, var: Var) -> type:
        """`type(var)`, guarded where nothing of the value has been looked at yet."""
        kind = var.python_type()
        if var.source is not None and not isinstance(var, MethodVar):
            self.guard("TYPE", var.source, kind)  # type: ignore[attr-defined]
        return kind

    def tell_apart(self, var: Var) -> None:
        """`id()` of an object from outside was taken: it must stay another than those before."""
        if var in self.identified:
            return
        if len(self.identified) >= MOST_IDENTIFIED:
            raise Break("hash_unknown", f"id() of more than {MOST_IDENTIFIED} objects")
        for other in self.identified:
            if other.python_type() is var.python_type():
                self.guard("NOT_SAME", other.source, var.source)  # type: ignore[attr-defined]
        self.identified[var] = None

    def note_key(self, kind: str) -> None:
        """A key of a container is an "id", or a number that may be one ("address"); which are
        equal is not known."""
        self.hashed.add(kind)
        if len(self.hashed) > 1:
            raise Break("hash_unknown", "id() of an object beside numbers that may be one")

    def get_tensor_attr(self, tx: SymbolicFrame, var: TensorVar, name: str) -> Var:
        return tensors.get_attr(tx, var, name)

    def set_tensor_attr(self, tx: SymbolicFrame, var: TensorVar, name: str, value: Var) -> None:
        tensors.set_attr(tx, var, name, value)

    def call_tensor_method(
        self, tx: SymbolicFrame, var: TensorVar, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        return tensors.call_method(tx, var, name, args, kwargs)


def annotations_of(tx: SymbolicFrame, var: FunctionVar) -> Var:
    """`__annotations__` of a function that the trace has made: one dict."""
    if not isinstance(var.annotations, DictVar):
        parts = [] if var.annotations is None else var.annotations.unpack(tx)
        pairs = list(zip(parts[::2], parts[1::2], strict=True))
        var.annotations = DictVar.from_pairs(tx, pairs)
    return var.annotations


def alias_part(tx: SymbolicFrame, var: Var) -> Any:
    """A parameter of a generic alias."""
    if isinstance(var, MadeClassVar):
        raise Break("class_definition", f"{var!r} stands in a generic alias")
    if isinstance(var, ClassVar):
        return var.cls
    if type(var) is ListVar:
        return [alias_part(tx, item) for item in var.items]
    real = getattr(var, "real", None)
    if real is None:
        real = getattr(var, "value", None)
    if var.is_constant() or real is None:
        return var.as_constant()
    tx.trace.guard("ID", var.source, real)
    return real


def is_programs(cls: type) -> bool:
    """True for classes that `class` statements have made: those of C may have its flags, too."""
    return cls.__flags__ & (1 << 9 | 1 << 8) == 1 << 9 and "__module__" in class_dict(cls)


def is_made_by_object(cls: type) -> bool:
    """True where the C part of making an instance is `object.__new__`."""
    for base in cls.__mro__:
        new = class_dict(base).get("__new__")
        if new is not None and not isinstance(new, types.FunctionType | staticmethod):
            return new is object.__new__
    return True


EXISTING: tuple[tuple[type, Callable[..., Var]], ...] = (
    (collections.OrderedDict, lambda **k: DictVar(collections.OrderedDict, **k)),
    (dict, lambda **k: DictVar(dict, **k)),
    (list, lambda **k: ListVar(**k)),
)


@wraps_if(90, lambda value: bool(type(value).__flags__ & (1 << 9))
          and issubclass(type(value), dict | list)
          and find_in_mro(type(value), "default_factory") is None)
def wrap_with_content(trace: Any, value: Any, source: Source | None) -> Var:
    """An instance of a subclass of dict or list written in Python."""
    make = next(make for base, make in EXISTING if issubclass(type(value), base))
    content = make(source=source, real=value, trace=trace)
    return ObjectVar(type(value), source, real=value, trace=trace, content=content)


@wraps(super)
def wrap_super(trace: Any, value: Any, source: Source | None) -> Var:
    """A super object that waits on the stack of a continuation."""
    if source is None or value.__self_class__ is None or sees_lookups(value.__thisclass__):
        raise Break("value_unknown", "super")
    trace.guard("TYPE", source, super)
    trace.guard("ID", AttrSource(source, "__self_class__"), value.__self_class__)
    receiver = trace.wrap(value.__self__, AttrSource(source, "__self__"))
    start = trace.wrap(value.__thisclass__, AttrSource(source, "__thisclass__"))
    return SuperVar(start, receiver, value.__self_class__)


@wraps(types.MappingProxyType)
def wrap_proxy(trace: Any, value: Any, source: Source | None) -> Var:
    """A read-only view. Those of classes are guarded; those of signatures do not change."""
    root = None if source is None else source.root()
    if source is None:
        raise Break("value_unknown", "mappingproxy")
    settled = isinstance(root, ObjectSource) and (
        isinstance(source, DictSource)
        or isinstance(root.value, enum.EnumType | inspect.Signature))
    if not settled and trace.made.is_inside(source) is None:
        (mapping,) = state_of(value)
        if issubclass(type(mapping), dict) and dict.__contains__(mapping, "__doc__"):
            # The names of a class, which the trace may change.
            raise Break("value_unknown", "mappingproxy")
        trace.guard("TYPE", source, types.MappingProxyType)
        return MappingProxyVar(trace.wrap(mapping, ItemSource(StateSource(source), 0)), source)
    owner = root.value if isinstance(root, ObjectSource) else None
    if isinstance(source, DictSource) and isinstance(owner, type) and not is_settled(owner):
        trace.guard("DICT_KEYS", source, tuple(value))
        for name in value:
            if not name.startswith("__"):
                trace.guard("ID", ItemSource(source, name), value[name])
    copy = dict(value)
    trace.made.note_copy(copy, source)
    return MappingProxyVar(trace.wrap(copy, ObjectSource(copy, "items")), source)


__all__ = ["ObjectProtocol"]
