"""One answer for all stages: may a call be dropped, moved, repeated?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.node import _side_effectful_functions, has_side_effect

from dynamo.graph_operators.operator_effects import BOUND, CHECKS, FREE, WRITES, acts, freedom_of

aten = torch.ops.aten
ATTENTION = aten._scaled_dot_product_efficient_attention.default


@torch.library.custom_op("test_effects::plain", mutates_args=())
def plain(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@pytest.mark.parametrize(("target", "freedom"), [
    (aten.sin.default, FREE), (aten.sin, FREE), (torch.sin, FREE), (aten.add_.Tensor, WRITES),
    (aten.bernoulli.default, BOUND), (aten._assert_async.msg, CHECKS),
    (aten._functional_assert_async.msg, CHECKS), (aten._linalg_check_errors.default, CHECKS),
    (aten._print.default, BOUND), (torch._assert, BOUND), (torch.ops.test_effects.plain, BOUND),
    (torch.ops.test_effects.plain.default, BOUND),
])
def test_schema_and_tags(target: Any, freedom: Any) -> None:
    assert freedom_of(target) == freedom


def test_attention_without_dropout_draws_nothing() -> None:
    x = torch.ones(1, 1, 2, 2)
    assert freedom_of(ATTENTION, (x, x, x, None, False)) == FREE
    assert freedom_of(ATTENTION, (x, x, x, None, False, 0.5)) == BOUND
    assert freedom_of(ATTENTION) == BOUND


def test_registries() -> None:
    """What torch.fx and torch.library are told holds from then on, also of torch's own."""
    operator = aten.digamma.default
    assert not acts(operator)
    has_side_effect(operator)
    try:
        assert freedom_of(operator) == BOUND
    finally:
        _side_effectful_functions.discard(operator)
    handle = torch.library._register_effectful_op("aten::digamma", torch._library.effects.EffectType.ORDERED)
    try:
        assert freedom_of(operator) == BOUND
    finally:
        torch.library._register_effectful_op("aten::digamma", None)
    assert handle is None
    assert freedom_of(operator) == FREE
