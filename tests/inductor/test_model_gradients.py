"""Gradients of small models of `transformers` on the default backend: the error is of eager's size."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from benchmarks.gradients import MODELS, MOST, check

FAST = ("electra", "xlnet")


@pytest.mark.parametrize("name", [
    name if name in FAST else pytest.param(name, marks=pytest.mark.long) for name in MODELS
])
def test_error_is_of_eagers_size(name: str) -> None:
    ratio, where, _ = check(name, training=True)
    assert ratio < MOST, where
