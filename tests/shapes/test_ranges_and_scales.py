"""Ranges and windows of symbolic lengths, images scaled by factors: two graphs for all sizes, eager's bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import dynamo
from dynamo.graph_operators.cuts import RANGES, is_cut
from dynamo.testing import CompileCounter
from tests.parametrize import rotated

SIZES = (5, 7, 4, 6, 13)


def grid(x: Tensor) -> Tensor:
    rows, columns = (torch.linspace(-1, 1, n) for n in x.shape[2:])
    places = torch.stack(torch.meshgrid(rows, columns, indexing="ij")[::-1], -1)
    smooth = functional.conv2d(x, torch.ones(3, 3, 3, 3), padding=1).relu()
    return functional.grid_sample(smooth, places.expand(2, -1, -1, -1), align_corners=True)


def centres(x: Tensor) -> Tensor:
    n = x.shape[2]
    return x.mean((0, 1, 3)) * 2 + torch.linspace(0.5, n - 0.5, n) / n


def windows(x: Tensor) -> list[Tensor]:
    n, m = x.shape[2:]
    made = [torch.hann_window(n), torch.hamming_window(n * 2, False), torch.kaiser_window(n, True, m / 2)]
    return [*made, torch.fft.fftfreq(n, 1 / m), torch.logspace(0, 2, steps=m), x.sum((0, 1, 3)) * made[0]]


def of_a_result(x: Tensor) -> Tensor:
    wide = torch.cat([x, x.flip(2)], 2)
    return wide.sum((0, 1, 3)) * torch.linspace(0, 1, wide.shape[2])


def scaled(mode: str, factor: Any, **options: Any) -> Any:
    return lambda x: functional.interpolate(x, scale_factor=factor, mode=mode, **options)


PROGRAMS: dict[str, Any] = {
    "grid": grid, "centres": centres, "windows": windows, "of a result": of_a_result,
    "bilinear": scaled("bilinear", 0.5), "bicubic": scaled("bicubic", 0.5, align_corners=True),
    "two factors": scaled("bilinear", (0.5, 0.75)), "antialias": scaled("bilinear", 0.5, antialias=True),
    "area": scaled("area", 0.5), "area, sizes": scaled("area", 1.5, recompute_scale_factor=True),
}  # fmt: skip


@rotated("name, backend", PROGRAMS, ["eager", "inductor"])
def test_two_graphs(name: str, backend: str) -> None:
    program, counter = PROGRAMS[name], CompileCounter(backend)
    compiled = dynamo.compile(program, backend=counter)
    for n in SIZES:
        x = torch.randn(2, 3, n, n + 1, requires_grad=True)
        found, wanted = compiled(x), program(x)
        torch.testing.assert_close(found, wanted)
        parts = [(found, wanted)] if isinstance(found, Tensor) else zip(found, wanted, strict=True)
        for result, expected in parts:
            assert (result.dtype, result.stride()) == (expected.dtype, expected.stride())
            if not expected.requires_grad:
                assert torch.equal(result, expected)
        last = [value if isinstance(value, Tensor) else value[-1] for value in (found, wanted)]
        torch.testing.assert_close(*(torch.autograd.grad(value.sin().sum(), x)[0] for value in last))
    assert counter.frame_count == 2


def test_lengths_that_raise() -> None:
    @dynamo.compile(backend="eager")
    def compiled(x: Tensor) -> Any:
        try:
            return torch.linspace(0, 1, x.shape[0] - 6) * 2
        except RuntimeError as error:
            return str(error)

    for n in (9, 12, 6, 5, 7, 20):
        found = compiled(torch.randn(n))
        if n < 6:
            assert "non-negative" in found
        else:
            assert torch.equal(found, torch.linspace(0, 1, n - 6) * 2)


def test_constants_are_compiled_with_the_rest() -> None:
    counter = CompileCounter("eager")
    dynamo.compile(lambda x: x * torch.linspace(0, 1, 5), backend=counter)(torch.randn(5))
    [node] = [node for node in counter.graphs[0].graph.nodes if node.target in RANGES]
    assert not is_cut(node)
