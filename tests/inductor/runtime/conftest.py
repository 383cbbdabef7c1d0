from __future__ import annotations

from dataclasses import replace

import pytest

from dynamo.store.processor import processor
from inductor.autotune import attention_choice, gemm_choice, library_convolutions


@pytest.fixture
def nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """No library is said to be the fastest: for tests of how that is measured."""
    record = replace(processor(), fastest="")
    for module in (attention_choice, library_convolutions, gemm_choice):
        monkeypatch.setattr(module, "processor", lambda: record)
