"""Kernels that Triton cannot do run as ATen operators; needs neither Triton nor a GPU."""

from __future__ import annotations

import pytest
import torch
from triton_kernels import CASES

import dynamo
from dynamo.aot.api import compile_inference
from inductor import metrics
from inductor.codegen.triton.launch import NotPrintable
from inductor.driver import cuda
from inductor.lowering.run import lower_graph
from inductor.scheduler.run import schedule_graph


def backend(gm, example_inputs):
    def compile_aten(module, fakes):
        graph = lower_graph(module).graph
        call = cuda.load(cuda.generate(graph, schedule_graph(graph, 8)).text, graph, False)()
        return lambda *args: call(*args)

    return compile_inference(gm, example_inputs, compile_aten, epilogue_in_graph=True)


@pytest.fixture(autouse=True)
def no_triton(monkeypatch) -> None:
    def refuse(kernel, layouts):
        raise NotPrintable("a test")

    monkeypatch.setattr(cuda, "print_kernel", refuse)


def normalised(x, y):
    return torch.softmax(x * y, -1), (x - x.mean(0)).relu(), y[:, 1:].amax(1)


def scattered(x, y):
    rows = (y[:, 0] * 2).long().clamp(-3, 3)
    return x.index_put((rows,), y, accumulate=True), torch.cat([x.t(), y.t()], 1)


def changed(x, y):
    x.mul_(2).add_(y)
    y[1:3] = x[:2]
    return x.half() * 3


@pytest.mark.parametrize("program", [normalised, scattered, changed], ids=lambda f: f.__name__)
def test_program(program) -> None:
    dynamo.reset()
    before = metrics.snapshot()["slow_kernels"]
    compiled = dynamo.compile(program, backend=backend)
    for _ in range(2):
        inputs = [torch.randn(8, 12), torch.randn(8, 12)]
        copies = [tensor.clone() for tensor in inputs]
        expected, found = program(*copies), compiled(*inputs)
        torch.testing.assert_close(inputs, copies)
        torch.testing.assert_close(found, expected)
    assert metrics.snapshot()["slow_kernels"] > before


def test_additions_in_any_order_are_no_kernel_where_results_must_repeat(monkeypatch) -> None:
    """Triton's printer does not even see them."""
    seen = []
    monkeypatch.setattr(cuda, "print_kernel", lambda kernel, layouts: seen.append(kernel))
    adding = [kernel for kernel, _ in (case() for case in CASES) if cuda._meets(kernel)]
    assert adding
    torch.use_deterministic_algorithms(True)
    try:
        for kernel in adding:
            with pytest.raises(NotPrintable, match="no fixed order"):
                cuda._print(kernel, {})
    finally:
        torch.use_deterministic_algorithms(False)
    assert not seen
    cuda._print(adding[0], {})
    assert seen == adding[:1]
