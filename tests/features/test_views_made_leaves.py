"""Views that no-grad mode makes say that they require a gradient before they are asked to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import dynamo

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "expand": lambda x: x.expand(2, 3),
    "contiguous": lambda x: x.expand(2, 3).contiguous(),
    "row": lambda x: x[0],
    "transpose": lambda x: x.t(),
    "view": lambda x: x.view(-1),
    "view of a view": lambda x: x[0][1:],
    "copy": lambda x: x[0].clone(),
    "itself": lambda x: x,
}


@pytest.mark.parametrize("broken", [False, True], ids=["whole", "broken"])
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_of_a_leaf_is_made_a_leaf(name: str, broken: bool) -> None:
    view = VIEWS[name]

    def leaf(x: torch.Tensor) -> torch.Tensor:
        made = view(x).requires_grad_(x.requires_grad)
        if broken:
            dynamo.graph_break()
        return made

    def gradients(call: Callable[[torch.Tensor], torch.Tensor]) -> list[object]:
        x = torch.arange(6.0).reshape(2, 3).requires_grad_()
        with torch.no_grad():
            made = call(x)
        facts = [made.requires_grad, made.is_leaf, made.detach().requires_grad]
        (made * made).sum().backward()
        return [*facts, *(None if t.grad is None else t.grad.tolist() for t in (made, x))]

    assert gradients(dynamo.compile(leaf, backend="eager")) == gradients(leaf)


class Doubled(torch.autograd.Function):
    """Its backward asks autograd for a gradient of views of what was saved."""

    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor | None:  # type: ignore[no-untyped-def]
        (saved,) = ctx.saved_tensors
        leaf = held(saved).detach()
        if held(saved).requires_grad:
            leaf.requires_grad_()
        with torch.enable_grad():
            (found,) = torch.autograd.grad((leaf.sin() * grad).sum(), [leaf])
        return found


def held(x: torch.Tensor) -> torch.Tensor:
    return x.expand(2, 3).requires_grad_(x.requires_grad)


def test_in_a_backward_that_runs_in_the_compiled_part() -> None:
    def step(x: torch.Tensor) -> None:
        Doubled.apply(x).sum().backward()

    x = torch.rand(2, 3, requires_grad=True)
    dynamo.compile(step, backend="eager")(x)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, x.detach().cos())
