"""Decomposed graphs compute what the operations compute, with their sizes, strides and dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo
from dynamo import aot
from dynamo.aot.decompositions import BAGS, FROM_TORCH, OWN, default_decompositions
from dynamo.aot.foreach import FOREACH
from dynamo.aot.frequent import FREQUENT
from tests.aot.programs import traced

aten = torch.ops.aten


def R(*size: int) -> torch.Tensor:
    return torch.randn(*size, dtype=torch.float64)


def target(*size: int, high: int = 5) -> torch.Tensor:
    return torch.randint(high, size)


CASES: list[tuple[str, Callable[..., Any], Callable[[], tuple[Any, ...]]]] = [
    ("mse_loss", F.mse_loss, lambda: (R(3, 4), R(3, 4))),
    ("smooth_l1_loss", F.smooth_l1_loss, lambda: (R(3, 4), R(3, 4))),
    ("huber_loss", F.huber_loss, lambda: (R(3, 4), R(3, 4))),
    ("ldexp", torch.ldexp, lambda: (R(3, 4).bfloat16(), torch.randint(-140, 120, (4,)))),
    ("nll_loss", lambda x, t: F.nll_loss(x, t, ignore_index=2), lambda: (R(6, 5), target(6))),
    ("nll_loss2d", F.nll_loss, lambda: (R(2, 5, 3, 3), target(2, 3, 3))),
    ("cross_entropy", F.cross_entropy, lambda: (R(6, 5), target(6))),
    ("bce_logits", F.binary_cross_entropy_with_logits, lambda: (R(4), R(4).sigmoid())),
    ("soft_margin", F.soft_margin_loss, lambda: (R(4), R(4).sign())),
    ("batch_norm", F.batch_norm, lambda: (R(2, 3, 4, 4), R(3), R(3).abs(), R(3), R(3))),
    ("rms_norm", lambda x, w: F.rms_norm(x, (4,), w), lambda: (R(3, 4), R(4))),
    ("fused_rms_norm", lambda x, w: aten._fused_rms_norm(x, [4], w, None), lambda: (R(3, 4), R(4))),
    ("fused_rms_norm alone", lambda x: aten._fused_rms_norm(x, [3, 4], None, 1e-3), lambda: (R(2, 3, 4).mT.contiguous().mT,)),
    ("nearest", lambda x: F.interpolate(x, scale_factor=2), lambda: (R(1, 2, 3, 3),)),
    ("nearest down", lambda x: F.interpolate(x, size=(2, 5)), lambda: (R(1, 2, 3, 3),)),
    (
        "bilinear",
        lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
        lambda: (R(1, 2, 3, 3).float(),),
    ),
    ("reflect", lambda x: F.pad(x, (1, 2, 2, 1), mode="reflect"), lambda: (R(1, 2, 4, 4),)),
    ("replicate", lambda x: F.pad(x, (1, 2, 2, 1), mode="replicate"), lambda: (R(1, 2, 4, 4),)),
    (
        "grid_sample",
        lambda x, g: F.grid_sample(x, g, align_corners=False),
        lambda: (R(1, 2, 4, 4), R(1, 3, 3, 2)),
    ),
    ("unfold", lambda x: F.unfold(x, 2), lambda: (R(1, 2, 4, 4),)),
    ("glu", lambda x: F.glu(x, -1), lambda: (R(3, 4),)),
    ("logsumexp", lambda x: torch.logsumexp(x, 1), lambda: (R(3, 4),)),
    ("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), lambda: (R(2, 8, 3, 3),)),
    ("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), lambda: (R(2, 3, 4, 6),)),
    ("diag_embed", torch.diag_embed, lambda: (R(2, 3),)),
    ("diag_embed above", lambda x: torch.diag_embed(x, 2, 0, 2), lambda: (R(2, 3),)),
    ("diag_embed below", lambda x: torch.diag_embed(x > 0, -1, -1, 0), lambda: (R(2, 3),)),
    ("diag_embed of nothing", lambda x: torch.diag_embed(x, 1), lambda: (R(0, 3),)),
    ("roll", lambda x: torch.roll(x, (1, -2), (0, 1)), lambda: (R(3, 4),)),
    ("roll flat", lambda x: torch.roll(x, 5), lambda: (R(3, 4),)),
    ("nan_to_num", torch.nan_to_num, lambda: (R(4).log() / R(4).round(),)),
    ("addr", torch.addr, lambda: (R(3, 4), R(3), R(4))),
    ("count_nonzero", lambda x: torch.count_nonzero(x.round(), 1), lambda: (R(3, 4),)),
    ("index_fill", lambda x, t: x.index_fill(1, t, 2.5), lambda: (R(3, 4), target(2, high=4))),
    ("aminmax", lambda x: torch.aminmax(x, dim=1)[0], lambda: (R(3, 4),)),
    ("silu_backward", aten.silu_backward.default, lambda: (R(3, 4), R(3, 4))),
    ("gelu_backward", aten.gelu_backward.default, lambda: (R(3, 4), R(3, 4))),
    ("hardtanh_backward", lambda g, x: aten.hardtanh_backward(g, x, -1, 1), lambda: (R(9), R(9))),
    (
        "softmax_backward",
        lambda g, x: aten._softmax_backward_data(g, x, 1, torch.float64),
        lambda: (R(3, 4), R(3, 4).softmax(1)),
    ),
    (
        "embedding_backward",
        lambda g, i: aten.embedding_dense_backward(g, i, 7, 2, False),
        lambda: (R(6, 4), target(6)),
    ),
    ("select_backward", lambda g: aten.select_backward(g, [3, 4], 0, 1), lambda: (R(4),)),
    ("slice_backward", lambda g: aten.slice_backward(g, [5, 4], 0, 1, 4, 2), lambda: (R(2, 4),)),
]


@pytest.mark.parametrize("function, inputs", [row[1:] for row in CASES], ids=[r[0] for r in CASES])
def test_default_decompositions(function: Any, inputs: Any) -> None:
    with torch.no_grad():
        gm = traced_over(function, inputs())
        graph = aot.capture_forward(gm, list(inputs()))
        module = aot.decompose(graph.module, default_decompositions())
        left = {node.target for node in module.graph.nodes} & default_decompositions().keys()
        assert not left
        for _ in range(2):
            arguments = inputs()
            expected = graph.module(*arguments)
            actual = module(*arguments)
            for got, want in zip(actual, expected, strict=True):
                assert (got.dtype, got.shape) == (want.dtype, want.shape)
                torch.testing.assert_close(got, want, equal_nan=True)


def test_a_loss_whose_kernel_looks_at_the_values_stays_on_the_cpu() -> None:
    inputs = (R(4).sigmoid(), R(4).sigmoid())
    with torch.no_grad():
        graph = aot.capture_forward(traced_over(F.binary_cross_entropy, inputs), list(inputs))
        module = aot.decompose(graph.module, default_decompositions())
    assert aten.binary_cross_entropy.default in {node.target for node in module.graph.nodes}


def traced_over(function: Any, inputs: tuple[Any, ...]) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(f"x{index}") for index in range(len(inputs))]
    graph.output((graph.call_function(function, tuple(nodes)),))
    return torch.fx.GraphModule({}, graph)


def test_table_names_exist() -> None:
    names = {*FROM_TORCH, *OWN, *FOREACH, *BAGS}
    assert len(names) == len(FROM_TORCH) + len(OWN) + len(FOREACH) + len(BAGS)
    assert len(default_decompositions()) == len(names | FREQUENT.keys())


def test_templates_are_shared_and_recursive() -> None:
    calls = []

    def twice(x: Any) -> Any:
        calls.append("twice")
        return aten.sin.default(x) * 2

    def sine(x: Any) -> Any:
        calls.append("sine")
        return x - x**3 / 6

    def program(x: Any, y: Any) -> Any:
        return torch.tan(x) + torch.tan(y) + torch.tan(x)

    graph = aot.capture_forward(traced(program), [R(3), R(3)])
    table = {aten.tan.default: twice, aten.sin.default: sine}
    module = aot.decompose(graph.module, table)
    assert calls == ["twice", "sine"]
    x, y = R(3), R(3)
    expected = 2 * (x - x**3 / 6) * 2 + 2 * (y - y**3 / 6)
    torch.testing.assert_close(module(x, y)[0], expected)
    assert aot.decompose(module, table) is module


def test_other_strides_keep_the_operation() -> None:
    graph = aot.capture_forward(traced(lambda x: torch.sin(x.t())), [R(3, 4)])
    table = {aten.sin.default: lambda x: aten.cos.default(x).contiguous()}
    module = aot.decompose(graph.module, table)
    assert aten.sin.default in {node.target for node in module.graph.nodes}


def test_signs_of_zero_are_told_apart() -> None:
    def program(x: Any) -> Any:
        return torch.add(x, 1, alpha=0.0), torch.full_like(x, 0.0), torch.full_like(x, -0.0)

    table = {aten.full_like.default: lambda x, v, **options: torch.zeros_like(x) + v - v + v}
    graph = aot.capture_forward(traced(program), [R(3)])
    constants = [
        str(node.args[1])
        for node in aot.decompose(graph.module, table).graph.nodes
        if node.target is aten.add.Tensor
    ]
    assert {"0.0", "-0.0"} <= set(constants)


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", [-1, 0, (0, 1)])
def test_logsumexp_of_infinities(dim, keepdim: bool) -> None:
    """A row with an infinity, of nothing but them, with both, with NaN; forward and backward."""
    inf, nan = float("inf"), float("nan")
    given = R(6, 40)
    given[0, 3] = given[4, 5] = inf
    given[1] = given[3, 1] = given[4, 6] = -inf
    given[2, 7] = nan
    a, b = given.clone().requires_grad_(), given.clone().requires_grad_()
    expected = torch.logsumexp(a, dim, keepdim=keepdim)
    got = dynamo.compile(lambda x: torch.logsumexp(x, dim, keepdim=keepdim))(b)
    torch.testing.assert_close(got, expected, equal_nan=True)
    assert got.stride() == expected.stride()
    expected.sum().backward()
    got.sum().backward()
    torch.testing.assert_close(b.grad, a.grad, equal_nan=True)
