"""Traceable wrapper subclasses: tensors that are made of other tensors and say how.

A class with `__tensor_flatten__` (names of the inner tensors, and a context of plain values),
`__tensor_unflatten__` and `__torch_dispatch__` can be taken apart and put together again; a
`Recipe` says how, and is the same for all tensors that a graph can stand for. Inner tensors may be
such tensors themselves.

    >>> recipe = recipe_of(weight)
    >>> plain = inner_tensors(weight, recipe)
    >>> same = compose(recipe, plain)
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dynamo.base.ragged_sizes import Jagged, is_jagged, of_parts

FAKE: Any = torch._C._TorchDispatchModeKey.FAKE
PARTS = ("__tensor_flatten__", "__tensor_unflatten__")
# What a class may have of its own and be no other tensor for operations.
HARMLESS = frozenset("""__module__ __doc__ __dict__ __weakref__ __init__ __new__ __repr__ __str__
    __qualname__ __annotations__ __deepcopy__ __copy__ __reduce_ex__ __setstate__ __getstate__
    __torch_function__ __torch_dispatch__ __slots__ __init_subclass__""".split())
OVERRIDE, REQUIRES_GRAD = "__torch_function__", "requires_grad"
_EnableTorchFunction: Any = torch._C._EnableTorchFunction  # type: ignore[attr-defined]
TURNED_OFF = torch._C._disabled_torch_function_impl
# Known at once; the others are not kept alive by what is known of them.
PLAIN: set[type] = {torch.Tensor, torch.nn.Parameter, torch.nn.Buffer}
_thread = threading.local()
_plain_subclasses: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()
_wrappers: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Held:
    """What stands among the inner tensors and is none: a mesh of devices, say."""

    value: Any


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a wrapper tensor is made of plain tensors.

    names: of the inner tensors; parts: for each, None where it is plain, its recipe where it is a
    wrapper itself, and the value where it is no tensor.
    context: what `__tensor_flatten__` says beside the names. size, stride: of the wrapper; empty
    for a nested tensor, whose follow from its parts.
    requires_grad: of the wrapper.
    """

    cls: type[torch.Tensor]
    names: tuple[str, ...]
    parts: tuple[Recipe | Held | None, ...]
    context: Any
    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    requires_grad: bool

    @property
    def count(self) -> int:
        """How many plain tensors it takes."""
        counts = [part.count for part in self.parts if isinstance(part, Recipe)]
        return sum(counts) + self.parts.count(None)


def is_wrapper(value: Any) -> bool:
    """True for a tensor of a traceable wrapper subclass."""
    return is_wrapper_class(type(value))


def is_wrapper_class(cls: type) -> bool:
    """True for a traceable wrapper subclass."""
    if cls in PLAIN or not issubclass(cls, torch.Tensor):
        return False
    known = _wrappers.get(cls)
    if known is None:
        known = _wrappers[cls] = all(
            hasattr(cls, name) for name in PARTS
        ) and cls.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl  # type: ignore
    return known


def is_plain_subclass(cls: type) -> bool:
    """True for a class of the program whose tensors are plain ones to all but Python: it has no
    dispatch, and attributes are read as usual."""
    if cls in PLAIN or not issubclass(cls, torch.Tensor):
        return False
    known = _plain_subclasses.get(cls)
    if known is None:
        known = _plain_subclasses[cls] = (
            cls.__module__.partition(".")[0] not in ("torch", "dynamo")
            and cls.__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl  # type: ignore
            and cls.__getattribute__ is torch.Tensor.__getattribute__
            and not hasattr(cls, "__getattr__")
        )
    return known


def overrides_functions(cls: type) -> bool:
    """True for a class of tensors whose `__torch_function__` torch's functions ask."""
    return cls not in PLAIN and getattr(cls, OVERRIDE, TURNED_OFF) is not TURNED_OFF


def shielded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a graph calls it on tensors whose `__torch_function__` has been asked."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = f"plain_{getattr(function, '__name__', 'call').strip('_')}"
    return call


def asking(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, code of the program, as a graph calls it on wrappers whose
    `__torch_function__` is asked by what runs inside."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with _EnableTorchFunction():
            return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = getattr(function, "__name__", "call")
    call.__module__ = __name__
    return call


def acts_as_plain(cls: type) -> bool:
    """True for a class whose tensors a graph takes as they are: no method, operator or function of
    torch's does anything else for them."""
    return cls in PLAIN or not overrides_functions(cls) and not any(
        name not in HARMLESS and hasattr(torch.Tensor, name)
        for part in cls.__mro__ if part not in PLAIN and issubclass(part, torch.Tensor)
        for name in vars(part)
        if part not in torch.Tensor.__mro__)


@contextlib.contextmanager
def without_torch_function() -> Iterator[None]:
    """Inside, the compiler looks at tensors, which asks no `__torch_function__` of theirs or of the
    program's modes."""
    before = getattr(_thread, "outside", None)
    _thread.outside = before or (torch._C._is_torch_function_enabled(), outer_modes())
    off = torch._C.DisableTorchFunction if _thread.outside[1] else (
        torch._C.DisableTorchFunctionSubclass)
    try:
        with off():
            yield
    finally:
        _thread.outside = before


def as_in_program() -> contextlib.AbstractContextManager[None]:
    """Inside of that, what the program has."""
    enabled, _ = getattr(_thread, "outside", None) or (False, ())
    return _EnableTorchFunction() if enabled else contextlib.nullcontext()


def classes_as_in_program() -> contextlib.AbstractContextManager[None]:
    """The same for classes of tensors alone: nothing where the program has modes, which would be
    asked, too."""
    _, modes = getattr(_thread, "outside", None) or (False, ())
    return contextlib.nullcontext() if modes else as_in_program()


def outer_modes() -> list[Any]:
    """The program's modes that see torch functions around the frame, outermost first, which a trace
    asks; none where torch has one among them, or all are turned off."""
    known = getattr(_thread, "outside", None)
    if known is not None:
        return known[1]  # type: ignore[no-any-return]
    count = torch._C._len_torch_function_stack()  # type: ignore[attr-defined]
    if not count or not torch._C._is_torch_function_mode_enabled():
        return []
    modes = [torch._C._get_function_stack_at(at) for at in range(count)]  # type: ignore
    own = all(type(mode).__module__.partition(".")[0] != "torch" or (
        type(mode) is torch.overrides.BaseTorchFunctionMode) for mode in modes)
    return modes if own else []


def is_foreign(types: Iterable[type]) -> bool:
    """True where one of the classes that torch hands to a dispatch mode has a dispatch of its own,
    which comes first: the mode sees what that calls."""
    return any(map(is_wrapper_class, types))


def is_elsewhere() -> bool:
    """True inside of a `FakeTensorMode` that a wrapper's dispatch has entered, to learn what the
    result looks like: what runs there is no operation of the program."""
    return torch._C._get_dispatch_mode(FAKE) is not None


def recipe_of(value: torch.Tensor) -> Recipe:
    """The recipe of a wrapper tensor as it is now. Its `__torch_function__` is not asked."""
    with torch._C.DisableTorchFunctionSubclass():
        names, context = value.__tensor_flatten__()  # type: ignore[attr-defined]
        inner = [getattr(value, name) for name in names]
        parts = tuple([_part_of(part) for part in inner])
        size, stride = ((), ()) if is_jagged(value) else (
            tuple(value.shape), tuple(value.stride()))
        return Recipe(type(value), tuple(names), parts, plain_context(context), size, stride,
                      value.requires_grad)


def plain_context(context: Any) -> Any:
    """What `__tensor_flatten__` says of a wrapper that requires no gradient: that of a nested
    tensor says whether it does."""
    if type(context) is dict and context.get(REQUIRES_GRAD) is True:
        return {**context, REQUIRES_GRAD: False}
    return context


def _part_of(inner: Any) -> Recipe | Held | None:
    if not isinstance(inner, torch.Tensor):
        return Held(inner)
    return recipe_of(inner) if is_wrapper(inner) else None


def inner_tensors(value: Any, recipe: Recipe) -> list[Any]:
    """The plain tensors that a wrapper is made of, in the recipe's order."""
    found: list[Any] = []
    for name, part in zip(recipe.names, recipe.parts, strict=True):
        if part is None:
            found.append(getattr(value, name))
        elif isinstance(part, Recipe):
            found += inner_tensors(getattr(value, name), part)
    return found


def layout_of(value: torch.Tensor) -> tuple[Any, ...]:
    """Sizes and strides: of a wrapper, of the plain tensors that it is made of, and what it says
    beside."""
    if not is_wrapper(value):
        return value.shape, value.stride()
    recipe = recipe_of(value)
    own = () if is_jagged(value) else (value.shape, value.stride())
    return (*own, str(recipe.context), recipe.names, *map(layout_of, inner_tensors(value, recipe)))


def compose(recipe: Recipe, plain: Sequence[Any]) -> torch.Tensor:
    """The wrapper of these plain tensors. It requires no gradient."""
    return _compose(recipe, iter(plain))


def _compose(recipe: Recipe, plain: Iterator[Any]) -> torch.Tensor:
    inner = {
        name: next(plain) if part is None
        else part.value if isinstance(part, Held) else _compose(part, plain)
        for name, part in zip(recipe.names, recipe.parts, strict=True)
    }
    return compose_one(recipe.cls, inner, recipe.context, recipe.size, recipe.stride)


def compose_one(
    cls: Any, inner: dict[str, Any], context: Any, size: Sequence[Any], stride: Sequence[Any]
) -> torch.Tensor:
    """The wrapper of its inner tensors, by name."""
    if cls is Jagged:  # its sizes follow from these
        return of_parts(inner, context["ragged_idx"])
    made: torch.Tensor = cls.__tensor_unflatten__(inner, context, size, stride)
    return made
