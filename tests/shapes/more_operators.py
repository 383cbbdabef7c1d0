"""More operators on tensors of changing sizes: name -> function of a tensor (rows, columns)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

# Elementwise functions of one tensor; of some only where the values are in their domain.
POINTWISE = """abs acos acosh angle asin asinh atan atanh ceil cos cosh deg2rad digamma erf erfc erfinv
exp exp2 expm1 floor frac i0 isfinite isinf isnan isneginf isposinf isreal lgamma log log10 log1p log2
logit nan_to_num neg positive rad2deg reciprocal relu round rsqrt sgn sigmoid sign signbit sin sinc
sinh sqrt square tan tanh trunc""".split()
ACTIVATIONS = """celu elu gelu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu6
selu silu softplus softshrink softsign tanhshrink threshold_""".split()[:-1]
REDUCTIONS = """sum prod mean amax amin logsumexp nansum nanmean median nanmedian mode cummax cummin
logcumsumexp count_nonzero argmin all any aminmax var_mean std_mean""".split()
BINARY = """add sub mul div maximum minimum fmax fmin atan2 hypot copysign heaviside ldexp logaddexp
logaddexp2 remainder fmod xlogy nextafter eq ne lt le gt ge logical_and logical_or logical_xor
float_power""".split()
LOSSES = """l1_loss smooth_l1_loss huber_loss mse_loss soft_margin_loss kl_div
binary_cross_entropy_with_logits poisson_nll_loss""".split()


def pointwise(name: str) -> Callable[[torch.Tensor], Any]:
    return lambda x: getattr(torch, name)(x)


def activation(name: str) -> Callable[[torch.Tensor], Any]:
    return lambda x: getattr(F, name)(x)


def reduction(name: str) -> Callable[[torch.Tensor], Any]:
    if name in ("var_mean", "std_mean"):
        return lambda x: getattr(torch, name)(x, dim=0)
    if name == "aminmax":
        return lambda x: torch.aminmax(x, dim=0)
    return lambda x: (getattr(torch, name)(x, 0), getattr(torch, name)(x, -1))


def binary(name: str) -> Callable[[torch.Tensor], Any]:
    return lambda x: (getattr(torch, name)(x, x.flip(0)), getattr(torch, name)(x, x[:1]))


def loss(name: str) -> Callable[[torch.Tensor], Any]:
    return lambda x: (getattr(F, name)(x, x.flip(0).sigmoid()),
                      getattr(F, name)(x, x.sigmoid(), reduction="none"))


OTHERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "addmm": lambda x: torch.addmm(x[0, 0], x, x.t()),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=2),
    "lerp": lambda x: x.lerp(x.flip(0), 0.3),
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "mv": lambda x: x.mv(x[0]),
    "dot": lambda x: x[:, 0].dot(x[:, 1]),
    "kron": lambda x: torch.kron(x[:, :1], x[:1]),
    "tensordot": lambda x: torch.tensordot(x, x, ([0], [0])),
    "cross": lambda x: torch.linalg.cross(x[:, :1].expand(-1, 3), x.new_ones(x.shape[0], 3)),
    "trace": lambda x: (x @ x.t()).trace(),
    "diag": lambda x: torch.diag(x[:, 0]),
    "diff": lambda x: x.diff(dim=0),
    "cov": lambda x: torch.cov(x.t()),
    "vander": lambda x: torch.vander(x[:, 0], 3),
    "bucketize": lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])),
    "searchsorted": lambda x: torch.searchsorted(x[:, 0].sort().values, x[0]),
    "argsort": lambda x: x.argsort(stable=True, dim=0),
    "kthvalue": lambda x: x.kthvalue(1, 0),
    "quantile": lambda x: x.quantile(0.5, 0),
    "tensor of sizes": lambda x: torch.tensor([[x.shape[0], 1], [2, x.shape[1]]]) + x.long().sum(),
    "tensor of a size": lambda x: x / torch.tensor(x.shape[0], dtype=torch.float32),
    "tensor of a size and a float": lambda x: torch.as_tensor([x.shape[0], 0.5]) * 2,
    "tensor of bytes": lambda x: torch.tensor([x.shape[0]], dtype=torch.uint8) * 2,
    "new_tensor": lambda x: x * x.new_tensor([x.shape[0]]),
    "index of a size": lambda x: x[torch.tensor([x.shape[0] - 1])],
    "take": lambda x: x.take(torch.tensor([0, 1])),
    "take_along_dim": lambda x: x.take_along_dim(x.argsort(0), 0),
    "index_add": lambda x: x.index_add(0, torch.tensor([0, 0]), x[:2]),
    "index_fill": lambda x: x.index_fill(0, torch.arange(x.shape[0])[:1], 3.0),
    "scatter_add": lambda x: torch.zeros_like(x).scatter_add(0, torch.zeros_like(x).long(), x),
    "scatter_reduce": lambda x: x.scatter_reduce(0, torch.zeros_like(x).long(), x, "amax"),
    "slice_scatter": lambda x: x.slice_scatter(x[1:] * 2, 0, 1),
    "select_scatter": lambda x: x.select_scatter(x[0] * 2, 0, 1),
    "masked_scatter": lambda x: x.masked_scatter(x > 0, x.flip(0)),
    "rot90": lambda x: x.rot90(),
    "fliplr": lambda x: x.fliplr(),
    "hsplit": lambda x: torch.hsplit(x, 2),
    "vstack": lambda x: torch.vstack([x, x[:1]]),
    "hstack": lambda x: torch.hstack([x, x]),
    "dstack": lambda x: torch.dstack([x, x]),
    "column_stack": lambda x: torch.column_stack([x, x[:, 0]]),
    "block_diag": lambda x: torch.block_diag(x, x[:1]),
    "cartesian": lambda x: torch.cartesian_prod(x[:, 0], x[0]),
    "combinations": lambda x: torch.combinations(x[0]),
    "atleast": lambda x: torch.atleast_3d(x),
    "broadcast_to": lambda x: x[:1].broadcast_to(x.shape),
    "expand_as": lambda x: x[:1].expand_as(x) * x,
    "squeeze": lambda x: x[None].squeeze(0).unsqueeze(-1),
    "movedim": lambda x: x[None].movedim(0, -1),
    "ravel": lambda x: x.t().ravel(),
    "tensor_split": lambda x: x.tensor_split(2),
    "split by sizes": lambda x: x.split([1, x.shape[0] - 1]),
    "unsafe_chunk": lambda x: x.unsafe_chunk(2, 1),
    "as_strided": lambda x: x.contiguous().as_strided((2, 2), (1, 1)),
    "view_as": lambda x: x.reshape(-1).view_as(x),
    "view as bits": lambda x: x.contiguous().view(torch.int32),
    "real": lambda x: torch.complex(x, x).abs(),
    "to": lambda x: (x.double() + 1).half().to(torch.bfloat16),
    "type_as": lambda x: x.long().type_as(x),
    "bitwise": lambda x: (x.long() & 3) | (x.long() ^ 1),
    "shift": lambda x: x.abs().long() << 2,
    "zeros_like": lambda x: torch.zeros_like(x[:, :2]) + torch.ones_like(x[:, :2]),
    "full_like": lambda x: torch.full_like(x, x.shape[0]),
    "new_full": lambda x: x.new_full((x.shape[1], 2), 3),
    "empty and fill": lambda x: torch.empty_like(x).fill_(x.shape[1]),
    "linspace": lambda x: torch.linspace(0, 1, x.shape[0]),
    "logspace": lambda x: torch.logspace(0, 1, x.shape[0]),
    "tril_indices": lambda x: torch.tril_indices(x.shape[0], 3),
    "hann": lambda x: torch.hann_window(x.shape[0]),
    "conv2d": lambda x: F.conv2d(x[None, None], torch.ones(1, 1, 2, 2), padding=1),
    "conv transpose": lambda x: F.conv_transpose1d(x.t()[None], torch.ones(x.shape[1], 2, 3)),
    "max_pool": lambda x: F.max_pool1d(x.t()[None], 2),
    "lp_pool": lambda x: F.lp_pool1d(x.abs().t()[None], 2, 2),
    "adaptive max": lambda x: F.adaptive_max_pool1d(x.t()[None], 1),
    "reflection": lambda x: F.pad(x[None], (1, 1), mode="reflect"),
    "replication": lambda x: F.pad(x.t()[None], (1, 2), mode="replicate"),
    "circular": lambda x: F.pad(x.t()[None], (1, 1), mode="circular"),
    "nearest": lambda x: F.interpolate(x.t()[None], size=x.shape[0] * 2),
    "bilinear": lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x[None, None].expand(1, 4, -1, -1), 2),
    "fold": lambda x: F.unfold(x[None, None], (2, 2)),
    "batch_norm": lambda x: F.batch_norm(x, x.mean(0), x.var(0)),
    "group_norm": lambda x: F.group_norm(x[None, :2], 1),
    "instance_norm": lambda x: F.instance_norm(x[None]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "local_response": lambda x: F.local_response_norm(x[None], 2),
    "glu": lambda x: F.glu(x, 1),
    "softmin": lambda x: F.softmin(x, 0),
    "prelu": lambda x: F.prelu(x, torch.tensor(0.2)),
    "bilinear form": lambda x: F.bilinear(x, x, torch.ones(2, x.shape[1], x.shape[1])),
    "embedding_bag": lambda x: F.embedding_bag(
        torch.arange(x.shape[0]) % 3, torch.ones(3, 4), torch.tensor([0]), mode="sum"),
    "cosine": lambda x: F.cosine_similarity(x, x.flip(0)),
    "pairwise": lambda x: F.pairwise_distance(x, x.flip(0)),
    "pdist": lambda x: F.pdist(x),
    "nll_loss": lambda x: F.nll_loss(x.log_softmax(1), torch.zeros(x.shape[0]).long()),
    "smoothed": lambda x: F.cross_entropy(x, x.softmax(1), label_smoothing=0.1),
    "margin": lambda x: F.margin_ranking_loss(x[:, 0], x[:, 1], torch.ones(x.shape[0])),
    "triplet": lambda x: F.triplet_margin_loss(x, x.flip(0), x * 2),
    "cosine loss": lambda x: F.cosine_embedding_loss(x, x.flip(0), torch.ones(x.shape[0])),
    "cholesky": lambda x: torch.linalg.cholesky(x @ x.t() + 10 * torch.eye(x.shape[0])),
    "qr": lambda x: torch.linalg.qr(x).R.abs(),
    "solve": lambda x: torch.linalg.solve(x @ x.t() + 10 * torch.eye(x.shape[0]), x),
    "det": lambda x: torch.linalg.det(x @ x.t()),
    "slogdet": lambda x: torch.linalg.slogdet(x @ x.t() + torch.eye(x.shape[0])),
    "matrix_power": lambda x: torch.linalg.matrix_power(x @ x.t(), 3),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, 3, 0),
    "matrix_norm": lambda x: torch.linalg.matrix_norm(x, "nuc"),
    "svdvals": lambda x: torch.linalg.svdvals(x),
    "multi_dot": lambda x: torch.linalg.multi_dot([x, x.t(), x]),
    "fft2": lambda x: torch.fft.fft2(x).abs(),
    "fftshift": lambda x: torch.fft.fftshift(x, 0),
    "stft": lambda x: torch.stft(x.reshape(-1), 2, return_complex=True, center=False,
                                 window=torch.ones(2)).abs(),
    "histc": lambda x: torch.histc(x, 4),
    "bincount": lambda x: torch.bincount(torch.arange(x.shape[0]) % 3, minlength=3),
    "isin": lambda x: torch.isin(x.long(), torch.tensor([0, 1])),
    "isclose": lambda x: torch.isclose(x, x.flip(0)),
    "renorm": lambda x: x.renorm(2, 0, 1.0),
    "trapezoid": lambda x: torch.trapezoid(x, dim=0),
    "rolled and cut": lambda x: x.roll((1, 2), (0, 1))[:, ::2],
    "two ellipses": lambda x: x[None][..., 0] + x[..., None].sum(-1)[None][..., -1],
    "bool rows": lambda x: torch.where((x[:, 0] > 0)[:, None], x, x.mean(0)),
    "out": lambda x: torch.add(x, 1, out=torch.empty_like(x)),
}

MORE: dict[str, Callable[[torch.Tensor], Any]] = {
    **{name: pointwise(name) for name in POINTWISE},
    **{f"{name} activation": activation(name) for name in ACTIVATIONS},
    **{f"{name} reduction": reduction(name) for name in REDUCTIONS},
    **{f"{name} of two": binary(name) for name in BINARY},
    **{name: loss(name) for name in LOSSES},
    **OTHERS,
}
