"""`__init__` of exceptions, called once more: in the trace, and on those from outside."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo


class Own(Exception):
    def __init__(self, text: Any, *args: Any) -> None:
        super().__init__("told", text, *args)

    def again(self, *args: Any) -> None:
        super().__init__(*args)

    def __copy__(self) -> Own:
        return Own(self.args[1], *self.args[2:])


class Mixed(Own, TypeError):
    pass


MAKE: dict[str, Callable[[], Any]] = {
    "own": lambda: Own(1, 2), "mixed": lambda: Mixed(1, 2), "plain": lambda: Exception(1, 2),
    "key": lambda: KeyError(1), "lookup": lambda: AttributeError(1), "system": lambda: OSError(1, 2),
    "stop": lambda: StopIteration(1), "exit": lambda: SystemExit(1),
}
CHANGE: dict[str, Callable[[Any], Any]] = {
    "init": lambda e: e.__init__(3, 4), "of base": lambda e: BaseException.__init__(e, 5),
    "of object": lambda e: object.__init__(e), "nothing": lambda e: BaseException.__init__(e),
    "keywords": lambda e: BaseException.__init__(e, a=1),  # type: ignore[call-arg]
    "own": lambda e: e.again(6) if isinstance(e, Own) else None, "copy": lambda e: copy.copy(e).args,
}


@pytest.mark.parametrize("change", CHANGE)
@pytest.mark.parametrize("made", MAKE)
def test_arguments(made: str, change: str) -> None:
    def run(x: torch.Tensor, error: Any, out: bool) -> Any:
        if error is None:
            error = MAKE[made]()
            if out:
                dynamo.graph_break()
        told: Any = None
        try:
            told = CHANGE[change](error)
        except TypeError as other:
            told = str(other)
        return x + 1, told, error

    x = torch.rand(2)
    compiled = dynamo.compile(run, backend="eager")
    for outside, out in ((True, False), (False, False), (False, True)):
        wanted, got = (f(x, MAKE[made]() if outside else None, out) for f in (run, compiled))
        assert got[1] == wanted[1]
        assert (repr(got[2]), got[2].args) == (repr(wanted[2]), wanted[2].args)
