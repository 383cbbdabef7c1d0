"""Shape rules: new tensors: filled, sequences, `new_*`, drawn from given distributions."""

from __future__ import annotations

from typing import Any

import torch

from dynamo.shapes.facts import OpCache, Outcome
from dynamo.shapes.iteration import broadcast_sizes
from dynamo.shapes.rules.table import (
    Args,
    Kwargs,
    contiguous,
    shape_rule,
    shared_device,
    tensors_of,
)

aten = torch.ops.aten
# Draws of given parameters; the results are dense whatever the strides of these, which torch's own
# rules do not say.
DRAWS = (
    aten.bernoulli.default, aten.bernoulli.p, aten.poisson.default, aten.binomial.default,
    aten.normal.Tensor_Tensor, aten.normal.Tensor_float, aten.normal.float_Tensor,
    aten._standard_gamma.default, aten._sample_dirichlet.default,
)  # fmt: skip


def _factory_device(kwargs: dict[str, Any]) -> torch.device | None:
    device = torch.device(kwargs.get("device") or "cpu")
    return None if device.type == "cuda" and device.index is None else device


def _is_plain_factory(kwargs: dict[str, Any]) -> bool:
    return (
        not kwargs.get("pin_memory")
        and kwargs.get("layout") in (None, torch.strided)
        and kwargs.get("memory_format") in (None, torch.contiguous_format)
        and "names" not in kwargs
    )


@shape_rule(
    aten.zeros.default, aten.ones.default, aten.empty.memory_format, aten.rand.default,
    aten.randn.default, aten.full.default,
)  # fmt: skip
def _filled(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    device = _factory_device(kwargs)
    size = tuple(args[0])
    if device is None or not _is_plain_factory(kwargs) or any(extent < 0 for extent in size):
        return None
    dtype = kwargs.get("dtype")
    if dtype is None:
        dtype = torch.get_default_dtype()
        if func is aten.full.default:
            dtype = torch.full((), args[1]).dtype
    return contiguous(cache, size, dtype, device)


@shape_rule(
    aten.arange.default, aten.arange.start, aten.arange.start_step, aten.scalar_tensor.default,
    aten.linspace.default, aten.eye.default, aten.eye.m,
)  # fmt: skip
def _sequence(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    """Small ones are simply made; their values cost less than a model of their rounding."""
    device = _factory_device(kwargs)
    if device is None or not _is_plain_factory(kwargs):
        return None
    if any(isinstance(arg, (int, float)) and abs(arg) > 1 << 16 for arg in args):
        return None
    made = func(*args, **{**kwargs, "device": torch.device("cpu")})
    return contiguous(cache, tuple(made.shape), made.dtype, device)


@shape_rule(aten.new_zeros.default, aten.new_ones.default, aten.new_empty.default,
            aten.new_full.default)  # fmt: skip
def _new(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    source = args[0].facts
    device = _factory_device({"device": kwargs.get("device") or source.device})
    if device is None or not _is_plain_factory(kwargs) or any(extent < 0 for extent in args[1]):
        return None
    return contiguous(cache, tuple(args[1]), kwargs.get("dtype") or source.dtype, device)


@shape_rule(*DRAWS)
def _drawn(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    """Nothing is probed: that would draw."""
    tensors = tensors_of(args, kwargs)
    size = broadcast_sizes([each.facts.size for each in tensors])
    device, dtypes = shared_device(tensors), {each.facts.dtype for each in tensors}
    if size is None or device is None or len(dtypes) != 1 or any(x.facts.bits for x in tensors):
        return None
    [dtype] = dtypes
    return contiguous(cache, size, dtype, device) if dtype.is_floating_point else None
