"""What trackers and rules ask of a trace about objects: equality, indices, iteration, construction.

A base of `Trace`; it holds no state of its own besides `attributes`.
"""

from __future__ import annotations

import operator
import sys
import types
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from dynamo.base.decisions import is_in_graph
from dynamo.base.errors import Break, DynamoError, Signal
from dynamo.base.instances import is_class
from dynamo.guards.kinds import TensorFacts
from dynamo.guards.sources import (
    AttrSource,
    BuiltinSource,
    CallSource,
    DictSource,
    GlobalSource,
    ModuleSource,
    ObjectSource,
    Source,
)
from dynamo.symbolic.construction import Construction
from dynamo.symbolic.graph import storage_of
from dynamo.symbolic.memory import guard_apart
from dynamo.symbolic.rules import (
    decided,
    function_attributes,
    table,
    tensors,
    torch_functions,
    transforms,
)
from dynamo.symbolic.rules.reflected import has_own_operator
from dynamo.symbolic.stack_values import OpaqueVar
from dynamo.symbolic.tables import ask_for_values
from dynamo.symbolic.variables.arrays import ArrayVar
from dynamo.symbolic.variables.attributes import Attributes
from dynamo.symbolic.variables.base import ObservedException, Var
from dynamo.symbolic.variables.binders import is_settled
from dynamo.symbolic.variables.classes import ClassVar
from dynamo.symbolic.variables.constant import ConstVar, is_nan, part_value
from dynamo.symbolic.variables.demands import as_demanded
from dynamo.symbolic.variables.dicts import DictVar
from dynamo.symbolic.variables.exceptions import ExceptionVar
from dynamo.symbolic.variables.functions import FunctionVar, MethodVar
from dynamo.symbolic.variables.iterators import (
    DequeIteratorVar,
    IndexIteratorVar,
    RangeIteratorVar,
    SequenceIteratorVar,
)
from dynamo.symbolic.variables.lists import DequeVar, ListVar, SequenceVar, TupleVar
from dynamo.symbolic.variables.lookup import (
    told_name,
)
from dynamo.symbolic.variables.made_classes import MadeClasses, MadeClassVar
from dynamo.symbolic.variables.objects import ObjectVar
from dynamo.symbolic.variables.tensor import TensorVar
from dynamo.symbolic.variables.unknown import UnknownNumber
from dynamo.symbolic.variables.values import value_in, value_unless

if TYPE_CHECKING:
    from dynamo.symbolic.machine import SymbolicFrame
    from dynamo.symbolic.rules.picking import Pick

# Modules whose attributes are taken as fixed: nobody rebinds `torch.add` between two calls.
FIXED_ROOTS = frozenset({"torch", "math", "operator", "builtins", "itertools", "functools",
                         "collections", "contextlib", "types", "typing", "enum", "copy", "abc"})
MOST_IDENTIFIED = 100
MOST_PAIRS = 64  # of a written tensor and one that is looked at
WRAPPERS = (types.WrapperDescriptorType, types.MethodDescriptorType, types.BuiltinFunctionType)


def is_made_by_reading(var: Var) -> bool:
    """True for the `__dict__` of a class: each read gives another proxy."""
    return isinstance(var.source, DictSource) and var.python_type() is types.MappingProxyType


class ObjectProtocol(Construction):
    """Python's object protocol over Vars, for one trace."""

    def __init__(self) -> None:
        self.attributes = Attributes(self)  # type: ignore[arg-type]
        self.contexts: list[Any] = []
        self.inference_mode = self.saw_inference_mode = False
        self.default_devices: list[torch.device] = []  # of the `with` blocks that are open
        self.tensor_inputs: list[TensorVar] = []
        self.looked_at: dict[TensorVar, None] = {}
        self.arrays: list[TensorVar] = []
        self.tables: list[TensorVar] = []
        self.mutated: dict[TensorVar, None] = {}
        self.identified: dict[Var, None] = {}
        self.takes_ids = False  # ids are numbers that few rows know
        self.keyed: dict[Var, None] = {}  # looked up by identity; `real_keys` stand in real dicts
        self.real_keys: dict[Var, None] = {}
        self.watched: dict[TensorVar, Any] = {}  # tensors with new hooks, and their `grad_fn`
        self.told: dict[TensorVar, int] = {}  # inputs told to require grad or not to, and the steps
        self.asked: set[TensorVar] = set()  # results that `requires_grad_` was called of
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
        if isinstance(root, ObjectSource) and root is not source and is_class(root.value):
            return is_settled(root.value)
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
        if isinstance(key, OpaqueVar | ArrayVar) or has_own_operator(tx, key, "__index__"):
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
        """All items, as `list(var)` reads them."""
        if not isinstance(var, ObjectVar | ClassVar):
            return var.unpack(tx)
        return self.iterate_sized(tx, var).remaining_items(tx)

    def iterate_sized(self, tx: SymbolicFrame, var: Var) -> Var:
        """`iter(var)` for a list of the items, for which an object is asked how many there are."""
        iterator = var.iterate(tx)
        if isinstance(var, ObjectVar) or (isinstance(var, ClassVar) and var.tells_length()):
            self.length_hint(tx, var, ConstVar(8))
        return iterator

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

    def generic_alias(self, tx: SymbolicFrame, cls: Var, key: Var) -> Var:
        """`list[int]` and the like."""
        parts = key.unpack(tx) if isinstance(key, TupleVar) else [key]
        kind = alias_part(tx, cls)
        values = tuple(alias_part(tx, part) for part in parts)
        index = values if isinstance(key, TupleVar) else values[0]
        return tx.trace.wrap(self.run_real(lambda: kind[index]), None)

    def run_real(self, function: Callable[[], Any]) -> Any:
        """The result of a real call; its exception is the traced program's."""
        try:
            return function()
        except (Signal, DynamoError):  # an argument was looked at
            raise
        except Exception as error:
            self.raise_as(error)  # type: ignore[attr-defined]

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
        return function_attributes.get_attr(tx, var, name)

    # -- tensors -----------------------------------------------------------------------------------

    def guard_tensor(self, var: TensorVar) -> None:
        """Guards the metadata of a tensor from outside."""
        assert var.real is not None
        self.guard("TENSOR", var.source, TensorFacts.of(var.real))  # type: ignore[attr-defined]

    def run_fake(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
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

    def note_look(self, var: TensorVar) -> None:
        """The metadata of a tensor from outside are read, or it became a graph input: it must stay
        another one than the mutated ones, which may get other metadata."""
        if var in self.looked_at:
            return
        self.looked_at[var] = None
        if self.has_many_pairs():
            return
        for other in self.mutated:
            self.guard("NOT_SAME", other.source, var.source)  # type: ignore[attr-defined]

    def has_many_pairs(self) -> bool:
        """Whether one guard over all tensors is to say what pairs of them would."""
        return len(self.mutated) * len(self.looked_at) > MOST_PAIRS

    def add_input(self, var: TensorVar) -> None:
        """A tensor became a graph input."""
        self.note_look(var)
        self.tensor_inputs.append(var)

    def note_mutation(self, var: TensorVar) -> None:
        """A graph operation wrote into the tensor."""
        self.effects.tick()  # type: ignore[attr-defined]
        self.world.constants.forget(var.fake)  # type: ignore[attr-defined]
        if var.source is None or var in self.mutated:
            return
        self.mutated[var] = None
        self.guard_history(var)
        if self.has_many_pairs():
            return
        for other in self.looked_at:
            if other is not var:
                self.guard("NOT_SAME", var.source, other.source)  # type: ignore[attr-defined]

    def check_watched(self, changed: Iterable[TensorVar]) -> None:
        """Break where a tensor got another history after a hook was put on it, itself or by a write
        into another argument in its memory: such arguments are guarded to be apart."""
        for var, history in self.watched.items():
            if var.fake.grad_fn is not history:
                raise Break("hooked_tensor_changed", repr(var))
            if history is None:
                continue
            places = {storage_of(item.fake) for item in (var, *changed) if item.fake.requires_grad}
            given = [item for item in dict.fromkeys((var, *self.tensor_inputs))
                     if item.source is not None and storage_of(item.fake) in places]
            if len(given) > 1 and not guard_apart(self, given):  # type: ignore[arg-type]
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
        if is_made_by_reading(a) or is_made_by_reading(b):
            return False
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


__all__ = ["ObjectProtocol"]
