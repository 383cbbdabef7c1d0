"""Passes leave fakes behind that say what operators give, whatever the program is."""

from __future__ import annotations

import pytest

from inductor.fx_passes import checks


@pytest.fixture(autouse=True)
def checked_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "is_on", True)
