"""Which calls of `compile` share compiled entries: those of one code with the same options.

In: what is compiled, and the options. Out: a policy, whose region holds the entries. A program that
calls `compile(f)` again, in a loop or in a function that makes closures, finds what is there.

    one = regions.policy_for(f, options)
    one is regions.policy_for(f, options)       # True while the code and the options are the same

Functions count by their code and by the functions, classes, modules and texts that they close over:
each of these is another program, and many would fill the limit of entries. Guards tell other
values, globals and bound objects apart. Modules and classes count as the objects that they are,
but for modules compiled in place, which count by their structure, as the blocks of a model. A
policy lives as long as what `compile` gave; the last `MOST_CACHED` live longer, until `reset` or
until their module dies.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
import types
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any

import torch

from dynamo.base.config import settings_now
from dynamo.base.decisions import decisions
from dynamo.base.value_types import VALUES
from dynamo.frames.convert import Converter
from dynamo.frames.policy import FramePolicy
from dynamo.options import CompileOptions
from dynamo.symbolic.core.lookup import find_in_mro
from dynamo.symbolic.tensors.constant_objects import is_of_distributed

MOST_CACHED = 64  # policies that outlive what `compile` gave
PLAIN = frozenset(VALUES)
LISTS = frozenset({list, tuple})
# Others may record what a graph does with the addresses of one module's parameters.
SHARED_MODES = (None, "default")
# Attributes that are distinguished as the objects that they are.
CALLED = (FunctionType, types.MethodType, functools.partial)
IGNORED = frozenset(("_parameters", "_buffers", "_modules", "_compiled_call_impl"))
DISTINCT = (types.ModuleType, types.BuiltinFunctionType, str, bool)


class Token:
    """Stands for an object. alive: the weak reference that tells its end."""

    alive: Any = None


class Regions:
    """All live regions by what they are for."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.policies: weakref.WeakSet[FramePolicy] = weakref.WeakSet()
        self._shared: weakref.WeakValueDictionary[Any, FramePolicy] = weakref.WeakValueDictionary()
        self._cached: OrderedDict[Any, FramePolicy] = OrderedDict()
        self._tokens: dict[int, Token] = {}

    def policy_for(
        self, model: Any, options: CompileOptions, requested: CodeType | None = None
    ) -> FramePolicy:
        """asked: the code that the user compiles, which is traced also where it is torch's own."""
        if options.isolated:
            return self._make(options, requested)
        settings = settings_now()
        functions = () if isinstance(model, torch.nn.Module | type) else functions_of(model)
        codes = [function.__code__ for function in functions]
        dropped = None
        with self.lock:
            held = [self._part_of_key(value) for value in closed_over(functions)]
            subject = (tuple(map(id, codes)), *held) if codes else self._token_of(model)
            key = (subject, decisions.version, frozen(options), frozen(settings))
            policy = self._shared.get(key)
            if policy is None:
                policy = self._make(options, requested)
                policy.subject, policy.held = subject, (codes, held, settings)
                self._shared[key] = policy
            self._cached[key] = policy
            self._cached.move_to_end(key)
            if len(self._cached) > MOST_CACHED:
                dropped = self._cached.popitem(last=False)[1]
        del dropped  # what goes with it may run code of the program, which needs no lock
        return policy

    def policy_for_alike(self, module: torch.nn.Module, options: CompileOptions) -> FramePolicy:
        """That of a module which is compiled in place: one for the equal blocks of a model."""
        known = id(module) in self._tokens  # it has been compiled as the object that it is
        if options.isolated or options.mode not in SHARED_MODES or known:
            return self.policy_for(module, options)
        settings = settings_now()
        with self.lock:
            subject = structure_of(module)
            key = (subject, decisions.version, frozen(options), frozen(settings))
            policy = self._shared.get(key)
            if policy is None:
                policy = self._shared[key] = self._make(options, None)
                policy.held = settings
        return policy

    def _make(self, options: CompileOptions, requested: CodeType | None) -> FramePolicy:
        converter = Converter(requested)
        policy = FramePolicy(options, converter, converter.throw)
        with self.lock:
            self.policies.add(policy)
        return policy

    def _part_of_key(self, value: Any) -> Any:
        """What a value that a function closes over is in a key: other programs are other keys. It
        keeps no class alive."""
        if isinstance(value, torch.nn.Module | type):
            return self._token_of(value)
        if isinstance(value, FunctionType):
            return value.__code__
        if isinstance(value, DISTINCT) or value is None:
            return type(value), value
        return self._token_of(type(value))

    def _token_of(self, model: Any) -> Token:
        """What stands for an object in keys while it lives. What `compile` gave for a module is the
        same as the module."""
        behind = getattr(type(model), "_policy", None) or getattr(model, "_policy", None)
        token = behind.subject if isinstance(behind, FramePolicy) else None
        if isinstance(token, Token) and token.alive is not None:
            return token
        number = id(model)
        if number not in self._tokens:
            token = token if isinstance(token, Token) else Token()
            try:
                token.alive = weakref.ref(model, functools.partial(self._forget_object, number))
            except TypeError:
                token.alive = model  # of C, and no module: such objects are few, and of libraries
            self._tokens[number] = token
        return self._tokens[number]

    def _forget_object(self, number: int, _: Any) -> None:
        """An object is gone: nobody asks for its entries, or by what was compiled alone."""
        token = self._tokens.pop(number)
        token.alive = None
        for key in [*self._cached]:
            if key[0] is token or isinstance(key[0], tuple) and token in key[0]:
                self._cached.pop(key, None)

    def separate(self) -> None:
        """What is compiled from now on shares nothing with what was."""
        with self.lock:
            self._shared.clear()
            for policy in self._cached.values():
                policy.twin = None
            self._cached.clear()

    def forget(self) -> None:
        """Drops all entries; who holds a compiled function can go on with it."""
        with self.lock:
            for policy in list(self.policies):
                policy.forget()
            self._cached.clear()


def functions_of(function: Any) -> tuple[FunctionType, ...]:
    """The function that a call runs, with those that it wraps.

    >>> functions_of(functools.partial(frozen, 1)) == (frozen,), functions_of(len)
    (True, ())
    """
    found: list[FunctionType] = []
    while function is not None:
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, types.MethodType):
            function = function.__func__
        elif not isinstance(function, FunctionType):
            function = find_in_mro(type(function), "__call__")
            if not isinstance(function, FunctionType):
                break
        elif function in found:
            break
        else:
            found.append(function)
            function = function.__dict__.get("__wrapped__")
    return tuple(found)


def closed_over(functions: Sequence[FunctionType], deep: bool = True) -> Iterator[Any]:
    """What is in the closures of functions, and, if deep, of the functions there."""
    waiting, seen = list(functions), set(map(id, functions))
    while waiting:
        for cell in waiting.pop(0).__closure__ or ():
            try:
                value = cell.cell_contents
            except ValueError:  # it is empty
                continue
            yield value
            if deep and isinstance(value, FunctionType) and id(value) not in seen:
                seen.add(id(value))
                waiting.append(value)


def structure_of(module: torch.nn.Module) -> tuple[Any, ...]:
    """What modules that may share entries have in common: classes, names, plain values of the
    attributes, and what the parameters and buffers look like. Guards tell the rest apart.

    >>> one, two = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    >>> structure_of(one) == structure_of(two), structure_of(one) == structure_of(two.eval())
    (True, False)
    """
    found: list[Any] = []
    parts = dict(module.named_modules(remove_duplicate=False))
    places = {id(part): name for name, part in parts.items()}
    for name, part in parts.items():
        found += name, type(part)
        for registry in ("_parameters", "_buffers"):
            for key, tensor in getattr(part, registry).items():
                found += key, None if tensor is None else looks_of(tensor)
        for key, value in vars(part).items():
            if key not in IGNORED:
                if isinstance(value, CALLED):
                    found += key, look_of_call(value, places, ())
                else:
                    is_plain = type(value) in PLAIN or type(value) in LISTS
                    found += key, frozen(value) if is_plain else type(value)
    return tuple(found)


def look_of_call(value: Any, places: Mapping[int, str], inside: tuple[int, ...]) -> Any:
    """A key of what a module may hold as its `forward`: its code, and what it closes over. A part
    of the module is its name in there. inside: the functions around it."""
    if id(value) in places:
        return "part", places[id(value)]
    if is_of_distributed(value):  # a placement of tensor parallelism, one object for each module
        return type(value), value
    if type(value) in LISTS:
        return type(value), *(look_of_call(item, places, inside) for item in value)
    if not isinstance(value, CALLED) or id(value) in inside:
        return frozen(value)
    inside = (*inside, id(value))
    if isinstance(value, types.MethodType):
        return look_of_call(value.__self__, places, inside), id(value.__func__)
    if isinstance(value, functools.partial):
        given = (value.func, *value.args, *value.keywords.values())
        return (*value.keywords, *(look_of_call(item, places, inside) for item in given))
    held = closed_over((value,), deep=False)
    return id(value.__code__), *(look_of_call(item, places, inside) for item in held)


def looks_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    return type(tensor), tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad


def frozen(value: Any) -> Any:
    """A key: equal for plain values that are equal, and for the same object."""
    kind = type(value)
    if kind in PLAIN:
        return kind, repr(value)
    if kind is inspect.Signature:
        return kind, str(value)
    if kind in LISTS:
        return kind, tuple(map(frozen, value))
    if isinstance(value, Mapping):
        return kind, tuple((frozen(key), frozen(item)) for key, item in value.items())
    if isinstance(value, types.MethodType):
        return id(value.__self__), id(value.__func__)
    if dataclasses.is_dataclass(value) and kind.__module__.startswith("dynamo."):
        return kind, tuple(frozen(getattr(value, f.name)) for f in dataclasses.fields(value))
    return id(value)


regions = Regions()
