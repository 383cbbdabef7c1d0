"""Depthwise convolutions through lowering, Triton printer and wrapper, in the interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from interpreted_programs import interpreted, texts, trained
from interpreter_repairs import repair

import dynamo
from inductor.codegen.triton import configs, plan, split
from inductor.lowering import depthwise


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch) -> None:
    repair(monkeypatch)
    dynamo.reset()
    texts.clear()
    monkeypatch.setattr(depthwise, "_is_left_to_libraries", lambda call: False)


@pytest.mark.parametrize("turned, many", [(False, False), (True, True)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("channels, lines, width, size, stride", [
    (16, 8, 12, 3, 1), (24, 14, 7, 5, 1), (40, 11, 10, 3, 2), (72, 7, 11, 3, 1), (16, 6, 8, 7, 1), (12, 9, 9, 3, 1)])
def test_images(channels, lines, width, size, stride, dtype, turned, many, monkeypatch) -> None:
    """Tiles of lines and channels, channels last; the last case has too few channels. turned: the
    weight is laid out anew. many: a thread has several pixels of a line."""
    monkeypatch.setattr(depthwise, "MANY_READS", 0 if turned else 1 << 60)
    monkeypatch.setattr(plan, "MANY_IN_WINDOWS", 0 if many else 1 << 60)
    monkeypatch.setattr(configs, "SMALL_WINDOW_TILES", ((256, 1),))
    monkeypatch.setattr(configs, "WINDOW_TILES", ((128, 1),))

    def program(x, weight, scale):
        return F.relu(F.conv2d(x, weight, None, stride, size // 2, 1, channels) * scale[:, None, None])

    x = torch.randn(2, channels, lines, width).to(dtype).to(memory_format=torch.channels_last)
    given = x, torch.randn(channels, 1, size, size).to(dtype), torch.rand(channels).to(dtype)
    found = dynamo.compile(program, backend=interpreted)(*given)
    expected = program(*given)
    close = 1e-4 if dtype is torch.float32 else 1e-2
    torch.testing.assert_close(found, expected, rtol=close, atol=close)
    assert found.stride() == expected.stride()
    assert turned or ("tl.program_id(1)" in texts[-1]) == (channels > 12)
    assert texts[-1].count("@triton.jit") == (2 if turned else 1)
    several = many and channels > 12 and (width + stride - 1) // stride != 11
    assert (texts[-1].split("@triton.jit")[-1].count("tl.store(") > 1) == several


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("size", [3, 5])
def test_training(size, cut, monkeypatch) -> None:
    if cut:
        monkeypatch.setattr(split, "FEWEST_COLUMNS", (40, 40))
        monkeypatch.setattr(split, "COLUMNS_OF_A_PROGRAM", (16, 16))
        monkeypatch.setattr(split, "CHUNK_STEP", (16, 16))

    def program(x, weight, bias):
        return F.silu(F.conv2d(x, weight, bias, 2, size // 2, 1, 16)).sum()

    x = torch.randn(2, 16, 9, 12).to(memory_format=torch.channels_last)
    grads = []
    for function in (program, dynamo.compile(program, backend=trained)):
        given = [t.clone().requires_grad_() for t in (x, torch.randn(16, 1, size, size), torch.randn(16))]
        torch.manual_seed(0)
        with torch.no_grad():
            given[1].normal_()
            given[2].normal_()
        function(*given).backward()
        grads.append([one.grad for one in given])
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-4)
    assert not any("convolution_backward(" in text for text in texts)


@pytest.mark.parametrize("transposed", [False, True])
def test_images_of_one_channel(transposed) -> None:
    """As upsampling by filters has them: forward and gradients."""
    def program(x, weight):
        many = x.reshape(-1, 1, 9, 12)
        if transposed:
            return torch.tanh(F.conv_transpose2d(many, weight, None, 2, 1)).sum()
        return torch.tanh(F.conv2d(many, weight, None, 2, 1)).sum()

    grads = []
    for function in (program, dynamo.compile(program, backend=trained)):
        torch.manual_seed(0)
        given = torch.randn(2, 3, 9, 12).requires_grad_(), torch.randn(1, 1, 4, 4).requires_grad_()
        function(*given).backward()
        grads.append([one.grad for one in given])
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-4)
    assert texts and not any("convolution" in line and "aten" in line for text in texts for line in text.splitlines())


def test_lines(monkeypatch) -> None:
    def program(x, weight):
        return F.silu(F.conv1d(x, weight, None, 1, 3, 1, 6)[..., :20])

    given = torch.randn(3, 6, 20), torch.randn(6, 1, 4)
    found = dynamo.compile(program, backend=interpreted)(*given)
    torch.testing.assert_close(found, program(*given), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_stands_around_lines_is_read_through(dtype) -> None:
    """Ends that are repeated, or cut off: a kernel for each convolution, with a function behind it that
    is computed once, and no tests for places that are known to lie inside. There is one filter for all
    channels."""
    def program(x, up, down, scale):
        wide = F.conv_transpose1d(F.pad(x, (5, 5), mode="replicate"), up.expand(6, -1, -1), stride=2, groups=6)
        wide = 2 * wide[..., 15:-15]
        wide = F.pad(wide + (scale * wide).sin().square() / scale, (5, 6), mode="replicate")
        return F.conv1d(wide, down.expand(6, -1, -1), stride=2, groups=6).sigmoid()

    filters = torch.randn(2, 1, 1, 12)
    given = [each.to(dtype) for each in (torch.randn(2, 6, 40), *filters, torch.rand(6, 1) + 1)]
    found = dynamo.compile(program, backend=interpreted)(*given)
    exact, close = program(*(each.double() for each in given)), 1e-5 if dtype is torch.float32 else 3e-2
    torch.testing.assert_close(found.double(), exact, rtol=close, atol=close)
    kernels = texts[-1].split("@triton.jit")[1:]
    assert len(kernels) == 2 and "device_assert" not in texts[-1]
    assert kernels[0].count("tl.load(in0") == 6 and kernels[1].count("tl.load(in0") == 12
    assert ["sin(" in kernel for kernel in kernels] == [True, False]


@pytest.mark.parametrize("size, stride, padding, more, multiple", [
    (12, 2, 0, 0, 1), (12, 2, 5, 1, 1), (4, 3, 1, 2, 3), (3, 1, 1, 0, 1)])
def test_transposed_lines_in_training(size, stride, padding, more, multiple) -> None:
    def program(x, weight, bias):
        return F.silu(F.conv_transpose1d(x, weight, bias, stride, padding, more, 6)).sum()

    given = torch.randn(2, 6, 11), torch.randn(6, multiple, size), torch.randn(6 * multiple)
    grads = []
    for function in (program, dynamo.compile(program, backend=trained)):
        leaves = [each.clone().requires_grad_() for each in given]
        function(*leaves).backward()
        grads.append([each.grad for each in leaves])
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-4)
    assert not any("convolution_backward(" in text for text in texts)
