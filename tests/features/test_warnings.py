"""`warnings.warn` with what is no category of warnings, and where the program has changed `warnings`."""

from __future__ import annotations

import sys
import types
import warnings
from typing import Any

import pytest
import torch

import dynamo


class Own(UserWarning):
    pass


CATEGORIES: dict[str, Any] = {
    "none": None, "own": Own, "empty text": "", "text": "warning", "zero": 0, "false": False,
    "tuple": (), "class": int, "error": ValueError, "instance": Own(),
}


@pytest.mark.parametrize("name", CATEGORIES)
def test_category(name: str) -> None:
    category = CATEGORIES[name]

    def f(x: torch.Tensor) -> Any:
        y = x + 1
        try:
            warnings.warn("text", category, stacklevel=1)
        except TypeError as error:
            return y.tolist(), type(error).__name__
        return y.tolist(), "warned"

    results = []
    for function in (f, dynamo.compile(f, backend="eager")):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            results.append((function(torch.ones(2)), [one.category for one in told]))
    assert results[1] == results[0]


NAMES = ["filters", "showwarning", "_showwarnmsg"]
if sys.version_info < (3, 14):  # which raises without it
    NAMES.append("_showwarnmsg_impl")


@pytest.mark.parametrize("name", NAMES)
def test_a_part_of_warnings_is_deleted(name: str) -> None:
    """What C does without it."""

    def inside(x: torch.Tensor) -> Any:
        y = x + 1
        with warnings.catch_warnings(record=True) as log:
            warnings.simplefilter("always")
            kept = getattr(warnings, name)
            delattr(warnings, name)
            try:
                warnings.warn("test", UserWarning)
                found: Any = len(log)
            except NameError as error:
                found = str(error)
            finally:
                setattr(warnings, name, kept)
        return float(y), found, len(log)

    def warns(x: torch.Tensor, log: list[Any]) -> Any:
        y = x + 1
        warnings.warn("test", UserWarning)
        return float(y), len(log)

    def outside(call: Any) -> Any:
        with warnings.catch_warnings(record=True) as log:
            warnings.simplefilter("always")
            kept = getattr(warnings, name)
            delattr(warnings, name)
            try:
                return call(torch.ones(()), log)
            except NameError as error:
                return str(error)
            finally:
                setattr(warnings, name, kept)

    want = inside(torch.ones(())), outside(warns)
    with dynamo.config.patch(suppress_errors=False):
        got = (dynamo.compile(inside, backend="eager")(torch.ones(())),
               outside(dynamo.compile(warns, backend="eager")))
    assert got == want


def test_another_module_shows_warnings(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[Any] = []
    other = types.ModuleType("warnings")
    other.__dict__.update(vars(warnings), _showwarnmsg=log.append, filters=[])
    monkeypatch.setitem(sys.modules, "warnings", other)

    def f(x: torch.Tensor) -> Any:
        y = x + 1
        warnings.warn("test", UserWarning)
        return y, len(log)

    assert dynamo.compile(f, backend="eager")(torch.ones(1))[1] == 1
