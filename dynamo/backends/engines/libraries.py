"""The engines: each takes a part through its own public converter.

Weights and inputs go in as torch tensors; NumPy arrays over the same memory reach the CPU engines.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx

from dynamo.backends.engines.compile import backend_of
from dynamo.backends.engines.records import Built, Engine
from inductor.runtime.cuda_graphs import GraphedCall
from inductor.runtime.recordable import UNSAFE, WAIT_FOR_MASKS, WAITING_TAGS, WAITS
from inductor.runtime.recorder import CudaRecorder

FLOATS = frozenset({torch.float32, torch.bool})


def exported(module: fx.GraphModule, examples: list[Tensor]) -> Any:
    """The part as a `torch.export.ExportedProgram`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(module.eval(), tuple(examples), strict=False)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Converters print their progress, and warn of what is no matter of the user's program."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def arrays(inputs: list[Tensor]) -> list[Any]:
    """Arrays over the tensors' memory, in the order of their sizes."""
    return [value.detach().contiguous().numpy() for value in inputs]


def convert_onnxrt(module: fx.GraphModule, examples: list[Tensor]) -> bytes:
    """By `torch.onnx.export`."""
    with _quiet():
        program = torch.onnx.export(exported(module, examples), dynamo=True, verbose=False)
    assert program is not None
    return bytes(program.model_proto.SerializeToString())


def load_onnxrt(model: bytes, weights: Mapping[int, Tensor]) -> Built:
    """A session; the weights become initializers, which it reads where they are."""
    runtime, onnx = importlib.import_module("onnxruntime"), importlib.import_module("onnx")
    settings = runtime.SessionOptions()
    settings.intra_op_num_threads = torch.get_num_threads()
    settings.log_severity_level = 3
    # Each part has threads of its own, and PyTorch has others: those that wait must not spin.
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    initializers: list[Any] = []
    if weights:
        proto = onnx.load_from_string(model)
        places = {proto.graph.input[place].name: value for place, value in weights.items()}
        for name, value in places.items():
            initializers.append(value.detach().contiguous().numpy())
            proto.graph.initializer.append(_elsewhere(onnx, name, initializers[-1]))
        rest = [one for one in proto.graph.input if one.name not in places]
        del proto.graph.input[:]
        proto.graph.input.extend(rest)
        settings.add_external_initializers(
            list(places), [runtime.OrtValue.ortvalue_from_numpy(value) for value in initializers])
        model = proto.SerializeToString()
    session = runtime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]

    def call(inputs: list[Tensor]) -> list[Tensor]:
        given = dict(zip(names, arrays(inputs), strict=True))
        return [torch.from_numpy(value) for value in session.run(None, given)]

    call.initializers = initializers  # type: ignore[attr-defined]  # the session reads them
    return call


def _elsewhere(onnx: Any, name: str, value: Any) -> Any:
    """An initializer whose data are given to the session, not part of the model."""
    tensor = onnx.TensorProto(
        name=name, dims=value.shape, data_type=onnx.helper.np_dtype_to_tensor_dtype(value.dtype),
        data_location=onnx.TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=name)
    return tensor


def convert_openvino(module: fx.GraphModule, examples: list[Tensor]) -> bytes:
    """By `openvino.convert_model`: the length of the graph's text, the text, its constants."""
    openvino = importlib.import_module("openvino")
    with _quiet():
        model = openvino.convert_model(exported(module, examples))
    model.reshape({
        port: openvino.PartialShape(list(one.shape))
        for port, one in zip(model.inputs, examples, strict=True)})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "part.xml"
        openvino.save_model(model, path, compress_to_fp16=False)
        text, constants = path.read_bytes(), path.with_suffix(".bin").read_bytes()
    return len(text).to_bytes(8, "little") + text + constants


def load_openvino(model: bytes, weights: Mapping[int, Tensor]) -> Built:
    """A request serves one thread at a time, so there is a stock of them."""
    openvino = importlib.import_module("openvino")
    end = 8 + int.from_bytes(model[:8], "little")
    core = openvino.Core()
    graph = core.read_model(model[8:end], model[end:])
    parameters = graph.get_parameters()
    for place, value in weights.items():
        constant = openvino.op.Constant(value.detach().contiguous().numpy(), shared_memory=False)
        parameters[place].output(0).replace(constant.output(0))
        graph.remove_parameter(parameters[place])
    if weights:
        graph.validate_nodes_and_infer_types()
    compiled = core.compile_model(graph, "CPU", {
        "INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": torch.get_num_threads()})
    stock: list[Any] = []
    count = len(compiled.outputs)

    def call(inputs: list[Tensor]) -> list[Tensor]:
        request = stock.pop() if stock else compiled.create_infer_request()
        results = request.infer(arrays(inputs), share_inputs=True, share_outputs=False)
        made = [torch.from_numpy(results[number]) for number in range(count)]
        stock.append(request)
        return made

    return call


def build_tensorrt(module: fx.GraphModule, examples: list[Tensor]) -> Built:
    """By `torch_tensorrt.dynamo.compile`."""
    library = importlib.import_module("torch_tensorrt")
    compiled = library.dynamo.compile(exported(module, examples), arg_inputs=tuple(examples))
    return lambda inputs: _listed(compiled(*inputs))


def build_tvm(module: fx.GraphModule, examples: list[Tensor]) -> Built:
    """By `tvm.relax.frontend.torch.from_exported_program`, for this machine's CPU."""
    tvm = importlib.import_module("tvm")
    relax = importlib.import_module("tvm.relax")
    frontend = importlib.import_module("tvm.relax.frontend.torch")
    program = frontend.from_exported_program(exported(module, examples))
    machine = relax.VirtualMachine(tvm.compile(program, target="llvm"), tvm.cpu())

    def call(inputs: list[Tensor]) -> list[Tensor]:
        given = [tvm.runtime.from_dlpack(value.detach().contiguous()) for value in inputs]
        results = machine["main"](*given)
        return [torch.from_dlpack(results[number]) for number in range(len(results))]

    return call


def _listed(results: Any) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else list(results)


def build_cuda_graph(module: fx.GraphModule, examples: list[Tensor]) -> Built:
    """The part's own operators, recorded."""
    def call(*inputs: Tensor) -> Any:
        results = module.forward(*inputs)
        return (results,) if isinstance(results, Tensor) else results

    graphed = GraphedCall(call, CudaRecorder(examples[0].device))
    return lambda inputs: list(graphed(*inputs))


def refuses_recording(node: fx.Node) -> str:
    """Why an operator can't be recorded as part of a CUDA graph."""
    target: Any = node.target
    name = target._schema.name.split("::")[-1]
    if any(tag in target.tags for tag in (*WAITING_TAGS, UNSAFE) if tag is not None):
        return "it waits for the device"
    if name.startswith(WAITS) or name in WAIT_FOR_MASKS:
        return "it may wait for the device"
    return ""


ALL = frozenset(value for value in vars(torch).values() if isinstance(value, torch.dtype))
EXPORTS = ("onnx", "onnxscript")
ENGINES = (
    Engine("onnxrt", None, ("onnxruntime", *EXPORTS), "onnxruntime onnx onnxscript",
           ("cpu",), FLOATS | {torch.float64, torch.int64, torch.int32},
           convert=convert_onnxrt, load=load_onnxrt),
    Engine("openvino", None, ("openvino",), "openvino", ("cpu",), FLOATS,
           convert=convert_openvino, load=load_openvino),
    Engine("tensorrt", build_tensorrt, ("torch_tensorrt",), "torch-tensorrt", ("cuda",),
           FLOATS | {torch.float16, torch.bfloat16}),
    Engine("tvm", build_tvm, ("tvm",), "apache-tvm", ("cpu",), FLOATS),
    Engine("cudagraphs", build_cuda_graph, (), "", ("cuda",), ALL, refuses_recording,
           bakes=False, exports=False),
)
onnxrt, openvino, tensorrt, tvm, cudagraphs = map(backend_of, ENGINES)
