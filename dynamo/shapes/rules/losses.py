"""Shape rules: losses and their backward operations, on the CPU."""

from __future__ import annotations

from typing import Any

import torch

from dynamo.shapes.facts import Facts, OpCache, Outcome, Several
from dynamo.shapes.rules.table import (
    Args,
    Kwargs,
    argument,
    common_layout,
    contiguous,
    laid_out,
    shape_rule,
    tensors_of,
)

aten = torch.ops.aten
_FLOATS = (torch.float32, torch.float64)


def _alike(facts: list[Facts]) -> str | None:
    """The layout of tensors that agree in size and dtype; None where they don't."""
    first = facts[0]
    if any(each.size != first.size or each.dtype is not first.dtype for each in facts):
        return None
    return common_layout(facts) if first.dtype in _FLOATS else None


@shape_rule(
    aten.mse_loss.default, aten.smooth_l1_loss.default, aten.huber_loss.default,
    aten.binary_cross_entropy.default, aten.binary_cross_entropy_with_logits.default,
    aten.soft_margin_loss.default,
)  # fmt: skip
def _loss(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    facts = [tensor.facts for tensor in tensors_of(args, kwargs)]
    layout, source = _alike(facts), facts[0]
    if layout is None:
        return None
    if argument(func, "reduction", args, kwargs):
        return contiguous(cache, (), source.dtype, source.device)
    return laid_out(cache, source.size, source.dtype, layout, source.device)


@shape_rule(
    aten.mse_loss_backward.default, aten.smooth_l1_loss_backward.default,
    aten.huber_loss_backward.default, aten.binary_cross_entropy_backward.default,
    aten.log_sigmoid_backward.default,
)  # fmt: skip
def _loss_backward(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    facts = [tensor.facts for tensor in tensors_of(args, kwargs)]
    if not facts[0].size:  # the gradient of a mean or a sum
        facts = facts[1:]
    if _alike(facts) != "rows":
        return None
    return contiguous(cache, facts[0].size, facts[0].dtype, facts[0].device)


@shape_rule(aten.log_sigmoid_forward.default)
def _log_sigmoid(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    source = args[0].facts
    if _alike([source]) is None:
        return None
    made = contiguous(cache, source.size, source.dtype, source.device)
    saved_size = source.size if source.device.type == "cpu" else (0,)
    return Several(tuple, (made, contiguous(cache, saved_size, source.dtype, source.device)))


def _classes(args: tuple[Any, ...]) -> tuple[Facts, Facts] | None:
    """Scores (batch, classes, ...) and class numbers that fit; None where they do not."""
    scores, target = args[0].facts, args[1].facts
    if scores.dtype not in _FLOATS or target.dtype is not torch.int64:
        return None
    if scores.device.type != "cpu" or scores.bits or 0 in scores.size:
        return None
    rank = len(scores.size)
    fits = target.size == (*scores.size[:1], *scores.size[2:])
    if rank not in (2, 4) or not fits or target.device != scores.device:
        return None
    weight = args[2]
    if weight is not None:
        facts = weight.facts
        if facts.size != scores.size[1:2] or facts.dtype is not scores.dtype:
            return None
    return scores, target


@shape_rule(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def _nll_loss(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    classes = _classes(args)
    if classes is None or (len(classes[0].size) == 2) != (func is aten.nll_loss_forward.default):
        return None
    scores, target = classes
    size = () if args[3] else target.size
    total = contiguous(cache, (), scores.dtype, scores.device)
    return Several(tuple, (contiguous(cache, size, scores.dtype, scores.device), total))


@shape_rule(aten.nll_loss_backward.default)
def _nll_loss_backward(cache: OpCache, func: Any, args: Args, kwargs: Kwargs) -> Outcome | None:
    classes = _classes(args[1:])
    if classes is None or len(classes[0].size) != 2:
        return None
    scores, target = classes
    if args[0].facts.size != (() if args[4] else target.size):
        return None
    return contiguous(cache, scores.size, scores.dtype, scores.device)
