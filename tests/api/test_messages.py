"""What is said of wrong arguments, broken backends and limits: the fault, and what to do."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from tests.common import messages

X = torch.ones(3)


def plus(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def fails(module: Any, inputs: Any) -> Any:
    raise ValueError("no luck")


WRONG: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "function": (lambda: dynamo.compile(3), TypeError, "compile takes a function.*not 3"),
    "explain": (lambda: dynamo.explain(3), TypeError, "explain takes a function.*not 3"),
    "explain a class": (lambda: dynamo.explain(torch.nn.ReLU), TypeError, "explain takes a function"),
    "export a class": (lambda: dynamo.export(torch.nn.ReLU), TypeError, "export takes a function"),
    "static": (lambda: dynamo.mark_static(torch.nn.ReLU), TypeError, "a tensor is needed"),
    "skip": (lambda: dynamo.skip(torch.nn.ReLU()), TypeError, "skip takes a function written in Python"),
    "disable": (lambda: dynamo.disable(torch.nn.ReLU(), recursive=False), TypeError,
                "skip takes a function written in Python"),
    "backend": (lambda: dynamo.compile(plus, backend="indcutor"), dynamo.exc.InvalidBackend,
                "no backend 'indcutor'; did you mean 'inductor'.; known are .*inductor"),
    "tensor": (lambda: dynamo.compile(torch.ones(1000)), TypeError, "not a tensor$"),
    "mode": (lambda: dynamo.compile(plus, mode="fast"), ValueError, "modes are .*max-autotune"),
    "option": (lambda: dynamo.compile(plus, options={"max_autotun": True}), ValueError,
               "no option 'max_autotun'; did you mean 'max_autotune'"),
    "option's type": (lambda: dynamo.compile(plus, options={"max_autotune": "yes"}), TypeError,
                      "max_autotune takes bool, not 'yes'"),
    "setting": (lambda: setattr(dynamo.config, "recompile_limt", 3), AttributeError,
                "recompile_limt; did you mean recompile_limit"),
    "dimension": (lambda: dynamo.mark_dynamic(X, "a"), TypeError, "a dimension is an int, not 'a'"),
    "range": (lambda: dynamo.mark_dynamic(X, 0, min=5, max=2), ValueError, "no size is in the range from 5 to 2"),
    "no callable from a backend": (
        lambda: dynamo.compile(plus, backend=lambda module, inputs: None)(X),
        dynamo.exc.BackendError, "returns a callable, not None"),
    "backend that fails": (
        lambda: dynamo.compile(plus, backend=fails)(X), dynamo.exc.BackendError,
        r"test_messages.py:\d+ in plus\n  The backend 'fails' failed: ValueError: no luck\n"
        r"  The graph that it was compiling:\ndef forward"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_named(name: str) -> None:
    action, kind, text = WRONG[name]
    with pytest.raises(kind) as caught:
        action()
    assert re.search(text, str(caught.value)), caught.value


def behind_a_break(x: torch.Tensor, k: list[float]) -> torch.Tensor:
    return x * k[0] + unknown(x)


@dynamo.disable
def unknown(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def reasons_of(function: Any, *calls: Any) -> list[str]:
    dynamo.reset()
    compiled = dynamo.compile(function, backend="eager", dynamic=False, recompile_limit=5)
    with messages() as said:
        for call in calls:
            compiled(*call)
    return [*dynamo.counters["recompiles"], *said]


def test_a_part_behind_a_break_is_named_as_the_user_did() -> None:
    found = reasons_of(behind_a_break, (X, [1.0]), (torch.ones(4), [1.0]))
    assert any("<operand 0 of the line>" in text for text in found), found
    assert not any("__resume" in text or "__stack" in text for text in found)


def test_the_limit_names_a_few_reasons() -> None:
    def scaled(x: torch.Tensor, text: str) -> torch.Tensor:
        return x * len(text)

    *_, message = reasons_of(scaled, *((X, "a" * n) for n in range(7)))
    assert message.count("text was") == 3
    assert "and 2 more (DYNAMO_LOGS=recompiles shows all). What to do: " in message


@pytest.mark.parametrize("verbose", [False, True])
def test_errors_show_the_programs_frames(verbose: bool) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] == 4 else x

    x = torch.ones(4)
    dynamo.mark_dynamic(x, 0)
    compiled = dynamo.compile(f, backend="eager")
    with dynamo.config.patch(verbose=verbose), pytest.raises(dynamo.exc.ConstraintViolation) as seen:
        compiled(x)
    internal = [row.path.name for row in seen.traceback if "symbolic" in str(row.path.parent)]
    assert bool(internal) is verbose, internal
    assert verbose or [row.path.name for row in seen.traceback[1:]] == ["convert.py"]  # which raises it


@pytest.mark.parametrize("name", ["print", "str", "f-string"])
def test_the_text_of_a_tensor_in_one_graph(name: str) -> None:
    make = {"print": print, "str": str, "f-string": lambda x: f"{x}"}[name]

    def f(x: torch.Tensor) -> Any:
        y = x * 2
        return make(y), y + 1

    with pytest.raises(dynamo.exc.Unsupported) as seen:
        dynamo.compile(f, backend="eager", fullgraph=True)(torch.ones(4))
    assert "the text of a tensor is needed" in str(seen.value)
    assert "Print or format it outside" in str(seen.value)
    assert "item()" not in str(seen.value)


def test_an_option_that_is_meant_is_named() -> None:
    with pytest.raises(ValueError, match="no option 'max_autotun'; did you mean 'max_autotune'?") as seen:
        dynamo.compile(torch.sin, options={"max_autotun": True})
    for name in ("verify", "background", "background_calls"):
        dynamo.compile(torch.sin, options={name: False if name != "background_calls" else 0})
        assert name in str(seen.value)


class Narrow(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 8), torch.nn.Linear(9, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x).relu()
        return self.second(h)


class Nested(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Narrow()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + 1


def test_the_traceback_of_a_wrong_layer_leads_through_the_programs_modules() -> None:
    for _ in range(2):
        with pytest.raises(RuntimeError, match="mat1 and mat2") as caught:
            dynamo.compile(Nested(), backend="eager")(torch.ones(3, 4))
        text = "".join(traceback.format_exception(caught.value))
        places = [text.index(line) for line in (
            "in forward\n    return self.inner(x) + 1", "in forward\n    return self.second(h)", "F.linear(")]
        assert places == sorted(places)


def test_a_wrong_program_has_its_own_error_also_where_sizes_are_declared() -> None:
    x = torch.ones(3, 4)
    dynamo.mark_dynamic(x, 0)
    with pytest.raises(RuntimeError, match="shape .* is invalid") as caught:
        dynamo.compile(lambda x: x.sin().view(5, -1), backend="eager")(x)
    assert not isinstance(caught.value, dynamo.exc.ConstraintViolation)
