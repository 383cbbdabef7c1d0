"""What libraries ask of Python while they compute: whether a module can be imported, and tables
whose keys are of odd classes."""

from __future__ import annotations

import enum
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import dynamo


def scaled(x: torch.Tensor, name: str) -> torch.Tensor:
    there = importlib.util.find_spec(name) is not None
    return x * 2 if there else x - 1


def test_is_seen_again_where_it_may_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "module_of_this_test_alone"
    monkeypatch.delitem(sys.modules, name, raising=False)
    compiled = dynamo.compile(scaled, backend="eager", fullgraph=True)
    x = torch.ones(3)
    assert torch.equal(compiled(x, name), x - 1)
    assert torch.equal(compiled(x, "json"), x * 2)
    (tmp_path / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert torch.equal(compiled(x, name), x * 2)
    __import__(name)
    assert torch.equal(compiled(x, name), x * 2)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(tmp_path)])
    assert torch.equal(compiled(x, name), x * 2)  # it is imported
    monkeypatch.delitem(sys.modules, name)
    assert torch.equal(compiled(x, name), x - 1)


@pytest.mark.parametrize("package", [None, "torch"])
def test_beside_a_package(package: str | None) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if importlib.util.find_spec("json", package) is not None else x - 1

    assert torch.equal(dynamo.compile(program, backend="eager")(torch.ones(3)), torch.full((3,), 2.0))


class Counting:
    """Finds nothing, and counts what it is asked for."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        self.names.append(name)


def test_finders_of_the_program_are_asked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, x = dynamo.compile(scaled, backend="eager"), torch.ones(3)
    assert torch.equal(compiled(x, "no_such_module_here"), x - 1)
    finder = Counting()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    for count in (1, 2, 3):
        assert torch.equal(compiled(x, "no_such_module_here"), x - 1)
        assert finder.names.count("no_such_module_here") == count


def test_refusals_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = dynamo.compile(scaled, backend="eager")
    monkeypatch.setattr(sys.modules["json"], "__spec__", None)
    for name in ("json", "", "no.such.parent"):
        with pytest.raises((ValueError, ModuleNotFoundError)) as wanted:
            scaled(torch.ones(2), name)
        with pytest.raises(type(wanted.value)) as found:
            compiled(torch.ones(2), name)
        assert str(found.value) == str(wanted.value)


class Deprecated(enum.EnumMeta):
    def __getattribute__(cls, name: str) -> Any:
        return super().__getattribute__(name)


class OldKind(enum.Enum, metaclass=Deprecated):
    WIDE = 1


BOUNDS: dict[Any, tuple[int, int]] = {torch.int8: (-128, 127), OldKind.WIDE: (0, 1)}


def test_one_key_is_read_beside_others_that_are_not_modelled() -> None:
    compiled = dynamo.compile(lambda x: x.clamp(*BOUNDS[x.dtype]), backend="eager", fullgraph=True)
    x = torch.arange(-100, 100, dtype=torch.int8)
    try:
        for BOUNDS[torch.int8] in ((-128, 127), (-3, 4)):
            assert torch.equal(compiled(x), x.clamp(*BOUNDS[torch.int8]))
    finally:
        BOUNDS[torch.int8] = -128, 127
