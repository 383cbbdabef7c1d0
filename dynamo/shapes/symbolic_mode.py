"""The fake mode of worlds with symbolic sizes.

Torch chooses a kernel of a convolution on the CPU by the batch size, among other things, and so
would assume that it stays below 16, or above. All of these kernels give results of one layout: the
batch size is a constant while torch's rule for that layout runs, and put into the results then.
Draws of given parameters are dense, whatever the strides of these. Channels are shuffled into a
copy on the CPU, also where torch's rule gives a view.
The rule of torch 2.11 for attention on the CPU takes its sums for float32 where they are float64.
Its rules for pooling divide by a function that asks for a remainder before it floors, which floors
already: they are given the division itself.
Results are not written into tensors of other sizes, which would resize these.
Its rules for pointwise operations and softmax leave out what the kernels check of dtypes and axes:
these run once on small real tensors, for their errors.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
from typing import Any

import torch
from torch import _meta_registrations as kernels
from torch._guards import Source as TorchSource
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from dynamo.base.ragged_sizes import new_nested_int
from dynamo.base.subclasses import is_foreign
from dynamo.shapes.constants import READS, Constants, role_of
from dynamo.shapes.direct import direct
from dynamo.shapes.fake_tensor import NoFakeKernel
from dynamo.shapes.iteration import probe
from dynamo.shapes.observable import observable_effects
from dynamo.shapes.operations import RESIZED
from dynamo.shapes.refusals import REFUSALS, refused
from dynamo.shapes.rules.factories import DRAWS
from dynamo.shapes.rules.table import is_fake

aten = torch.ops.aten
# Where the operators have their tensors with a batch dimension, and the flag `transposed`.
CONVOLUTIONS = {
    aten.convolution.default: ((0,), 6), aten.convolution_backward.default: ((0, 1), 7),
}  # fmt: skip
ANY_BATCH = 32
# Where they have the images, whose layout decides that of the first result. Torch's rules give
# strides of two or three axes to the result of a batch norm, too, where the kernels of the CPU make
# a dense one; from torch 2.14 on that of a group norm is row-major, whatever the images are.
NORMS = {
    aten.native_group_norm.default: 0,
    aten.native_batch_norm.default: 0, aten._native_batch_norm_legit.default: 0,
    aten._native_batch_norm_legit.no_stats: 0, aten._native_batch_norm_legit_no_training.default: 0,
    aten._native_batch_norm_legit_functional.default: 0, aten.native_batch_norm_backward.default: 1,
}
# torch 2.11 gives their results the strides of an expanded source; the kernels make a dense copy.
SCATTERS = frozenset((
    aten.slice_scatter.default, aten.select_scatter.default, aten.diagonal_scatter.default,
))  # fmt: skip
SOFTMAX = frozenset((aten._softmax.default, aten._log_softmax.default))
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
kernels.div_rtn = operator.floordiv
ATTENTION = aten._scaled_dot_product_flash_attention_for_cpu.default


NUMBERS = itertools.count(1 << 40)  # of ragged sizes that no program has


@dataclasses.dataclass(frozen=True)
class Place(TorchSource):
    """What torch wants to know of a symbol's origin: a name."""

    place: str

    @property
    def _name_template(self) -> str:
        return self.place


class SymbolicMode(FakeTensorMode):
    """A `FakeTensorMode` whose convolutions assume nothing of the batch size, and whose attention
    has sums of the right type; observed: as of `FakeWorld`."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.observed: set[str] = set()
        self.nested_ints: set[Any] = set()  # symbols of ragged sizes
        self.constants = Constants(
            FakeTensor, lambda fake: int(fake.untyped_storage()._cdata),
            lambda fake: fake.untyped_storage())

    def create_symbolic_nested_int(self, *, nt_tensor_id: int | None = None) -> Any:
        """A new ragged size, of nobody else's: a symbol that no guard speaks of."""
        number = next(NUMBERS) if nt_tensor_id is None else nt_tensor_id
        assert self.shape_env is not None
        hint, place = new_nested_int(number), Place(f"ragged{number}")
        symbol = self.shape_env.create_symbol(hint, place)  # type: ignore[arg-type]
        self.nested_ints.add(symbol)
        return self.shape_env.create_symintnode(symbol, hint=hint, source=place)  # type: ignore

    def dispatch(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if is_foreign(types):  # sizes that are known directly are not the wrapper's class
            return NotImplemented
        if func in READS:
            known = [self.constants.value(arg) for arg in args if isinstance(arg, torch.Tensor)]
            if all(value is not None for value in known):
                return func(*known, *args[len(known):], **(kwargs or {}))
            for arg in args[:len(known)]:  # torch's own knowledge: of numbers that vary, too
                if type(arg) is FakeTensor:
                    arg.constant = None
        result = self._dispatch(func, types, args, kwargs)
        if func is aten.lift_fresh.default and type(args[0]) is not FakeTensor:
            self.constants.learn(result, args[0])
        self.constants.follow(func, role_of(func), args, kwargs or {}, result)
        return result

    def _dispatch(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is aten.is_set_to.default:
            raise NoFakeKernel(func, "only the storage of the real tensor tells")
        self._refuse_resizing(func, types, args, kwargs or {})
        self.observed |= observable_effects(func, args, kwargs or {})
        refusal = REFUSALS.get(func)
        if refusal is not None and refusal(args):
            raise refused(func)
        if is_checked(func) and not any(map(is_symbolic, (*args, *(kwargs or {}).values()))):
            probe(func, args, kwargs or {}, 1, is_fake)
        if func is ATTENTION and args[0].dtype is torch.float64:
            found: Any = super().dispatch(func, types, args, kwargs)
            with self:
                return (found[0], found[1].to(torch.float64), *found[2:])
        if func in SCATTERS and _is_spread(args[0]):
            super().dispatch(func, types, args, kwargs)  # for its errors
            with self, torch.no_grad():
                return torch.empty_like(args[0])
        if func is aten.bincount.default:
            counts: Any = super().dispatch(func, types, args, kwargs)
            with self:
                return counts.to(_dtype_of_counts(*args, **(kwargs or {})))
        if func in DRAWS:
            drawn: Any = super().dispatch(func, types, args, kwargs)
            with self, torch.no_grad():
                return torch.empty(drawn.shape, dtype=drawn.dtype, device=drawn.device)
        sizes = direct(func, args, kwargs or {})
        if sizes is not None:
            with self, torch.no_grad():
                made = tuple([
                    torch.empty(size, dtype=args[0].dtype, device=args[0].device) for size in sizes
                ])
            return made if len(made) > 1 else made[0]
        if func in NORMS and args[0].device.type == "cpu":
            found = super().dispatch(func, types, args, kwargs)
            return self._in_layout_of(args[NORMS[func]], found)
        if func is aten.channel_shuffle.default and args[0].device.type == "cpu":
            super().dispatch(func, types, args, kwargs)  # for its errors
            with self, torch.no_grad():
                return torch.empty_like(args[0], memory_format=suggest_memory_format(args[0]))
        places, flag = CONVOLUTIONS.get(func, ((), 0))
        if not places or kwargs or args[flag] or not self._is_symbolic(args[places[-1]]):
            return super().dispatch(func, types, args, kwargs)
        batch = args[places[-1]].shape[0]
        given = list(args)
        for place in places:
            given[place] = self._with_batch(args[place], ANY_BATCH)
        results: Any = super().dispatch(func, types, tuple(given), kwargs)
        if func is aten.convolution.default:
            return self._with_batch(results, batch)
        first, *others = results
        return (None if first is None else self._with_batch(first, batch), *others)

    def _refuse_resizing(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Tries an operation with `out=` on other tensors of the same sizes."""
        written = [
            name for name, value in kwargs.items()
            if name.startswith("out") and isinstance(value, torch.Tensor)
        ]
        if not written:
            return
        with self, torch.no_grad():
            tried = {name: torch.empty_like(kwargs[name]) for name in written}
        super().dispatch(func, types, args, {**kwargs, **tried})
        if any(str(tried[name].shape) != str(kwargs[name].shape) for name in written):
            raise NoFakeKernel(func, RESIZED)

    def _in_layout_of(self, images: torch.Tensor, found: Any) -> Any:
        """Results of which the first is dense, or in the layout of channels-last images."""
        first, *others = found
        if first is None or not first.numel():
            return found
        with self, torch.no_grad():
            kind = suggest_memory_format(images)
            made = torch.empty(first.shape, dtype=first.dtype, device=first.device)
            return (made.contiguous(memory_format=kind), *others)

    def _is_symbolic(self, tensor: Any) -> bool:
        return (
            type(tensor) is FakeTensor
            and tensor.fake_device.type == "cpu"
            and tensor.dim() > 2
            and isinstance(tensor.shape[0], torch.SymInt)
        )

    def _with_batch(self, tensor: torch.Tensor, batch: Any) -> torch.Tensor:
        with self, torch.no_grad():
            return torch.empty_strided(
                (batch, *tensor.shape[1:]), tensor.stride(), dtype=tensor.dtype,
                device=tensor.device,
            )


def _dtype_of_counts(
    given: torch.Tensor, weights: torch.Tensor | None = None, minlength: Any = 0
) -> torch.dtype:
    """Of `torch.bincount`; torch's rule has that of the input."""
    if weights is None:
        return torch.int64
    return torch.float32 if weights.dtype is torch.float32 else torch.float64


def is_checked(func: Any) -> bool:
    """True for operations of which one run on small tensors tells the error of any run."""
    if torch.Tag.pointwise not in func.tags:
        return func in SOFTMAX
    return torch.Tag.nondeterministic_seeded not in func.tags and func.namespace == "aten"


def is_symbolic(value: Any) -> bool:
    """True for a number that is not known, alone or in a list."""
    if isinstance(value, list | tuple):
        return any(map(is_symbolic, value))
    return isinstance(value, SYMBOLIC)


def _is_spread(tensor: torch.Tensor) -> bool:
    """True where several indices along an axis name one element."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return any(type(step) is int and step == 0 and n != 1 for n, step in pairs)
