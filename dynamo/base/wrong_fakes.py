"""Operators of the program whose fake kernel says other than what they do.

In: a call that runs such operators on real tensors. Out: a sentence that names the first operator
that differs from its fake kernel, the place where that is registered, and the difference; "" for
none. It runs where a compiled graph has failed and the same operators, as captured, have not.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._library import custom_ops, simple_registry
from torch.utils import _pytree as pytree

from dynamo.base.dispatch_modes import OwnDispatchMode

ADVICE = ("What to do: mend what register_fake is given; torch.library.opcheck(operator, "
          "arguments) tells whether it is right.")


def wrong_fake_in(call: Callable[[], Any]) -> str:
    """See the top of the file."""
    if not any(registrations()):
        return ""
    watch = _Watch()
    with contextlib.suppress(Exception), watch:  # what it raises is known already
        call()
    return watch.message


def registrations() -> Iterator[Any]:
    """The fake kernels that programs have registered."""
    yield from list(custom_ops.OPDEFS.values())
    for entry in list(simple_registry.singleton._data.values()):
        if entry.fake_impl.kernel is not None:
            yield entry.fake_impl.kernel


class _Watch(OwnDispatchMode):
    """Compares what each operator with such a kernel gives with what the kernel says."""

    def __init__(self) -> None:
        super().__init__()
        self.message = ""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        place = "" if self.message else _place_of(func)
        if not place:
            return func(*args, **kwargs)
        metas: dict[int, torch.Tensor] = {}
        said: Any = None
        with contextlib.suppress(Exception):  # it needs more than the sizes: nothing is compared
            said = func(*_as_meta(args, metas), **_as_meta(kwargs, metas))
        given = [value for value in pytree.tree_leaves((args, kwargs))
                 if isinstance(value, torch.Tensor)]
        result = func(*args, **kwargs)
        text = "" if said is None else _difference(result, said, given, [*metas.values()])
        if text:
            self.message = (f"the operator {func._schema.name} does not do what its fake kernel "
                          f"({place}) says: {text}")
        return result


def _place_of(func: Any) -> str:
    """Where the fake kernel of an operator was registered; "" for none of a program's."""
    name = func._schema.name
    made = custom_ops.OPDEFS.get(name)
    if made is not None and made._abstract_fn is not None:
        code = getattr(made._abstract_fn, "__code__", None)
        return f"{code.co_filename}:{code.co_firstlineno}" if code else "register_fake"
    entry = simple_registry.singleton._data.get(name)
    kernel = None if entry is None else entry.fake_impl.kernel
    return "" if kernel is None else str(kernel.source)


def _as_meta(tree: Any, metas: dict[int, torch.Tensor]) -> Any:
    """The arguments without data; a tensor that is there twice is one tensor here, too."""

    def meta(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in metas:
            metas[id(value)] = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device="meta")
        return metas[id(value)]

    return pytree.tree_map(meta, tree)


def _difference(
    result: Any, said: Any, given: list[torch.Tensor], metas: list[torch.Tensor]
) -> str:
    real = [value for value in pytree.tree_leaves(result) if isinstance(value, torch.Tensor)]
    fakes = [value for value in pytree.tree_leaves(said) if isinstance(value, torch.Tensor)]
    if len(real) != len(fakes):
        return f"it gives {len(real)} tensors, not {len(fakes)}"
    for number, (one, other) in enumerate(zip(real, fakes, strict=True)):
        what = "its result" if len(real) == 1 else f"its result {number}"
        for fact, value, wrong in _facts(one, other):
            if value != wrong:
                return f"{what} has {fact} {value}, not {wrong}"
        shares, should = _shares(one, given), _shares(other, metas)
        if shares != should:
            return f"{what} {'shares' if shares else 'does not share'} memory with an argument"
    return ""


def _facts(one: torch.Tensor, other: torch.Tensor) -> list[tuple[str, Any, Any]]:
    """What must be equal: name, of the result, of the fake."""
    device = one.device if other.is_meta else other.device
    places = [axis for axis, size in enumerate(one.shape) if size > 1 and one.numel()]
    same = one.shape == other.shape
    return [
        ("shape", [*one.shape], [*other.shape]), ("dtype", one.dtype, other.dtype),
        ("device", one.device, device),
        ("strides", [one.stride(a) for a in places] if same else [],
         [other.stride(a) for a in places] if same else []),
    ]  # fmt: skip


def _shares(tensor: torch.Tensor, others: list[torch.Tensor]) -> bool:
    storage = tensor.untyped_storage()._cdata
    return any(other.untyped_storage()._cdata == storage for other in others)
