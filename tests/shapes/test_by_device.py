"""Sizes and strides of operators that differ between devices, for a device that need not be there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dynamo.shapes.fake import FakeWorld
from dynamo.shapes.operations import common_device

aten = torch.ops.aten
GPU = torch.device("cuda:0")


def facts(op: Any, *args: Any) -> list[tuple[Any, ...]]:
    """args: sizes stand for tensors of float32, others for themselves."""
    world = FakeWorld()

    def made(size: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Any:
        return world.make(world.cache.facts(size, torch.empty(size).stride(), 0, dtype, GPU))

    found = world.run(op, *[made(*arg) if isinstance(arg, tuple) else arg for arg in args])
    found = found if isinstance(found, (tuple, list)) else [found]
    return [(tuple(x.shape), x.stride(), x.device) for x in found]


def test_what_logsigmoid_keeps_is_empty_there() -> None:
    assert facts(aten.log_sigmoid_forward.default, ((4, 3),)) == [((4, 3), (3, 1), GPU), ((0,), (1,), GPU)]


def test_embedding_bags_keep_a_row_for_each_index() -> None:
    long = torch.int64
    bags = facts(aten._embedding_bag.default, ((4, 3),), ((5,), long), ((2,), long))
    assert [size for size, _, _ in bags] == [(2, 3), (5,), (2,), (0,)]


def test_strides_of_a_fourier_transform() -> None:
    assert facts(aten._fft_r2c.default, ((4, 4),), [0], 0, True) == [((3, 4), (1, 3), GPU)]


def test_targets_of_a_ctc_loss_may_be_on_the_cpu() -> None:
    world = FakeWorld()
    scores = world.make(world.cache.facts((50, 16, 20), (320, 20, 1), 0, torch.float32, GPU))
    targets = world.from_real(torch.ones(16, 30, dtype=torch.long))
    assert common_device(aten._use_cudnn_ctc_loss.Tensor, [scores, targets]) == GPU
    with pytest.raises(RuntimeError, match="on the same device"):
        common_device(aten.mse_loss.default, [scores, targets])


def test_what_torch_has_no_meta_kernel_for() -> None:
    image, grid, result = (2, 3, 4, 5), (2, 6, 7, 2), (2, 3, 6, 7)
    assert facts(aten.cudnn_grid_sampler.default, (image,), (grid,)) == [(result, (126, 42, 7, 1), GPU)]
    found = facts(aten.cudnn_grid_sampler_backward.default, (image,), (grid,), (result,))
    assert [size for size, _, _ in found] == [image, grid]

    found = facts(aten._thnn_fused_gru_cell.default, ((2, 12),), ((2, 12),), ((2, 4),), ((12,),), ((12,),))
    assert [size for size, _, _ in found] == [(2, 4), (2, 20)]
    found = facts(aten._thnn_fused_gru_cell_backward.default, ((2, 4),), ((2, 20),), True)
    assert [size for size, _, _ in found] == [(2, 12), (2, 12), (2, 4), (12,), (12,)]


@pytest.mark.parametrize("axes", [2, 3])
def test_a_transposed_convolution_lies_as_its_input(axes: int) -> None:
    """As cuDNN's kernels give it."""
    world = FakeWorld()
    form: Any = (None, [2] * axes, [1] * axes, [1] * axes, True, [0] * axes, 1)
    last = {2: torch.channels_last, 3: torch.channels_last_3d}[axes]
    for memory_format in (torch.contiguous_format, last):
        x, weight = (
            torch.empty(size, device="meta", dtype=torch.float16).contiguous(memory_format=memory_format)
            for size in ((2, 8, *[5] * axes), (8, 6, *[3] * axes)))
        fakes = [world.make(world.cache.facts(tuple(t.shape), t.stride(), 0, t.dtype, GPU)) for t in (x, weight)]
        found = world.run(aten.convolution.default, *fakes, *form)
        assert found.shape == aten.convolution(x, weight, *form).shape
        assert found.is_contiguous(memory_format=memory_format)


@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_of_norms_over_rows_are_row_major(transposed: bool) -> None:
    """As their kernels write them, whatever the strides of the gradient that they read."""
    world = FakeWorld()

    def made(*size: int, stride: tuple[int, ...] | None = None) -> Any:
        strides = stride or torch.empty(size, device="meta").stride()
        return world.make(world.cache.facts(size, strides, 0, torch.float32, GPU))

    grad = made(4, 6, 8, stride=(48, 1, 6) if transposed else None)
    x, statistics, vector = made(4, 6, 8), made(4, 6, 1), made(8)
    layer = world.run(
        aten.native_layer_norm_backward.default,
        grad, x, [8], statistics, statistics, vector, vector, [True, True, True])
    rows = world.run(
        aten._fused_rms_norm_backward.default, grad, x, [8], statistics, vector, [True, True])
    assert [each.stride() for each in layer] == [(48, 8, 1), (1,), (1,)]
    assert [each.stride() for each in rows] == [(48, 8, 1), (1,)]


@pytest.mark.parametrize("device", [GPU, torch.device("cpu")])
def test_indices_out_of_range_raise_at_no_call_on_a_gpu(device: torch.device) -> None:
    """They stop it, so that no handler of the program can catch that."""
    world = FakeWorld()
    x = world.make(world.cache.facts((4, 4), (4, 1), 0, torch.float32, device))
    at = world.make(world.cache.facts((4, 4), (4, 1), 0, torch.long, device))
    world.run(aten.scatter_add.default, x, 0, at, x)
    assert world.observed == ({"fails"} if device == GPU else {"fails", "raises"})
    world.observed.clear()
    world.run(aten.linalg_cholesky_ex.default, x, check_errors=True)
    assert world.observed == {"fails", "raises"}
