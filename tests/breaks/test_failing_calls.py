"""A compiled function that fails when it is called, and eager does not: a defect of ours. Results and effects are
eager's, it is told once, and after the second time nobody tries again."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import dynamo
from dynamo.base.config import config
from dynamo.base.errors import DynamoError, InternalError
from inductor import compile_fx

ALWAYS = 1_000_000


class Failing:
    """The default backend, whose functions fail in their first `times` calls. attempts: calls of them."""

    __module__ = "inductor"  # one of ours

    def __init__(self, times: int, error: Callable[[], Exception] = lambda: AttributeError("no stride")) -> None:
        self.times, self.error, self.attempts = times, error, 0

    def __call__(self, gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        compiled = compile_fx(gm, inputs)

        def call(*args: Any) -> Any:
            self.attempts += 1
            if self.attempts <= self.times:
                raise self.error()
            return compiled(*args)

        return call


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    dynamo.reset()
    with config.patch(suppress_errors=True, fullgraph_compiles=True):
        yield


def warned(function: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        function()
    return [str(item.message) for item in told if "dynamo" in str(item.message)]


def effects(x: torch.Tensor, log: list[Any]) -> torch.Tensor:
    log.append("begin")
    try:
        y = (x * 2).softmax(-1)
    except AttributeError:
        log.append("caught")
        raise
    log.append(len(log))
    return y + 1


@pytest.mark.parametrize(("times", "attempts"), [(1, 5), (2, 2), (ALWAYS, 2)])
def test_results_and_effects_are_eagers(times: int, attempts: int) -> None:
    backend = Failing(times)
    compiled = dynamo.compile(effects, backend=backend)

    def calls() -> None:
        for _ in range(5):
            x, ours, theirs = torch.randn(3, 4), [], []
            torch.testing.assert_close(compiled(x, ours), effects(x, theirs))
            assert ours == theirs

    told = warned(calls)
    assert backend.attempts == attempts
    assert len(told) == 1
    assert told[0].startswith(f"{__file__}:") and "(x * 2)" in told[0].split("\n")[1]
    assert "AttributeError: no stride" in told[0] and "a defect of dynamo" in told[0]
    assert dynamo.counters["not_compiled"] == {"call failed: AttributeError": min(times, 2)}


def test_training() -> None:
    backend = Failing(ALWAYS)
    layer = torch.nn.Linear(4, 4)
    compiled = dynamo.compile(lambda x: layer(x).relu().sum(), backend=backend)

    def calls() -> None:
        for _ in range(3):
            x = torch.randn(3, 4)
            layer.zero_grad()
            compiled(x).backward()
            found = layer.weight.grad
            layer.zero_grad()
            layer(x).relu().sum().backward()
            torch.testing.assert_close(found, layer.weight.grad)

    assert len(warned(calls)) == 1
    assert backend.attempts == 2


def test_a_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    module, attempts = importlib.import_module("inductor.driver.from_aten"), []
    plain = module.compile_aten

    def compile_aten(gm: torch.fx.GraphModule, fakes: list[Any]) -> Callable[..., Any]:
        compiled = plain(gm, fakes)
        if len(fakes) < 2:
            return compiled  # forward

        def call(*args: Any) -> Any:
            attempts.append(1)
            raise AttributeError("no stride")

        return call

    monkeypatch.setattr(module, "compile_aten", compile_aten)
    compiled = dynamo.compile(lambda x: x.exp().sin())

    def calls() -> None:
        for _ in range(4):
            x = torch.randn(5, requires_grad=True)
            compiled(x).sum().backward()
            y = x.detach().requires_grad_()
            y.exp().sin().sum().backward()
            torch.testing.assert_close(x.grad, y.grad)

    told = warned(calls)
    assert len(attempts) == 2
    assert len(told) == 1 and "backward" in told[0] and "x.exp().sin()" in told[0]
    assert dynamo.counters["not_compiled"] == {"call failed: AttributeError": 2}


@pytest.mark.parametrize("how", ["suppress_errors", "fullgraph"])
@pytest.mark.parametrize("function", [effects, lambda x, log: x * 2 + 1])
def test_raised_where_asked(how: str, function: Any) -> None:
    compiled = dynamo.compile(function, backend=Failing(ALWAYS), fullgraph=how == "fullgraph")
    with config.patch(suppress_errors=how != "suppress_errors"):
        with pytest.raises(InternalError, match="test_failing_calls.py:(.|\n)*AttributeError: no stride") as raised:
            compiled(torch.randn(3, 4), [])
    assert isinstance(raised.value.__cause__, AttributeError)


def test_an_error_of_the_program_is_no_defect() -> None:
    def index(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x)[i] * 2

    backend = Failing(0)
    compiled, x, far = dynamo.compile(index, backend=backend), torch.randn(5), torch.tensor([7])

    def calls() -> None:
        for _ in range(3):
            torch.manual_seed(0)
            with pytest.raises(IndexError):
                compiled(x, far)

    assert warned(calls) == [] and backend.attempts == 3
    assert not dynamo.counters["not_compiled"]


def test_what_was_written_is_not_written_twice() -> None:
    """The error comes out, as nobody knows what has happened; the next call runs as captured."""

    def step(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1) * 2

    backend = Failing(ALWAYS)
    compiled = dynamo.compile(step, backend=backend)
    x = torch.zeros(3)

    def calls() -> None:
        with pytest.raises(AttributeError, match="no stride"):
            compiled(x)
        for _ in range(2):
            compiled(x)

    assert len(warned(calls)) == 1
    assert backend.attempts == 1 and x.tolist() == [2, 2, 2]


def test_keyboard_interrupts_come_out() -> None:
    def stopped() -> Any:
        return KeyboardInterrupt()

    compiled = dynamo.compile(lambda x: x.sin() + 1, backend=Failing(ALWAYS, stopped))
    with pytest.raises(KeyboardInterrupt):
        compiled(torch.randn(3))
    assert not dynamo.counters["not_compiled"]


def test_numbers_drawn_where_a_call_failed_are_eagers_own() -> None:
    """The first call that draws nothing before it fails gives what eager gives."""

    def noisy(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(x, 0.5) * 2

    compiled, x = dynamo.compile(noisy, backend=Failing(ALWAYS)), torch.ones(50)

    def calls() -> None:
        for seed in range(3):
            torch.manual_seed(seed)
            found = compiled(x)
            torch.manual_seed(seed)
            torch.testing.assert_close(found, noisy(x))

    assert len(warned(calls)) == 1


# -- graphs that run as captured -------------------------------------------------------------------


def refused_by_the_backend(x: torch.Tensor) -> torch.Tensor:
    return x.conj().resolve_conj() * x.t_()


def test_a_graph_that_runs_as_captured_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    compiled = dynamo.compile(refused_by_the_backend)
    for _ in range(3):
        x = torch.randn(3, 3)
        torch.testing.assert_close(compiled(x.clone()), refused_by_the_backend(x.clone()))
    [told] = caplog.messages
    assert told.count("runs as captured") == 1 and told.count("What to do") == 1
    assert told.startswith(f"{__file__}:") and "x.t_()" in told.split("\n")[1]
    [(why, count)] = dynamo.counters["not_compiled"].items()
    assert why.startswith("graph runs as captured: ") and count == 1
    assert not any("captured" in name for name in dynamo.counters["inductor"])


def test_as_captured_is_an_error_with_fullgraph() -> None:
    compiled = dynamo.compile(refused_by_the_backend, fullgraph=True)
    with pytest.raises(DynamoError, match="x.t_()(.|\n)*fullgraph"):
        compiled(torch.randn(3, 3))


@pytest.mark.parametrize("arguments", [{"backend": "eager"}, {"backend": "aot_eager"}, {"options": {"kernels": False}}])
def test_who_wants_no_kernels_is_told_nothing(arguments: Any, caplog: pytest.LogCaptureFixture) -> None:
    compiled = dynamo.compile(refused_by_the_backend, fullgraph=True, **arguments)
    assert warned(lambda: compiled(torch.randn(3, 3))) == []
    assert caplog.messages == []


def test_explain_lists_what_is_not_compiled() -> None:
    def sorts(x: torch.Tensor) -> torch.Tensor:
        y = (x * 2).sort().values + 1
        dynamo.graph_break()
        return refused_by_the_backend(y)

    found = dynamo.explain(sorts, backend="inductor")(torch.randn(3, 3))
    [text] = found.not_compiled
    assert text.startswith(f"{__file__}:") and "graph runs as captured: " in text
    [(compile_id, operators)] = found.left_to_aten.items()
    assert compile_id == "0/0" and any("sort" in operator for operator in operators)
    assert text in str(found) and operators[0] in str(found)
    assert dynamo.explain(sorts)(torch.randn(3, 3)).not_compiled == ()


# -- kernels that Triton can't compile -------------------------------------------------------------


def test_one_kernel_with_which_triton_fails_runs_as_aten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: of the kernels, all but one are interpreted by Triton, or all where it is not installed."""
    from dynamo.aot.api import compile_inference
    from inductor import metrics
    from inductor.driver import cuda
    from inductor.lowering.run import lower_graph
    from inductor.scheduler.run import schedule_graph

    loaded: list[tuple[str, ...]] = []
    monkeypatch.setattr(cuda, "load_module", None)

    def load(text: str, graph: Any, measure: bool, *more: Any) -> Any:
        names = sorted(name for name in made[-1].functions)
        loaded.append(tuple(names))
        if len(loaded) == 1:
            raise cuda.KernelErrors({names[0]: RuntimeError("out of resource: shared memory")})
        return lambda: lambda *given: text, None

    made: list[Any] = []
    generate = cuda.generate

    def keep(*args: Any, **kwargs: Any) -> Any:
        made.append(generate(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(cuda, "load_module", load)
    monkeypatch.setattr(cuda, "generate", keep)
    texts = []

    def compile_aten(module: torch.fx.GraphModule, fakes: list[Any]) -> Callable[..., Any]:
        graph = lower_graph(module).graph
        texts.append(cuda.build(graph, schedule_graph(graph, 8), False, lambda slow: None))
        return module.forward

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        return compile_inference(gm, inputs, compile_aten)

    before = metrics.snapshot()["slow_kernels"]
    compiled = dynamo.compile(lambda x: (x.softmax(-1), (x @ x).relu().sum(0)), backend=backend)
    told = warned(lambda: compiled(torch.randn(8, 8)))
    assert len(loaded[0]) > len(loaded[1]) >= 1  # the others are Triton's
    assert metrics.snapshot()["slow_kernels"] == before + 1
    assert len(told) == 1 and "out of resource" in told[0] and "test_failing_calls.py:" in told[0]
    assert dynamo.counters["not_compiled"] == {"kernel runs as ATen: RuntimeError": 1}
    with config.patch(suppress_errors=False), pytest.raises(DynamoError, match="out of resource"):
        loaded.clear()
        dynamo.compile(lambda x: x.softmax(-1), backend=backend)(torch.randn(8, 8))


def test_templates_with_which_triton_fails_are_products_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, as above."""
    pytest.importorskip("jinja2")
    from dynamo.aot.api import compile_inference
    from inductor import metrics
    from inductor.autotune import gpu_gemms
    from inductor.driver import cuda, for_gpu
    from inductor.lowering.run import lower_graph
    from inductor.scheduler.run import schedule_graph
    from inductor.scheduler.schedule import Blocks

    texts: list[str] = []

    def load(text: str, graph: Any, measure: bool, *more: Any) -> Any:
        texts.append(text)
        name = re.search(r"def (fused_mm\w+)\(in0", text)
        if name and "tl.dot" in text:
            raise cuda.KernelErrors({name[1]: RuntimeError("out of resource: shared memory")})
        return lambda: lambda *given: text, None

    monkeypatch.setattr(cuda, "load_module", load)
    monkeypatch.setattr(for_gpu, "_need_triton", lambda graph: None)
    monkeypatch.setattr(
        gpu_gemms, "likely_blocks", lambda one, layouts: replace(one, blocks=Blocks(64, 64, 32, 4, 3)))

    def compile_aten(module: torch.fx.GraphModule, fakes: list[Any]) -> Callable[..., Any]:
        lowered = lower_graph(module)
        for_gpu.for_gpu(lowered, schedule_graph(lowered.graph, 8), None)
        return module.forward

    before = metrics.snapshot()["slow_kernels"]
    backend = lambda gm, inputs: compile_inference(gm, inputs, compile_aten)  # noqa: E731
    told = warned(lambda: dynamo.compile(lambda x: (x @ x).relu(), backend=backend)(torch.randn(32, 32)))
    assert len(texts) == 2 and "tl.dot" in texts[0] and "tl.dot" not in texts[1] and "'aten::mm'" in texts[1]
    assert metrics.snapshot()["slow_kernels"] == before + 1
    assert len(told) == 1 and "out of resource" in told[0] and "test_failing_calls.py:" in told[0]
    assert dynamo.counters["not_compiled"] == {"kernel runs as ATen: RuntimeError": 1}
