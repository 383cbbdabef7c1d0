"""Losses over vocabularies, pairs and distributions, forward and backward."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from benchmarks.gpu_programs.program import Compile, Place, Step, program


@program
def loss_smoothed_z(compile: Compile, place: Place) -> Step:
    """Cross entropy with smoothing and a z-loss, behind the head's matrix."""
    rows, width, words = place.of((16, 32, 101), (4096, 2048, 50304))
    hidden = place.normal(rows, width, grad=True)
    head = (place.normal(words, width) * width**-0.5).requires_grad_()
    targets = place.integers(words, rows)

    def loss(hidden: Tensor, head: Tensor) -> Tensor:
        logits = (hidden @ head.t()).float()
        z = logits.logsumexp(-1).square().mean()
        return F.cross_entropy(logits, targets, label_smoothing=0.1) + 1e-4 * z

    compiled = compile(loss)

    def step() -> object:
        value = compiled(hidden, head)
        value.backward()
        grads = hidden.grad, head.grad
        hidden.grad = head.grad = None
        return value.detach(), grads

    return step
