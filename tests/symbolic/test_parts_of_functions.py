"""Parts of functions, partials and modules that the program changes: defaults, keywords, `__getattr__`."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo

LOG: list[Any] = []


def parts(*args: Any, **kwargs: Any) -> Any:
    return args, dict(kwargs)


def keywords_are_written(x: Any, function: Any, module: Any) -> Any:
    made = functools.partial(parts, 1, k=1)
    made.keywords["k"] = 5
    return made(2), made.keywords, x + 1


def keywords_over_a_break(x: Any, function: Any, module: Any) -> Any:
    made = functools.partial(parts, x, k=1)
    keywords, args = made.keywords, made.args
    dynamo.graph_break()
    keywords["k"] = 5
    return made(), made.keywords is keywords, made.args is args


def keywords_hold_the_partial(x: Any, function: Any, module: Any) -> Any:
    made = functools.partial(parts, 1)
    made.keywords["own"] = made
    dynamo.graph_break()
    return made.keywords["own"] is made, x + 1


def partial_with_attributes(x: Any, function: Any, module: Any) -> Any:
    made = functools.partial(parts, 1, k=1)
    made.attr = 3
    outer = functools.partial(made, 4)
    made.keywords["late"] = x
    return outer(), outer.func is made


def keyword_default_is_written(x: Any, function: Any, module: Any) -> Any:
    before = function(3)
    function.__kwdefaults__["kept"] = []
    return before, function(4), x + 1


def defaults_are_replaced(x: Any, function: Any, module: Any) -> Any:
    function.__defaults__ = ([],)
    first = function(3)
    dynamo.graph_break()
    return first, function(4), x + 1


def defaults_are_deleted(x: Any, function: Any, module: Any) -> Any:
    del function.__defaults__
    try:
        return function(1)
    except TypeError as error:
        return str(error), x + 1


def defaults_stay_one_object(x: Any, function: Any, module: Any) -> Any:
    def own(a: Any = [x]) -> Any:  # noqa: B006
        return a

    defaults = own.__defaults__
    dynamo.graph_break()
    return defaults is own.__defaults__, own()


def module_answers(x: Any, function: Any, module: Any) -> Any:
    return module.real, module.absent, getattr(module, "other", None), x + 1


def module_name_comes_and_goes(x: Any, function: Any, module: Any) -> Any:
    module.real = 2
    del module.real
    found = module.real
    del module.__getattr__
    try:
        return found, module.real, x + 1
    except AttributeError as error:
        return found, str(error), x + 1


def outcomes(wrap: Callable[[Any], Any], program: Any) -> Any:
    def function(a: Any, collected: Any = [], *, kept: Any = []) -> Any:  # noqa: B006
        collected.append(a)
        kept.append(a)
        return list(collected), list(kept)

    def answer(name: str) -> str:
        LOG.append(name)
        return name.upper()

    module = types.ModuleType("answers")
    module.real, module.__getattr__ = 1, answer  # type: ignore[attr-defined,method-assign]
    LOG.clear()
    run = wrap(program)
    results = []
    for _call in range(3):
        results.append(repr(run(torch.ones(2), function, module)))
        module.real, module.__getattr__ = 1, answer  # type: ignore[attr-defined,method-assign]
    return results, list(LOG)


PROGRAMS = [
    keywords_are_written, keywords_over_a_break, keywords_hold_the_partial, partial_with_attributes,
    keyword_default_is_written, defaults_are_replaced, defaults_stay_one_object, module_answers,
    module_name_comes_and_goes,
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_parts_are_pythons(program: Any) -> None:
    dynamo.reset()
    want = outcomes(lambda f: f, program)
    assert outcomes(lambda f: dynamo.compile(f, backend="eager"), program) == want


def test_deleted_defaults() -> None:
    def function(a: Any, b: Any = 1) -> Any:
        return a, b

    text, _ = dynamo.compile(defaults_are_deleted, backend="eager")(torch.ones(2), function, None)
    assert text.endswith("missing 1 required positional argument: 'b'")


def test_a_default_that_comes_later() -> None:
    def needs(x: Any, *, z: Any) -> Any:
        return x + z

    def f(x: Any) -> Any:
        try:
            return needs(x)  # type: ignore[call-arg]
        except TypeError:
            return "missing"

    compiled = dynamo.compile(f, backend="eager")
    assert compiled(torch.ones(2)) == "missing"
    needs.__kwdefaults__ = {"z": 1}
    assert compiled(torch.ones(2)).tolist() == [2, 2]


def test_keywords_of_a_partial_from_outside() -> None:
    counted = functools.partial(parts, k=1)

    def f(x: Any) -> Any:
        counted.keywords["k"] += 1
        return counted()[1], x + 1

    compiled = dynamo.compile(f, backend="eager")
    assert [compiled(torch.ones(2))[0]["k"] for _call in range(3)] == [2, 3, 4]
