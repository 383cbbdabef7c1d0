"""What a user reads about a graph break: the line, what happened in words of Python, what to do."""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import pytest
import torch

import dynamo


class Box:
    total: Any = None


@dynamo.disable
def excluded(x: torch.Tensor) -> torch.Tensor:
    return x


def branch(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x + 1
    return x - 1


def failing(x: torch.Tensor) -> torch.Tensor:
    try:
        return torch.linalg.cholesky(x @ x.T)
    except RuntimeError:
        return x


def opened(x: torch.Tensor) -> torch.Tensor:
    with open("/dev/null") as file:
        return x + len(file.read())


def suspended(x: torch.Tensor) -> Any:
    numbers = (i for i in [1, 2])
    return x + next(numbers), numbers


class Marked(torch.Tensor):
    pass


FOUND = iter({1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0})
# name -> (function, what the text says happened)
TEXTS: dict[str, tuple[Any, str]] = {
    "branch": (branch, "a branch depends on the values in a tensor: a tensor (bool, shape ())."),
    "item": (lambda x: x + x.max().item(),
             "a tensor's value is read into Python: a tensor (float32, shape ())."),
    "shape": (lambda x: x[x > 0] + 1,
              "the size of the result depends on the values in a tensor: aten.index.Tensor."),
    "unknown": (opened, "a function is called that the compiler does not know: open('/dev/null')."),
    "module's": (lambda x: (x + 1, os.getpid()),
                 "a function is called that the compiler does not know: posix.getpid()."),
    "subclass": (lambda x: Marked(x + 1), "a tensor subclass is used: Marked()."),
    "lazy": (lambda x: (x + 1, torch.nn.LazyLinear(3)), "a parameter or module is made of a kind "
             "that the compiler can't make: LazyLinear()."),
    "excluded": (lambda x: excluded(x + 1),
                 "a function is called that is excluded from compiling: excluded: dynamo.disable."),
    "explicit": (lambda x: (x + 1, dynamo.graph_break()), "graph_break() was called."),
    "iterator": (lambda x: x + next(FOUND),
                 "a value of a kind that the compiler does not know is used: set_iterator."),
    "locals": (lambda x: (x + 1, sorted(locals())), "the local variables are looked at as a whole."),
    "caught": (failing, "an operation fails, or may fail by the values in a tensor, and the program "
                        "catches the error: linalg_cholesky."),
    "class": (lambda x: (x + 1, setattr(Box, "__init__", Box.__init__)),
              "an attribute of a class is written that is no plain data: Box.__init__."),
    "generator": (suspended, "a suspended generator leaves the compiled part: a generator of "
                             "suspended.<locals>.<genexpr>, alive at: return."),
}


def texts_of(function: Any) -> list[str]:
    dynamo.reset()
    return [cost.text for cost in dynamo.explain(function)(torch.rand(3, 3)).costs]


@pytest.mark.parametrize("name", TEXTS)
def test_a_break_in_words(name: str) -> None:
    function, happened = TEXTS[name]
    lines = texts_of(function)[0].splitlines()
    assert re.match(r".*test_texts.py:\d+ in \w+|.*test_texts.py:\d+ in <lambda>", lines[0]), lines
    assert lines[-2].startswith(f"  Graph break: {happened} [DB"), lines
    assert lines[-1].startswith("  What to do: ")


def test_no_word_of_the_compiler_itself() -> None:
    for function, _ in TEXTS.values():
        for text in texts_of(function):
            assert not re.search(r"\w+Var\b|<class|0x[0-9a-f]+", text), text


def test_the_report_reads_as_sentences() -> None:
    dynamo.reset()
    report = str(dynamo.explain(branch)(torch.rand(3, 3)))
    assert report.startswith("2 graphs with 3 operations, 1 graph break, compiled in "), report
    assert "Cost: separates 2 operations from 1;" in report


def test_values_have_their_place_and_kind() -> None:
    def f(x: torch.Tensor, xs: list[Any], k: dict[str, int]) -> Any:
        return sys.getrefcount(xs), sys.getrefcount(k), x + 1

    dynamo.reset()
    found = " ".join(dynamo.explain(f)(torch.rand(2), [1, 2], {"a": 1}).breaks)
    assert "xs, a list" in found, found
    assert "k, a dict" in found, found
