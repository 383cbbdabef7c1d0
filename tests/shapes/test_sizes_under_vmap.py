"""torch.vmap of tensors whose sizes change: the batch and the sizes below it stay symbolic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import vmap

import dynamo
from dynamo.testing import CompileCounter, CompileCounterWithBackend


def mask(x: torch.Tensor) -> Any:
    """A mask of attention, a function of four indices."""
    batch, length = x.shape
    function = lambda b, h, q, k: (k <= q) & (x[b, k] > 0)  # noqa: E731
    for axis in (3, 2, 1, 0):
        function = vmap(function, in_dims=tuple(0 if i == axis else None for i in range(4)))
    ranges = torch.arange(batch), torch.arange(1), torch.arange(length), torch.arange(length)
    return function(*ranges).float() * x[:, None, None]


def written(x: torch.Tensor) -> Any:
    x = x * 1
    vmap(lambda a: a.add_(1))(x)
    return x[1:]


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "mask": mask,
    "written": written,
    "sum": lambda x: vmap(lambda a: (a * 2).sum() + a)(x),
    "columns": lambda x: vmap(lambda a: a.cumsum(0), in_dims=1, out_dims=1)(x),
    "nested": lambda x: vmap(lambda a: vmap(lambda b: b.softmax(0))(a.view(-1, 1).expand(-1, 3)))(x),
    "shared": lambda x: vmap(lambda a, b: b @ a, in_dims=(0, None))(x, x),
    "made": lambda x: vmap(lambda a: a * a.new_ones(a.shape).cumsum(0) + torch.zeros(a.shape[0]))(x),
    "views": lambda x: vmap(lambda a: a.reshape(a.shape[0], 1)[1:].flip(0).t() * x.shape[0])(x),
    "joined": lambda x: vmap(lambda a, b: torch.cat([a, b[:-1], a.mean()[None]]))(x, x + 1),
    "picked": lambda x: vmap(lambda a: a.gather(0, a.argsort()) + a.max(0).values)(x),
    "norm": lambda x: vmap(lambda a: F.layer_norm(a[:3], (3,)))(x),
    "padded": lambda x: vmap(lambda a: F.pad(a, (1, 2)).masked_fill(F.pad(a, (1, 2)) > 0.5, 0.0))(x),
    "tuple": lambda x: vmap(lambda a: (a.sin(), {"k": a.sum()}), out_dims=(1, 0))(x),
    "where": lambda x: vmap(lambda a, b: torch.where(a > b, a, -a))(x, x.mean(1)),
    "index": lambda x: vmap(lambda i: x[i] * 2)(torch.arange(x.shape[0])),
    "unused": lambda x: vmap(lambda a: x.sin() + 1)(x),
    "unused below": lambda x: vmap(lambda a: vmap(lambda b: a.cos())(a))(x),
    "plain": lambda x: vmap(torch.sin)(x)[:, None] + x.shape[1],
    "random": lambda x: vmap(lambda a: a + torch.rand_like(a), randomness="different")(x),
}  # fmt: skip


# Torch's own rules for batches fix the sizes there, which costs a graph for each.
FIXED = {"joined", "norm", "picked"}


def leaves(value: Any) -> list[torch.Tensor]:
    return torch.utils._pytree.tree_leaves(value)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_few_graphs_for_all_sizes(name: str, backend: str) -> None:
    dynamo.reset()
    program = PROGRAMS[name]
    counter = CompileCounterWithBackend(backend)
    compiled = dynamo.compile(program, backend=counter, fullgraph=True)
    for rows, columns in ((2, 4), (3, 5), (6, 7), (5, 5), (4, 9)):
        found = []
        x = torch.randn(rows, columns, requires_grad=True)
        for function in (program, compiled):
            torch.manual_seed(3)
            result = function(x)
            loss = sum((leaf.square().sum() for leaf in leaves(result)), torch.zeros(()))
            found.append((result, torch.autograd.grad(loss, x)))
        if name == "random" and backend == "inductor":
            assert found[0][0].shape == found[1][0].shape
        else:
            torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
    assert counter.frame_count == (5 if name in FIXED else 2)


def test_a_batch_of_another_size_is_refused() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return vmap(torch.add)(x, y)

    compiled = dynamo.compile(program, backend="eager")
    for rows in (2, 3, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x, x), program(x, x))
        for function in (program, compiled):
            with pytest.raises(ValueError, match="vmap"):
                function(x, torch.randn(rows + 1, 4))


def test_other_transforms_keep_their_sizes_static() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return vmap(torch.func.grad(lambda a: (a * a).sum()))(x)

    counter = CompileCounter()
    compiled = dynamo.compile(program, backend=counter, fullgraph=True)
    for rows in (2, 3, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), program(x))
    assert counter.frame_count == 3
