"""An error that a graph raises when it runs: blocks are left, handlers run, effects are made as in eager.

A row is the body of `f(x, i, log)`; the last call gets an index that is out of range. What the call gives
or raises, the log, the modes of torch, and the numbers drawn afterwards must be eager's.
"""

from __future__ import annotations

import contextlib
import textwrap
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo
from dynamo.symbolic.tensors.repeating import may_rerun
from tests.common import default_dtype

BREAK = "dynamo.graph_break()"


class Manager:
    """Records what it is told; may swallow."""

    def __init__(self, log: list[Any], name: str = "", swallow: bool = False) -> None:
        self.log, self.name, self.swallow = log, name, swallow

    def __enter__(self) -> Manager:
        self.log.append(("enter", self.name))
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> bool:
        same = isinstance(value, kind) if kind else value is None
        self.log.append(("exit", self.name, kind, str(value), traceback is not None, same))
        return self.swallow


@contextlib.contextmanager
def managed(log: list[Any]) -> Any:
    log.append("open")
    try:
        yield 3
    except IndexError as error:
        log.append(("seen", str(error)))
        raise
    finally:
        log.append("close")


ROWS = {
    "no_grad": """
        with torch.no_grad():
            {B}
            y = x.sin()[i]
        return y""",
    "enable_grad": """
        with torch.no_grad(), torch.enable_grad():
            {B}
            y = x.sin()[i]
        return y""",
    "autocast": """
        with torch.autocast("cpu", dtype=torch.bfloat16):
            {B}
            y = (x @ x.T)[i]
        return y""",
    "default_dtype": """
        with default_dtype(torch.float64):
            {B}
            y = x.double().sin()[i]
        return y""",
    "manager": """
        with Manager(log, "a") as m:
            {B}
            m.inside = 1
            log.append("before")
            y = x.sin()[i]
            log.append("after")
        log.append("behind")
        return y""",
    "contextmanager": """
        with managed(log) as three:
            {B}
            y = x.sin()[i] * three
        log.append("behind")
        return y""",
    "nested": """
        with Manager(log, "a"), torch.no_grad():
            log.append(torch.is_grad_enabled())
            with Manager(log, "b"):
                {B}
                y = x.sin()[i]
            log.append("behind b")
        return y""",
    "one_of_two_left": """
        with Manager(log, "a"):
            with Manager(log, "b"):
                {B}
                z = x.cos()
            log.append("behind b")
            y = z.sin()[i]
        return y""",
    "left_before_the_error": """
        with torch.no_grad(), Manager(log, "a"):
            {B}
            z = x.cos()
        log.append(torch.is_grad_enabled())
        y = z.sin()[i]
        return y""",
    "entered_after_the_break": """
        {B}
        log.append("start")
        with Manager(log, "a"), torch.no_grad():
            y = x.sin()[i]
        return y""",
    "callee": """
        def g(x):
            with Manager(log, "inner"), torch.no_grad():
                {B}
                return x.sin()[i]
        with Manager(log, "outer"):
            log.append("call")
            y = g(x.cos()) + 1
        log.append("behind")
        return y""",
    "callee_fails_later": """
        def g(x):
            with Manager(log, "inner"):
                {B}
                return x.sin()
        with Manager(log, "outer"), torch.no_grad():
            y = g(x)[i] + 1
        return y""",
    "try_outside": """
        n = 0
        try:
            with Manager(log, "a"), torch.no_grad():
                {B}
                n = 1
                log.append("before")
                y = x.sin()[i]
        except IndexError as error:
            log.append(("caught", n, str(error), torch.is_grad_enabled()))
            return x.cos()
        finally:
            log.append(("finally", n))
        return y""",
    "try_inside": """
        n = 0
        with Manager(log, "a"), torch.no_grad():
            try:
                {B}
                n = 1
                y = x.sin()[i]
                n = 2
            except IndexError:
                y = x.cos() * n
            else:
                log.append("fine")
        return y""",
    "raise_other": """
        with Manager(log, "a"):
            try:
                {B}
                y = x.sin()[i]
            except IndexError as error:
                raise ValueError("no such row") from error
        return y""",
    "suppress": """
        y = x
        n = 0
        with contextlib.suppress(IndexError):
            {B}
            n = 1
            y = x.cos()
            y = x.sin()[i]
            n = 2
        log.append(n)
        return y * 2""",
    "swallow": """
        y = x
        with Manager(log, "outer"):
            with Manager(log, "a", swallow=True), torch.no_grad():
                {B}
                y = x.cos()
                y = x.sin()[i]
            log.append(torch.is_grad_enabled())
        return y * 2""",
    "effects_in_order": """
        {B}
        for step in range(3):
            log.append(step)
            if step == 1:
                x = x.sin()[i]
        return x""",
    "handler_of_an_exception": """
        try:
            raise KeyError("first")
        except KeyError:
            with Manager(log, "a"):
                {B}
                y = x.sin()[i]
        return y""",
    "index_select": """
        with Manager(log, "a"), torch.no_grad():
            {B}
            y = torch.index_select(x, 0, i)
        return y""",
    "embedding": """
        with Manager(log, "a"), torch.no_grad():
            {B}
            y = torch.nn.functional.embedding(i, x)
        return y""",
    "writes_later": """
        with Manager(log, "a"), torch.no_grad():
            {B}
            y = torch.zeros(3)
            y += x.sin()[i].sum()
        return y""",
}


def build(row: str, broken: bool) -> Any:
    scope = {"torch": torch, "dynamo": dynamo, "contextlib": contextlib, "Manager": Manager,
             "managed": managed, "default_dtype": default_dtype}
    text = ROWS[row].replace("{B}", BREAK if broken else "pass")
    exec("def f(x, i, log):\n" + textwrap.indent(textwrap.dedent(text), "    "), scope)
    return scope["f"]


def facts_of(error: BaseException | None) -> Any:
    if error is None:
        return None
    return type(error), str(error), facts_of(error.__cause__), facts_of(error.__context__)


def modes() -> Any:
    return (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_default_dtype(),
            torch.is_inference_mode_enabled())


def outcome(f: Any, index: int, seed: int) -> Any:
    """What a call gives or raises, and all that it leaves behind."""
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(seed), requires_grad=True)
    log: list[Any] = []
    before = modes()
    torch.manual_seed(seed)
    try:
        result = f(x, torch.tensor([0, index]), log)
    except Exception as error:
        result = facts_of(error)
    after = modes()
    torch.set_grad_enabled(True)
    torch.set_default_dtype(torch.float32)
    return result, log, before == after, x.detach(), torch.rand(2)


def agree(got: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert got.requires_grad == expected.requires_grad
        torch.testing.assert_close(got, expected)
    elif isinstance(expected, (tuple, list)):
        assert len(got) == len(expected), (got, expected)
        for a, b in zip(got, expected, strict=True):
            agree(a, b)
    else:
        assert got == expected, (got, expected)


def compare(f: Any, backend: Any) -> None:
    dynamo.reset()
    compiled = dynamo.compile(f, backend=backend)
    for seed, index in enumerate((1, 2, 99, 3, 77)):
        agree(outcome(compiled, index, seed), outcome(f, index, seed))


@pytest.mark.parametrize("broken", (True, False), ids=("broken", "whole"))
@pytest.mark.parametrize("row", ROWS)
def test_error_of_a_graph(row: str, broken: bool) -> None:
    compare(build(row, broken), "eager")


@pytest.mark.parametrize("row", ("no_grad", "autocast", "nested", "callee", "try_outside", "suppress",
                                 "swallow", "embedding"))
def test_error_of_a_generated_kernel(row: str) -> None:
    compare(build(row, broken=True), "inductor")


ONCE = {
    "writes_into_an_input": """
        with Manager(log, "a"), torch.no_grad():
            {B}
            x.detach().add_(1)
            y = x.sin()[i]
        return y""",
    "writes_into_a_view": """
        with Manager(log, "a"), torch.no_grad():
            {B}
            x[0].mul_(2)
            y = x.sin()[i]
        return y""",
    "writes_items": """
        with managed(log), torch.no_grad():
            {B}
            x[1] = 5.0
            y = x.sin()[i]
        return y""",
    "writes_data": """
        with Manager(log, "a"):
            {B}
            x.data.add_(1)
            y = x.sin()[i]
        return y""",
    "draws": """
        with Manager(log, "a"), torch.no_grad():
            {B}
            y = torch.nn.functional.dropout(x) + torch.rand(4)
            y = y[i]
        return y""",
    "nested": """
        with Manager(log, "outer"):
            with torch.autocast("cpu", dtype=torch.bfloat16), Manager(log, "inner"):
                {B}
                y = (torch.bernoulli(x.sigmoid()) @ x)[i]
        return y""",
    "callee": """
        def g(x):
            with Manager(log, "inner"), torch.no_grad():
                {B}
                return (x + torch.rand(4))[i]
        try:
            with Manager(log, "outer"):
                return g(x)
        except IndexError as error:
            log.append(str(error))
            return x.cos()""",
    "in_a_handler": """
        with Manager(log, "a"):
            try:
                dynamo.graph_break()
                y = x[i]
            except IndexError:
                {B}
                x = x * 2
            y = (x + torch.rand(4))[i]
        return y""",
}


@pytest.mark.parametrize("row", ONCE)
def test_graph_that_runs_once(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROWS, row, ONCE[row])
    compare(build(row, broken=True), "eager")


def test_swallowed_error_of_a_whole_graph_that_runs_once_goes_on() -> None:
    def f(x: Any, i: Any, log: list[Any]) -> Any:
        with Manager(log, "a", swallow=True):
            x.add_(1)
            x = x[i]
        return x

    log: list[Any] = []
    compiled = dynamo.compile(f, backend="eager", fullgraph=True)
    with pytest.raises(IndexError):
        compiled(torch.ones(4, 4), torch.tensor([9]), log)
    assert log == []


def test_kinds_of_arguments() -> None:
    log: list[Any] = []

    class Base:
        def f(self, *args: Any, **keywords: Any) -> str:
            return "base"

    class Child(Base):
        def f(self, x: Any, /, i: Any, *rest: Any, scale: float = 2.0, **more: Any) -> Any:
            log.append((rest, scale, more, super().f()))
            try:
                return x.sin()[i] * scale
            except IndexError:
                log.append([rest, scale, more, super().f()])
                return (lambda: x * scale)()

    x = torch.randn(3)
    call = dynamo.compile(Child().f, backend="eager")
    for i in (1, 7):
        args, keywords = (x, torch.tensor([i]), 4, "five"), {"scale": 3.0, "x": 6}
        got, made = call(*args, **keywords), log[:]
        log.clear()
        torch.testing.assert_close(got, Child().f(*args, **keywords))
        assert made == log
        log.clear()


@pytest.mark.parametrize("kind", (KeyboardInterrupt, dynamo.exc.BackendError))
def test_what_is_not_the_programs_own_error_leaves_the_blocks(kind: type[BaseException]) -> None:
    def backend(module: Any, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            raise kind("stop")

        return run if "sin" in module.code else module

    def f(x: Any, log: list[Any]) -> Any:
        with Manager(log, "a"), torch.no_grad():
            dynamo.graph_break()
            return x.sin()

    log: list[Any] = []
    with pytest.raises(kind, match="stop"):
        dynamo.compile(f, backend=backend)(torch.ones(3), log)
    assert [event[:3] for event in log] == [("enter", "a"), ("exit", "a", kind)]
    assert torch.is_grad_enabled()


REPEATABLE = {  # whether a graph of it may run twice
    "dropout": (F.dropout, False), "no dropout": (lambda x: F.dropout(x + 1, training=False), True),
    "rand_like": (torch.rand_like, False), "gumbel": (F.gumbel_softmax, False), "rrelu": (lambda x: F.rrelu(x, training=True), False),
    "bernoulli": (torch.bernoulli, False), "low rank": (torch.svd_lowrank, False), "normalize": (F.normalize, True),
    "fractional": (lambda x: F.fractional_max_pool2d(x[None], 2, output_ratio=(0.5, 0.5)), False),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x), True),
    "attention drops": (lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5), False),
    "lstm": (torch.nn.LSTM(4, 4, 2), True), "lstm drops": (torch.nn.LSTM(4, 4, 2, dropout=0.5), False), "lgamma": (torch.lgamma, True),
    "statistics": (lambda x: F.batch_norm(x, torch.zeros(4), torch.ones(4), training=True), False),
    "test": (lambda x: [torch._assert_async(x.sum() > 0), x + 1], False),
}  # fmt: skip


@pytest.mark.parametrize("name", REPEATABLE)
def test_what_draws_or_keeps_a_state_runs_once(name: str) -> None:
    (f, expected), found = REPEATABLE[name], []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        found.append(may_rerun(module.graph))
        return module

    dynamo.compile(f, backend=backend)(torch.rand(4, 4) / 2)
    assert found and all(found) is expected


@pytest.mark.parametrize("cell", (torch.nn.GRUCell, torch.nn.LSTMCell, torch.nn.RNNCell))
def test_effects_before_an_error_of_a_cell(cell: Any) -> None:
    module = cell(2, 2)

    def f(x: torch.Tensor, state: Any, log: list[Any]) -> Any:
        log.append(x + 1)
        return module(x, state)

    with torch.inference_mode():
        part = torch.ones(1, 2)
    state = (part, part) if cell is torch.nn.LSTMCell else part
    logs: list[list[torch.Tensor]] = [[], []]
    for function, log in zip((f, dynamo.compile(f, backend="eager")), logs):
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
            function(torch.ones(1, 2), state, log)
    torch.testing.assert_close(logs[1], logs[0])


def test_sizes_that_vary() -> None:
    def f(x: Any, i: Any, log: list[Any]) -> Any:
        with Manager(log, "a"), torch.no_grad():
            dynamo.graph_break()
            return x.sin()[i] * x.shape[0]

    compiled = dynamo.compile(f, backend="eager", dynamic=True)
    for size, index in ((3, 1), (5, 4), (6, 8), (7, 7), (7, 6)):
        results = []
        for g in (compiled, f):
            log: list[Any] = []
            try:
                result = g(torch.arange(float(size)), torch.tensor([index]), log)
            except IndexError as error:
                result = facts_of(error)
            results.append((result, log, torch.is_grad_enabled()))
        agree(*results)


def test_operators_of_other_libraries_run_once() -> None:
    calls = []

    @torch.library.custom_op("graph_errors::note", mutates_args=())
    def note(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x.clone()

    note.register_fake(torch.empty_like)

    def f(x: Any, i: Any) -> Any:
        with torch.no_grad():
            dynamo.graph_break()
            return torch.ops.graph_errors.note(x)[i]

    with pytest.raises(IndexError):
        dynamo.compile(f, backend="eager")(torch.ones(3), torch.tensor([5]))
    assert calls == [1]
    assert torch.is_grad_enabled()


def test_checks_of_numbers() -> None:
    def f(x: Any, n: Any, log: list[Any]) -> Any:
        with Manager(log, "a"), torch.no_grad():
            dynamo.graph_break()
            log.append("before")
            torch._check(n.item() > 2, lambda: "too few")
            return x * 2

    compiled = dynamo.compile(f, backend="eager")
    for value in (3, 4, 1, 5):
        results = []
        for g in (compiled, f):
            log: list[Any] = []
            try:
                result = g(torch.ones(2), torch.tensor(value), log)
            except RuntimeError as error:
                result = facts_of(error)
            results.append((result, log, torch.is_grad_enabled()))
        agree(*results)


@pytest.mark.parametrize("backend", ("eager", "inductor"))
def test_errors_of_linear_algebra(backend: str) -> None:
    def f(x: Any, log: list[Any]) -> Any:
        with Manager(log, "a"), torch.no_grad():
            dynamo.graph_break()
            log.append("before")
            return torch.linalg.inv(x).sin()

    compiled = dynamo.compile(f, backend=backend)
    for x in (torch.eye(3), torch.zeros(3, 3), 2 * torch.eye(3)):
        results = []
        for g in (compiled, f):
            log: list[Any] = []
            try:
                result = g(x, log)
            except RuntimeError as error:
                result = facts_of(error)
            results.append((result, log, torch.is_grad_enabled()))
        agree(*results)


def test_error_behind_a_block_that_an_exception_has_left() -> None:
    def g() -> None:
        dynamo.graph_break()
        raise KeyError("g")

    def f(x: Any, i: Any) -> Any:
        try:
            with torch.no_grad():
                x = x * 2
                g()
        except KeyError:
            return (x + torch.rand(4))[i]

    with pytest.raises(IndexError):
        dynamo.compile(f, backend="eager")(torch.ones(4), torch.tensor([5]))
    assert torch.is_grad_enabled()
