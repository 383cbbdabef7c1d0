"""Tuples with classes in them as keys: only the key that is read is guarded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter


class A: ...


class B: ...


def made() -> dict[str, Any]:
    return {
        "table": {(A, 1): 1, (B, 2): 2, (int, "x"): 3},
        "set": {(A, 1), (B, 2)},
        "frozen": frozenset({(A, 1), (int, 2)}),
        "nested": {((A, 1), 2): 5},
        "new": {},
        "mixed": {(1, A): 2, A: 3, (True, 1.0): 4, (torch.float32, 1): 6},
    }


USES: dict[str, Callable[..., Any]] = {
    "read": lambda x, k, i, c: c["table"][k, i],
    "in a dict": lambda x, k, i, c: (k, i) in c["table"],
    "in a set": lambda x, k, i, c: (k, i) in c["set"],
    "in a frozenset": lambda x, k, i, c: (k, i) in c["frozen"],
    "nested": lambda x, k, i, c: c["nested"].get(((k, i), 2)),
    "written": lambda x, k, i, c: c["table"].__setitem__((k, i), 9),
    "written and read": lambda x, k, i, c: (c["new"].update({(k, i): 9}), c["new"][k, i]),
    "pop": lambda x, k, i, c: c["table"].pop((k, i), None),
    "deleted": lambda x, k, i, c: c["table"].__delitem__((k, i)),
    "added": lambda x, k, i, c: (c["set"].add((k, i)), len(c["set"])),
    "read, then all": lambda x, k, i, c: (c["table"].get((k, i)), list(c["table"].values())),
    "written, then all": lambda x, k, i, c: (c["table"].update({(k, i): 8}), [*c["table"].items()]),
    "other order": lambda x, k, i, c: (c["mixed"].get((i, k)), c["mixed"].get(k)),
    "equal numbers": lambda x, k, i, c: c["mixed"].get((i, i)),
    "dtype": lambda x, k, i, c: c["mixed"].get((x.dtype, i)),
    "memo": lambda x, k, i, c: c["new"].setdefault((k, i), len(c["new"])),
}
CALLS = [(A, 1), (A, 1), (B, 2), (A, 2), (int, 1), (int, "x"), (A, True), (A, 1.0)]


@pytest.mark.parametrize("calls", (CALLS, CALLS[::-1]), ids=("in order", "reversed"))
@pytest.mark.parametrize("name", USES)
def test_as_in_eager(name: str, calls: list[Any]) -> None:
    def function(x: torch.Tensor, key: Any, number: Any, given: Any) -> Any:
        return (x + 1).sum(), USES[name](x, key, number, given)

    compiled = dynamo.compile(function, backend="eager")
    expected, found = made(), made()
    for key, number in calls:
        outcomes = []
        for f, given in ((function, expected), (compiled, found)):
            try:
                outcomes.append(repr(f(torch.ones(2), key, number, given)))
            except KeyError as error:
                outcomes.append(repr(error))
        assert outcomes[0] == outcomes[1]
        assert found == expected


def test_other_keys_may_come() -> None:
    counter = CompileCounter()
    table = {(A, 1): 2, (B, 1): 3}

    @dynamo.compile(backend=counter)
    def function(x: torch.Tensor, kind: type) -> torch.Tensor:
        return x * table[kind, 1]

    for number in range(3):
        assert torch.equal(function(torch.ones(2), A), torch.full((2,), 2.0))
        table[int, number] = number
    assert counter.frame_count == 1
    table[A, 1] = 5
    assert torch.equal(function(torch.ones(2), A), torch.full((2,), 5.0))
