"""`torch.nn.Module` instances: objects whose attributes also live in `_parameters`, `_buffers` and
`_modules`, and whose call goes straight to `forward` when there are no hooks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import torch

from dynamo.base.errors import Break
from dynamo.guards.sources import (
    AttrSource,
    DictSource,
    ItemSource,
    ModuleSource,
    Source,
)
from dynamo.hook import Disabled
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.identities import identity_key
from dynamo.symbolic.core.lookup import find_in_mro, find_owner, is_own_method
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wraps_if
from dynamo.symbolic.python.builtin_attributes import has_flag
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.functions import inline_polyfill
from dynamo.symbolic.python.lists import SequenceVar, TupleVar
from dynamo.symbolic.python.objects import TRACKERS, ObjectVar
from dynamo.symbolic.python.ranges import SliceVar
from dynamo.symbolic.tensors.lazy_modules import LazyModuleVar, is_unfinished
from dynamo.symbolic.tensors.polyfill_hooks import run_before, run_behind
from dynamo.symbolic.tensors.tensor import TensorVar

MODULE = torch.nn.Module
MODULE_GETATTR = MODULE.__getattr__
MODULE_SETATTR = MODULE.__setattr__
MODULE_CALL = MODULE.__dict__["__call__"]
REGISTRIES = ("_parameters", "_buffers", "_modules")
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)
HOOK_MODULE = torch.nn.modules.module
# Hooks by their numbers, and the sets of numbers that must be empty where the numbers don't matter.
NUMBERED = ("_forward_hooks", "_forward_pre_hooks")
NUMBERS_READ = (
    "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs",
)  # fmt: skip
# What a module calls in the place of `forward`, where an instance has been given it.
OWN_CALLS = ("_compiled_call_impl", "_call_impl")
# Whose hooks move parameters about: those of `fully_shard` and `replicate`.
SHARDING = ("torch.distributed.fsdp.", "torch.distributed._composable.replicate")
REGISTER_FORWARD = Disabled(MODULE.register_forward_hook)
REGISTER_BEFORE = Disabled(MODULE.register_forward_pre_hook)


def shards_work(module: Any) -> bool:
    """True where `fully_shard` or `replicate` is among the hooks of a module: they gather and free
    its parameters around its call."""
    hooks = [hook for name in NUMBERED for hook in getattr(module, name).values()]
    return any(str(getattr(hook, "__module__", "")).startswith(SHARDING) for hook in hooks)


class ModuleVar(ObjectVar):
    """An existing nn.Module."""

    def get_attr(self, tx: Frame, name: str) -> Var:
        cls = self.python_type()
        if name in NUMBERED and tx.code.co_filename != HOOK_MODULE.__file__:
            self.check_numbers(tx, name)
        if tx.trace.attributes.find_special(cls, "__getattr__") is not MODULE_GETATTR:
            return super().get_attr(tx, name)
        if is_own_method(find_in_mro(cls, "__getattribute__")):
            return super().get_attr(tx, name)
        attributes = tx.trace.attributes
        found = attributes.unless_missing(tx, lambda: attributes.get_plain(tx, self, name))
        if found is None:
            found = self.registered(tx, name)
            if find_owner(cls, name) is None:
                attributes.guard_search(cls, name, None)
        if found is None:
            message = f"'{cls.__name__}' object has no attribute '{name}'"
            tx.trace.raise_exception(AttributeError, message)
        return found

    def registry(self, tx: Frame, part: str) -> DictVar | None:
        """`_parameters`, `_buffers` or `_modules`."""
        own = self.read_own(tx, part)
        return own if isinstance(own, DictVar) else None

    def registered(self, tx: Frame, name: str) -> Var | None:
        """A parameter, buffer or submodule, as `Module.__getattr__` finds it."""
        key = ConstVar(name)
        for part in REGISTRIES:
            registry = self.registry(tx, part)
            found = None if registry is None else registry.lookup(tx, key)
            if found is not None:
                return found
        return None

    def set_attr(self, tx: Frame, name: str, value: Var) -> None:
        find_special = tx.trace.attributes.find_special
        if find_special(self.python_type(), "__setattr__") is not MODULE_SETATTR:
            super().set_attr(tx, name, value)
        else:
            self.set_registered(tx, name, value)

    def set_registered(self, tx: Frame, name: str, value: Var) -> None:
        """`Module.__setattr__`; where the structure changes, its Python code is traced."""
        key = ConstVar(name)
        parts = {part: self.registry(tx, part) for part in REGISTRIES}
        is_known = {p: r is not None and r.lookup(tx, key) is not None for p, r in parts.items()}
        is_parameter = isinstance(value, TensorVar) and issubclass(
            value.python_type(), torch.nn.Parameter
        )
        registers = is_parameter or isinstance(value, ModuleVar) or (
            has_flag(tx, value, torch.nn.Buffer))
        if self.real is None or registers or is_known["_parameters"] or is_known["_modules"]:
            super().set_attr(tx, name, value)
            return
        if is_known["_buffers"] and isinstance(value, TensorVar | ConstVar):
            buffers = parts["_buffers"]
            assert buffers is not None
            buffers.set_item(tx, key, value)
            return
        tx.trace.attributes.set_plain(tx, self, name, value)

    def call(self, tx: Frame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        cls = self.python_type()
        if find_in_mro(cls, "__call__") is not MODULE_CALL:
            return super().call(tx, args, kwargs)
        tx.trace.attributes.guard_search(cls, "__call__", MODULE)
        registered = tx.trace.effects.registered(self)
        if registered:
            with tx.using_results():  # hooks get what `forward` returns
                return self.call_with(tx, registered, args, kwargs)
        return self.call_hooked(tx, args, kwargs)

    def call_with(
        self, tx: Frame, registered: list[tuple[Any, Var]], args: list[Var],
        kwargs: dict[str, Var],
    ) -> Var:  # fmt: skip
        """The call with hooks that were registered in this trace: they are the last ones.

        registered: what registers them, and the hooks.
        """
        before = [hook for function, hook in registered if function is REGISTER_BEFORE]
        if self.has_hooks(tx) and (before or self.has_hooks(tx, HOOKS[1:])):
            raise Break("call_of_unknown_function", f"{self!r} with hooks of several kinds")
        given: Var = TupleVar(args)
        for hook in before:
            given = inline_polyfill(tx, run_before, [hook, self, given], {})
        result = self.call_hooked(tx, given.unpack(tx), kwargs)
        for function, hook in registered:
            if function is REGISTER_FORWARD:
                result = inline_polyfill(tx, run_behind, [hook, self, given, result], {})
        return result

    def call_hooked(self, tx: Frame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        """The call with the hooks that were there before this trace."""
        cls = self.python_type()
        for name in OWN_CALLS:
            own = self.read_own(tx, name)
            if tx.trace.attributes.find_special(cls, name) is not vars(MODULE)[name]:
                own = self.get_attr(tx, name)
            if own is not None and not (own.is_constant() and own.as_constant() is None):
                return own.call(tx, args, kwargs)
        if self.has_hooks(tx):
            if self.real is not None and shards_work(self.real):
                raise Break("spreading_module", f"{cls.__qualname__}, whose hooks shard it")
            self.forget_numbers(tx)
            implementation = tx.trace.attributes.bind(tx, self, cls, "_call_impl")
            return implementation.call(tx, args, kwargs)
        return tx.call_attribute(self, "forward", args, kwargs)

    def forget_numbers(self, tx: Frame) -> None:
        """Hooks count by their order, where nothing asks for their numbers."""
        flags = [self.read_own(tx, name) for name in NUMBERS_READ]
        if any(numbers is not None and numbers.truth(tx) for numbers in flags):
            return
        for name in NUMBERED:
            hooks = self.read_own(tx, name)
            if isinstance(hooks, DictVar) and hooks.is_unread:
                hooks.is_numbered = True

    def check_numbers(self, tx: Frame, name: str) -> None:
        """Break where the program reads the hooks, whose numbers are not known."""
        hooks = self.read_own(tx, name)
        if (isinstance(hooks, DictVar) and hooks.is_numbered) or tx.trace.effects.registered(self):
            raise Break("attribute_unknown", f"{name} of {self!r}")

    def has_hooks(self, tx: Frame, names: tuple[str, ...] = HOOKS) -> bool:
        """True when any hook must run around forward; the answer is guarded."""
        for name in names:
            hooks = self.read_own(tx, name)
            if hooks is not None and hooks.truth(tx):
                return True
        for name in GLOBAL_HOOKS:
            registry = getattr(HOOK_MODULE, name)
            source = ItemSource(DictSource(ModuleSource(HOOK_MODULE.__name__)), name)
            tx.trace.guard("LENGTH", source, len(registry))
            if registry:
                return True
        return False

    def hash_key(self, tx: Frame) -> Hashable:
        return identity_key(tx.trace, self)


TRACKERS[MODULE] = ModuleVar


class TwinVar(ModuleVar):
    """What `compile` or `disable` has made of a module: what is stored on it is the module's, with
    which it shares its dict."""

    def __init__(self, source: Source | None, real: Any, trace: Evaluation) -> None:
        super().__init__(type(real), source, real=real, trace=trace)
        assert source is not None
        module = trace.wrap(real._original, AttrSource(source, "_original"))
        assert isinstance(module, ModuleVar)
        self.module = module
        self.written, self.renewed = module.written, module.renewed

    def children(self) -> Iterable[Var]:
        return (self.module,)

    def real_dict(self, tx: Frame) -> dict[str, Any] | None:
        return self.module.real_dict(tx)

    def dict_place(self) -> Source:
        return self.module.dict_place()

    def get_attr(self, tx: Frame, name: str) -> Var:
        if name == "forward" and name in vars(self.cls):
            return self.module.get_attr(tx, name)
        return super().get_attr(tx, name)

    def write_own(self, tx: Frame, name: str, value: Var | None) -> None:
        self.module.write_own(tx, name, value)


class ModuleSliceVar(SequenceVar):
    """`module_list[a:b]`: a ModuleList made in the trace, as far as it is only iterated."""

    def __init__(self, modules: list[Var], kind: type) -> None:
        super().__init__(modules)
        self.kind = kind

    @staticmethod
    def can_be(kind: type) -> bool:
        """False for a class that makes or iterates its lists in its own way."""
        return all(find_in_mro(kind, name) is vars(torch.nn.ModuleList)[name]
                   for name in ("__init__", "__iter__", "__len__"))

    def get_attr(self, tx: Frame, name: str) -> Var:
        raise Break("attribute_unknown", f"{name} of a slice of a ModuleList")

    def call_method(
        self, tx: Frame, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        if name == "__len__":
            return self.length(tx)
        if name == "__iter__":
            return self.iterate(tx)
        raise Break("attribute_unknown", f"{name} of a slice of a ModuleList")

    def iterate(self, tx: Frame) -> Var:
        modules = DictVar.from_names({str(i): item for i, item in enumerate(self.items)})
        return modules.call_method(tx, "values", [], {}).iterate(tx)

    def children(self) -> Iterable[Var]:
        return self.items


@wraps_if(5, lambda value: issubclass(type(value), MODULE))
def wrap_nn_module(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """An existing module."""
    if issubclass(type(value), torch.jit.ScriptModule):
        raise Break("script_module", type(value).__qualname__)
    if issubclass(type(value), torch.nn.modules.lazy.LazyModuleMixin) and is_unfinished(value):
        return LazyModuleVar(type(value), source, real=value, trace=trace)
    if "_original" in vars(type(value)):
        return TwinVar(source, value, trace)
    return ModuleVar(type(value), source, real=value, trace=trace)


@rule([torch.nn.ModuleList.__getitem__])
def module_list_getitem(tx: Frame, var: Var, key: Var) -> Var:
    modules = var.get_attr(tx, "_modules").call_method(tx, "values", [], {}).unpack(tx)
    if isinstance(key, SliceVar):
        if not ModuleSliceVar.can_be(var.python_type()):
            raise Break("call_of_unknown_function", f"a slice of {var!r}")
        return ModuleSliceVar(modules[key.as_constant()], var.python_type())
    position = tx.trace.as_index(tx, key)
    if position is None:
        raise Break("index_unknown", repr(key))
    if not -len(modules) <= position < len(modules):
        tx.trace.raise_exception(IndexError, f"index {position} is out of range")
    return modules[position]
