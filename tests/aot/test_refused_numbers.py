"""Numbers for which a kernel of ATen raises, although its formula gives something."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import dynamo

CASES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "huber 0": lambda x, y: F.huber_loss(x, y, delta=0.0),
    "huber -1": lambda x, y: F.huber_loss(x, y, delta=-1.0),
    "smooth_l1 -1": lambda x, y: F.smooth_l1_loss(x, y, beta=-1.0),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("train", [False, True])
def test_the_error_is_eagers(name: str, train: bool) -> None:
    x, y = torch.randn(5, requires_grad=train), torch.randn(5)
    with pytest.raises(RuntimeError) as eager:
        CASES[name](x, y)
    with pytest.raises(RuntimeError) as compiled:
        dynamo.compile(CASES[name])(x, y)
    assert str(eager.value).splitlines()[0] in str(compiled.value)
