"""Checks of torch as Python functions that are traced in their place."""

from __future__ import annotations

from typing import Any

import torch


def check_all(error: type[Exception], cond: torch.Tensor, message: Any) -> None:
    """What `torch._check_tensor_all_with` does with a mask."""
    if not cond.all():
        raise failure(error, message)


def check_assertion(condition: Any, message: Any) -> None:
    """What `torch._assert` does with a tensor."""
    if not condition:
        raise AssertionError(message)


def failure(error: type[Exception], message: Any) -> Exception:
    """What a check raises that does not hold."""
    try:
        torch._check_with(error, False, message)
    except Exception as raised:
        return raised
    raise AssertionError("a check of False holds")
