"""What a user sees of a defect of the backend: one warning and eager's result; or the error."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

import dynamo
import inductor
from dynamo.base.config import config

FROM_ATEN = importlib.import_module("inductor.driver.from_aten")


def broken(*args: Any, **kwargs: Any) -> Any:
    raise KeyError("a defect")


def test_a_defect_is_a_warning_and_eagers_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FROM_ATEN, "schedule_graph", broken)
    x = torch.randn(5)
    compiled = dynamo.compile(lambda x: x.exp() + 3)
    with config.patch(suppress_errors=True), pytest.warns(UserWarning, match="a defect of dynamo"):
        torch.testing.assert_close(compiled(x), x.exp() + 3)


def test_a_full_disk_is_no_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(FROM_ATEN, "schedule_graph", full)
    x = torch.randn(5)
    compiled = dynamo.compile(lambda x: x.exp() + 6)
    with config.patch(suppress_errors=True), pytest.warns(UserWarning, match="No space left") as seen:
        torch.testing.assert_close(compiled(x), x.exp() + 6)
    assert not any("a defect of" in str(warning.message) for warning in seen)


def test_the_error_is_raised_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FROM_ATEN, "schedule_graph", broken)
    graph = torch.fx.symbolic_trace(lambda x: (x.exp() + 4,))
    with config.patch(suppress_errors=False), pytest.raises(KeyError, match="a defect"):
        inductor.compile_fx(graph, [torch.randn(5)])


def test_without_a_compiler_the_error_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    graph = torch.fx.symbolic_trace(lambda x: (x.exp() + 5,))
    with (
        config.patch(suppress_errors=True, cache_dir=str(tmp_path)),
        pytest.raises(RuntimeError, match="(?s)no-such-compiler.*CXX=") as error,
    ):
        inductor.compile_fx(graph, [torch.randn(5)])
    assert 'backend="eager"' in str(error.value)


def test_a_backward_that_can_not_be_compiled_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(5, requires_grad=True)
    graph = torch.fx.symbolic_trace(lambda x: (x.exp().sin(),))
    compiled = inductor.compile_fx(graph, [x])
    monkeypatch.setattr(FROM_ATEN, "schedule_graph", broken)
    with config.patch(suppress_errors=True):
        [out] = compiled(x)
        with pytest.warns(UserWarning, match="a defect of dynamo"):
            out.sum().backward()
    torch.testing.assert_close(x.grad, x.exp().cos().mul(x.exp()).detach())


def test_the_backend_can_be_used_alone(tmp_path: Any) -> None:
    x = torch.randn(7)
    with config.patch(cache_dir=str(tmp_path)):
        before = inductor.metrics.snapshot()["kernels"]
        compiled = inductor.compile_fx(torch.fx.symbolic_trace(lambda x: (x.exp() - 1,)), [x])
        torch.testing.assert_close(compiled(x)[0], x.exp() - 1)
    assert inductor.metrics.snapshot()["kernels"] == before + 1


def test_an_error_of_the_program_is_eagers() -> None:
    """Whether an index is too large for no elements is known when a call's sizes are."""

    def f(x: torch.Tensor) -> torch.Tensor:
        taken = x[x > 0]
        at = torch.tensor([0, -1, 0])
        return taken.index_put_((at,), torch.tensor(2.0), accumulate=True) * 2

    compiled = dynamo.compile(f)
    for sign in (1, -1, 1, -1):
        x = (torch.rand(3) + 0.1) * sign
        with config.patch(suppress_errors=False):
            if sign == 1:
                torch.testing.assert_close(compiled(x), f(x))
                continue
            with pytest.raises(IndexError) as eager:
                f(x)
            with pytest.raises(IndexError) as ours:
                compiled(x)
        assert str(ours.value) == str(eager.value)


def test_a_wrong_shape_rule_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    program = importlib.import_module("dynamo.aot.program")

    def wrong(*args: Any, **kwargs: Any) -> Any:
        raise IndexError("by a wrong rule")

    monkeypatch.setattr(program, "_run_node", wrong)
    x = torch.randn(5)
    compiled = dynamo.compile(lambda x: x.exp() + 8)
    with config.patch(suppress_errors=True), pytest.warns(UserWarning, match="by a wrong rule"):
        torch.testing.assert_close(compiled(x), x.exp() + 8)
