"""The default decompositions: operations that a loop compiler gets as compositions of simpler ones.

In: nothing. Out: `default_decompositions()`, a table for `decompose`. Not in it: what a loop
compiler lowers directly for exact agreement with eager (softmax, layer_norm, gelu, silu,
group_norm, mean, var, activations), and what a library does better (GEMMs, convolutions,
attention, pooling).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch._decomp import decomposition_table

from dynamo.aot.embedding_bags import embedding_bag_backward, embedding_bag_weights_backward
from dynamo.aot.foreach import FOREACH
from dynamo.aot.frequent import FREQUENT
from dynamo.aot.padding import PADDING
from dynamo.aot.records import Unsupported
from dynamo.aot.resizing import RESIZING

aten = torch.ops.aten
Tensor = torch.Tensor
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
WORD = 4  # elements of float32 in 16 bytes

# Overloads whose decomposition is torch's own (in ATen operations only, no prims).
FROM_TORCH: tuple[str, ...] = (
    # losses
    "mse_loss.default", "mse_loss_backward.default", "nll_loss_forward.default",
    "nll_loss_backward.default", "nll_loss2d_forward.default", "nll_loss2d_backward.default",
    "smooth_l1_loss.default", "huber_loss_backward.default",
    "soft_margin_loss.default", "soft_margin_loss_backward.default",
    "binary_cross_entropy.default", "binary_cross_entropy_with_logits.default",
    "multi_margin_loss.default",
    # backward of activations
    "elu_backward.default", "gelu_backward.default", "glu_backward.default",
    "hardswish_backward.default", "hardtanh_backward.default",
    "leaky_relu_backward.default", "log_sigmoid_backward.default", "mish_backward.default",
     "sigmoid_backward.default", "silu_backward.default",
    "tanh_backward.default", "threshold_backward.default",
    "_prelu_kernel_backward.default", "rrelu_with_noise_backward.default",
    # normalisation
    "_softmax_backward_data.default", "_log_softmax_backward_data.default",
    "native_layer_norm_backward.default", "native_group_norm_backward.default",
    "native_batch_norm_backward.default", "native_batch_norm.default",
    "_native_batch_norm_legit_no_training.default", "_native_batch_norm_legit_functional.default",
    "_native_batch_norm_legit.no_stats", "batch_norm_backward.default",
    "_fused_rms_norm_backward.default", "_safe_softmax.default",
    # backward of views and of indexing
    "select_backward.default", "slice_backward.default", "diagonal_backward.default",
    "unfold_backward.default", "embedding_dense_backward.default",
    "native_dropout_backward.default",
    # resampling and padding
    "reflection_pad1d.default", "reflection_pad2d.default", "reflection_pad3d.default",
    "replication_pad1d.default", "replication_pad2d.default", "replication_pad3d.default",
    "im2col.default", "affine_grid_generator.default",
    # the rest
    "aminmax.default", "dist.default", "nansum.default", "unsafe_split.Tensor",
    "unsafe_split_with_sizes.default", "_weight_norm_interface.default", "_chunk_cat.default",
    "isin.Tensor_Tensor", "isin.Tensor_Scalar",
)  # fmt: skip


BATCH_NORMS = (
    "native_batch_norm.default", "_native_batch_norm_legit_no_training.default",
    "_native_batch_norm_legit_functional.default", "_native_batch_norm_legit.no_stats",
)  # fmt: skip


def _of_dtypes_that_eager_takes(function: Callable[..., Any]) -> Callable[..., Any]:
    """A batch norm that falls back to ATen, which raises, where no kernel takes its dtypes."""

    @functools.wraps(function)
    def guarded(x: Tensor, *rest: Any, **options: Any) -> Any:
        vectors = [each.dtype for each in rest if isinstance(each, Tensor)]
        if not takes_vectors(x.device.type, x.dtype, vectors):
            return NotImplemented
        return function(x, *rest, **options)

    return guarded


def _of_one_dtype(function: Callable[..., Any]) -> Callable[..., Any]:
    """A loss that falls back to ATen, which writes into a copy of the target, for mixed dtypes."""

    @functools.wraps(function)
    def guarded(x: Tensor, target: Tensor, *rest: Any, **options: Any) -> Any:
        if x.dtype is not target.dtype:
            return NotImplemented
        return function(x, target, *rest, **options)

    return guarded


def takes_vectors(device: str, dtype: torch.dtype, vectors: Sequence[torch.dtype]) -> bool:
    """Whether ATen's batch norm takes parameters and statistics of these dtypes: on a CPU, those of
    the input, or all float32 beside half precision."""
    if device != "cpu" or all(each is dtype for each in vectors):
        return True
    half = dtype in (torch.float16, torch.bfloat16)
    return half and all(each is torch.float32 for each in vectors)


def glu(x: Tensor, dim: int = -1) -> Tensor:
    value, gate = x.chunk(2, dim)
    return value * torch.sigmoid(gate)


def huber_loss(x: Tensor, target: Tensor, reduction: int = 1, delta: float = 1.0) -> Tensor:
    if delta <= 0:
        raise Unsupported("its kernel raises for this delta")
    error = (x - target).abs()
    loss = torch.where(error <= delta, 0.5 * error * error, delta * (error - 0.5 * delta))
    return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


def hardsigmoid_backward(gradient: Tensor, x: Tensor) -> Tensor:
    """With ATen's slope, which is a float32 for all dtypes."""
    return torch.where((x > -3.0) & (x < 3.0), gradient * 0.1666666716337204, 0.0)


def softplus_backward(gradient: Tensor, x: Tensor, beta: float, threshold: float) -> Tensor:
    """With the strides of the gradient, as ATen's: torch's own begins with the mask."""
    half = x.dtype in (torch.float16, torch.bfloat16)
    slope, wide = (gradient.to(torch.float32), x.to(torch.float32)) if half else (gradient, x)
    power = torch.exp(wide * beta)
    linear = wide * beta > threshold
    over, under = torch.where(linear, 1.0, power), torch.where(linear, 1.0, power + 1.0)
    result = slope * over / under
    return result.to(x.dtype) if half else result


def logit(x: Tensor, eps: float | None = None) -> Tensor:
    if not x.dtype.is_floating_point:
        return NotImplemented
    half = x.dtype in (torch.float16, torch.bfloat16)
    if half and x.device.type == "cpu":  # it rounds in between
        return NotImplemented
    wide = x.to(torch.float32) if half else x
    if eps is not None:
        wide = torch.where(wide < eps, eps, wide)
        wide = torch.where(wide > 1.0 - eps, 1.0 - eps, wide)
    result = torch.log(wide / (1.0 - wide))
    return result.to(x.dtype) if half else result


def norm(x: Tensor, p: Any, dim: list[int], keepdim: bool = False) -> Tensor:
    return torch.linalg.vector_norm(x, 2 if p is None else p, dim, keepdim)


def norm_of_all(x: Tensor, p: Any = 2) -> Tensor:
    return torch.linalg.vector_norm(x, p)


def vector_norm(
    x: Tensor, order: Any = 2, dim: list[int] | None = None, keepdim: bool = False, *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Of floating-point numbers in a wider dtype: the norm of what they are in that dtype."""
    if dtype is None or x.dtype is dtype or not x.dtype.is_floating_point:
        return NotImplemented
    wide = aten._to_copy.default(x, dtype=dtype)
    return aten.linalg_vector_norm.default(wide, order, dim, keepdim)


def logit_backward(gradient: Tensor, x: Tensor, eps: float | None = None) -> Tensor:
    low, outside = (0.0, float("nan")) if eps is None else (eps, 0.0)
    slope = gradient / (x * (1.0 - x))
    return torch.where((x < low) | (x > 1.0 - low), outside, slope)  # NaN is not outside


def smooth_l1_loss_backward(
    gradient: Tensor, x: Tensor, target: Tensor, reduction: int, beta: float
) -> Tensor:
    gradient = gradient * (1.0 / x.numel()) if reduction == 1 else gradient
    error = x - target
    inside = error * gradient / beta  # NaN, too
    return torch.where(error <= -beta, -gradient, torch.where(error >= beta, gradient, inside))


def binary_cross_entropy_backward(
    gradient: Tensor, x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1
) -> Tensor:
    """With ATen's least divisor, which is a float32 for all dtypes."""
    least = 9.999999960041972e-13
    slope = gradient * (x - target) / torch.clamp((1.0 - x) * x, min=least)
    if weight is not None:
        slope = slope * weight
    return slope / x.numel() if reduction == 1 else slope


def logsumexp(x: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    if x.numel() == 0 or not x.dtype.is_floating_point:
        return NotImplemented
    top = torch.amax(x, dim, keepdim=True)
    # Infinities are put right for each row, so that kernels may find maximum and sum in one pass.
    total = torch.log(torch.sum(torch.exp(x - top), dim, keepdim=keepdim))
    top = top if keepdim else torch.squeeze(top, dim)
    return torch.where(top.abs() == float("inf"), top, total + top)


def pixel_shuffle(x: Tensor, factor: int) -> Tensor:
    *lead, channels, height, width = x.shape
    inner = channels // factor**2
    rank = len(lead)
    split = x.reshape(*lead, inner, factor, factor, height, width)
    order = [*range(rank), *(rank + at for at in (0, 3, 1, 4, 2))]
    return split.permute(order).reshape(*lead, inner, height * factor, width * factor)


def pixel_unshuffle(x: Tensor, factor: int) -> Tensor:
    *lead, channels, height, width = x.shape
    rank = len(lead)
    split = x.reshape(*lead, channels, height // factor, factor, width // factor, factor)
    order = [*range(rank), *(rank + at for at in (0, 2, 4, 1, 3))]
    shape = (channels * factor**2, height // factor, width // factor)
    return split.permute(order).reshape(*lead, *shape)


def roll(x: Tensor, shifts: list[int], dims: list[int] = []) -> Tensor:  # noqa: B006
    if not dims:
        return torch.roll(x.reshape(-1), shifts, [0]).view(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        extent = x.shape[dim]
        at = -shift % extent if extent else 0
        parts = aten.slice.Tensor(x, dim, at, extent), aten.slice.Tensor(x, dim, 0, at)
        x = torch.cat(parts, dim)
    return x


def nan_to_num(
    x: Tensor,
    nan: float | None = None,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:
    if not x.dtype.is_floating_point:
        return x.clone()
    info = torch.finfo(x.dtype)
    high = info.max if posinf is None else posinf
    low = info.min if neginf is None else neginf
    y = torch.where(x.isnan(), 0.0 if nan is None else nan, x)
    y = torch.where(x == float("inf"), high, y)
    return torch.where(x == float("-inf"), low, y)


def addr(x: Tensor, one: Tensor, other: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    outer = one.unsqueeze(1) * other
    if alpha != 1:
        outer = alpha * outer
    if beta == 0:
        return outer
    return beta * x + outer if beta != 1 else x + outer


def count_nonzero(x: Tensor, dim: list[int]) -> Tensor:
    return (x != 0).sum(dim)


def index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    if x.dim() == 0 or x.numel() == 0:  # ATen looks at no index of an empty tensor
        return NotImplemented
    at = [None] * (dim % x.dim()) + [index]
    fill = torch.full((), value, dtype=x.dtype, device=x.device)
    return aten.index_put.default(x, at, fill)


def diag_embed(x: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    """Rows of a matrix that are the vector, and zeros off the diagonal."""
    if x.dtype.is_complex:
        return NotImplemented
    rank = x.dim() + 1
    dims = dim1 % rank, dim2 % rank
    x = aten.constant_pad_nd.default(x, [max(offset, 0), max(-offset, 0)]) if offset else x
    extent = x.shape[-1]
    places = torch.arange(extent, device=x.device)
    on_diagonal = (places - places.unsqueeze(1) == offset).view([1] * (rank - 2) + [extent] * 2)
    rows = x.unsqueeze(-2).movedim((-2, -1), dims)
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    return torch.where(on_diagonal.movedim((-2, -1), dims), rows, zero).contiguous()


def fused_rms_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """The norm, and the reciprocal of the root for its backward, in float32 for half precision."""
    if x.numel() == 0 or not x.dtype.is_floating_point:
        return NotImplemented
    half = x.dtype in (torch.float16, torch.bfloat16)
    wide = x.to(torch.float32) if half else x
    least = torch.finfo(wide.dtype).eps if eps is None else eps
    dims = [-1 - at for at in range(len(shape))]
    scale = torch.rsqrt(torch.mean(wide * wide, dims, keepdim=True) + least)
    result = wide * scale if weight is None else wide * scale * weight
    return result.to(x.dtype).contiguous(), scale


def weight_norm_backward(
    gradient: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int
) -> tuple[Tensor, Tensor]:
    """Of v * (g / norms), whose norms are those of v over all other dimensions: both gradients."""
    if v.numel() == 0 or not v.dtype.is_floating_point:
        return NotImplemented
    half = v.dtype in (torch.float16, torch.bfloat16)
    wide = [one.to(torch.float32) if half else one for one in (gradient, v, g, norms)]
    others = [at for at in range(v.dim()) if at != dim % v.dim()]
    slope = torch.sum(wide[0] * wide[1], others, keepdim=True)
    of_v = wide[2] / wide[3] * (wide[0] - wide[1] * (slope / (wide[3] * wide[3])))
    of_g = slope / wide[3]
    return (of_v.to(v.dtype), of_g.to(g.dtype)) if half else (of_v, of_g)


def log_sigmoid_forward(x: Tensor) -> tuple[Tensor, Tensor]:
    """As ATen's kernel on a GPU computes it, and nothing for backward. That on a CPU has bits of
    its own, and keeps its exponentials."""
    if not x.dtype.is_floating_point or x.device.type == "cpu":
        return NotImplemented
    half = x.dtype in (torch.float16, torch.bfloat16)
    wide = x.to(torch.float32) if half else x
    result = torch.clamp_max(wide, 0) - torch.log1p(torch.exp(-torch.abs(wide)))
    return result.to(x.dtype) if half else result, x.new_empty([0])


def logaddexp(a: Tensor, b: Tensor) -> Tensor:
    """As ATen's kernel on a GPU computes it. That on a CPU has bits of its own."""
    if a.dtype is not b.dtype or not a.dtype.is_floating_point or a.device.type == "cpu":
        return NotImplemented
    half = a.dtype in (torch.float16, torch.bfloat16)
    x, y = (a.to(torch.float32), b.to(torch.float32)) if half else (a, b)
    result = torch.maximum(x, y) + torch.log1p(torch.exp(-torch.abs(x - y)))
    result = torch.where((x == y) & (torch.abs(x) == float("inf")), x, result)
    return result.to(a.dtype) if half else result


def ldexp(x: Tensor, exponent: Tensor) -> Tensor:
    """Of dtypes that hold all powers of two that float32 does: of others torch's versions differ.
    """
    if x.dtype not in (torch.float32, torch.bfloat16) or exponent.dtype not in INTEGERS:
        return NotImplemented
    return x * torch.pow(2.0, exponent).to(x.dtype)


def euclidean_dist(a: Tensor, b: Tensor) -> Tensor:
    """As ATen computes it, by a GEMM whose operands have their rows' squares as further columns.
    For a GPU's library rows begin at whole words: zeros fill them. (One of 32768 x 1024 results
    and 258 terms took 209 us on an H200.)"""
    if a.dtype is not b.dtype or a.dtype not in (torch.float32, torch.float64):
        return NotImplemented
    own, other = (torch.sum(torch.pow(x, 2), [-1], keepdim=True) for x in (a, b))
    left, right = [-2 * a, own, torch.ones_like(own)], [b, torch.ones_like(other), other]
    columns = a.shape[-1] + 2
    if a.device.type != "cpu" and type(columns) is int and columns % WORD:
        for parts, x in ((left, a), (right, b)):
            parts.append(x.new_zeros((*x.shape[:-1], -columns % WORD)))
    squares = torch.matmul(torch.cat(left, -1), torch.cat(right, -1).transpose(-2, -1))
    return torch.sqrt(torch.clamp_min(squares, 0))


OWN: dict[str, Callable[..., Any]] = {
    "_is_all_true.default": torch.all,
    "_is_any_true.default": torch.any,
    "_fused_rms_norm.default": fused_rms_norm,
    "glu.default": glu,
    "hardsigmoid_backward.default": hardsigmoid_backward,
    "huber_loss.default": huber_loss,
    "ldexp.Tensor": ldexp,
    "logit.default": logit,
    "logit_backward.default": logit_backward,
    "norm.ScalarOpt_dim": norm,
    "norm.Scalar": norm_of_all,
    "softplus_backward.default": softplus_backward,
    "smooth_l1_loss_backward.default": smooth_l1_loss_backward,
    "binary_cross_entropy_backward.default": binary_cross_entropy_backward,
    "logsumexp.default": logsumexp,
    "pixel_shuffle.default": pixel_shuffle,
    "pixel_unshuffle.default": pixel_unshuffle,
    "roll.default": roll,
    "diag_embed.default": diag_embed,
    "nan_to_num.default": nan_to_num,
    "addr.default": addr,
    "count_nonzero.dim_IntList": count_nonzero,
    "_euclidean_dist.default": euclidean_dist,
    "logaddexp.default": logaddexp,
    "index_fill.int_Scalar": index_fill,
    "_weight_norm_interface_backward.default": weight_norm_backward,
    **PADDING,
    **RESIZING,
}


def overload(name: str) -> Any:
    """The overload of ATen of this name: "add.Tensor"."""
    packet, _, variant = name.partition(".")
    return getattr(getattr(aten, packet), variant)


def _first(own: Callable[..., Any], other: Callable[..., Any]) -> Callable[..., Any]:
    """The own decomposition, or the other one for what it does not do."""

    def decomposition(*args: Any, **kwargs: Any) -> Any:
        result = own(*args, **kwargs)
        return other(*args, **kwargs) if result is NotImplemented else result

    return decomposition


# Losses whose kernels on the CPU look at their values, and raise: probabilities, classes.
CHECKED_ON_CPU = ("binary_cross_entropy.default", "multi_margin_loss.default")


def _not_on_cpu(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """The decomposition where it gives what the operator gives; on the CPU that stays."""

    def checked(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if x.device.type == "cpu":
            raise Unsupported("its kernel raises for some values")
        return decomposition(x, *args, **kwargs)

    return checked


def _of_no_negative_beta(function: Callable[..., Any]) -> Callable[..., Any]:
    """`smooth_l1_loss`, whose kernel raises for negative ones."""

    def checked(x: Tensor, target: Tensor, reduction: int = 1, beta: float = 1.0) -> Any:
        if beta < 0:
            raise Unsupported("its kernel raises for this beta")
        return function(x, target, reduction, beta)

    return checked


# torch's decompositions of these read half precision as float32, in which kernels would store what
# they pad, twice the bytes. Nothing is computed: the functions behind the casts give the same.
MOVED_ONLY = tuple(
    f"{kind}_pad{rank}d.default" for kind in ("reflection", "replication") for rank in (1, 2, 3))


def windows_of_open_images(x: Tensor, *form: Any) -> Any:
    """`im2col`, taken apart where sizes are symbolic."""
    if all(type(extent) is int for extent in x.shape):
        return NotImplemented
    return default_decompositions()[overload("im2col.default")](x, *form)


# For some arguments of operators that a compiler may know by itself; else these stay.
PARTIAL = {
    overload("im2col.default"): windows_of_open_images,
    overload("native_batch_norm.default"): FREQUENT["native_batch_norm.default"],
    overload("log_sigmoid_forward.default"): log_sigmoid_forward,
    overload("linalg_vector_norm.default"): vector_norm,
}


BAGS: dict[str, Callable[..., Any]] = {
    "_embedding_bag_backward.default": embedding_bag_backward,
    "_embedding_bag_per_sample_weights_backward.default": embedding_bag_weights_backward,
}


@functools.cache
def default_decompositions() -> Mapping[Any, Callable[..., Any]]:
    """The default table: overload -> decomposition."""
    table = {overload(name): decomposition_table[overload(name)] for name in FROM_TORCH}
    own = {**OWN, **FOREACH, **BAGS}
    table.update({overload(name): function for name, function in own.items()})
    for name in MOVED_ONLY:
        function = table[overload(name)]
        table[overload(name)] = getattr(function, "__wrapped__", function)
    for name, function in FREQUENT.items():
        known = table.get(overload(name))
        table[overload(name)] = function if known is None else _first(function, known)
    with_logits = overload("binary_cross_entropy_with_logits.default")
    table[with_logits] = _of_one_dtype(table[with_logits])
    smooth_l1 = overload("smooth_l1_loss.default")
    table[smooth_l1] = _of_no_negative_beta(table[smooth_l1])
    for name in CHECKED_ON_CPU:
        table[overload(name)] = _not_on_cpu(table[overload(name)])
    for name in BATCH_NORMS:
        table[overload(name)] = _of_dtypes_that_eager_takes(table[overload(name)])
    return MappingProxyType(table)
