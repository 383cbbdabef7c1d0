"""Writes that functionalization can't carry over to their base, offsets that steps of ATen read, and
results whose facts torch's own rules get wrong; on the default backend, bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import dynamo

INF = float("inf")
WRITES: dict[str, tuple[Callable[[torch.Tensor], object], torch.Tensor]] = {
    "expanded to its own size": (lambda x: x.expand(2).add_(1), torch.tensor([1e8, INF])),
    "a row of an expanded one": (lambda x: x.expand(3, 2)[0].fill_(3.3), torch.tensor([1e8, -INF])),
    "its sum with an axis more": (lambda x: x.expand(1, 2)[0].mul_(1.1), torch.tensor([1e8, INF])),
    "windows that leave some out": (lambda x: x.unfold(0, 2, 3).mul_(2), torch.arange(1.0, 9)),
    "the triangle of a window": (lambda x: x.unfold(1, 2, 2).tril_(), torch.arange(1.0, 7).view(2, 3, 1)),
    "a view of a window": (lambda x: x.unfold(0, 2, 3)[0].t_().add_(1), torch.arange(1.0, 9)),
    "all in one": (lambda x: x.expand_as(x).view(-1)[1:].sub_(2) * 3, torch.tensor([[1e8, INF]])),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_writes_into_views_without_an_exact_inverse(name: str, dynamic: bool) -> None:
    program, start = WRITES[name]
    compiled = dynamo.compile(program, dynamic=dynamic)
    for _ in range(2):
        mine, other = start.clone(), start.clone()
        found, wanted = compiled(mine), program(other)
        assert torch.equal(mine, other)
        assert isinstance(found, torch.Tensor) and isinstance(wanted, torch.Tensor) and torch.equal(found, wanted)


@pytest.mark.parametrize("dynamic", [None, False])
def test_a_diagonal_is_filled_where_the_matrix_begins(dynamic: bool | None) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.fill_diagonal_(-1)
        return x * 2

    compiled = dynamo.compile(program, dynamic=dynamic)
    for offset in (0, 4, 7, 2):
        mine, other = torch.arange(20.0), torch.arange(20.0)
        found = compiled(mine[offset : offset + 9].view(3, 3))
        assert torch.equal(found, program(other[offset : offset + 9].view(3, 3)))
        assert torch.equal(mine, other)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("scatter", [
    lambda x: torch.slice_scatter(x, x[1:] * 2, 0, 1), lambda x: torch.select_scatter(x, x[0] * 2, 0, 1),
    lambda x: torch.diagonal_scatter(x, x.diagonal() * 2),
])  # fmt: skip
def test_scatters_into_an_expanded_tensor_are_dense(scatter: Callable[[torch.Tensor], torch.Tensor], dynamic: bool) -> None:
    x = torch.randn(4)
    found, wanted = dynamo.compile(lambda x: scatter(x.expand(3, 4)), dynamic=dynamic)(x), scatter(x.expand(3, 4))
    assert torch.equal(found, wanted) and found.stride() == wanted.stride()


@pytest.mark.parametrize("value", [3e-30, 1e25, -2.0, INF])
def test_the_norm_of_one_element_is_its_size(value: float) -> None:
    x = torch.tensor([[value], [0.0]])
    assert torch.equal(dynamo.compile(lambda x: x.norm(dim=1))(x), x.norm(dim=1))
    assert torch.equal(dynamo.compile(torch.linalg.vector_norm)(x[0]), torch.linalg.vector_norm(x[0]))


@pytest.mark.parametrize("dtypes", [(torch.float32, torch.float64), (torch.float64, torch.float32)])
def test_a_loss_of_two_dtypes_has_eagers(dtypes: tuple[torch.dtype, torch.dtype]) -> None:
    scores, target = torch.randn(3, 4).to(dtypes[0]), torch.rand(3, 4).to(dtypes[1])
    wanted = F.binary_cross_entropy_with_logits(scores, target)
    found = dynamo.compile(F.binary_cross_entropy_with_logits)(scores, target)
    torch.testing.assert_close(found, wanted)


def test_a_write_beside_an_inference_tensor_has_its_gradient() -> None:
    def program(source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        target[::2].copy_(source)
        with torch.inference_mode():
            return source.exp()

    gradients = []
    for function in (program, dynamo.compile(program)):
        leaf = torch.ones(5, requires_grad=True)
        target = leaf * 1
        assert function(torch.zeros(1), target).is_inference()
        target.sin().sum().backward()
        gradients.append(leaf.grad)
    torch.testing.assert_close(gradients[1], gradients[0])
    assert gradients[0] is not None and gradients[0][0] == 0
