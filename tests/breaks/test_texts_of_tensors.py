"""Texts with a tensor's value in them: a message that nobody looks at costs no graph break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.exc import Unsupported
from dynamo.testing import CompileCounter


def check(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def message_of_a_check(x: torch.Tensor) -> Any:
    n = (x > 0).sum()
    check(x.shape[0] == 4, f"{n} of {x.shape[0]}, " + f"all: {x}")
    return x + 1


def forgotten(x: torch.Tensor) -> Any:
    text = f"{x.sum()}"
    x = x + 1
    text = f"{text}: {x}"
    del text
    return x * 2


def of_a_failed_check(x: torch.Tensor) -> Any:
    y = x + 1
    try:
        check(x.shape[0] == 5, f"sum {y.sum()}")
    except ValueError as error:
        return y, str(error)
    return y


def returned(x: torch.Tensor) -> Any:
    y = x * 2
    text = f"{y.sum()} and {y}" + "."
    y.add_(1)
    return y, text, [text, f"{text}{y.sum()}"], text is text[:]


def over_a_break(x: torch.Tensor) -> Any:
    y = x * 2
    text = f"sum {y.sum()}"
    y.zero_()
    dynamo.graph_break()
    return y + 1, text


def in_containers(x: torch.Tensor) -> Any:
    y = x * 2
    text = f"sum {y.sum()}"
    y.zero_()
    return y, {text: 1, "a": 2}, len(text), text == "sum 20.0", text.upper(), hash(text) == hash("a")


def printed(x: torch.Tensor) -> Any:
    print(f"sum {x.sum()}")
    return x + 1


def stored(x: torch.Tensor) -> Any:
    NOTES["last"] = f"{x.sum()}"
    x = x + 1
    NOTES["len"] = len(NOTES["last"])
    return x


def decides(x: torch.Tensor) -> Any:
    return x + 1 if f"{x.sum()}" == "10.0" else x - 1


def with_a_format(x: torch.Tensor) -> Any:
    return x + 1, f"{x.sum():.3f}", f"{x.sum()!r}"


NOTES: dict[str, Any] = {}
ONE_GRAPH = [message_of_a_check, forgotten]
OTHERS = [of_a_failed_check, returned, over_a_break, in_containers, printed, stored, decides,
          with_a_format]


def outcome(function: Callable[..., Any], x: torch.Tensor, capsys: Any) -> Any:
    NOTES.clear()
    return str(function(x)), capsys.readouterr().out, dict(NOTES)


@pytest.mark.parametrize("function", [*ONE_GRAPH, *OTHERS], ids=lambda f: f.__name__)
def test_texts_are_those_of_the_call(
    function: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = dynamo.compile(function, backend="eager")
    for factor in (1.0, 3.0, 1.0):
        x = torch.arange(1.0, 5.0) * factor
        assert outcome(compiled, x.clone(), capsys) == outcome(function, x.clone(), capsys)


@pytest.mark.parametrize("function", ONE_GRAPH, ids=lambda f: f.__name__)
def test_a_text_that_nobody_sees(function: Callable[..., Any]) -> None:
    counter, x = CompileCounter("eager"), torch.arange(1.0, 5.0)
    compiled = dynamo.compile(function, backend=counter, fullgraph=True)
    assert torch.equal(compiled(x), function(x))
    assert counter.frame_count == 1


def test_a_text_that_leaves_the_whole_graph() -> None:
    compiled = dynamo.compile(returned, backend="eager", fullgraph=True)
    with pytest.raises(Unsupported, match="the text of a tensor is needed"):
        compiled(torch.ones(4))
