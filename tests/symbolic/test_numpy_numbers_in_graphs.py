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


REFUSED = """
x.__setitem__(0, n); x.__setitem__(slice(0, 1), n); x.__setitem__(x > 0, n); x.__setitem__((0,), n); x.split(n)
torch.split(x, n); torch.tensordot(x, x, n); x[[n, 0]]; x.__setitem__([n, 0], 5.0); x.norm(dim=n); x.norm(n)
x.unflatten(n, (2, 1)); x.narrow(0, 0, n); x.chunk(n); x.new_tensor(n)
torch.nn.functional.pad(x, (1, 1), value=n); x.view(n, 2); torch.nn.functional.dropout(x, n, False)
"""
TAKEN = [use.strip() for use in re.split("[;\n]", REFUSED) if use.strip()]
KINDS = """int8 int16 int64 uint8 uint16 uint64 float16 float32 float64 bool_ complex64 complex128
longdouble""".split()


@pytest.mark.parametrize("use", [*TAKEN, "x == n", "x != n", "n == x", "n != x"])
def test_refused_as_in_eager(use: str) -> None:
    """What torch refuses of numpy, with its words."""
    f: Any = eval(f"lambda x, n: [x, {use}]", {"torch": torch})

    def outcome(call: Any, number: Any) -> str:
        try:
            return repr(call(torch.tensor([3.0, 1.0]), number))
        except Exception as error:
            return repr(error)

    for kind in KINDS:
        dynamo.reset()
        number = getattr(np, kind)(1)
        assert outcome(dynamo.compile(f, backend="eager"), number) == outcome(f, number), kind


@pytest.mark.parametrize("text", ["[x] * n", "n * [x]", "(x, 1) * n", "n * (x, 1)", "[] * n", "[x][:1] * n"])
@pytest.mark.parametrize("kind", ["int8", "uint16", "int64"])
def test_repeated(text: str, kind: str) -> None:
    f: Any = eval(f"lambda x, n: (x + 1, {text})")
    for times in (2, 0, -1):
        if times < 0 and kind.startswith("u"):
            continue
        n, x = getattr(np, kind)(times), torch.ones(2)
        dynamo.reset()
        assert repr(dynamo.compile(f, backend="eager", fullgraph=True)(x, n)) == repr(f(x, n))


def test_repeated_in_place() -> None:
    def f(x: torch.Tensor, n: Any) -> Any:
        items = other = [x]
        items *= n
        return items, other, items is other

    x, n = torch.ones(2), np.int64(2)
    assert repr(dynamo.compile(f, backend="eager")(x, n)) == repr(f(x, n))
