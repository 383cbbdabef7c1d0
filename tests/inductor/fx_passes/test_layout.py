"""Which convolutions get channels-last inputs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from dynamo.aot.capture import capture_forward
from dynamo.shapes.iteration import is_channels_last
from inductor.fx_passes.layout import channels_last
from inductor.fx_passes.layout_choice import sees_strides, wants_last
from inductor.lowering.registry import LOWERINGS

F32, BF16 = torch.float32, torch.bfloat16


def convolution(
    device: str, dtype: torch.dtype, groups: int, axes: int, kernel: int = 3, stride: int = 1
) -> fx.Node:
    channels = 8
    graph = fx.Graph()
    x, weight = graph.placeholder("x"), graph.placeholder("weight")
    shape = (2, channels, *[9] * axes)
    x.meta["val"] = SimpleNamespace(
        device=torch.device(device), dtype=dtype, shape=shape, dim=lambda: len(shape)
    )
    weight.meta["val"] = SimpleNamespace(shape=(8, channels // groups, *[kernel] * axes))
    rest = (None, [stride] * axes, [0] * axes, [1] * axes, False, [0] * axes, groups)
    return graph.call_function(torch.ops.aten.convolution.default, (x, weight, *rest))


@pytest.mark.parametrize(("device", "dtype", "groups", "axes", "tf32", "wanted"), [
    ("cpu", F32, 1, 2, False, True), ("cpu", F32, 8, 2, False, True),
    ("cpu", torch.float64, 1, 2, False, False), ("cpu", F32, 1, 3, False, False),
    ("cuda", BF16, 1, 2, False, True), ("cuda", F32, 1, 2, True, True),
    ("cuda", F32, 1, 2, False, False), ("cuda", F32, 4, 2, True, True),
    ("cuda", F32, 8, 2, True, False),
])  # fmt: skip
def test_convolutions(
    device: str, dtype: torch.dtype, groups: int, axes: int, tf32: bool, wanted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    assert wants_last(convolution(device, dtype, groups, axes)) == wanted


@pytest.mark.parametrize(("dtype", "kernel", "stride", "wanted"), [
    (F32, 4, 4, False), (BF16, 4, 4, True), (F32, 1, 1, True), (F32, 3, 2, True),
])  # fmt: skip
def test_patches_stay_exact(
    dtype: torch.dtype, kernel: int, stride: int, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert wants_last(convolution("cuda", dtype, 1, 2, kernel, stride)) == wanted


@pytest.mark.parametrize(("dtype", "channels", "window", "wanted"), [
    (F32, 16, (5, 1), False), (F32, 16, (1, 3), False), (F32, 64, (5, 1), True), (BF16, 16, (5, 1), True),
    (F32, 16, (5, 3), True), (F32, 16, (1, 1), True),
])  # fmt: skip
def test_flat_windows_over_few_channels(
    dtype: torch.dtype, channels: int, window: tuple[int, int], wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    node, weight = convolution("cuda", dtype, 1, 2), torch.empty(32, channels, *window, dtype=dtype, device="meta")
    source: Any = node.args[0]
    source.meta["val"] = torch.empty(2, channels, 9, 9, dtype=dtype, device="meta")
    source.meta["val"] = FakeTensor(FakeTensorMode(), source.meta["val"], torch.device("cuda", 0))
    other: Any = node.args[1]
    other.meta["val"] = FakeTensor(FakeTensorMode(), weight, torch.device("cuda", 0))
    assert wants_last(node) == wanted


@pytest.mark.parametrize("axes", [2, 3])
def test_backward_reads_what_forward_reads(axes: int) -> None:
    """Both have channels-last activations and weights, and results have the strides that they had."""
    aten, mode, gpu = torch.ops.aten, FakeTensorMode(), torch.device("cuda", 0)
    form: Any = (None, [1] * axes, [1] * axes, [1] * axes, False, [0] * axes, 1)

    def program(grad, x, weight):
        y = aten.convolution(x, weight, *form)
        of_x, of_weight, _ = aten.convolution_backward(grad * y, x, weight, *form, [True, True, False])
        return of_x + 1, of_weight

    shapes = ((2, 16, *[8] * axes), (2, 24, *[8] * axes), (16, 24, *[3] * axes))
    values = [torch.empty(shape, dtype=BF16, device="meta") for shape in shapes]
    fakes = [FakeTensor(mode, value, gpu) for value in values]
    before = capture_forward(fx.symbolic_trace(program), fakes).module
    after = channels_last(before, LOWERINGS.__contains__)
    (forward,) = after.graph.find_nodes(op="call_function", target=aten.convolution.default)
    (back,) = after.graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
    for value in (*forward.args[:2], forward, *back.args[:3]):
        assert value.meta["val"].stride()[1] == 1
    assert all(value.stride()[1] == 1 for value in back.meta["val"][:2])
    assert forward.args[0] is back.args[1] or forward.args[0].target is aten.clone.default
    assert forward.args[1] is back.args[2]
    for old, new in zip(before.graph.output_node().args[0], after.graph.output_node().args[0], strict=True):
        assert old.meta["val"].stride() == new.meta["val"].stride()


@pytest.mark.parametrize("stride", [(16, 1, 128, 16), (1024, 1, 128, 16)])
def test_the_library_takes_one_image_for_channels_last(stride: tuple[int, ...]) -> None:
    """ATen goes by the strides along one image, and along the places of a 1 x 1 window, too."""
    mode, gpu = FakeTensorMode(), torch.device("cuda", 0)

    def program(x, weight):
        return torch.ops.aten.convolution(x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1).relu()

    x = torch.empty(2048, dtype=BF16, device="meta").as_strided((1, 16, 8, 8), stride)
    fakes = [FakeTensor(mode, each, gpu) for each in (x, torch.empty(8, 16, 1, 1, dtype=BF16, device="meta"))]
    after = channels_last(capture_forward(fx.symbolic_trace(program), fakes).module, LOWERINGS.__contains__)
    (node,) = after.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)
    for given in node.args[:2]:
        value = given.meta["val"]
        assert is_channels_last(tuple(value.shape), value.stride())
        assert given.target is not torch.ops.aten.clone.default


@pytest.mark.parametrize(("device", "known", "seen"), [
    ("cuda", True, False), ("cuda", False, True), ("cpu", False, False),
])  # fmt: skip
def test_group_norms_of_open_sizes_are_given_rows(device: str, known: bool, seen: bool) -> None:
    """The library's kernel on a GPU refuses other strides, and ours is for known sizes."""
    mode = FakeTensorMode(shape_env=None if known else ShapeEnv())
    images = torch.empty(6, 16, 8, 8, device="meta").contiguous(memory_format=torch.channels_last)
    fake: Any = FakeTensor(mode, images, torch.device(device)) if known else mode.from_tensor(
        torch.empty(6, 16, 8, 8).contiguous(memory_format=torch.channels_last))
    if not known and device == "cuda":
        with mode:
            fake = torch.empty_strided(fake.shape, fake.stride(), device="cuda")
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = fake
    node = graph.call_function(torch.ops.aten.native_group_norm.default, (x, None, None, 6, 16, 64, 4, 1e-5))
    assert sees_strides(node, LOWERINGS.__contains__) == seen
