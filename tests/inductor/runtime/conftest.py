from __future__ import annotations

from dataclasses import replace

import pytest

from inductor import attention_choice, library_convolutions
from inductor.runtime.processor import processor
from inductor.scheduler import product_choice


@pytest.fixture
def nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """No library is said to be the fastest: for tests of how that is measured."""
    record = replace(processor(), fastest="")
    for module in (attention_choice, library_convolutions, product_choice):
        monkeypatch.setattr(module, "processor", lambda: record)
