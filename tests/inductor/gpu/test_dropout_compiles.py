"""Kernels with masks of dropout go through Triton's compiler for a GPU that need not be here."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from eager_dropout import Generator, on_cpu
from test_dropout import captured
from test_triton_compiles import compile_all

from inductor.codegen.triton.print_kernel import print_kernel
from inductor.lowering.run import lower_graph
from inductor.scheduler.run import schedule_graph

dropout = torch.native_dropout


def added(x):
    return dropout(x * 2, 0.3, True)[0] + x


def normed(x):
    return F.layer_norm(dropout(x * 2, 0.3, True)[0] + x, (x.shape[-1],))


def summed(x):
    return dropout(x * 2, 0.3, True)[0].sum(0)


def turned(x):
    return dropout(x * 2, 0.3, True)[0].t().contiguous()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("program", "size", "runs"), [
    (added, (512, 768), 1), (added, (511, 77), 2), (normed, (512, 768), 1), (normed, (64, 5000), 1),
    (summed, (4096, 64), 1), (turned, (512, 768), 2),
])  # fmt: skip
def test_compiles(program, size, runs, dtype, tmp_path, monkeypatch) -> None:
    """runs: of Philox in the text (once for each four elements, or for each)."""
    on_cpu(monkeypatch, Generator())
    (module,) = captured(program, torch.randn(*size).to(dtype))
    graph = lower_graph(module).graph
    layouts = graph.layouts()
    texts = []
    for kernel in schedule_graph(graph, 8).kernels():
        printed = print_kernel(kernel, layouts)
        texts += [source.text for source in printed.all_sources()]
        for text in compile_all(printed, layouts, tmp_path):
            assert ".visible .entry" in text
    assert any("k_keep(" in text for text in texts)
