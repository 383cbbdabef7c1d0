"""Depthwise convolutions by kernels of our own: values, gradients, what follows them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo
from inductor.codegen.triton import plan
from inductor.lowering import depthwise
from tests.gpu.support import DTYPES, assert_near, check, data, exactly, left_uncompiled

FORMS = {  # images, channels, height and width, results of a channel, window, what else
    "3x3": (8, 96, (28, 28), 1, (3, 3), {"padding": 1}),
    "3x3 stride 2": (5, 144, (29, 30), 1, (3, 3), {"padding": 1, "stride": 2}),
    "5x5": (3, 72, (14, 14), 1, (5, 5), {"padding": 2}),
    "7x7": (2, 64, (14, 21), 1, (7, 7), {"padding": 3}),
    "larger than the image": (2, 384, (2, 2), 1, (5, 5), {"padding": 2}),
    "odd": (3, 37, (13, 11), 3, (5, 4), {"padding": (2, 1), "stride": (1, 3), "dilation": (2, 1)}),
}


@pytest.fixture(autouse=True, params=["small", "large"])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As large images have it, with several pixels for each thread, or as small ones."""
    monkeypatch.setattr(depthwise, "FEW_READS", 1 << 60)  # none is the library's
    if request.param == "large":
        monkeypatch.setattr(depthwise, "MANY_READS", 0)
        monkeypatch.setattr(plan, "MANY_IN_WINDOWS", 0)


def given(form: str, dtype: torch.dtype, last: bool, grad: bool) -> tuple[torch.Tensor, ...]:
    count, channels, size, multiple, window, _ = FORMS[form]
    layout = torch.channels_last if last else torch.contiguous_format
    x = data(count, channels, *size, dtype=dtype).to(memory_format=layout)
    weight = data(channels * multiple, 1, *window, dtype=dtype) / 5
    return tuple(t.detach().requires_grad_(grad) for t in (x, weight, data(channels * multiple, dtype=dtype)))


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_forward(form: str, dtype: torch.dtype, last: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    channels, more = FORMS[form][1], FORMS[form][-1]

    def program(x: Any, weight: Any, bias: Any) -> Any:
        return F.silu(F.conv2d(x, weight, bias, groups=channels, **more))

    with torch.no_grad():
        check(program, lambda: given(form, dtype, last, False), calls=2)


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_gradients(form: str, dtype: torch.dtype, last: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    channels, more = FORMS[form][1], FORMS[form][-1]

    def program(x: Any, weight: Any, bias: Any) -> Any:
        return F.conv2d(x, weight, bias, groups=channels, **more).sin()

    compiled = dynamo.compile(program, fullgraph=True)
    for _ in range(2):
        args = given(form, dtype, last, True)
        found = []
        for function, inputs in ((compiled, args), (program, args), (program, exactly(args))):
            result = function(*inputs)
            loss = result.double().square().mean()
            found.append((result, torch.autograd.grad(loss, inputs)))
        assert_near(*found, slack=4.0)
    assert not left_uncompiled(), left_uncompiled()
