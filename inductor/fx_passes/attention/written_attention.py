"""Attention that a program writes out, as one call that graphs hold while they are recorded.

In: q, k transposed, v, and the steps between both GEMMs as plain data. Out: what the steps give,
or our kernel's result where it computes them: scale, soft cap, additions, masks, softmax. Masks
that fill become part of the bias, float32: a number that large swallows the score.
"""

from __future__ import annotations

from typing import Any

import torch

from inductor.autotune.early_libraries import begin_gemm_library
from inductor.operators.attention_ops import has_kernel
from inductor.operators.cpu_attention_ops import (
    FEWEST_OPERATIONS,
    dense_strides,
    fits,
    load,
    operations,
)

Tensor = torch.Tensor
Step = tuple[Any, ...]  # (name, what it needs); tensors by their positions among the operands
WIDE: Step = ("wide",)  # q and k are float32 in the GEMM
LEAST = torch.finfo(torch.float32).min
LARGE = {torch.float16: -6e4, torch.bfloat16: -1e30, torch.float32: -1e30}  # fills that swallow


def written_attention(
    q: Tensor, k: Tensor, v: Tensor, operands: tuple[Tensor, ...], steps: tuple[Step, ...]
) -> Tensor:
    """softmax(..(q k)..) v, by our kernel where it is for these tensors. k: (.., head, keys)."""
    plan = _plan(q, k, v, operands, steps)
    if plan is None:
        return _as_written(q, k, v, operands, steps)
    bias, scale, cap, fills = plan
    if not has_kernel(q, k.transpose(-1, -2), v):
        stride = dense_strides(q, v)  # as a GEMM gives it
        made: Tensor = torch.ops.dynamo_jit.cpu_attention(
            q, k.transpose(-1, -2), v, bias, None, False, scale, 0, cap, True, fills, stride
        )
        return made
    result: Tensor = torch.ops.dynamo_jit.attention(
        q, k.transpose(-1, -2), v, bias, None, False, scale, 0, cap, True, False
    )[0]
    return result


def _as_written(
    q: Tensor, k: Tensor, v: Tensor, operands: tuple[Tensor, ...], steps: tuple[Step, ...]
) -> Tensor:
    if WIDE in steps:
        q, k = q.float(), k.float()
    score = torch.matmul(q, k)
    for name, *facts in steps:
        if name in ("wide", "same"):
            continue
        if name == "mul":
            score = score * facts[0]
        elif name == "div":
            score = score / facts[0]
        elif name == "tanh":
            score = torch.tanh(score)
        elif name == "add":
            score = score + operands[facts[0]]
        elif name == "fill":
            score = score.masked_fill(operands[facts[0]], facts[1])
        elif name == "where":
            place, number, other = facts
            score = torch.where(operands[place], score, number if other < 0 else operands[other])
        elif name == "to":
            score = score.to(facts[0])
        else:
            score = torch.softmax(score, -1, dtype=facts[0])
    return torch.matmul(score, v)


def _plan(
    q: Tensor, k: Tensor, v: Tensor, operands: tuple[Tensor, ...], steps: tuple[Step, ...]
) -> tuple[Tensor | None, float, float, bool] | None:
    """(bias, scale, cap, fills) for the kernel; None where it does not compute this."""
    if any(x.dim() != 4 for x in (q, k, v)) or torch.is_autocast_enabled(q.device.type):
        return None
    trains = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, *operands))
    given = (q, k.transpose(-1, -2), v)
    on_cpu = not has_kernel(*given)
    if on_cpu and not _has_cpu_kernel(*given, trains) or q.shape[1] != k.shape[1]:
        return None
    size = (*q.shape[:3], k.shape[3])
    state = _State(q, size, operands)
    for position, (name, *facts) in enumerate(steps):
        if name == "softmax":
            rest = steps[position + 1 :]
            fits = all(other[0] in ("to", "same") for other in rest) and state.may_end(trains)
            if on_cpu and state.fills and state.adds:
                return None  # a bias does not tell what fills from what is added
            return (state.bias, state.scale, state.cap, state.fills) if fits else None
        if not state.take(name, facts):
            return None
    return None


def _has_cpu_kernel(q: Tensor, k: Tensor, v: Tensor, trains: bool) -> bool:
    if trains or q.dtype is not torch.float32 or not fits(q, k, v, None, None):
        return False
    if operations(q, k, v) < FEWEST_OPERATIONS:
        return False
    begin_gemm_library()  # those who attend multiply matrices, too: both are built side by side
    return load(torch.float32) is not None


class _State:
    """What the steps so far are for the kernel. dtype: of the scores as written."""

    def __init__(
        self, q: Tensor, size: tuple[int, ...], operands: tuple[Tensor, ...]
    ) -> None:
        self.dtype, self.device = q.dtype, q.device
        self.size = size
        self.operands = operands
        self.bias: Tensor | None = None
        self.scale, self.cap, self.divided = 1.0, 0.0, 0.0
        self.bent, self.fills, self.adds = False, False, False
        self.lower = False  # fills are lower than written, so that they swallow

    def may_end(self, trains: bool) -> bool:
        """Masked scores have no gradient, which a bias would give them."""
        return not self.bent and self.scale > 0 and not (trains and self.fills)

    def take(self, name: str, facts: list[Any]) -> bool:
        """Whether one more step is something for the kernel."""
        if name == "same":
            return True
        if name in ("to", "wide"):
            former, self.dtype = self.dtype, facts[0] if facts else torch.float32
            if self.bias is not None and former is torch.float32 and self.dtype is not former:
                return False  # what is that low becomes infinite
            return self.dtype in LARGE
        if name in ("mul", "div"):
            return self._scaled(name, facts[0])
        if name == "tanh":
            if self.cap or self.bias is not None or not self.divided:
                return False
            self.bent, self.cap = True, self.divided
            self.scale *= self.divided
            return True
        if self.bent:
            return False
        return self._added(facts[0]) if name == "add" else self._filled(name, *facts)

    def _scaled(self, name: str, factor: float) -> bool:
        """A cap is a division, tanh, and a product with the same number."""
        if self.bias is not None or factor <= 0:
            return False
        if self.bent:
            self.bent = False
            return name == "mul" and factor == self.cap
        if self.cap:
            return False
        self.divided = factor if name == "div" else 0.0
        self.scale = self.scale * factor if name == "mul" else self.scale / factor
        return True

    def _added(self, place: int) -> bool:
        other = self._broadcast(place)
        if other is None or not other.dtype.is_floating_point:
            return False
        if torch.promote_types(self.dtype, other.dtype) is not self.dtype:
            return False
        if self.lower:
            return False
        self.adds = True
        self.bias = other if self.bias is None else self.bias + other
        return True

    def _filled(self, name: str, place: int, number: float, _: int) -> bool:
        mask = self._broadcast(place)
        if mask is None or mask.dtype is not torch.bool or number > LARGE[self.dtype]:
            return False
        half = self.dtype is not torch.float32
        if self.adds if half else self.lower:
            return False
        self.fills, self.lower = True, half
        fill = max(number, LEAST) if self.dtype is torch.float32 else LEAST
        if number == float("-inf"):
            fill = number
        added = self.bias
        unmasked = mask.new_zeros((), dtype=torch.float32) if added is None else added.float()
        lost = torch.full((), fill, dtype=torch.float32, device=mask.device)
        if name == "fill":
            self.bias = torch.where(mask, lost, unmasked)
        else:
            self.bias = torch.where(mask, unmasked, lost)
        return True

    def _broadcast(self, place: int) -> Tensor | None:
        """An operand as a tensor of four axes that broadcasts to the scores."""
        tensor = self.operands[place]
        if tensor.device != self.device or tensor.dim() > 4:
            return None
        tensor = tensor[(None,) * (4 - tensor.dim())]
        fits = all(n in (1, whole) for n, whole in zip(tensor.shape, self.size, strict=True))
        return tensor if fits else None
