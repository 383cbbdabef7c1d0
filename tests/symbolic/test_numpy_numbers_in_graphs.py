"""Numbers of numpy that torch takes: the dtype of the result is eager's."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch

import dynamo

NUMBERS = ["np.int64(1)", "np.int8(1)", "np.uint8(1)", "np.float64(1.5)", "np.sqrt(2.0)", "np.float32(1.5)", "np.float16(1.5)",
           "np.bool_(True)", "np.complex64(1 + 2j)"]
USES = """
torch.tensor(n); torch.tensor([n]); torch.tensor([n, 2]); torch.tensor([2.5, n]); torch.tensor([[n], [n]])
torch.tensor((n,)); torch.as_tensor(n); torch.as_tensor([n]); torch.asarray(n); torch.asarray([n, n], copy=True)
torch.tensor(n, dtype=None); torch.tensor([n, x.shape[0]]); torch.tensor(n, device="cpu"); torch.tensor([[n, 1], [2, 3]])
torch.tensor({"a": n}["a"]); torch.full((2,), n); x.new_tensor([n]); torch.arange(n); x + n; i + n; n + i; b * n; i // n
torch.add(i, n); torch.add(i, i, alpha=n); i.clamp(min=n); torch.where(b, i, n); torch.pow(n, i); i.fill_(n); i.add_(n)
torch.result_type(i, n); torch.linspace(0, n, 3); x.sum() * n; torch.tensor(n, dtype=torch.float64)
torch.tensor(np.float64(2.5) * n)
"""
SPLIT = [use.strip() for use in re.split("[;\n]", USES) if use.strip()]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("use", SPLIT)
def test_dtypes(number: str, use: str) -> None:
    names = dict(globals())
    exec(f"""
def f(x, i, b):
    try:
        n = {number}
        result = {use}
    except Exception as error:
        result = type(error)
    return result, x, i, b
""", names)

    def inputs() -> list[torch.Tensor]:
        return [torch.ones(2), torch.tensor([1, 2]), torch.tensor([True, False])]

    f: Any = names["f"]
    assert repr(f(*inputs())) == repr(dynamo.compile(f, backend="eager")(*inputs()))


def test_in_one_graph() -> None:
    @dynamo.compile(backend="eager", fullgraph=True)
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        root = np.sqrt(x.shape[1])
        return x * root, torch.tensor([root, 1])

    scaled, made = f(torch.ones(2, 4))
    assert scaled.dtype is torch.float32 and made.dtype is torch.float64
