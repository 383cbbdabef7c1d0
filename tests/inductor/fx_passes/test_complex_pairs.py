"""Complex numbers as pairs of real ones: eager's values and gradients, without ATen's kernels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import dynamo
from inductor.fx_passes import complex_pairs, pipeline
from inductor.fx_passes.complex_pairs import compute_on_pairs


def as_complex(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))


def rotary(x: Tensor, turns: Tensor) -> Tensor:
    turned = as_complex(x) * turns[torch.arange(x.shape[1])].view(1, x.shape[1], 1, -1)
    return torch.view_as_real(turned).flatten(3).type_as(x)


def conjugated(x: Tensor, turns: Tensor) -> Tensor:
    z = as_complex(x)
    return torch.view_as_real((z.conj() - z[:, :1]) * z).sum(-1)


def moved(x: Tensor, turns: Tensor) -> Tensor:
    z = as_complex(x).transpose(1, 2)[:, :, 2:].unsqueeze(0)
    return torch.view_as_real(torch.cat([z, -z * z], -1).clone(memory_format=torch.contiguous_format))


def selected(x: Tensor, turns: Tensor) -> Tensor:
    z = as_complex(x).repeat(1, 1, 1, 2)
    return torch.view_as_real(z * turns.index_select(0, torch.arange(4).repeat(2))[:, 0])


def made(x: Tensor, turns: Tensor) -> Tensor:
    angles = torch.view_as_real(turns)[:7, None, :, 0]
    lengths = torch.complex(angles.cos(), angles)
    return torch.view_as_real(as_complex(x) * torch.polar(torch.ones_like(angles), angles) * lengths)


def scaled(x: Tensor, turns: Tensor) -> Tensor:
    return torch.view_as_real(as_complex(x) * 1.5 * turns[:7, None] * (0.5 - 2j))


def with_real(x: Tensor, turns: Tensor) -> Tensor:
    """The real operand has an imaginary part of zero."""
    z = x[..., 1::2].float() * as_complex(x)
    return torch.view_as_real(z * x[..., ::2].float())


def given_too(x: Tensor, turns: Tensor) -> tuple[Tensor, Tensor]:
    """The complex value is wanted, too."""
    z = as_complex(x) * turns[: x.shape[1], None]
    return z, torch.view_as_real(z) + 1


def filtered(x: Tensor, turns: Tensor) -> Tensor:
    seen = torch.fft.rfft(x.float(), n=12)
    return torch.fft.irfft(seen * turns[:3, :1] * seen[:1].conj(), n=12)[..., :8]


def along_another_axis(x: Tensor, turns: Tensor) -> Tensor:
    seen = torch.fft.rfft(x.float(), dim=1)
    return torch.fft.irfft(-seen * turns[:4, :1, None], n=7, dim=1)


def lengths(x: Tensor, turns: Tensor) -> Tensor:
    seen = torch.fft.rfft(x.float())
    return (seen.abs() + 1).log() * (seen * 2 + seen[:, :1]).abs()


def both_ways(x: Tensor, turns: Tensor) -> Tensor:
    seen = torch.fft.fft2(x.float(), dim=(1, 3))
    kept = torch.zeros_like(seen)
    kept[:, 1:3] = seen[:, 1:3] * 3
    return torch.fft.ifft2(kept, dim=(1, 3)).real


def multiplied(x: Tensor, turns: Tensor) -> Tensor:
    seen = torch.fft.rfft(x.float(), n=6)  # 2, 7, 3, 4
    mixed = torch.einsum("bths,ts->bhs", seen * 2, turns[:7])
    return torch.fft.irfft(mixed, n=6)


def summed(x: Tensor, turns: Tensor) -> Tensor:
    seen = torch.fft.rfft(x.float())
    total = (seen * seen).sum((0, -2), keepdim=True) / 4
    return torch.view_as_real(torch.fft.ifft(total.sgn() * 2)).flatten()


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many complex products each graph has behind the pass."""
    counts = []

    def spying(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
        module = compute_on_pairs(module)
        nodes = module.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor)
        counts.append(sum(node.meta["val"].dtype.is_complex for node in nodes))
        return module

    monkeypatch.setattr(pipeline, "compute_on_pairs", spying)
    monkeypatch.setattr(complex_pairs, "on_gpu", lambda device: True)
    return counts


@pytest.mark.parametrize("program,products", [
    (rotary, 0), (conjugated, 0), (moved, 0), (selected, 0), (made, 0), (scaled, 0), (with_real, 0), (given_too, 1),
    (filtered, 0), (along_another_axis, 0), (lengths, 0), (both_ways, 0), (summed, 0),
    (multiplied, 0),
])  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("trains", [False, True])
def test_pairs(
    program: Callable[..., Tensor], products: int, dtype: torch.dtype, trains: bool, left: list[int],
) -> None:
    x = torch.randn(2, 7, 3, 8, dtype=dtype)
    turns = torch.polar(torch.ones(16, 4), torch.randn(16, 4))
    compiled = dynamo.compile(program, fullgraph=True)
    results = []
    for function in (program, compiled):
        leaf = x.clone().requires_grad_(trains)
        values = torch.utils._pytree.tree_leaves(function(leaf, turns))
        if trains:
            sum(torch.view_as_real(v).sum() if v.is_complex() else v.float().square().sum()
                for v in values).backward()  # type: ignore[union-attr]
            values.append(leaf.grad)
        results.append(values)
    for want, got in zip(*results, strict=True):
        assert got.stride() == want.stride()
        loose = {"rtol": 2e-5, "atol": 5e-5} if got.dtype is torch.float32 else {}
        torch.testing.assert_close(got, want, **loose)
    assert left[0] == (products or trains and program is summed)  # backward is given a sum
    assert program not in (filtered, along_another_axis, lengths, both_ways) or not any(left)


def test_infinities() -> None:
    x = torch.tensor([[[[float("inf"), 1.0, -float("inf"), 0.0]]]])
    turns = torch.complex(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, float("nan")]]))
    torch.testing.assert_close(
        dynamo.compile(rotary, fullgraph=True)(x, turns), rotary(x, turns), equal_nan=True)
    scale = lambda x: torch.view_as_real(as_complex(x) * 1.0)  # noqa: E731
    got, want = dynamo.compile(scale, fullgraph=True)(x), scale(x)
    torch.testing.assert_close(got, want, equal_nan=True)
    assert got.isnan().sum() == 2
    got, want = dynamo.compile(with_real, fullgraph=True)(x, x), with_real(x, x)
    torch.testing.assert_close(got, want, equal_nan=True)
    assert got.isnan().any()


def test_lengths_and_directions_of_special_numbers() -> None:
    parts = torch.tensor([0.0, -0.0, 1e-30, 3e38, float("inf"), float("nan"), -2.0])
    z = torch.complex(*torch.meshgrid(parts, parts, indexing="ij"))

    def program(z: Tensor) -> tuple[Tensor, Tensor]:
        return z.abs(), torch.view_as_real((z * 1.0).sgn())

    compiled = dynamo.compile(program, fullgraph=True)
    for got, want in zip(compiled(z), program(z), strict=True):
        torch.testing.assert_close(got, want, equal_nan=True)
