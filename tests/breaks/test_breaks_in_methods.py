"""Breaks inside of methods whose result a built-in function uses further."""

import operator

import pytest
import torch

import dynamo


class Answers:
    @property
    def value(self):
        dynamo.graph_break()
        return 5

    @property
    def missing(self):
        dynamo.graph_break()
        raise AttributeError("missing")

    def __getitem__(self, index):
        dynamo.graph_break()
        if index == 3:
            raise IndexError
        return index

    def __index__(self):
        dynamo.graph_break()
        return 2


class Mapping:
    def keys(self):
        dynamo.graph_break()
        return ["k"]

    def __getitem__(self, key):
        dynamo.graph_break()
        return key * 2


class Named:
    def __set_name__(self, owner, name):
        dynamo.graph_break()
        self.name = name
        return 7


class Told:
    def __init_subclass__(cls):
        dynamo.graph_break()
        cls.told = True
        return 7


def names(**given):
    return given


CASES = [
    lambda: hasattr(Answers(), "value"),
    lambda: hasattr(Answers(), "missing"),
    lambda: getattr(Answers(), "missing", "default"),
    lambda: getattr(Answers(), "value", "default"),
    lambda: list(Answers()),
    lambda: "ab" * Answers(),
    lambda: operator.itemgetter(1, 2)(Answers()),
    lambda: operator.attrgetter("value.real", "value")(Answers()),
    lambda: dict(Mapping()),
    lambda: names(**Mapping()),
    lambda: names(**{"k": 1}, **Mapping()),
    lambda: type("Made", (), {"a": Named(), "b": Named()}).__name__,
    lambda: type("Made", (Told,), {}).told,
]


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_the_function_gives_what_it_makes_of_the_result(case):
    def f(x):
        x = x + 1
        try:
            found = case()
        except Exception as error:
            found = repr(error)
        return found, x * 2

    expected, tensor = f(torch.ones(2))
    got, result = dynamo.compile(f, backend="eager")(torch.ones(2))
    assert got == expected and type(got) is type(expected)
    assert torch.equal(result, tensor)
