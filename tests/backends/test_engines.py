"""Other people's engines as backends. ONNX Runtime and OpenVINO run for real where they are installed; TensorRT,
TVM and CUDA graphs are tested against stand-ins that record how their API is called and compute with PyTorch."""

from __future__ import annotations

import copy
import importlib.util
import sys
import types
from typing import Any

import pytest
import torch
from torch import nn

import dynamo
from dynamo.backends import check
from dynamo.backends.engines import libraries, parts
from dynamo.backends.engines.compile import backend_of
from dynamo.backends.engines.records import Engine
from dynamo.base.errors import InvalidBackend

PACKAGES = {"onnxrt": "onnxruntime", "openvino": "openvino"}
REAL = [
    pytest.param(name, marks=pytest.mark.skipif(
        importlib.util.find_spec(package) is None, reason=f"{package} is not installed"))
    for name, package in PACKAGES.items()
]


def not_compiled() -> list[str]:
    return list(dynamo.counters["not_compiled"])


@pytest.fixture(autouse=True)
def clean() -> None:
    dynamo.reset()


def run_in_torch(module: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
    def call(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        results = module(*inputs)
        return [results] if isinstance(results, torch.Tensor) else list(results)

    return call


def engine(build: Any = run_in_torch, **facts: Any) -> Engine:
    return Engine("stand_in", build, (), "", ("cpu",), libraries.FLOATS, exports=False, **facts)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.first, self.norm = nn.Embedding(20, 8), nn.Linear(8, 6), nn.BatchNorm1d(6)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return self.norm(nn.functional.gelu(self.first(self.embed(indices))).mean(1)).softmax(-1)


@pytest.mark.long
@pytest.mark.parametrize("name", REAL)
def test_conformance(name: str) -> None:
    assert [row for row in check.check(name) if row[1]] == []


@pytest.mark.parametrize("name", REAL)
def test_inference_sees_new_weights(name: str) -> None:
    model, indices = Net().eval(), torch.randint(20, (3, 5))
    compiled = dynamo.compile(model, backend=name)
    with torch.no_grad():
        torch.testing.assert_close(compiled(indices), model(indices))
        model.first.weight.mul_(2)
        torch.testing.assert_close(compiled(indices), model(indices))
        model.norm.running_mean.data.add_(1)
        torch.testing.assert_close(compiled(indices), model(indices))
    assert [reason for reason in not_compiled() if "embedding" not in reason] == []


@pytest.mark.parametrize("name", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.long)])
def test_our_own_conform(name: str) -> None:
    rows = check.check(name)
    assert [row for row in rows if row[1]] == []
    assert len(rows) > 25


def test_check_finds_defects(capsys: pytest.CaptureFixture[str]) -> None:
    def wrong(gm: torch.fx.GraphModule, examples: list[Any]) -> Any:
        return lambda *inputs: tuple(
            value * 1.1 if isinstance(value, torch.Tensor) else value for value in gm(*inputs))

    dynamo.register_backend(wrong, name="wrong_by_a_tenth")
    assert check.main(["wrong_by_a_tenth"]) == 1
    told = capsys.readouterr().out
    assert "float64                    DIFFERS" in told and "no tensors                 as eager" in told


def test_missing_packages_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    absent = backend_of(Engine("absent", run_in_torch, ("no_such_package",), "no-such", ("cpu",), ()))
    dynamo.register_backend(absent, name="absent")
    with pytest.raises(InvalidBackend, match="the backend 'absent' needs no_such_package: pip install no-such$"):
        dynamo.compile(lambda x: x, backend="absent")
    assert check.main(["absent"]) == 2
    assert "pip install no-such" in capsys.readouterr().out


def test_all_are_listed_by_name() -> None:
    assert {"cudagraphs", "onnxrt", "openvino", "tensorrt", "tvm"} <= set(dynamo.list_backends())


def test_modes_and_options_are_refused() -> None:
    with pytest.raises(ValueError, match="takes no mode= and no options="):
        dynamo.compile(lambda x: x, backend=backend_of(engine()), options={"a": 1})


def test_what_a_converter_refuses_runs_as_captured() -> None:
    built = []

    def build(module: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
        names = [parts.name_of(node) for node in module.graph.nodes]
        if "erfinv" in names:
            raise ValueError("no rule for aten.erfinv.default")
        built.append([name for name in names if name])
        return run_in_torch(module, examples)

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.erfinv(x.tanh() * 0.5).exp() + 1

    x = torch.randn(4)
    torch.testing.assert_close(dynamo.compile(f, backend=backend_of(engine(build)))(x), f(x))
    assert built == [["tanh", "mul"], ["exp", "add"]]
    assert not_compiled() == ["subgraph runs as captured: stand_in does not get erfinv: its converter refuses it"]


def test_other_results_are_not_believed() -> None:
    def build(module: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
        call = run_in_torch(module, examples)
        return lambda inputs: [value * 1.01 for value in call(inputs)]

    compiled = dynamo.compile(torch.exp, backend=backend_of(engine(build)))
    x = torch.randn(4)
    for _ in range(2):
        assert torch.equal(compiled(x), x.exp())
    assert "computes something else" in not_compiled()[0]


def test_an_engine_that_fails_at_a_call() -> None:
    def build(module: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
        def call(inputs: list[torch.Tensor]) -> Any:
            raise RuntimeError("out of luck")

        return call

    compiled = dynamo.compile(torch.exp, backend=backend_of(engine(build)))
    x = torch.randn(4)
    with pytest.warns(UserWarning, match="out of luck"):
        assert torch.equal(compiled(x), x.exp())


def test_weights_are_baked_for_inference_alone() -> None:
    counts = []

    def build(module: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Any:
        counts.append(len(examples))
        return run_in_torch(module, examples)

    model, x = nn.Linear(4, 3), torch.randn(2, 4)
    compiled = dynamo.compile(model, backend=backend_of(engine(build)))
    with torch.no_grad():
        for _ in range(5):  # the third change is one too many
            torch.testing.assert_close(compiled(x), model(x))
            model.weight.mul_(1.5)
    assert counts == [3, 1, 1]  # the first one takes weights
    compiled(x).sum().backward()
    assert counts[3] == 3 and len(counts) == 5
    assert torch.equal(model.weight.grad, x.sum(0).expand(3, 4))


def test_training_is_as_in_eager() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 2))
    other, x = copy.deepcopy(model), torch.randn(3, 4)
    for one in (dynamo.compile(model, backend=backend_of(engine())), other):
        one(x).square().sum().backward()
    for one, two in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(one.grad, two.grad)


def test_dtypes_that_an_engine_does_not_keep_stay_with_torch() -> None:
    x = torch.tensor([2**40 + 1])
    compiled = dynamo.compile(lambda x: x * 3, backend=backend_of(engine()))
    assert compiled(x).item() == 3 * (2**40 + 1)
    assert not_compiled() == ["subgraph runs as captured: stand_in does not get mul: a tensor of int64"]


def test_fullgraph_refuses_parts_as_captured() -> None:
    compiled = dynamo.compile(lambda x: x * 3, backend=backend_of(engine()), fullgraph=True)
    with dynamo.config.patch(fullgraph_compiles=True), pytest.raises(
            dynamo.exc.Unsupported, match="does not get mul"):
        compiled(torch.ones(2, dtype=torch.int64))


def module(name: str, **values: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    made.__dict__.update(values)
    return made


def test_tensorrt_by_its_api(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a stand-in of torch_tensorrt 2.5 and later."""
    seen = []

    def compile(program: torch.export.ExportedProgram, *, arg_inputs: tuple[torch.Tensor, ...]) -> Any:
        seen.append([list(one.shape) for one in arg_inputs])
        return program.module()

    package = module("torch_tensorrt", dynamo=module("torch_tensorrt.dynamo", compile=compile))
    monkeypatch.setitem(sys.modules, "torch_tensorrt", package)
    gm = torch.fx.symbolic_trace(lambda x, y: x.exp() + y)
    inputs = [torch.randn(3), torch.randn(3)]
    (result,) = libraries.build_tensorrt(gm, inputs)(inputs)
    torch.testing.assert_close(result, inputs[0].exp() + inputs[1])
    assert seen == [[[3], [3]]]


def test_tvm_by_its_api(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a stand-in of tvm 0.20 and later."""
    class Machine:
        def __init__(self, executable: Any, device: str) -> None:
            assert device == "cpu"
            self.program = executable.module()

        def __getitem__(self, name: str) -> Any:
            assert name == "main"
            return lambda *given: [self.program(*given)]

    def compile(program: Any, target: str) -> Any:
        assert target == "llvm"
        return program

    monkeypatch.setitem(sys.modules, "tvm", module(
        "tvm", compile=compile, cpu=lambda: "cpu", runtime=module("tvm.runtime", from_dlpack=torch.from_dlpack)))
    monkeypatch.setitem(sys.modules, "tvm.relax", module("tvm.relax", VirtualMachine=Machine))
    monkeypatch.setitem(sys.modules, "tvm.relax.frontend.torch", module("t", from_exported_program=lambda p: p))
    gm, x = torch.fx.symbolic_trace(lambda x: x.exp() + 1), torch.randn(3)
    (result,) = libraries.build_tvm(gm, [x])([x])
    torch.testing.assert_close(result, x.exp() + 1)


def test_cuda_graphs_take_no_operators_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recording itself is tested on a GPU; here, what goes to it, and that without one nothing is recorded."""
    aten = torch.ops.aten
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    made = [graph.call_function(op, (x,)) for op in (aten.exp.default, aten.nonzero.default, aten.linalg_inv_ex.default)]
    assert ["" == libraries.refuses_recording(node) for node in made] == [True, False, False]
    compiled, value = dynamo.compile(torch.exp, backend="cudagraphs"), torch.randn(3)
    assert torch.equal(compiled(value), value.exp())
    assert not_compiled() == ["subgraph runs as captured: cudagraphs does not get exp: a tensor on cpu"]
