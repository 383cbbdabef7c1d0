"""Masks of dropout in Triton's interpreter: one number at a time, and four neighbours at a time."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from eager_dropout import Generator, on_cpu
from interpreted_programs import texts
from interpreter_repairs import repair
from test_dropout import PROGRAMS, eager_of, flat

import dynamo
from dynamo.aot.api import compile_inference, compile_training
from dynamo.aot.boxed import picking_arguments
from inductor.codegen.triton import configs, plan
from inductor.driver import cuda
from inductor.fx_passes.dropout import draw_in_kernels
from inductor.fx_passes.pipeline import decompositions
from inductor.lowering.run import lower_graph
from inductor.scheduler.run import schedule_graph

dropout = torch.native_dropout


def compile_aten(module, fakes):
    graph = lower_graph(draw_in_kernels(module)).graph
    there = dataclasses.replace(graph, device=torch.device("cuda"))
    text = cuda.generate(graph, schedule_graph(there, 8)).text
    texts.append(text)
    call = cuda.load(text, graph, False)()
    return picking_arguments(call, [n for n, buffer in enumerate(graph.inputs) if buffer is not None])


def backend(gm, example_inputs):
    return compile_inference(gm, example_inputs, compile_aten, decompositions=decompositions())


def trained(gm, example_inputs):
    return compile_training(
        gm, example_inputs, compile_aten, compile_aten, decompositions=decompositions(), rewrite=draw_in_kernels)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_program(program, monkeypatch) -> None:
    repair(monkeypatch)
    ours, theirs = Generator(), Generator()
    on_cpu(monkeypatch, ours)
    dynamo.reset()
    texts.clear()
    compiled = dynamo.compile(program, backend=backend)
    for _ in range(2):
        x, w = torch.randn(16, 48), torch.randn(48, 48)
        found, wanted = compiled(x, w), eager_of(theirs, program, monkeypatch, x, w)
        for one, other in zip(flat(found), flat(wanted), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4, equal_nan=True, msg=texts[-1])
        assert ours.drawn == theirs.drawn
    assert "k_keep(" in texts[-1] and "slow0(" not in texts[-1]


def along_columns(x):
    return dropout(x * 2, 0.3, True)[0]


def of_rows(x):
    y, _ = dropout(x * 2, 0.3, True)
    return y, y.sum(-1), (y + 1).amax(-1)


def of_columns(x):
    return dropout(x * 2, 0.3, True)[0].sum(0)


def softmax(x):
    return dropout(x.softmax(-1), 0.3, True)[0] + 1


def turned(x):
    return dropout(x * 2, 0.3, True)[0].t().contiguous()


F32, BF16 = torch.float32, torch.bfloat16
WAYS = [
    (along_columns, (40, 96), F32, True), (along_columns, (40, 97), BF16, True), (along_columns, (3, 41, 2), F32, False),
    (of_rows, (9, 64), F32, True), (of_rows, (9, 60), BF16, True), (of_rows, (8, 62), F32, False), (of_rows, (8, 63), BF16, False),
    (of_columns, (64, 64), BF16, True), (of_columns, (65, 60), F32, True), (of_columns, (150, 6), F32, False),
    (softmax, (8, 64), BF16, True), (softmax, (8, 300), F32, True), (turned, (40, 64), BF16, None),
]  # fmt: skip
WITH_ROWS = [way for way in WAYS if way[0] in (of_rows, softmax)]


@pytest.mark.parametrize(
    ("program", "size", "dtype", "by_fours", "short"), [*((*way, False) for way in WAYS), *((*way, True) for way in WITH_ROWS)])
def test_by_fours(program, size, dtype, by_fours, short, monkeypatch) -> None:
    """Where neighbours lie side by side in a tile, Philox runs once for each four."""
    repair(monkeypatch)
    if short:  # rows are loops
        monkeypatch.setattr(plan, "PERSISTENT_WITH_LOCALS", 16)
        monkeypatch.setattr(plan, "PERSISTENT_COLUMNS", 16)
        monkeypatch.setattr(configs, "LOOP_BLOCKS", ((1, 16, 1),))
    ours, theirs = Generator(), Generator()
    on_cpu(monkeypatch, ours)
    dynamo.reset()
    texts.clear()
    compiled = dynamo.compile(program, backend=backend)
    for _ in range(2):
        x = torch.randn(*size).to(dtype)
        found, wanted = compiled(x), eager_of(theirs, program, monkeypatch, x)
        for one, other in zip(flat(found), flat(wanted), strict=True):
            close = {"rtol": 1e-2, "atol": 0.2} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-4}
            torch.testing.assert_close(one, other, **close)
    if by_fours is not None:
        assert ("k_keep_four(" in texts[-1]) == by_fours, texts[-1]


@pytest.mark.parametrize("size", [(24, 64), (7, 50)])
def test_training(size, monkeypatch) -> None:
    """Gradients of what comes before and behind, of biases too: sums over rows of what is dropped."""
    repair(monkeypatch)
    ours, theirs = Generator(), Generator()
    on_cpu(monkeypatch, ours)
    dynamo.reset()
    texts.clear()

    def program(x, bias):
        y, _ = dropout(x + bias, 0.3, True)
        z, _ = dropout((y + x).tanh(), 0.5, True)
        return z * z

    compiled = dynamo.compile(program, backend=trained)
    for _ in range(2):
        given = [torch.randn(*size, requires_grad=True), torch.randn(size[1], requires_grad=True)]
        twins = [each.detach().clone().requires_grad_() for each in given]
        program.__globals__["dropout"] = dropout
        compiled(*given).sum().backward()
        eager_of(theirs, program, monkeypatch, *twins).sum().backward()
        for one, other in zip(given, twins, strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-4)
    assert len(texts) == 2 and all("k_keep(" in text for text in texts)
    assert ours.drawn == theirs.drawn
