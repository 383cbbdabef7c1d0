"""Why a function is recompiled: whole sentences, with the user's line and what to do."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import dynamo
from dynamo.guards.kinds import short
from dynamo.guards.sources import DictSource, ItemSource, LocalSource, Scope


def scale(x: Any, k: Any) -> Any:
    return x * k


def named(x: Any, text: str) -> Any:
    return x * len(text)


def add(x: Any, y: Any) -> Any:
    return x + y


def total(items: Any) -> Any:
    return sum(items)


def pick(d: Any) -> Any:
    return d["a"] * 2


def every(d: Any) -> Any:
    return [v * 2 for v in d.values()]


def attribute(m: Any, x: Any) -> Any:
    return x * m.factor


def apply(f: Any, x: Any) -> Any:
    return f(x)


def doubled(x: Any) -> Any:
    return x * 2


def tripled(x: Any) -> Any:
    return x * 3


def is_large(x: Any, n: int) -> Any:
    return x + 1 if n > 5 else x - 1


def add_in_place(x: Any, y: Any) -> Any:
    return x.add_(1) + y


class Module(torch.nn.Module):
    factor = "ab"

    def __init__(self, gain: Any = 2) -> None:
        super().__init__()
        self.gain = gain

    def forward(self, x: Any) -> Any:
        return x * len(self.gain)


def masked(x: Any, mask: Any) -> Any:
    return x if mask is None else x * mask


def switched(x: Any, on: bool) -> Any:
    return x * 2 if on else x


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return x * 2


def run_module(m: Any, x: Any) -> Any:
    return m(x)


def flat(*shape: int, **options: Any) -> torch.Tensor:
    return torch.ones(*shape, **options)


X, Y = flat(4), flat(4)
DOUBLED = lambda x: x * 2  # noqa: E731
KEPT = "Hold it in a tensor if it changes often."
FEW = "Each value is compiled for: keep to a few."
SIDES = "Keep the sizes on one side of the comparison, or compile a function for each side."
SMALL = "Sizes of 0 and 1 are compiled for by themselves; mark_unbacked takes all sizes in one compile."
MARK = "Mark what changes, mark_dynamic(tensor, [0]), or compile with dynamic=True."
ITSELF = "This line needs the number itself: each one is compiled for. " + KEPT
ATTRIBUTE = "An attribute that changes between calls is better held in a tensor (register_buffer)."
OPEN = "From now on it may be any number where it can."
COMBINATION = "Pass tensors of one dtype, device and requires_grad: each combination is compiled for."
ONE_TYPE = "Pass values of one type: each type is compiled for."
# function, arguments of the calls, what it says: text, the function whose line needs it, advice.
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...], str, Any, str]] = {
    "number": (scale, (X, 2), (X, 3), "k was 2, now it is 3", scale, f"{OPEN} {KEPT}"),
    "float": (scale, (X, 0.5), (X, 1.5), "k was 0.5, now it is 1.5", scale, f"{OPEN} {KEPT}"),
    "text": (named, (X, "a"), (X, "bb"), "text was 'a', now it is 'bb'", named, FEW),
    "type": (scale, (X, 2), (X, 2.0), "k was 2, now it is 2.0", scale, ONE_TYPE),
    "size": (
        scale, (X, 2), (flat(5), 2), "shape of x was [4], now it is [5]", scale,
        "Mark what changes, mark_dynamic(tensor, [0]), or compile with dynamic=True."),
    "sizes": (
        scale, (flat(2, 3, 4), 2), (flat(5, 3, 6), 2),
        "shape of x was [2, 3, 4], now it is [5, 3, 6]", scale,
        "Mark what changes, mark_dynamic(tensor, [0, 2]), or compile with dynamic=True."),
    "dimensions": (
        scale, (X, 2), (flat(4, 4), 2), "shape of x was [4], now it is [4, 4]", scale,
        "Pass tensors of one number of dimensions: each number is compiled for."),
    "dtype": (
        scale, (X, 2), (X.double(), 2),
        "dtype of x was torch.float32, now it is torch.float64", scale, COMBINATION),
    "requires_grad": (
        scale, (X, 2), (flat(4, requires_grad=True), 2),
        "requires_grad of x was False, now it is True", scale, COMBINATION),
    "device": (
        scale, (X, 2), (flat(4, device="meta"), 2),
        "device of x was cpu, now it is meta", scale, COMBINATION),
    "strides": (
        scale, (flat(2, 3), 2), (flat(3, 2).t(), 2),
        "strides of x were (3, 1), now they are (1, 2)", scale,
        "Pass tensors of one memory layout, for example by `.contiguous()`."),
    "class": (
        scale, (X, 2), (torch.nn.Parameter(X), 2),
        "type of x was Tensor, now it is Parameter", scale, ONE_TYPE),
    "length": (
        total, ([X, X],), ([X],), "len(items) was 2, now it is 1", total,
        "Keep the number of items, or stack the items in one tensor."),
    "keys": (
        every, ({"a": X},), ({"b": X},), "keys of d were ('a',), now they are ('b',)", every,
        "Keep the same keys in the same order."),
    "attribute of a module": (
        run_module, (Module("ab"), X), (Module("abc"), X), "m.gain was 'ab', now it is 'abc'",
        Module.forward, FEW),
    "kind of container": (
        total, ([X, X],), ((X, X),), "type of items was list, now it is tuple", total, ONE_TYPE),
    "one object twice": (
        add_in_place, (X.clone(), X.clone()), (Y, Y), "x and y were two objects, now they are one",
        add_in_place, "Pass one object at both places, or different ones, but always alike."),
    "function": (
        apply, (doubled, X), (tripled, X), "f was function doubled, now it is function tripled", apply,
        "Each function is compiled for: keep to a few."),
    "function of torch": (
        apply, (torch.sin, X), (torch.cos, X), "f was function torch.sin, now it is function torch.cos",
        apply, "Each function is compiled for: keep to a few."),
    "partial": (
        apply, (doubled, X), (partial(add, X), X),
        "f was function doubled, now it is a partial of function add",
        apply, "Each function is compiled for: keep to a few."),
    "function made again": (
        apply, (DOUBLED, X), (lambda x: x * 3, X),
        f"f was another function <lambda>, of line {DOUBLED.__code__.co_firstlineno}, "
        "now it is function <lambda>", apply,
        "Define the function once: each new one is compiled for."),
    "flag": (
        switched, (X, True), (X, False), "on was True, now it is False", switched,
        "Each of its two values is compiled for, once."),
    "None": (
        masked, (X, None), (X, X), "mask was None, now it is Tensor([4], torch.float32, cpu, (1,))",
        masked, "Pass None always, or never: each is compiled for."),
    "size of 1": (scale, (X, 2), (flat(1), 2), "shape of x was [4], now it is [1]", scale, SMALL),
    "comparison of a number": (
        is_large, (X, 2), (X, 9), "n was 2, now it is 9", is_large, f"{OPEN} {KEPT}"),
}


def reason(
    function: Callable[..., Any], first: Any, second: Any, change: Any = lambda value: None
) -> str:
    """What is said of the second call, before which `change(False)` is called."""
    compiled = dynamo.compile(function, backend="eager")
    compiled(*first)
    change(False)
    with dynamo.config.patch(error_on_recompile=True):
        with pytest.raises(dynamo.exc.RecompileError) as caught:
            compiled(*second)
    code = function.__code__
    place = f"{code.co_filename}:{code.co_firstlineno} {code.co_name}"
    return str(caught.value).removeprefix(f"{place}: would be recompiled because ")


def line_of(function: Any) -> str:
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno + 1} in {code.co_name}"


@pytest.mark.parametrize("name", CASES)
def test_the_sentence(name: str) -> None:
    function, first, second, text, needed, advice = CASES[name]
    place = f" (needed at {line_of(needed)})" if needed else ""
    assert reason(function, first, second) == f"{text}{place}. {advice}"


def test_the_sentence_about_torchs_state() -> None:
    try:
        assert reason(scale, (X, 2), (X, 2), torch._C._set_grad_enabled) == (
            "torch's global state changed: grad mode was on, now it is off. "
            "Set it once, before the first call, or call in the same state.")
    finally:
        torch.set_grad_enabled(True)


def branch(x: Any) -> Any:
    return x + 1 if x.shape[0] > 10 else x - 1


def repeated(x: Any, n: int) -> Any:
    for _ in range(n):
        x = x + 1
    return x


def halves(x: Any) -> Any:
    best = x.argsort(stable=True)[: x.shape[0] // 2]
    return x[best], best


def keyword(d: Any, name: str = "s") -> Any:
    return d["x"] * d.get(name, 1)


NO_MORE = "no longer holds, now that"
# function, arguments of the calls, what is said of each call that compiles again.
SERIES: dict[str, tuple[Callable[..., Any], list[tuple[Any, ...]], list[str]]] = {
    "sizes": (scale, [(flat(n), 2) for n in (7, 9, 1, 0)], [
        f"shape of x was [7], now it is [9]. {MARK}",
        f"x.size(0) >= 2 {NO_MORE} x.size(0) is 1. {SMALL}",
        f"x.size(0) >= 2 {NO_MORE} x.size(0) is 0. {SMALL}"]),
    "branch": (branch, [(flat(n),) for n in (3, 5, 20)], [
        f"shape of x was [3], now it is [5]. {MARK}",
        f"x.size(0) <= 10 {NO_MORE} x.size(0) is 20. {SIDES}"]),
    "the open entry is nearer": (halves, [(flat(n),) for n in (7, 12, 2)], [
        f"shape of x was [7], now it is [12]. {MARK}",
        f"x.size(0) // 2 != 1 {NO_MORE} x.size(0) is 2. {SIDES}"]),
    "dtype behind sizes": (scale, [(flat(3), 2), (flat(4), 2), (flat(5).double(), 2)], [
        f"shape of x was [3], now it is [4]. {MARK}",
        f"dtype of x was torch.float32, now it is torch.float64. {COMBINATION}"]),
    "broadcast": (add, [(flat(3), flat(3)), (flat(5), flat(5)), (flat(5), flat(1))], [
        f"shape of x was [3], now it is [5]. {MARK}",
        f"y.size(0) == x.size(0) {NO_MORE} y.size(0) is 1 and x.size(0) is 5. {SIDES}"]),
    "a number that stays needed": (repeated, [(X, n) for n in (1, 2, 3)], [
        f"n was 1, now it is 2. {OPEN} {KEPT}", f"n was 2, now it is 3. {ITSELF}"]),
    "None, then sizes": (masked, [(X, None), (X, Y), (flat(5), flat(5))], [
        "mask was None, now it is Tensor([4], torch.float32, cpu, (1,)). "
        "Pass None always, or never: each is compiled for.",
        f"shape of x was [4], now it is [5]. {MARK}"]),
    "keys": (keyword, [({"x": X},), ({"x": X, "s": 2},), ({"x": X, "s": 2.5},)], [
        "d had no key 's', now it has. Set the key (or attribute) before the first call.",
        f"d['s'] was 2, now it is 2.5. {ONE_TYPE}"]),
    "words": (named, [(X, "a"), (X, "b"), (flat(5), "c")], [
        f"text was 'a', now it is 'b'. {FEW}", f"text was 'b', now it is 'c'. {FEW}"]),
    "a symbolic size that is gone": (scale, [(flat(3), 2), (flat(4), 2), (flat(3, 3), 2), (2.0, 2)], [
        f"shape of x was [3], now it is [4]. {MARK}",
        "shape of x was [?], now it is [3, 3]. "
        "Pass tensors of one number of dimensions: each number is compiled for.",
        f"type of x was Tensor, now it is float. {ONE_TYPE}"]),
    "counter of a module": (Counting(), [(X,), (X,)], [
        f"self.calls was 0, now it is 1. {OPEN} {ATTRIBUTE}"]),
    "argument of a module": (Module("ab"), [(X,), (flat(5),)], [
        f"shape of x was [4], now it is [5]. {MARK}"]),
}  # fmt: skip


@pytest.mark.parametrize("name", SERIES)
def test_each_compile_is_explained(name: str) -> None:
    function, calls, wanted = SERIES[name]
    with dynamo.config.patch(suppress_errors=False), read_log() as lines:
        compiled = dynamo.compile(function, backend="eager")
        for call in calls:
            compiled(*call)
    told = [line.split("because ")[1] for line in lines]
    assert [re.sub(r" \(needed at .*?\)\. ", ". ", text) for text in told] == wanted


@contextlib.contextmanager
def read_log() -> Iterator[list[str]]:
    """The lines of the log "recompiles" that the block writes, known at its end."""
    lines: list[str] = []
    out = io.StringIO()
    with contextlib.redirect_stderr(out):
        dynamo.set_logs(recompiles=True)
        try:
            yield lines
        finally:
            dynamo.set_logs(recompiles=False)
    lines += out.getvalue().splitlines()


def test_a_compiled_module_is_named_by_its_forward() -> None:
    with read_log() as lines:
        compiled = dynamo.compile(Counting(), backend="eager")
        compiled(X), compiled(X)
    place = Counting.forward.__code__
    assert f"{place.co_filename}:{place.co_firstlineno} Counting.forward: recompiled" in lines[0]


def test_the_nearest_entry_is_named() -> None:
    compiled = dynamo.compile(scale, backend="eager", dynamic=False)
    compiled(X, 2), compiled(flat(7), 3)
    with dynamo.config.patch(error_on_recompile=True):
        with pytest.raises(dynamo.exc.RecompileError, match="k was 3, now it is 4"):
            compiled(flat(7), 4)  # one difference to the second entry, two to the first


def test_the_nearest_tensor_is_that_of_the_same_dtype() -> None:
    compiled = dynamo.compile(flat_sum, backend="eager", dynamic=False)
    compiled(flat(4)), compiled(flat(4).double())
    with dynamo.config.patch(error_on_recompile=True):
        with pytest.raises(dynamo.exc.RecompileError, match="shape of x was"):
            compiled(flat(5))


def test_places_of_modules_are_written_as_attributes() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 2))
    first = ItemSource(ItemSource(DictSource(LocalSource("net")), "_modules"), "0")
    weight = ItemSource(ItemSource(DictSource(first), "_parameters"), "weight")
    assert weight.text() == "net[0].weight"
    assert weight.fetch(Scope({"net": net}, {}, {})) is net[0].weight


def flat_sum(x: torch.Tensor) -> torch.Tensor:
    return x.sum()


def test_a_key_that_is_a_tensor_is_named_by_its_metadata() -> None:
    assert short((torch.ones(2), doubled, Module(), [1, 2, 3, 4, 5])) == (
        "(Tensor([2], torch.float32, cpu, (1,)), function doubled, a Module, [1, 2, 3, 4, ...])")


def test_the_name_of_a_compile_is_shown() -> None:
    compiled = dynamo.compile(scale, backend="eager", name="decoder")
    with read_log() as lines:
        for k in (1, 2):
            compiled(torch.ones(2), k)
    assert "scale (compiled as 'decoder'): recompiled because k was 1" in lines[0]
    dynamo.reset()
    with dynamo.config.patch(error_on_recompile=True):
        compiled(torch.ones(2), 1)
        with pytest.raises(dynamo.exc.RecompileError, match="compiled as 'decoder'"):
            compiled(torch.ones(2), 2)


def test_guards_name_lines_of_the_program_not_of_torch() -> None:
    linear = torch.nn.Linear(4, 4)

    def program(x: torch.Tensor) -> torch.Tensor:
        return linear(x)  # the line

    compiled = dynamo.compile(program, backend="eager", dynamic=False)
    before = dict(dynamo.counters["recompiles"])
    for rows in (2, 3):
        compiled(torch.ones(rows, 4))
    (new,) = [reason for reason in dynamo.counters["recompiles"] if reason not in before]
    assert "test_reasons.py" in new and "linear.py" not in new


def test_values_of_a_group_that_are_no_tensors_any_more() -> None:
    """An array and a written tensor must not share memory: what they are now may have none."""
    class Steps:
        def __init__(self) -> None:
            self.sum: Any = torch.zeros(2)
            self.places: Any = np.arange(3.0)

    def add_to(steps: Steps, x: torch.Tensor) -> Any:
        steps.sum += x
        return steps.sum * 2, np.sin(steps.places)

    for name, value in ("sum", 0), ("places", 1.5), ("places", np.float64(2)), ("places", None):
        dynamo.reset()
        compiled, first, second = dynamo.compile(add_to, backend="eager"), Steps(), Steps()
        compiled(first, torch.ones(2))
        add_to(second, torch.ones(2))
        setattr(first, name, value)
        setattr(second, name, value)
        outcomes = []
        for function, steps in (compiled, first), (add_to, second):
            try:
                outcomes.append(str(function(steps, torch.ones(2))))
            except TypeError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1], name
        assert not dynamo.counters["internal_errors"]
