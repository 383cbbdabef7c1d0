"""What a `FakeWorld` must know of an operation: its schema, its tags, its device, what is special.

In: an ATen operator. Out: its `OpFacts`; the device of its outputs; rows for the few operators that
are run in another way (`NotImplemented`: as any other).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from dynamo.graph_operators.operator_effects import acts, draws
from dynamo.shapes.constants import READS, role_of
from dynamo.shapes.facts import Facts, OpCache
from dynamo.shapes.fake_tensor import DataDependent, Fake, NoFakeKernel, StorageToken
from dynamo.shapes.observable import kind_of
from dynamo.shapes.rules import SHAPE_RULES, pointwise_outcome

RESIZED = "a storage is resized or exchanged"
aten = torch.ops.aten


class OpFacts:
    """What the dispatcher must know of one operation, read once from its schema and tags."""

    __slots__ = (
        "changes_facts", "data_dependent", "draws", "func", "names", "observed", "role", "rule",
        "special", "takes_device",
    )  # fmt: skip

    def __init__(self, func: Any) -> None:
        self.names = names = [argument.name for argument in func._schema.arguments]
        tags = func.tags
        self.func = func
        self.takes_device = "device" in names
        self.changes_facts = torch.Tag.inplace_view in tags
        self.draws = draws(func)
        self.observed = self.draws or kind_of(func) is not None or acts(func)
        self.data_dependent = (
            torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags
        )
        self.special = _SPECIAL.get(func)
        self.rule = SHAPE_RULES.get(func)
        self.role = role_of(func)
        if self.rule is None and torch.Tag.pointwise in tags:
            self.rule = pointwise_outcome(func)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """With the device by name, where another one is put in its place."""
        place = self.names.index("device") if self.takes_device else len(args)
        return args[:place], dict(zip(self.names[place:], args[place:], strict=False)) | kwargs

    def refuse(self, args: tuple[Any, ...]) -> None:
        """Raises where the outcome does not follow from the facts."""
        if self.func in _RESIZES:
            raise NoFakeKernel(self.func, RESIZED)
        if self.func.name().startswith(_MAKES_QUANTISED):
            raise NoFakeKernel(self.func, "quantised tensors are not modelled")
        if self.data_dependent and self.func not in _STATIC_DESPITE_TAG:
            raise DataDependent(self.func)

    def sized_by_values(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """True where the size of the result follows from values of tensors."""
        if self.func is aten.index.Tensor:
            return any(index is not None and index.dtype in MASKS for index in args[1])
        if self.func is aten.repeat_interleave.Tensor:
            return kwargs.get("output_size") is None
        return self.func in _SIZED_BY_VALUES


_RESIZES: frozenset[Any] = frozenset(
    {
        aten.resize_.default,
        aten.resize_as_.default,
        aten.set_.default,
        aten.set_.source_Storage,
        aten.set_.source_Storage_storage_offset,
        aten.set_.source_Tensor,
        aten.set_.source_Tensor_storage_offset,
    }
)

_MAKES_QUANTISED = ("aten::quantize_per_", "aten::_make_per_", "aten::_empty_")

MASKS = (torch.bool, torch.uint8)
_SIZED_BY_VALUES: frozenset[Any] = frozenset((
    aten.nonzero.default, aten.masked_select.default, aten._unique2.default,
    aten.unique_consecutive.default, aten.unique_dim.default,
))  # fmt: skip

# Tagged dynamic for masks as indices, or where no size is given; those calls are sorted out by
# `sized_by_values`.
_STATIC_DESPITE_TAG: frozenset[Any] = frozenset({
    aten.index.Tensor, aten.repeat_interleave.Tensor})


class World(Protocol):
    """What the rules of single operations ask of the `FakeWorld` that they run in."""

    cache: OpCache
    constants: Any
    autocast: bool

    def make(self, facts: Facts, token: StorageToken | None = None) -> Fake: ...
    def constant_of(self, fake: Fake) -> torch.Tensor | None: ...


def _lift(world: World, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`torch.tensor(...)` of the program: remember the value."""
    source = args[0]
    if type(source) is Fake:
        return NotImplemented
    fake = world.make(world.cache.facts_of(source, source.device))
    world.constants.learn(fake, source)
    return fake


def _read(world: World, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operation says of values: known of what is made of constants."""
    known = [world.constant_of(arg) if type(arg) is Fake else arg for arg in args]
    if any(value is None for value in known):
        raise DataDependent(func)
    world.constants.read += args[:1]
    return func(*known, **kwargs)


def _pinned(world: World, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    raise NoFakeKernel(func, "whether memory is pinned is not modelled")


def _calls_operators(
    world: World, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Its kernel calls operators that autocast knows, so its result has another dtype under it."""
    if world.autocast:
        raise NoFakeKernel(func, "autocast changes the operators that it calls")
    return NotImplemented


def _detach(world: World, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    source = args[0]
    return world.make(source.facts, source.token) if type(source) is Fake else NotImplemented


_SPECIAL: dict[Any, Callable[..., Any]] = {
    aten.lift_fresh.default: _lift,
    **dict.fromkeys(READS, _read),
    aten.is_pinned.default: _pinned,
    aten._transformer_encoder_layer_fwd.default: _calls_operators,
    aten._native_multi_head_attention.default: _calls_operators,
    aten.detach.default: _detach,
    aten.alias.default: _detach,
}


def common_device(func: Any, fakes: list[Fake]) -> torch.device:
    """The device on which eager puts the outputs; raises eager's error where they differ."""
    if not fakes:
        return torch.device("cpu")
    device = fakes[0].facts.device
    scalar = not fakes[0].facts.size
    for fake in fakes:
        other = fake.facts.device
        if other == device:
            scalar = scalar and not fake.facts.size
            continue
        if not fake.facts.size and other.type == "cpu":
            continue
        if scalar and device.type == "cpu":
            device, scalar = other, False
            continue
        if func in _MIXED_DEVICES:
            break
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{device} and {other}!"
        )
    return device


# Lengths and targets of CTC losses may be on the CPU. Not every version of torch has all of them.
_CTC = """_use_cudnn_ctc_loss _use_miopen_ctc_loss _ctc_loss _cudnn_ctc_loss
_ctc_loss_backward""".split()
# Operations that take tensors of several devices; the outputs live where the first argument does.
_MIXED_DEVICES: frozenset[Any] = frozenset((
    aten.copy_.default, aten.index.Tensor, aten.index_put.default, aten.index_put_.default,
    aten._index_put_impl_.default,
    *(getattr(getattr(aten, name), overload) for name in _CTC if hasattr(aten, name)
      for overload in getattr(aten, name).overloads()),
))  # fmt: skip


def with_index(device: torch.device) -> torch.device:
    """`cuda` means the current device."""
    if device.type == "cuda" and device.index is None and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return device
