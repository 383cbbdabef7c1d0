"""The tensors that a program is called with: dtype, layout, values and gradients as its records say.

In: `Input` records and sizes. Out: fresh tensors, the same for the same seed, and the leaves among
what they come from.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tests.fuzz_tensors.program import Input, Program

SPECIAL = (float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0, -1.0, 1e-30, 3e4)
HERE = torch.device("cpu")  # random numbers are drawn here, for all devices


@dataclass(frozen=True)
class Made:
    values: list[torch.Tensor]
    leaves: list[torch.Tensor]


def make_inputs(program: Program, call: int, exact: bool = False, moved: Callable[[torch.Tensor], torch.Tensor] | None = None) -> Made:
    """exact: in float64. moved: changes each of the values."""
    sizes = program.sizes[call // 2 % len(program.sizes)]
    made: dict[str, torch.Tensor] = {}
    leaves: list[torch.Tensor] = []
    for spec in program.inputs:
        if spec.of and spec.of in made:
            with contextlib.suppress(IndexError, RuntimeError):  # none of these sizes
                made[spec.name] = eval(spec.layout, {"x": made[spec.of], "torch": torch})
                continue
        seed = zlib.crc32(f"{program.seed} {spec.name} {call}".encode())
        data = _values(spec, sizes, torch.Generator().manual_seed(seed)).to(torch.get_default_device())
        if data.is_floating_point() or data.is_complex():
            if exact:
                data = data.to(torch.complex128 if data.is_complex() else torch.float64)
            data = moved(data) if moved else data
        x = laid_out(data, spec.layout, 3 * call)
        if spec.grad:
            x.requires_grad_()
            leaves.append(x)
            x = x * 1 if spec.grad == "computed" else x
        made[spec.name] = x
    return Made([made[spec.name] for spec in program.inputs], leaves)


def _values(spec: Input, sizes: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    shape = [sizes["abc".index(d)] if isinstance(d, str) else d for d in spec.shape]
    dtype = getattr(torch, spec.dtype)
    draw: Any = lambda low, high: torch.randint(low, high, shape, generator=generator, device=HERE)  # noqa: E731
    if dtype is torch.bool:
        return draw(0, 2) > 0
    if not (dtype.is_floating_point or dtype.is_complex):
        if spec.values == "special":
            top = torch.iinfo(dtype).max
            return torch.where(draw(0, 3) > 0, draw(-9, 9), draw(0, 2) * 2 * top - top).to(dtype)
        return draw(0 if dtype is torch.uint8 else -4, 9).to(dtype)
    if spec.values == "ties":
        return draw(-2, 3).to(dtype)
    data = torch.randn(shape, generator=generator, dtype=torch.complex64 if dtype.is_complex else torch.float32, device=HERE)
    if spec.values == "special":
        picked = torch.tensor(SPECIAL, device=HERE)[draw(0, len(SPECIAL))]
        data = torch.where(draw(0, 2) > 0, picked.to(data.dtype), data)
    return data.to(dtype)


def laid_out(data: torch.Tensor, layout: str, offset: int) -> torch.Tensor:
    """The same values in another layout; data for what is no layout of its own.

    offset: where the layout `offset` begins, elsewhere at each call."""
    if layout == "permuted" and data.dim() > 1:
        return data.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "expanded" and data.dim() and data.numel():
        return data[:1].expand(data.shape)
    if layout == "strided" and data.dim():
        return torch.stack([data, data], -1).flatten(-2)[..., ::2]
    if layout == "offset":
        flat = torch.cat([data.new_ones(offset), data.flatten()])
        return flat[offset:].view(data.shape)
    if layout == "padded" and data.dim() > 1:
        return torch.cat([data, data[..., :1]], -1)[..., : data.shape[-1]]
    return data.clone()
