"""A loss over a large vocabulary on a GPU: gradients, and how much memory they take."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import dynamo

ROWS, TERMS, COLUMNS = 8192, 512, 64000


def loss_of(h, w, y):
    return F.cross_entropy((h @ w.t()).float(), y)


def gradients(f, h, w, y):
    h, w = h.detach().requires_grad_(), w.detach().requires_grad_()
    f(h, w, y).backward(torch.tensor(3.0, device="cuda"))
    return h.grad, w.grad


def test_memory_and_errors() -> None:
    torch.manual_seed(0)
    h = torch.randn(ROWS, TERMS, device="cuda", dtype=torch.bfloat16)
    w = (torch.randn(COLUMNS, TERMS, device="cuda") / 20).bfloat16()
    y = torch.randint(0, COLUMNS, (ROWS,), device="cuda")
    exact = gradients(loss_of, h.float(), w.float(), y)
    eager = gradients(loss_of, h, w, y)
    compiled = dynamo.compile(loss_of)
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        ours = gradients(compiled, h, w, y)
    assert torch.cuda.max_memory_allocated() - before < ROWS * COLUMNS * 2
    for mine, theirs, right in zip(ours, eager, exact, strict=True):
        assert (mine - right).norm() < 1.05 * (theirs - right).norm()
