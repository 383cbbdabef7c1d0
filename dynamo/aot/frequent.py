"""Own decompositions of what training meets often, in ATen operations.

torch's functions for these operations import a compiler (two seconds in a fresh process) by their
wrappers. Each function here computes eager's formula for float32 and float64, some for half
precision on a GPU, and gives NotImplemented for the rest.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynamo.aot.records import Unsupported

aten = torch.ops.aten
Tensor = torch.Tensor
Maybe = Tensor | None

FEW_ROWS = 4  # of an embedding, whose gradient is a sum over all places for each; not measured

FREQUENT: dict[str, Callable[..., Any]] = {}


def frequent(
    *names: str, half_on_gpu: bool = False, half: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a decomposition for wide floats, and for half precision on a GPU where it says
    so."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            for arg in args:
                if not isinstance(arg, Tensor) or _is_plain(arg):
                    continue
                narrow = half and is_half(arg) or half_on_gpu and is_half_on_gpu(arg)
                if not narrow or arg.numel() == 0:
                    return NotImplemented
            return function(*args, **kwargs)

        FREQUENT.update(dict.fromkeys(names, guarded))
        return guarded

    return register


def _is_plain(tensor: Tensor) -> bool:
    wide = tensor.dtype in (torch.float32, torch.float64, torch.int64, torch.bool)
    return wide and tensor.numel() > 0


def is_half(x: Tensor) -> bool:
    return x.dtype in (torch.float16, torch.bfloat16)


def is_half_on_gpu(x: Tensor) -> bool:
    """Where kernels of eager hold sums and statistics in float32."""
    return x.device.type != "cpu" and is_half(x)


def widened(x: Tensor) -> Tensor:
    """Half precision in float32, once for each use: what several use would be stored so."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def _reduced(loss: Tensor, reduction: int) -> Tensor:
    return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


# -- losses --------------------------------------------------------------------------------------


@frequent("mse_loss.default")
def mse_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    distance = x - target
    return _reduced(distance * distance, reduction)


@frequent("mse_loss_backward.default")
def mse_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    factor = 2.0 / x.numel() if reduction == 1 else 2.0
    return factor * (x - target) * grad


@frequent("nll_loss_forward.default", half_on_gpu=True)
def nll_loss_forward(
    x: Tensor, target: Tensor, weight: Maybe, reduction: int, ignore_index: int
) -> Any:
    if x.dim() != 2:
        return NotImplemented
    counts = target != ignore_index
    index = torch.where(counts, target, 0).unsqueeze(1)
    loss = -torch.gather(x, 1, index).squeeze(1)
    if weight is None:
        weights = counts.to(x.dtype)
    else:
        chosen = torch.gather(weight.expand(x.shape), 1, index).squeeze(1)
        weights = torch.where(counts, chosen, 0.0)
        loss = loss * chosen
    loss = torch.where(counts, loss, 0.0)
    if reduction == 0:
        return loss, torch.zeros((), dtype=x.dtype, device=x.device)
    total, added = widened(weights).sum(), widened(loss).sum()
    return (added / total if reduction == 1 else added).to(x.dtype), total.to(x.dtype)


@frequent("nll_loss_backward.default", "nll_loss2d_backward.default", half=True)
def nll_loss_backward(
    grad: Tensor, x: Tensor, target: Tensor, weight: Maybe, reduction: int, ignore_index: int,
    total: Tensor,
) -> Tensor:  # fmt: skip
    axis = min(x.dim() - 1, 1)
    if reduction == 1:
        grad = grad / total
    if grad.dim():
        grad = grad.unsqueeze(axis)
    column = target.reshape(1) if x.dim() == 1 else target.unsqueeze(axis)
    shape = [x.shape[axis] if dim == axis else 1 for dim in range(x.dim())]
    if weight is not None:
        grad = grad * weight.view(shape)
    classes = aten.arange.default(x.shape[axis], device=x.device, pin_memory=False).view(shape)
    return torch.where((classes == column) & (column != ignore_index), -grad, 0.0)


# -- activations -----------------------------------------------------------------------------------


@frequent("gelu_backward.default")
def gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "none":
        cdf = 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
        pdf = torch.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
        return grad * (cdf + x * pdf)
    beta, kappa = math.sqrt(2 / math.pi), 0.044715
    square = x * x
    bend = torch.tanh(beta * (x + kappa * (square * x)))
    slope = 0.5 * x * (1 - bend * bend) * (beta * (1 + 3 * kappa * square))
    return grad * (0.5 * (1 + bend) + slope)


@frequent("silu_backward.default")
def silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    gate = 1 / (1 + torch.exp(-x))
    return grad * gate * (1 + x * (1 - gate))


@frequent("sigmoid_backward.default")
def sigmoid_backward(grad: Tensor, y: Tensor) -> Tensor:
    return grad * (1 - y) * y


@frequent("tanh_backward.default")
def tanh_backward(grad: Tensor, y: Tensor) -> Tensor:
    return grad * (1 - y * y)


@frequent("threshold_backward.default")
def threshold_backward(grad: Tensor, x: Tensor, threshold: Any) -> Tensor:
    return torch.where(x <= threshold, 0.0, grad)


@frequent("leaky_relu_backward.default")
def leaky_relu_backward(grad: Tensor, x: Tensor, slope: Any, is_result: bool) -> Tensor:
    return torch.where(x > 0, grad, grad * slope)


@frequent("hardtanh_backward.default")
def hardtanh_backward(grad: Tensor, x: Tensor, low: Any, high: Any) -> Tensor:
    return torch.where((x <= low) | (x >= high), 0.0, grad)


@frequent("hardswish_backward.default")
def hardswish_backward(grad: Tensor, x: Tensor) -> Tensor:
    return torch.where(x <= -3, 0.0, torch.where(x < 3, grad * (x / 3 + 0.5), grad))


@frequent("_softmax_backward_data.default")
def softmax_backward(grad: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> Any:
    if dtype is not grad.dtype:
        return NotImplemented
    scaled = grad * y
    return (scaled - y * torch.sum(scaled, [dim], keepdim=True)).contiguous()


@frequent("_log_softmax_backward_data.default", half_on_gpu=True)
def log_softmax_backward(grad: Tensor, y: Tensor, dim: int, dtype: torch.dtype) -> Any:
    if dtype is not grad.dtype:
        return NotImplemented
    total = torch.sum(widened(grad), [dim], keepdim=True)
    return (widened(grad) - torch.exp(widened(y)) * total).to(dtype).contiguous()


@frequent("embedding_dense_backward.default", half_on_gpu=True)
def embedding_dense_backward(
    grad: Tensor, index: Tensor, rows: int, padding: int, scale_by_frequency: bool
) -> Any:
    on_gpu = grad.device.type != "cpu"
    if on_gpu and torch.are_deterministic_algorithms_enabled():
        raise Unsupported("additions in a fixed order")
    if scale_by_frequency or index.dtype is not torch.int64:
        return NotImplemented
    result_dtype = grad.dtype
    if is_half_on_gpu(grad):
        grad = grad.float()
    if on_gpu and isinstance(rows, int) and rows <= FEW_ROWS:
        return _sums_by_row(grad, index, rows, padding).to(result_dtype)
    if padding >= 0:
        grad = torch.where((index == padding).unsqueeze(-1), 0.0, grad)
    table = index.new_zeros((rows, grad.shape[-1]), dtype=grad.dtype)
    return aten.index_put.default(table, [index], grad, True).to(result_dtype)


def _sums_by_row(grad: Tensor, index: Tensor, rows: int, padding: int) -> Tensor:
    """One sum for each row of a table that has so few that additions would wait for each other."""
    each, at = grad.reshape(-1, grad.shape[-1]), index.reshape(-1, 1)
    sums = []
    for row in range(rows):
        hits = each.new_zeros((1, 1)) if row == padding else torch.where(at == row, each, 0.0)
        sums.append(hits.sum(0, keepdim=True).expand(1, each.shape[1]))
    return torch.cat(sums)


@frequent("native_dropout_backward.default")
def native_dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    return grad * (mask.to(grad.dtype) * scale)


# -- normalisation --------------------------------------------------------------------------------


def across(vector: Tensor, x: Tensor) -> Tensor:
    """One number for each channel, as wide as x."""
    return vector.view([1, -1] + [1] * (x.dim() - 2))


def _other_axes(x: Tensor) -> list[int]:
    return [0, *range(2, x.dim())]


@frequent("_native_batch_norm_legit_functional.default", half_on_gpu=True)
def batch_norm_functional(
    x: Tensor, weight: Maybe, bias: Maybe, mean: Tensor, var: Tensor, training: bool,
    momentum: float, eps: float,
) -> Any:  # fmt: skip
    count = x.numel() // x.shape[1]
    if not training or x.dim() < 2 or count < 2:
        return NotImplemented
    y, flat_mean, flat_scale, own_var = _normalised(x, weight, bias, eps)
    if is_half_on_gpu(x):
        mean, var = mean.float(), var.float()
    unbiased = own_var * (count / (count - 1))
    new_mean = momentum * flat_mean + (1 - momentum) * mean
    new_var = momentum * unbiased + (1 - momentum) * var
    return y, flat_mean, flat_scale, new_mean, new_var


@frequent("native_batch_norm.default", half_on_gpu=True)
def batch_norm_of_batch(
    x: Tensor, weight: Maybe, bias: Maybe, mean: Maybe, var: Maybe, training: bool,
    momentum: float, eps: float,
) -> Any:  # fmt: skip
    """Without running statistics, as weights are normalised with it."""
    if not training or mean is not None or x.dim() < 2 or x.numel() // x.shape[1] < 2:
        return NotImplemented
    return _normalised(x, weight, bias, eps)[:3]


def _normalised(
    x: Tensor, weight: Maybe, bias: Maybe, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The result, and of each channel the mean, 1 / standard deviation and the variance."""
    axes = _other_axes(x)
    if is_half_on_gpu(x):
        own_var, own_mean = _moments_in_one_pass(x, axes, x.numel() // x.shape[1])
        scale = torch.rsqrt(own_var + eps)
        y = _scaled_in_one_step(x, own_mean, scale, weight, bias)
    else:
        own_var, own_mean = torch.var_mean(x, axes, correction=0, keepdim=True)
        scale = torch.rsqrt(own_var + eps)
        y = (x - own_mean) * scale
        if weight is not None:
            y = y * across(weight, x)
        if bias is not None:
            y = y + across(bias, x)
    return y.to(x.dtype), own_mean.squeeze(axes), scale.squeeze(axes), own_var.squeeze(axes)


def _scaled_in_one_step(
    x: Tensor, mean: Tensor, scale: Tensor, weight: Maybe, bias: Maybe
) -> Tensor:
    """Normalised half precision from two numbers for each channel, which backward keeps instead
    of the result. In float32, taking the mean off last loses nothing that x still has."""
    by = scale if weight is None else scale * across(widened(weight), x)
    shift = -mean * by
    if bias is not None:
        shift = across(widened(bias), x) + shift
    return widened(x) * by + shift


def _moments_in_one_pass(x: Tensor, axes: list[int], count: int) -> tuple[Tensor, Tensor]:
    """Variance and mean over axes from sums of what is off the median of three elements, so that
    one that is far from all others is not chosen: exact enough for half precision, of which
    float32 squares lose nothing."""
    low, middle, high = (_one_of_each(x, axes, quarter) for quarter in (1, 2, 3))
    origin = torch.maximum(
        torch.minimum(low, middle), torch.minimum(torch.maximum(low, middle), high)
    )
    mean = (widened(x) - origin).sum(axes, keepdim=True) / count
    squares = torch.pow(widened(x) - origin, 2).sum(axes, keepdim=True) / count
    return torch.clamp_min(squares - mean * mean, 0.0), mean + origin


def _one_of_each(x: Tensor, axes: list[int], quarter: int) -> Tensor:
    """An element of each channel, so many quarters along each axis."""
    for axis in axes:
        x = x.narrow(axis, x.shape[axis] * quarter // 4, 1)
    return widened(x)


@frequent("convolution_backward.default", half_on_gpu=True)
def convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, mask: Sequence[bool],
) -> Any:  # fmt: skip
    """On a GPU the gradient of the bias is a sum like any other, which fuses; the library's is a
    kernel of its own."""
    if grad.device.type == "cpu" or not mask[2]:
        return NotImplemented
    total = torch.sum(widened(grad), _other_axes(grad)).to(grad.dtype)
    if not (mask[0] or mask[1]):
        return None, None, total
    rest = bias, stride, padding, dilation, transposed, output_padding, groups
    dx, dw, _ = aten.convolution_backward.default(grad, x, weight, *rest, [*mask[:2], False])
    return dx, dw, total


@frequent("native_batch_norm_backward.default", half_on_gpu=True)
def batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Maybe, mean: Maybe, var: Maybe, own_mean: Maybe,
    own_scale: Maybe, training: bool, eps: float, mask: Sequence[bool],
) -> Any:  # fmt: skip
    if not training:
        if mean is None or var is None:
            return NotImplemented
        own_mean, own_scale = mean, torch.rsqrt(widened(var) + eps)
    if own_mean is None or own_scale is None:
        return NotImplemented
    axes, part, result_dtype = _other_axes(x), x.shape[1] / x.numel(), x.dtype
    vectors = result_dtype if weight is None else weight.dtype
    own_mean, own_scale = widened(own_mean), widened(own_scale)
    total = torch.sum(widened(grad), axes)
    dot = torch.sum(widened(grad) * (widened(x) - across(own_mean, x)), axes)
    by = own_scale if weight is None else own_scale * weight
    inner = widened(grad)
    if training:
        slope = across(dot * part * (own_scale * own_scale), x)
        centered = widened(x) - across(own_mean, x)
        inner = inner - centered * slope - across(total * part, x)
    return (
        (inner * across(by, x)).to(result_dtype) if mask[0] else None,
        (dot * own_scale).to(vectors) if mask[1] else None,
        total.to(vectors) if mask[2] else None,
    )


@frequent("native_layer_norm_backward.default", half_on_gpu=True)
def layer_norm_backward(
    grad: Tensor, x: Tensor, shape: Sequence[int], mean: Tensor, scale: Tensor, weight: Maybe,
    bias: Maybe, mask: Sequence[bool],
) -> Any:  # fmt: skip
    outer = list(range(x.dim() - len(shape)))
    inner = list(range(len(outer), x.dim()))
    if not outer:
        return NotImplemented
    count = math.prod(shape)
    grad, x = grad.contiguous(), x.contiguous()
    mean, scale, result_dtype = widened(mean), widened(scale), x.dtype
    normal = (widened(x) - mean) * scale
    weighted = widened(grad) if weight is None else widened(grad) * widened(weight)
    total = torch.sum(weighted, inner, keepdim=True)
    dot = torch.sum(weighted * normal, inner, keepdim=True)
    of_x = scale / count * (weighted * count - total - normal * dot)
    if is_half_on_gpu(x):  # sums over rows are a kernel of their own, which reads half precision
        normal = (widened(x) - mean) * scale
    of_weight = of_bias = None
    if mask[1] and weight is not None:
        of_weight = torch.sum(widened(grad) * normal, outer).to(weight.dtype)
    if mask[2] and bias is not None:
        of_bias = torch.sum(widened(grad), outer).to(bias.dtype)
    return of_x.to(result_dtype) if mask[0] else None, of_weight, of_bias


@frequent("native_group_norm_backward.default")
def group_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Maybe, batch: int, channels: int,
    inner: int, groups: int, mask: Sequence[bool],
) -> Any:  # fmt: skip
    each = channels // groups
    rows, values = grad.reshape(batch, channels, inner), x.reshape(batch, channels, inner)
    dots, totals = (rows * values).sum([2]), rows.sum([2])
    grouped = (batch, groups, each)
    made = None
    if mask[0]:
        part = 1.0 / (inner * each)
        by = scale.unsqueeze(2).expand(grouped)
        dot, total = dots, totals
        if weight is not None:
            dot, total = dots * weight, totals * weight
            by = by * weight.view(1, groups, each)
        dot, total = dot.reshape(grouped).sum([2]), total.reshape(grouped).sum([2])
        slope = (total * mean - dot) * scale * scale * scale * part
        shift = -slope * mean - total * scale * part
        whole = (batch, groups, each, inner)
        made = rows.reshape(whole) * by.unsqueeze(3)
        made = made + values.reshape(whole) * slope.view(batch, groups, 1, 1)
        made = (made + shift.view(batch, groups, 1, 1)).reshape(x.shape)
    centered = dots.view(grouped) - totals.view(grouped) * mean.unsqueeze(2)
    return (
        made,
        (centered * scale.unsqueeze(2)).sum([0]).reshape(channels) if mask[1] else None,
        totals.sum([0]) if mask[2] else None,
    )
