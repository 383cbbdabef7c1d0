"""Lists from outside that compiled code only puts items at the end of: how long they are is not looked at."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter


class Recorder:
    def __init__(self) -> None:
        self.log: dict[str, list[Any]] = collections.defaultdict(list)
        self.seen: list[Any] = [1] * 1500


SINK: list[Any] = []


def appends(r: Recorder, x: torch.Tensor) -> Any:
    y = x * 2
    r.log["y"].append(y)
    r.seen.extend([y + 1, "text"])
    r.seen.append(r)
    SINK.append((y, len("abc")))
    return r.log["y"][-1] + r.seen[-3]


def printed(r: Recorder, x: torch.Tensor) -> Any:
    r.seen.append(1)
    print("between")
    r.seen.append(2)
    return x + 1


def read_later(r: Recorder, x: torch.Tensor) -> Any:
    SINK.append(x + 1)
    print("then")
    first = SINK[0] * 1
    SINK.append(x + 2)
    count = len(SINK)
    SINK.append(count)
    SINK[1] = x
    return first + count


def broken(r: Recorder, x: torch.Tensor) -> Any:
    r.seen.append(x + 1)
    dynamo.graph_break()
    r.seen.append(x + 2)
    return x * 3


def iterated(r: Recorder, x: torch.Tensor) -> Any:
    SINK.append(x)
    for item in SINK:
        if isinstance(item, torch.Tensor) and len(SINK) < 5:
            SINK.append(item + 1)
    return x + len(SINK)


def state(r: Recorder) -> str:
    return str([list(r.log.items()), ["self" if item is r else item for item in r.seen[1495:]],
                len(r.seen), SINK])


PROGRAMS = {appends: 2, printed: 1, read_later: None, broken: 4, iterated: None}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_list_is_as_eager_leaves_it(program: Any, capsys: pytest.CaptureFixture[str]) -> None:
    counter = CompileCounter()
    compiled = dynamo.compile(program, backend=counter)
    xs = [torch.rand(3) for _ in range(6)]
    told = []
    for function in (program, compiled):
        recorder, steps = Recorder(), []
        SINK.clear()
        for x in xs:
            steps += [str(function(recorder, x)), state(recorder)]
        told.append((steps, capsys.readouterr().out))
    assert told[0] == told[1]
    if PROGRAMS[program] is not None:
        assert counter.frame_count <= PROGRAMS[program]
