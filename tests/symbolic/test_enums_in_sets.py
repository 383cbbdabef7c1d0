"""Sets from outside with members of enums that are strings or ints, too."""

from __future__ import annotations

import enum
from typing import Any

import torch

import dynamo


class Backend(str, enum.Enum):  # noqa: UP042, of which StrEnum is a subclass
    NATIVE = "native"
    FLASH = "flash"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Kind(enum.StrEnum):
    ONE = "one"


class Shown(str, enum.Enum):  # noqa: UP042
    A = "a"

    def __hash__(self) -> int:
        return 7


BACKENDS: set[Any] = {Backend.FLASH, Kind.ONE}
LEVELS: set[Any] = {Level.HIGH, 3}
SHOWN: set[Any] = {Shown.A}


def found(x: torch.Tensor, key: Any) -> Any:
    return x * 2, key in BACKENDS, key in LEVELS, [type(item) for item in sorted(BACKENDS)], len(LEVELS)


def test_items_are_found_as_their_data_type_compares() -> None:
    compiled = dynamo.compile(found, backend="eager", fullgraph=True)
    for key in Backend.FLASH, Backend.NATIVE, "flash", "one", Kind.ONE, Level.HIGH, 2, 2.0, True, Level.LOW:
        assert compiled(torch.ones(1), key)[1:] == found(torch.ones(1), key)[1:], key


def test_an_equal_item_of_another_type_is_noticed() -> None:
    compiled = dynamo.compile(found, backend="eager", fullgraph=True)
    try:
        for _ in range(2):
            assert compiled(torch.ones(1), "flash")[1:] == found(torch.ones(1), "flash")[1:]
            BACKENDS.discard("flash")
            assert compiled(torch.ones(1), "flash")[1:] == found(torch.ones(1), "flash")[1:]
            BACKENDS.add("flash")
        assert compiled(torch.ones(1), "flash")[1:] == found(torch.ones(1), "flash")[1:]
    finally:
        BACKENDS.discard("flash")
        BACKENDS.add(Backend.FLASH)


def test_a_hash_of_the_program_is_left_to_python() -> None:
    def looked_up(x: torch.Tensor) -> Any:
        return x * 2, "a" in SHOWN, Shown.A in SHOWN

    assert dynamo.compile(looked_up, backend="eager")(torch.ones(1))[1:] == looked_up(torch.ones(1))[1:]
