"""What torch's C code would hand to `__torch_function__`, found by calling it on probes.

C code decides which argument is asked first, which function it names (`torch.Tensor.add` for `+`)
and how it writes the arguments. A probe has a class of the same bases, and answers
NotImplemented; so the call tells all of it, and what happens where nobody answers.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dynamo.base.subclasses import OVERRIDE, PLAIN, TURNED_OFF
from dynamo.symbolic.core.lookup import find_in_mro
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.lists import ListVar, SizeVar, TupleVar
from dynamo.symbolic.python.objects import ObjectVar
from dynamo.symbolic.python.ranges import SliceVar
from dynamo.symbolic.tensors.tensor import TensorVar

_REAL: weakref.WeakKeyDictionary[type, type] = weakref.WeakKeyDictionary()
_likenesses: weakref.WeakKeyDictionary[type, type] = weakref.WeakKeyDictionary()


@dataclass(slots=True)
class OverrideCall:
    """function, kinds: the function and types as `__torch_function__` gets them; rest: the
    arguments behind the types, as they are given. order: probes, in the order in which they are
    asked. outcome: what is returned, or the TypeError, where all say NotImplemented. known: the Var
    of each probe by its id."""

    function: Any = None
    kinds: tuple[type, ...] = ()
    rest: tuple[Any, ...] = ()
    order: list[Any] = field(default_factory=list)
    outcome: Any = None
    known: dict[int, tuple[Any, Var]] = field(default_factory=dict)

    def note(self, probed: Any, function: Any, types: Any, *rest: Any) -> Any:
        self.function, self.rest = function, rest
        self.kinds = tuple([_REAL.get(kind, kind) for kind in types])
        if probed is not None:
            self.order.append(probed)
        return NotImplemented

    def var_of(self, value: Any) -> Var:
        return self.known[id(value)][1]


class _Note:
    """`__torch_function__` of a probe."""

    def __get__(self, probed: Any, owner: Any) -> Any:
        return functools.partial(probed.probed.note, probed) if probed is not None else self


class _Mode(TorchFunctionMode):
    """In front of all modes of the program: no other is asked."""

    def __init__(self, probed: OverrideCall) -> None:
        super().__init__()
        self.probed = probed

    def __torch_function__(self, function: Any, types: Any, *rest: Any) -> Any:
        if self.probed.function is not None:  # by what torch.Tensor answers to its own
            raise TypeError
        self.probed.note(None, function, types, *rest)
        if not types:
            raise TypeError
        return NotImplemented


def overrides(var: Var) -> bool:
    """True for a value, or a sequence with one, whose class has a `__torch_function__`."""
    if isinstance(var, TensorVar):
        return var.overrides
    if isinstance(var, ObjectVar):
        return find_in_mro(var.cls, OVERRIDE) not in (None, TURNED_OFF)
    if isinstance(var, ListVar | TupleVar):
        return any(map(overrides, var.items))
    return False


def likeness(cls: type) -> type:
    """A class that is to others as `cls` is to theirs, and whose instances tell what they are
    asked."""
    known = _likenesses.get(cls)
    if known is None:
        root = torch.Tensor if issubclass(cls, torch.Tensor) else object
        bases = tuple([
            likeness(base) for base in cls.__bases__
            if base is not root and find_in_mro(base, OVERRIDE) is not None
        ]) or (root,)
        asks = find_in_mro(cls, OVERRIDE) is not TURNED_OFF
        own = {OVERRIDE: _Note() if asks else TURNED_OFF, "__module__": cls.__module__,
               "__qualname__": cls.__qualname__}
        make: Any = type(root)
        known = _likenesses[cls] = make(cls.__name__, bases, own)
        _REAL[known] = cls
    return known


def probe_of(probed: OverrideCall, var: Var) -> Any:
    """What stands for a value."""
    made: Any
    if isinstance(var, TensorVar):
        fake = var.fake
        made = torch.empty((1,) * fake.dim(), dtype=fake.dtype, device="meta")
        if var.cls is not torch.Tensor:
            made = made.as_subclass(var.cls if var.cls in PLAIN else likeness(var.cls))
        made.probed = probed
    elif isinstance(var, ObjectVar):
        made = likeness(var.cls)() if overrides(var) else object()
        if overrides(var):
            made.probed = probed
    elif isinstance(var, ListVar | TupleVar):
        made = [probe_of(probed, item) for item in var.items]
        made = tuple(made) if isinstance(var, TupleVar) else made
        made = torch.Size(made) if isinstance(var, SizeVar) else made
    elif isinstance(var, SliceVar):
        made = slice(*[probe_of(probed, part) for part in var.children()])
    elif isinstance(var, ClassVar):
        made = var.cls
    else:
        made = var.as_fake()
    if not var.is_constant():
        probed.known[id(made)] = made, var
    return made


def probe_call(
    call: Callable[..., Any], args: list[Var], kwargs: dict[str, Var], *, enabled: bool,
    has_modes: bool, by_mapping: bool,
) -> OverrideCall | None:
    """What the call hands over; None where it asks nobody. enabled: whether classes are asked;
    has_modes: whether modes are; by_mapping: the call is `f(**kwargs)`, whose dict C functions hand
    on though it is empty."""
    probed = OverrideCall()
    given = [probe_of(probed, arg) for arg in args]
    named = {name: probe_of(probed, arg) for name, arg in kwargs.items()}
    with ExitStack() as stack:
        stack.enter_context(torch._C._EnableTorchFunction())  # type: ignore[attr-defined]
        if not enabled:
            stack.enter_context(torch._C.DisableTorchFunctionSubclass())
        if has_modes or torch._C._len_torch_function_stack():
            stack.enter_context(_Mode(probed))
        try:
            if named or by_mapping:
                probed.outcome = call(*given, **named)
            else:
                probed.outcome = call(*given)
        except TypeError as error:
            probed.outcome = error
        except Exception:
            if probed.function is None:
                return None
            raise
    return None if probed.function is None else probed
