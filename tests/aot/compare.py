"""What must be equal between eager and a compiled program: values, layout, sharing, mutation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree


def layout(tensor: torch.Tensor) -> Any:
    return tensor.dtype, tensor.shape, tensor.stride(), tensor.device, tensor.requires_grad


def version(value: Any) -> int:
    counted = isinstance(value, torch.Tensor) and not value.is_inference()
    return value._version if counted else 0


def sharing(tensors: list[torch.Tensor]) -> Any:
    """Which are one object, which share storage, which is whose base."""
    ids = [id(t) for t in tensors]
    storages = [t.untyped_storage()._cdata for t in tensors]
    bases = [
        (t._is_view(), ids.index(id(t._base)) if id(t._base) in ids else None) for t in tensors
    ]
    return [ids.index(i) for i in ids], [storages.index(s) for s in storages], bases


def differentiated(
    call: Callable[..., tuple[torch.Tensor, ...]], *inputs: torch.Tensor
) -> tuple[tuple[torch.Tensor, ...], list[torch.Tensor | None]]:
    """The results of a call, and the gradients of all leaves among inputs and results, of the
    squares of the results that have a history."""
    results = call(*inputs)
    losses = [value.square().sum() for value in results if value.requires_grad]
    if losses:
        torch.stack(losses).sum().backward()
    return results, [value.grad for value in (*inputs, *results) if value.is_leaf]


def check(
    eager: Callable[..., Any],
    compiled: Callable[..., Any],
    make_inputs: Callable[[], tuple[Any, ...]],
    *,
    views: bool = True,
    exact: bool = True,
) -> None:
    """Runs both on equal inputs and with equal random state, and compares all there is to see."""
    seed = int(torch.randint(1 << 30, ()))
    torch.default_generator.manual_seed(seed)
    inputs = make_inputs()
    torch.default_generator.manual_seed(seed)
    ours = make_inputs()
    versions = [[version(value) for value in group] for group in (inputs, ours)]
    state = torch.get_rng_state()
    expected = eager(*inputs)
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    actual = compiled(*ours)
    assert torch.equal(after, torch.get_rng_state())
    flat_expected, spec = pytree.tree_flatten((expected, inputs))
    flat_actual, actual_spec = pytree.tree_flatten((actual, ours))
    assert len(flat_expected) == len(flat_actual)
    for want, got in zip(flat_expected, flat_actual, strict=True):
        if not isinstance(want, torch.Tensor):
            assert want == got
            continue
        assert layout(want) == layout(got)
        if exact:
            torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
        else:
            torch.testing.assert_close(got, want)
    wanted = sharing([t for t in flat_expected if isinstance(t, torch.Tensor)])
    found = sharing([t for t in flat_actual if isinstance(t, torch.Tensor)])
    assert wanted[:2] == found[:2]
    if views:
        assert wanted[2] == found[2]
    for index, (want, got) in enumerate(zip(inputs, ours, strict=True)):
        if isinstance(want, torch.Tensor):
            bumped = (version(want) > versions[0][index], version(got) > versions[1][index])
            assert bumped[0] == bumped[1]
