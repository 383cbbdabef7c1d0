"""Traces in which the program makes wrapper tensors of plain ones: another process runs the constructors again on fakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures.processes import run

SOURCE = """
import os
FACTOR = [2]
def helper(data):
    return data.shape[:1]
class Packed(torch.Tensor):
    @staticmethod
    def __new__(cls, data, scale, how=(8, "row"), zero=None):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=scale.dtype, device=data.device)
    def __init__(self, data, scale, how=(8, "row"), zero=None):
        self.data_, self.scale, self.how, self.zero = data, scale, how, zero
        self.rows = helper(data)
        self.factor = FACTOR[0]
    def __tensor_flatten__(self):
        return ["data_", "scale"], (self.how,)
    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["data_"], inner["scale"], *context)
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError(func)
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is F.linear:
            x, w = args
            return (x.data_ @ w.T) * x.scale * x.factor + x.rows[0]
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))
def f(x, w):
    scale = x.abs().amax(1, keepdim=True)
    return F.linear(Packed(x / scale, scale, (4, "all")), w)
def run():
    torch.manual_seed(0)
    return [pair(f, torch.randn(4, 3), torch.randn(5, 3))]
"""


def test_it_is_cached(tmp_path: Path) -> None:
    first, second = (run(tmp_path, SOURCE) for _ in range(2))
    assert "not cached" not in first.said
    assert (second.reused, second.traced) == (1, 0)


@pytest.mark.parametrize("there, here", [
    ("FACTOR = [2]", "FACTOR = [3]"),  # read by the constructor alone, which is not traced
    ("return data.shape[:1]", "return data.shape[1:]"),
    ("self.scale, self.how, self.zero = data, scale", "self.scale, self.how, self.zero = data * 1, scale"),
    ("dtype=scale.dtype", "dtype=torch.float64"),
    ('(4, "all")', '(8, "all")'),
    ('(4, "all")', '[4, "all"]'),
    ("self.factor = FACTOR[0]", "self.factor = FACTOR[0]; self.more = 1"),
    ("self.rows = helper(data)", "self.rows = helper(data) if 'HERE' in os.environ else (7,)"),
])  # fmt: skip
def test_another_constructor_is_a_miss(there: str, here: str, tmp_path: Path) -> None:
    assert there in SOURCE
    run(tmp_path, SOURCE)
    other = run(tmp_path, SOURCE.replace(there, here))
    assert (other.reused, other.traced) == (0, 1)


def test_what_has_no_text_is_not_cached(tmp_path: Path) -> None:
    source = SOURCE.replace("FACTOR[0]", "FACTOR[0]; self.other = object()")
    first, second = (run(tmp_path, source) for _ in range(2))
    assert "it makes a Packed with a object" in first.said
    assert second.reused == 0


def test_a_dispatch_is_not_cached(tmp_path: Path) -> None:
    source = SOURCE.replace("raise NotImplementedError(func)", "return func(args[0].data_, *args[1:])").replace(
        'return F.linear(Packed(x / scale, scale, (4, "all")), w)',
        'return torch.neg(Packed(x / scale, scale, (4, "all")))')
    first, second = (run(tmp_path, source) for _ in range(2))
    assert "code of Packed has run that is not traced" in first.said
    assert second.reused == 0
