"""Whole programs compiled as for a GPU while their tensors lie on a CPU, or nowhere (`meta`).

The default backend captures a program with fakes of a GPU, so that passes, lowering, scheduler,
templates and wrapper do what they do there. `compiling` has Triton compile each kernel for sm_90,
of programs of full size whose tensors lie nowhere; `interpreting` runs the generated modules on a
CPU, in Triton's interpreter. No GPU is needed. Graphs of symbolic sizes are compiled for a CPU.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

from dynamo.aot import recorder, worlds
from dynamo.aot.boxed import run_as_it_is
from dynamo.aot.reference import ReferenceWorld
from dynamo.base.graph_copies import copy_graph
from dynamo.shapes.facts import Facts, OpCache
from dynamo.shapes.fake import Fake
from inductor.autotune import gpu_gemms
from inductor.codegen.triton.template_configs import candidate_blocks
from inductor.codegen.triton.template_likely import likely_blocks
from inductor.config import config
from inductor.driver import compile_fx, cuda, from_aten, inference
from inductor.fx_passes import pipeline
from inductor.ir.gpus import H200
from inductor.runtime.compile_worker import compile_job
from inductor.runtime.modules import import_file
from inductor.runtime.triton_launch import Launcher, Preparation
from inductor.scheduler.schedule import TemplateKernel

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
TARGET = ("cuda", 90, 32)
ON_GPU = re.compile(r"torch\.device\([^()]*cuda[^()]*\)|(?<![.\w])device\(type=.cuda., index=0\)")
NAMES = re.compile(r"\b(\w+)_[0-9a-f]{8}\b")  # of functions; the digits are of what the text says


@dataclass(slots=True)
class Found:
    """What came of programs. graphs: how many were lowered. kernels: how many were compiled, equal
    ones once. errors: of kernels that Triton can't compile, with the module's text. slow: kernels
    that run as ATen operators, and why. fallbacks: operators that ATen computes, and why. texts: of
    the modules."""

    graphs: int = 0
    kernels: int = 0
    errors: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    fallbacks: Counter[str] = field(default_factory=Counter)
    texts: list[str] = field(default_factory=list)


def moved(device: Any, real: str) -> Any:
    """Where a tensor lies on a GPU that lies on `real` here."""
    return GPU if device is not None and torch.device(device).type == real else device


def moved_options(options: dict[str, Any], real: str) -> dict[str, Any]:
    """The keyword arguments of an operator that makes tensors, which it makes on a GPU."""
    if "device" not in options:
        return options
    return {**options, "device": moved(options["device"] or CPU, real)}


class CacheOfGpu(OpCache):
    """Facts of tensors that lie on `real` are those of a GPU's."""

    real = "cpu"

    def facts(
        self, size: tuple[int, ...], stride: tuple[int, ...], offset: int, dtype: torch.dtype,
        device: torch.device, bits: int = 0,
    ) -> Facts:
        return super().facts(size, stride, offset, dtype, moved(device, self.real), bits)


class WorldOfGpu(ReferenceWorld):
    """Shows tensors of `real` as a GPU's. C++ still gets the real device: autograd would ask
    a driver about others."""

    real = "cpu"

    def __init__(self) -> None:
        super().__init__()
        self.cache = CacheOfGpu()
        self.cache.real = self.real

    def make(self, facts: Facts, token: Any = None) -> Fake:
        if facts.device.type != "cuda":
            return super().make(facts, token)
        there = torch.device(self.real)
        real = Facts(facts.size, facts.stride, facts.offset, facts.dtype, there, facts.bits)
        fake = super().make(real, token)
        fake.__dict__["facts"] = facts
        return fake

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return super().dispatch(func, args, moved_options(kwargs, self.real))


def template_of(template: TemplateKernel, layouts: Any = None) -> TemplateKernel | None:
    """The template with the blocks that it likely has, or with the first that tuning would try."""
    likely = likely_blocks(template, layouts)
    first = (replace(template, blocks=blocks) for blocks in candidate_blocks(template))
    return likely or next((each for each in first if each.blocks.splits == 1), None)


@contextlib.contextmanager
def as_on_gpu(real: str, found: Found, templates: bool) -> Iterator[pytest.MonkeyPatch]:
    """Inside, what is compiled is compiled as for a GPU, where tensors lie on `real`. templates:
    they compute all GEMMs that they can, not those alone for which they are likely faster."""
    world = type("World", (WorldOfGpu,), {"real": real})
    record, lower = recorder.Recorder.__torch_dispatch__, from_aten.lower_and_schedule

    def recorded(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return record(self, func, types, args, moved_options(kwargs or {}, real))

    def lower_and_schedule(*args: Any) -> Any:
        lowered, schedule = lower(*args)
        found.graphs += 1
        found.fallbacks.update(map(str, lowered.fallbacks))
        return lowered, schedule

    def report_slow(graph: Any, kernel: Any, reason: str) -> None:
        found.slow.append(f"{', '.join(kernel.nodes)}: {reason}")

    with pytest.MonkeyPatch.context() as patch, config.patch(gpu="sm_90"):
        patch.setattr(worlds, "ReferenceWorld", world)
        patch.setattr(recorder.Recorder, "__torch_dispatch__", recorded)
        patch.setattr(Fake, "device", property(lambda fake: fake.facts.device), raising=False)
        on_gpu = property(lambda fake: fake.facts.device.type == "cuda")
        patch.setattr(Fake, "is_cuda", on_gpu, raising=False)
        patch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
        patch.setattr(torch.cuda, "_lazy_init", lambda: None)
        for module in (compile_fx, inference, pipeline):
            patch.setattr(module, "any_on_gpu", lambda values: True)
        patch.setattr(from_aten, "lower_and_schedule", lower_and_schedule)
        patch.setattr(cuda, "_report_slow", report_slow)
        if templates:
            patch.setattr(gpu_gemms, "likely_blocks", template_of)
            patch.setattr(gpu_gemms, "_is_worth_asking", lambda candidate, chosen: True)
        yield patch


@contextlib.contextmanager
def compiling(folder: Path, templates: bool = False, known: set[str] | None = None) -> Iterator[Found]:
    """Inside, kernels of compiled programs are made for sm_90, and graphs run as ATen operators on
    tensors that lie nowhere. folder: for modules. templates: see `as_on_gpu`. known: what kernels
    were compiled by their keys, which are not again; it grows."""
    found = Found()
    made = set() if known is None else known
    compile_aten = from_aten.compile_aten

    def compile_beside(module: fx.GraphModule, given: list[Any]) -> Callable[..., Any]:
        plain = fx.GraphModule(module, copy_graph(module.graph))
        for node in plain.graph.nodes:
            if node.kwargs.get("device") == GPU:
                node.kwargs = {**node.kwargs, "device": torch.device("meta")}
        compile_aten(module, given)
        return run_as_it_is(plain)

    def load_module(text: str, graph: Any, *rest: Any) -> Any:
        found.texts.append(text)
        name = f"as_on_gpu_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        path = folder / f"{name}.py"
        path.write_text(text)
        preparation = Preparation(GPU)
        constants = [constant.value.detach() for constant in graph.constants]
        slow = functools.partial(cuda.Slow.of, graph)
        import_file(name, path).make(constants, preparation.prepare, slow)
        for launcher in preparation.launchers:
            error = _error_of(launcher, made, found)
            if error is not None:
                found.errors.append(f"{launcher.function.fn.__name__}: {error!r}\n{text}")
        return lambda *sizes: None, None

    with as_on_gpu("meta", found, templates) as patch:
        patch.setattr(from_aten, "compile_aten", compile_beside)
        patch.setattr(cuda, "load_module", load_module)
        yield found


def _error_of(launcher: Launcher, known: set[str], found: Found) -> Exception | None:
    """What Triton says of a kernel that it does not compile, or why a GPU can't run it."""
    job = launcher.job(TARGET)
    key = repr((NAMES.sub(r"\1", launcher.function.src), job.dtypes, job.options))
    if key in known:
        return None
    known.add(key)
    found.kernels += 1
    try:
        made = compile_job(job)
    except Exception as error:
        return error
    if made.shared > H200.shared:
        return RuntimeError(f"{made.shared} bytes of shared memory")
    return None


@contextlib.contextmanager
def interpreting(
    templates: bool = False, limits: Mapping[str, Any] | None = None
) -> Iterator[Found]:
    """Inside, compiled programs run as on a GPU, but in Triton's interpreter, on tensors of a CPU;
    a kernel that reaches beside its tensors is an error. templates: see `as_on_gpu`. limits: see
    `interpreted_cases.use`."""
    from interpreted_cases import use
    from interpreter_addresses import check_addresses
    from interpreter_repairs import repair

    found = Found()
    load = cuda.load_module

    def load_module(text: str, graph: Any, *rest: Any) -> Any:
        found.texts.append(text)
        text = ON_GPU.sub("torch.device('cpu')", text).replace("current_stream(0)", "0")
        return load(text, replace(graph, device=CPU), False)

    with as_on_gpu("cpu", found, templates) as patch:
        repair(patch)
        check_addresses(patch)
        use(patch, limits or {})
        patch.setattr(cuda, "load_module", load_module)
        yield found
