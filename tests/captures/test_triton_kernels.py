"""Traces with Triton kernels of the program, and what is compiled of them, are found by another process: kernels that
are launched by the program, by autograd functions and by heuristics. Triton's interpreter runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures.processes import run

pytest.importorskip("triton")
KERNEL = """
import os
os.environ["TRITON_INTERPRET"] = "1"
import triton
import triton.language as tl

@triton.jit
def scale_kernel(x, y, n, by, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * by, mask=i < n)

def scale(x, by):
    y = torch.empty_like(x)
    scale_kernel[(triton.cdiv(x.numel(), 8),)](x, y, x.numel(), by, BLOCK=8)
    return y
"""
PLAIN = KERNEL + """
def f(x):
    return scale(x, 2.0) + 1

def run():
    return [pair(f, torch.randn(20))]
"""
FUNCTION = KERNEL + """
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        return scale(x.contiguous(), by)
    @staticmethod
    def backward(ctx, grad):
        return scale(grad.contiguous(), ctx.by), None

def f(x):
    return Scale.apply(x, 2.5).exp()

def with_gradients(f, x):
    y = f(x)
    return y, torch.autograd.grad(y.sum(), x)[0]

def run():
    x = torch.randn(20, requires_grad=True)
    compiled = dynamo.compile(f)
    return [(with_gradients(compiled, x), with_gradients(f, x))]
"""
TUNED = KERNEL.replace("@triton.jit", """@triton.heuristics({"TWICE": lambda values: values["n"] > 8})
@triton.jit""").replace("BLOCK: tl.constexpr)", "BLOCK: tl.constexpr, TWICE: tl.constexpr)").replace(
    "* by, mask", "* by * (1 + TWICE), mask") + """
def f(x):
    return scale(x, 2.0) + 1

def run():
    return [pair(f, torch.randn(20))]
"""


@pytest.mark.parametrize("source", [PLAIN, FUNCTION, TUNED], ids=["plain", "autograd function", "heuristics"])
def test_it_is_found(source: str, tmp_path: Path) -> None:
    first, second = (run(tmp_path, source, kernels=True) for _ in range(2))
    assert first.traced and not first.reused and not first.defects, first.said
    assert second.reused == first.traced and not second.traced and not second.defects, second.said
    assert "aten" in second.said and "not in the cache" not in second.said and "library" not in second.said


@pytest.mark.parametrize(("before", "after"), [
    ("* by, mask", "- by, mask"), ("by, BLOCK=8", "by * 2, BLOCK=8"), ("(x, y, n, by,", "(y, x, n, by,"),
    ("def f(x):", "scale_kernel = triton.jit(lambda x, y, n, by, BLOCK: None)\ndef f(x):"),
])  # fmt: skip
def test_another_kernel_is_a_miss_or_runs(before: str, after: str, tmp_path: Path) -> None:
    """Whatever is found, results are eager's."""
    run(tmp_path, PLAIN, kernels=True)
    assert before in PLAIN
    other = PLAIN.replace(before, after, 1)
    if before.startswith("(x, y"):  # what it writes is another argument now
        other = other.replace("return y", "return y * 0").replace("torch.randn(20)", "torch.zeros(20)")
    if "lambda" in after:
        other = other.replace("return scale(x, 2.0) + 1", "return x + 1")
    assert not run(tmp_path, other, kernels=True).defects
    assert run(tmp_path, PLAIN, kernels=True).reused in (0, 1)
