"""A forced break lands before any instruction of the program: tracing again need not take the same
steps (a cached function is asked once), so no kind of instruction may be unable to begin a part."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import dynamo
from dynamo.base.errors import Break
from dynamo.symbolic.machine.frame import SymbolicFrame
from tests.features.harness import same

MAKE_FRAME = frozenset(("COPY_FREE_VARS", "MAKE_CELL"))  # nothing can break before these have run
SHARED: list[int] = []


def names(x: torch.Tensor, log: list[Any]) -> Any:
    one = x + 1
    two, three = one.shape
    log.append(two)
    del two
    held = [three]

    def inner() -> Any:
        return one * held[0]  # noqa: F821

    result = inner()
    del held
    return result + three


def handlers(x: torch.Tensor, log: list[Any]) -> Any:
    try:
        value = x.sum() + len(log)
        try:
            log[5]
        except IndexError as error:
            log.append(type(error).__name__)
            value = value * 2
        finally:
            log.append("finally")
    except ValueError:
        return None
    with torch.no_grad():
        for item in [n for n in range(3) if n != 1]:
            value = value + item
    return value, {"a": 1, **{"b": value}}, f"{len(log)!r}", [*log, 1]


def calls(x: torch.Tensor, log: list[Any]) -> Any:
    def scale(tensor: torch.Tensor, *rest: int, by: int = 2, **more: int) -> torch.Tensor:
        log.append((rest, by, more))
        return tensor * by + sum(rest)

    pairs = {name: index for index, name in enumerate("ab")}
    first, *others = sorted(pairs, key=lambda name: -pairs[name])
    y = scale(x, 1, *pairs.values(), by=3, **pairs)
    if first == "b" and (n := len(others)) < 2 <= y.dim():
        y = scale(y, n)
    count = 0
    while count < 2:
        count += 1
        log[0:1] = [count]
    return y if y is not None else x, first, others, count


def blocks(x: torch.Tensor, log: list[Any]) -> Any:
    @contextlib.contextmanager
    def noted(name: str) -> Iterator[int]:
        log.append(name)
        try:
            yield len(log)
        finally:
            log.append(-len(log))

    def numbers() -> Iterator[int]:
        yield 1
        yield from (2, 3)

    class Point:
        __match_args__ = ("left", "right")

        def __init__(self, left: int, right: int = 4) -> None:
            self.left, self.right = left, right

    with noted("outer") as outer, contextlib.suppress(KeyError):
        for number in numbers():
            if number == 2:
                continue
            x = x + number * outer
        {}["missing"]
    match Point(3):
        case Point(3, right=right) if right > 3:
            x = x * right
    global SHARED
    SHARED = [n for n in log if isinstance(n, int)]
    SHARED[-1] += 1
    try:
        try:
            raise KeyError("a")
        except KeyError as error:
            raise ValueError("b") from error
    except (ValueError, TypeError) as error:
        log.append((str(error), repr(error.__cause__)))
    else:
        return None
    assert x is not None, "never"
    return x, *SHARED, not log, x.dim() == 2 and log[-1]


@pytest.mark.every_combination
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("function", [names, handlers, calls, blocks])
def test_forced_breaks(function: Any, every: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """every: before each step that is executed; else before the first of each kind of instruction, and every ninth."""
    x = torch.randn(2, 3)
    eager_log: list[Any] = []
    want = function(x, eager_log)
    place = first = last = 0
    kinds: dict[int, str] = {}  # of the steps
    step = SymbolicFrame.step

    def stepping(self: SymbolicFrame) -> None:
        nonlocal first, last
        trace = self.trace
        if trace.frames[0].code is function.__code__:
            last = max(last, trace.steps + 1)
            kinds.setdefault(trace.steps + 1, self.decoded.instructions[self.ip].op)
            if not first and self.decoded.instructions[self.ip].op not in MAKE_FRAME:
                first = trace.steps + 1
            if trace.steps + 1 == place >= first > 0:
                trace.context.forced[place] = Break("value_unknown", "forced")
                trace.forced_breaks = frozenset({place})
        step(self)

    monkeypatch.setattr(SymbolicFrame, "step", stepping)
    tried: set[str] = set()
    while place <= last:
        kind = kinds.get(place, "")
        if not every and place and kind in tried and place % 9:
            place += 1
            continue
        tried.add(kind)
        dynamo.reset()
        log: list[Any] = []
        with dynamo.config.patch(suppress_errors=False):
            got = dynamo.compile(function, backend="eager")(x, log)
        assert same(want, got) and log == eager_log, (place, got, log)
        place += 1
    assert last > 40
