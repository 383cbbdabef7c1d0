"""The cheap checks agree with torch's own, which they stand in for."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import _meta_registrations as kernels

from dynamo.aot import inplace_checks


def outcome(function: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return function(*args, **kwargs)
    except RuntimeError as error:
        return str(error)


SIZES = [torch.Size(size) for size in ((), (1,), (3,), (2, 3), (2, 1), (1, 3), (2, 1, 3), (0,), (2, 0))]


def test_broadcasts() -> None:
    for own, other in itertools.product(SIZES, SIZES):
        expected = outcome(kernels.check_inplace_broadcast, own, other)
        assert outcome(inplace_checks.check_inplace_broadcast, own, other) == expected, (own, other)


def test_the_original_comes_back() -> None:
    before = kernels.check_inplace_broadcast
    with pytest.raises(KeyError), inplace_checks.cheap_checks(), inplace_checks.cheap_checks():
        assert kernels.check_inplace_broadcast is inplace_checks.check_inplace_broadcast
        raise KeyError
    assert kernels.check_inplace_broadcast is before
