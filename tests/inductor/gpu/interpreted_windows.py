"""Sums over large windows by their kernel in Triton's interpreter (`TRITON_INTERPRET=1`)."""

from __future__ import annotations

import pytest
import torch

from inductor.kernels.gpu.windows import WindowCall

FORMS = {  # sizes of images, window, padding
    "a square": ((1, 2, 7, 21), (11, 5), (5, 2)), "without padding": ((1, 2, 10, 14), (9, 7), (0, 0)),
    "a line": ((1, 2, 3, 30), (1, 51), (0, 25)), "one channel": ((2, 1, 6, 9), (8, 8), (4, 3)),
    "larger than images": ((1, 2, 3, 5), (9, 6), (8, 5)), "many channels": ((1, 70, 4, 6), (9, 6), (4, 2)),
}  # fmt: skip


def reference(x: torch.Tensor, weight: torch.Tensor, padding: tuple[int, int], flipped: bool) -> torch.Tensor:
    window = weight.double().flip(2, 3) if flipped else weight.double()
    return torch.conv2d(x.double(), window, padding=padding, groups=x.shape[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("last", [False, True], ids=["row-major", "channels last"])
@pytest.mark.parametrize("form", FORMS)
def test_values(form: str, last: bool, dtype: torch.dtype) -> None:
    size, window, padding = FORMS[form]
    x, weight = torch.randn(size).to(dtype), torch.randn(size[1], 1, *window).to(dtype)
    if last:
        x = x.to(memory_format=torch.channels_last)
    call = WindowCall()
    for flipped in (False, True):
        found, wanted = call(x, weight, padding, flipped), reference(x, weight, padding, flipped)
        assert found.dtype is dtype and found.is_contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(found.double(), wanted, rtol=4 * eps, atol=8 * eps * float(wanted.abs().max()))


def test_parts_of_images_and_turned_windows() -> None:
    whole, weight = torch.randn(1, 6, 12, 40), torch.randn(3, 1, 10, 6).transpose(2, 3)
    x = whole[:, ::2, 3:10, 5:35]
    found = WindowCall()(x, weight, (4, 4), False)
    torch.testing.assert_close(found.double(), reference(x, weight, (4, 4), False), rtol=1e-5, atol=1e-5)


def test_infinities_stay_where_windows_see_them() -> None:
    x, weight = torch.randn(1, 2, 9, 20), torch.randn(2, 1, 9, 6)
    x[0, 0, 7, 3], x[0, 1, 0, 19] = float("inf"), float("nan")
    found, wanted = WindowCall()(x, weight, (4, 4), False), reference(x, weight, (4, 4), False)
    assert torch.equal(found.isfinite(), wanted.isfinite())
