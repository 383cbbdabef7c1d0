"""The check of fakes after each pass: what it finds, what it lets be, and that it is off otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

import dynamo
from dynamo.aot.capture import capture_forward
from dynamo.base.errors import VerifyError
from inductor.fx_passes import checks, pipeline
from inductor.fx_passes.calls_with_fakes import Calls
from inductor.fx_passes.checks import apply, check_fakes
from inductor.fx_passes.fakes import fake_runner

aten = torch.ops.aten


def program(x: torch.Tensor) -> torch.Tensor:
    return x.exp() + 1


def captured() -> fx.GraphModule:
    return capture_forward(fx.symbolic_trace(program), [torch.randn(3, 1, 4)]).module


def exp_of(module: fx.GraphModule) -> fx.Node:
    (node,) = module.graph.find_nodes(op="call_function", target=aten.exp.default)
    return node


def give(module: fx.GraphModule, target: Any, *args: Any, **kwargs: Any) -> fx.GraphModule:
    """Gives a node another fake."""
    value = exp_of(module).meta["val"]
    exp_of(module).meta["val"] = fake_runner(value)(target, value, *args, **kwargs)
    return module


WRONG: dict[str, tuple[Any, ...]] = {
    "strides [1, 3, 3]": (aten.new_empty_strided.default, [3, 1, 4], [1, 3, 3]),
    "of [4, 1, 3]": (aten.permute.default, [2, 1, 0]),
    "torch.float16": (aten._to_copy.default, torch.float16),
    "on meta": (aten._to_copy.default, torch.device("meta")),
}


@pytest.mark.parametrize("found", WRONG)
def test_a_wrong_fake_is_found(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    target, *rest = WRONG[found]
    kind = {torch.dtype: "dtype", torch.device: "device"}.get(type(rest[0]))

    def spoil(module: fx.GraphModule) -> fx.GraphModule:
        return give(module, target, **{kind: rest[0]}) if kind else give(module, target, *rest)

    with pytest.raises(VerifyError, match=r"after spoil: %exp_default.*expected torch.float32 of \[3, 1, 4\] with "
                                          r"strides \[4, 4, 1\] on cpu, found") as raised:
        apply(spoil, captured())
    assert found in str(raised.value).split("found ")[1]
    monkeypatch.setattr(checks, "is_on", False)
    apply(spoil, captured())


def test_strides_along_one_element_do_not_matter() -> None:
    check_fakes(give(captured(), aten.new_empty_strided.default, [3, 1, 4], [4, 77, 1]), "")


def test_an_operator_that_refuses_its_inputs_is_found() -> None:
    module = captured()
    (total,) = module.graph.find_nodes(op="call_function", target=aten.add.Tensor)
    Calls(total)(aten.view.default, exp_of(module), [12]).args = (exp_of(module), [5])
    with pytest.raises(VerifyError, match="after f: %view_default.*invalid for input of size 12"):
        check_fakes(module, "f")


def test_a_compile_names_the_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    fold = pipeline.fold_constants

    def wrong(module: fx.GraphModule) -> fx.GraphModule:
        return give(fold(module), aten.permute.default, [2, 1, 0])

    monkeypatch.setattr(pipeline, "fold_constants", wrong)
    with pytest.raises(VerifyError, match="after wrong: %exp_default"):
        dynamo.compile(program)(torch.randn(3, 1, 4))


def test_a_pass_of_the_user_is_checked() -> None:
    def wrong(graph: fx.Graph) -> None:
        node, = graph.find_nodes(op="call_function", target=aten.exp.default)
        node.target = aten.isnan.default

    options = {"passes": {"post_grad_custom_pre_pass": wrong}}
    with pytest.raises(VerifyError, match="after post_grad_custom_pre_pass: %exp_default.*expected torch.bool"):
        dynamo.compile(program, options=options)(torch.randn(3, 1, 4))


def test_symbolic_sizes() -> None:
    compiled = dynamo.compile(lambda x: F.softmax(x.flatten(1)[:, 1:] @ x.flatten(1)[:, 1:].t(), -1), dynamic=True, fullgraph=True)
    for size in ((3, 4, 5), (7, 2, 9)):
        x = torch.randn(size)
        rows = x.flatten(1)[:, 1:]
        torch.testing.assert_close(compiled(x), F.softmax(rows @ rows.t(), -1))


# What is given back the strides that it had before convolutions lay channels last.
RESTORED: dict[str, Callable[[torch.Tensor], Any]] = {
    "row-major": lambda y: y.sin(),
    "other order": lambda y: y.transpose(2, 3).sin(),
    "lines with gaps": lambda y: y[:, :, ::2],
    "channels with gaps": lambda y: torch.fft.rfft(y[:, ::2]).abs(),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", RESTORED)
def test_restored_strides(name: str, dynamic: bool) -> None:
    convolution = nn.Conv2d(3, 8, 3)
    compiled = dynamo.compile(lambda x: RESTORED[name](convolution(x)), fullgraph=True, dynamic=dynamic)
    for width in (9, 12):
        x = torch.randn(2, 3, 8, width)
        with torch.no_grad():
            found, wanted = compiled(x), RESTORED[name](convolution(x))
        torch.testing.assert_close(found, wanted)
        assert found.stride() == wanted.stride()
