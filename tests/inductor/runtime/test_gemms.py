"""Our own GEMM: right for all sizes and strides, alone and inside of a compiled graph."""

from __future__ import annotations

import ctypes
import itertools
import platform
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo
from dynamo.store.content import cache_store
from inductor import compile_fx
from inductor.autotune import gemm_choice, gemm_trials, library_kernels, linear
from inductor.config import config
from inductor.driver.cpu import need_toolchain
from inductor.fx_passes import half_gemms
from inductor.kernels.cpu.gemm import GEMM_UNIT
from inductor.kernels.cpu.gemm_libraries import (
    OwnGemm,
    bind_gemm,
    bind_half_gemm,
    load_gemm,
)
from inductor.kernels.cpu.half_gemm import HALF_UNIT
from inductor.runtime.own_libraries import own_library
from tests.inductor.runtime.own_functions import gemms_are_ours
from tests.seeds import some


@pytest.fixture(scope="module")
def gemm() -> OwnGemm:
    store = cache_store()
    found = load_gemm(store, need_toolchain(store))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def half_gemm() -> OwnGemm:
    """On processors without instructions for it, too: as plain loops."""
    store = cache_store()
    path = own_library((HALF_UNIT,), store, need_toolchain(store))
    return bind_half_gemm(ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL))


@pytest.fixture
def always_half(monkeypatch: pytest.MonkeyPatch, half_gemm: OwnGemm, always_ours: None) -> None:
    """oneDNN has GEMMs of bfloat16, and ours are taken."""
    for module in (linear, half_gemms):
        monkeypatch.setattr(module, "is_native", lambda dtype: dtype is torch.bfloat16)
    monkeypatch.setattr(gemm_choice, "load_gemm", lambda *_: half_gemm)


@pytest.fixture
def always_ours(monkeypatch: pytest.MonkeyPatch, gemm: OwnGemm) -> Any:
    gemms_are_ours(monkeypatch)
    rewritten = []

    by_ours = library_kernels.REWRITES["ours"]

    def counted(rewriter: Any, node: Any, linear: Any) -> Any:
        rewritten.append(node)
        return by_ours(rewriter, node, linear)

    monkeypatch.setitem(library_kernels.REWRITES, "ours", counted)
    with config.patch(library_kernels="measure"), torch.no_grad():
        yield
    assert len(rewritten) >= 2


def assert_right(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, b: Any) -> None:
    expected = x.double() @ w.double() + (0 if b is None else b)
    scale = (x.double().abs() @ w.double().abs()).max().clamp(min=1)
    assert ((out - expected).abs().max() / scale) < 1e-6


@pytest.mark.parametrize("seed", some(range(8), 3))
def test_sizes_and_strides(gemm: OwnGemm, seed: int) -> None:
    numbers = random.Random(seed)
    for _ in range(12):
        sizes = [1, 2, 13, 15, 31, 33, 385, 769, 1024, numbers.randint(1, 1700)]
        m, n, k = (numbers.choice(sizes) for _ in "mnk")
        lefts = [torch.randn(m, k), torch.randn(m, k + 3)[:, :k], torch.randn(k, m).t()]
        x = numbers.choice([*lefts, torch.randn(k, m + 5).t()[2 : m + 2]])
        weights = [torch.randn(k, n), torch.randn(n, k).t(), torch.randn(2 * k, 2 * n)[::2, ::2]]
        weight = numbers.choice(weights)
        bias = numbers.choice([None, torch.randn(n)])
        out = torch.full((m, n), float("nan"))
        threads = numbers.choice([1, 2, 3, 8])
        gemm.multiply(x, weight, bias, out, threads)
        assert_right(out, x, weight, bias)
        out.fill_(float("nan"))
        gemm.multiply(x, gemm.panels(weight), bias, out, threads)
        assert_right(out, x, weight, bias)


@pytest.mark.parametrize("k", [5, 192, 211, 512, 1024])
def test_heights_of_tiles(gemm: OwnGemm, k: int) -> None:
    """Each height, with and without terms left over, with rows that fall into the same sets of the
    cache and others, of prepared panels and of weights that are read where they lie."""
    for m in (*range(1, 29), 66, 101):
        x, weight, bias = torch.randn(m, k + 3)[:, :k], torch.randn(75, k).t(), torch.randn(75)
        for side in (weight, gemm.panels(weight)):
            for left in (x, x.contiguous()):
                out = torch.full((m, 75), float("nan"))
                gemm.multiply(left, side, bias, out, 2)
                assert_right(out, left, weight, bias)


@pytest.mark.parametrize("threads", (1, 2))
def test_blocks_of_the_left_side(gemm: OwnGemm, threads: int) -> None:
    """Several bands of rows, more panels than are packed at a time, and terms for five passes."""
    for k, turned, columns in itertools.product((300, 3300), (False, True), (False, True)):
        x = torch.randn(k, 340).t() if turned else torch.randn(340, k)
        weight = torch.randn(k, 1100) if columns else torch.randn(1100, k).t()
        out = torch.full((340, 1100), float("nan"))
        gemm.multiply(x, weight, None, out, threads)
        assert_right(out, x, weight, None)


def test_no_number_is_what_it_is_elsewhere(gemm: OwnGemm) -> None:
    x, weight = torch.randn(20, 400), torch.randn(400, 64)
    x[3, 7], x[9, 395], x[15, 200] = float("nan"), float("inf"), -float("inf")
    out = torch.empty(20, 64)
    gemm.multiply(x, gemm.panels(weight), None, out, 1)
    expected = x @ weight
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(out.isinf(), expected.isinf())


SETS = [("-march=x86-64",), ("-mavx",), ("-mavx2", "-mfma"), ("-mavx512f",)]


@pytest.mark.parametrize("flags", SETS)
def test_other_instruction_sets(flags: tuple[str, ...]) -> None:
    """They compile, and are right where this processor can run them."""
    store = cache_store()
    toolchain = need_toolchain(store)
    if platform.machine() != "x86_64" or "-march=native" not in toolchain.compile_flags:
        pytest.skip("the flags are those of compilers for x86-64")
    plain = [flag for flag in toolchain.compile_flags if flag != "-march=native"]
    runs = set(Path("/proc/cpuinfo").read_text().split())
    if not {flag[2:] for flag in flags if flag.startswith("-m")} - {"arch=x86-64"} <= runs:
        own_library((GEMM_UNIT,), store, replace(toolchain, compile_flags=(*plain, *flags, "-O1")))
        return
    path = own_library((GEMM_UNIT,), store, replace(toolchain, compile_flags=(*plain, *flags)))
    gemm = bind_gemm(ctypes.CDLL(path))
    for m, n, k in ((37, 70, 129), (1, 33, 1024), (7, 35, 99), (100, 257, 801)):
        x, weight, bias = torch.randn(m, k), torch.randn(n, k).t(), torch.randn(n)
        for side in (weight, gemm.panels(weight)):
            out = torch.full((m, n), float("nan"))
            gemm.multiply(x, side, bias, out, 2)
            assert_right(out, x, weight, bias)


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("how", ["rows", "turned", "plain", "few", "many"])
def test_each_part_is_finished_once(gemm: OwnGemm, threads: int, how: str) -> None:
    """By which thread ever: each part of the result is complete when the epilogue gets it."""
    numbers = random.Random(threads)
    m, n, k = numbers.randint(90, 300), numbers.randint(400, 1300), numbers.randint(700, 1000)
    m = {"few": numbers.randint(1, 8), "many": numbers.randint(384, 900)}.get(how, m)
    x, weight = torch.randn(k, m).t() if how == "turned" else torch.randn(m, k), torch.randn(k, n)
    out, seen, taken = torch.zeros(m, n), torch.zeros(m, n), torch.empty(m, n)
    right, strides = gemm.panels(weight), (0, 0)
    if how in ("plain", "few", "many"):
        weight = torch.randn(n, k).t()
        right, strides = weight, (1, k)
        assert gemm.is_plain(m, k)

    def finish(context: Any, r0: int, r1: int, j0: int, j1: int) -> None:
        seen[r0:r1, j0:j1] += 1
        taken[r0:r1, j0:j1] = out[r0:r1, j0:j1]

    number, pointer = ctypes.c_long, ctypes.c_void_p
    callback = ctypes.CFUNCTYPE(None, pointer, number, number, number, number)(finish)
    sides = (x.data_ptr(), *x.stride(), right.data_ptr(), *strides, None, out.data_ptr())
    assert gemm.function(m, n, k, *sides, threads, callback, None) == 0
    assert (seen == 1).all()
    assert_right(taken, x, weight, None)


def test_dense_weights_are_read_where_they_lie(gemm: OwnGemm) -> None:
    """Where rows of a are many, and rows of the weight do not share their sets of the cache."""
    assert not gemm.is_plain(9, 768) and not gemm.is_plain(256, 2048)
    for m, n, k in itertools.product((65, 97, 200), (1, 47, 48, 49, 145), (5, 191, 193, 385, 770)):
        assert gemm.is_plain(m, k)
        x, weight, bias = torch.randn(m, k + 1)[:, :k], torch.randn(n, k), torch.randn(n)
        for start in (None, bias):
            out = torch.full((m, n), float("nan"))
            gemm.multiply(x, weight.t(), start, out, 2)
            assert_right(out, x, weight.t(), start)


def test_many_rows_want_no_panels_beforehand(gemm: OwnGemm) -> None:
    """Whatever the weight's rows: panels are made at the call."""
    for m, n, k in itertools.product((384, 385, 790), (1, 48, 50, 700), (5, 193, 1024)):
        assert gemm.is_plain(m, k)
        x, weight, bias = torch.randn(m, k + 1)[:, :k], torch.randn(n, k), torch.randn(n)
        for start, threads in ((None, 1), (bias, 3)):
            out = torch.full((m, n), float("nan"))
            gemm.multiply(x, weight.t(), start, out, threads)
            assert_right(out, x, weight.t(), start)


@pytest.mark.parametrize("m", range(1, 9))
def test_few_rows_beside_dense_weights(gemm: OwnGemm, m: int) -> None:
    """These are read where they lie, whatever their sizes."""
    for n, k in ((1, 5), (3, 1024), (65, 768), (130, 1031), (257, 4100), (700, 8)):
        assert gemm.is_plain(m, k)
        x, weight = torch.randn(m, k + 1)[:, :k], torch.randn(n, k + 2)[:, :k]
        for start, threads in ((None, 1), (torch.randn(n), 3)):
            out = torch.full((m, n), float("nan"))
            gemm.multiply(x, weight.t(), start, out, threads)
            assert_right(out, x, weight.t(), start)
    x[0, k - 1], weight[n - 1, 2] = float("nan"), float("inf")
    out = torch.full((m, n), float("nan"))
    gemm.multiply(x, weight.t(), None, out, 2)
    assert out[0].isnan().all() and not out[1:, :-1].isnan().any()
    torch.testing.assert_close(out, x @ weight.t(), equal_nan=True, rtol=1e-4, atol=1e-4)


def test_special_values_spread_as_in_any_gemm(gemm: OwnGemm) -> None:
    x, w = torch.randn(20, 50), torch.randn(50, 40)
    x[3, 7], x[5, 2], w[9, 11] = float("nan"), float("inf"), float("-inf")
    out = torch.empty(20, 40)
    gemm.multiply(x, w, None, out, 1)
    torch.testing.assert_close(out, x @ w, equal_nan=True, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns", [False, True])
def test_inside_of_a_graph(always_ours: None, columns: bool) -> None:
    def program(x: Any, w: Any, b: Any, v: Any) -> Any:
        h = torch.addmm(b, x.sin(), w if columns else w.t())
        return h[:, 3:].t(), h.relu() @ v, h

    x, b, v = torch.randn(37, 70), torch.randn(45), torch.randn(45, 33)
    w = torch.randn(70, 45) if columns else torch.randn(45, 70)
    compiled = compile_fx(torch.fx.symbolic_trace(program), [x, w, b, v])
    for _ in range(3):
        x, b = torch.randn(37, 70), torch.randn(45)
        torch.testing.assert_close(compiled(x, w, b, v), program(x, w, b, v), rtol=1e-4, atol=1e-4)


def test_gradients_of_weights(always_ours: None) -> None:
    """Their left side lies in memory by columns; it may be a part of a tensor."""

    def program(g: Any, x: Any, y: Any) -> Any:
        return g.sin().t() @ x, g.t()[5:50] @ y.relu(), torch.mm(x.t(), y)

    g, x, y = torch.randn(90, 77), torch.randn(90, 33), torch.randn(90, 40)
    compiled = compile_fx(torch.fx.symbolic_trace(program), [g, x, y])
    for _ in range(3):
        g, x = torch.randn(90, 77), torch.randn(90, 33)
        torch.testing.assert_close(compiled(g, x, y), program(g, x, y), rtol=1e-4, atol=1e-4)


def test_training_with_our_gemms(always_ours: None) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(70, 130), torch.nn.GELU(), torch.nn.Linear(130, 9))
    compiled = dynamo.compile(model)
    for _ in range(2):
        x, probe = torch.randn(57, 70, requires_grad=True), torch.randn(57, 9)
        with torch.enable_grad():
            leaves = [x, *model.parameters()]
            found = torch.autograd.grad((compiled(x) * probe).sum(), leaves)
            model.double()
            leaves = [x.detach().double().requires_grad_(), *model.parameters()]
            wanted = torch.autograd.grad((model(leaves[0]) * probe).sum(), leaves)
            model.float()
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other.float(), rtol=1e-4, atol=1e-4)


def test_sizes_known_at_a_call(always_ours: None) -> None:
    w, v = torch.randn(45, 70), torch.randn(45, 31)

    def program(x: Any) -> Any:
        return (x.cos() @ w.t()).tanh() @ v

    compiled = dynamo.compile(program, dynamic=True)
    for rows in (5, 9, 64, 300):
        x = torch.randn(rows, 70)
        torch.testing.assert_close(compiled(x), program(x), rtol=1e-3, atol=1e-3)


def half_is_right(out: torch.Tensor, x: torch.Tensor, w: torch.Tensor, b: Any) -> bool:
    """Within the rounding of the result and of sums in float32."""
    wide = x.double() @ w.double() + (0 if b is None else b.double())
    scale = x.double().abs() @ w.double().abs() + (0 if b is None else b.double().abs())
    return bool(((out.double() - wide).abs() <= 2**-8 * wide.abs() + 1e-5 * scale).all())


@pytest.mark.parametrize("rows", [1, 3, 16, 17, 50, 200])
def test_gemms_of_half_precision(half_gemm: OwnGemm, rows: int) -> None:
    for n, k in ((1, 1), (31, 64), (33, 31), (70, 129), (257, 800)):
        wide, weight = torch.randn(rows, k + 3).bfloat16(), torch.randn(n, k).bfloat16()
        bias, out = torch.randn(n).bfloat16(), torch.empty(rows, n, dtype=torch.bfloat16)
        right = weight.t()
        for x, side in itertools.product(
            (wide[:, :k], wide[:, :k].contiguous()),
            (right, right.contiguous(), half_gemm.panels(right)),
        ):
            for start in (None, bias):
                out.fill_(float("nan"))
                half_gemm.multiply(x, side, start, out, 2)
                assert half_is_right(out, x, right, start)


def test_long_rows_of_half_precision(half_gemm: OwnGemm) -> None:
    """Of which not even one fits into the cache."""
    x, weight = torch.randn(2, 530_000).bfloat16(), torch.randn(3, 530_000).bfloat16()
    for side in (weight.t(), half_gemm.panels(weight.t())):
        out = torch.empty(2, 3, dtype=torch.bfloat16)
        half_gemm.multiply(x, side, None, out, 1)
        assert half_is_right(out, x, weight.t(), None)


def test_special_values_in_half_precision(half_gemm: OwnGemm) -> None:
    x, w = torch.randn(20, 50).bfloat16(), torch.randn(50, 40).bfloat16()
    x[3, 7], x[5, 2], w[9, 11] = float("nan"), float("inf"), float("-inf")
    out = torch.empty(20, 40, dtype=torch.bfloat16)
    half_gemm.multiply(x, half_gemm.panels(w), None, out, 1)
    wanted = (x.float() @ w.float()).bfloat16()  # oneDNN's own spread NaN to the row before
    torch.testing.assert_close(out, wanted, equal_nan=True, rtol=1e-2, atol=1e-2)


def test_each_part_of_half_precision_is_finished_once(half_gemm: OwnGemm) -> None:
    m, n, k = 210, 700, 96
    x, weight = torch.randn(m, k).bfloat16(), torch.randn(k, n).bfloat16()
    panels = half_gemm.panels(weight)
    out, taken = torch.zeros(2, m, n, dtype=torch.bfloat16)
    seen = torch.zeros(m, n)

    def finish(context: Any, r0: int, r1: int, j0: int, j1: int) -> None:
        seen[r0:r1, j0:j1] += 1
        taken[r0:r1, j0:j1] = out[r0:r1, j0:j1]

    number, pointer = ctypes.c_long, ctypes.c_void_p
    callback = ctypes.CFUNCTYPE(None, pointer, number, number, number, number)(finish)
    sides = (x.data_ptr(), *x.stride(), panels.data_ptr(), 0, 0, None, out.data_ptr())
    assert half_gemm.function(m, n, k, *sides, 2, callback, None) == 0
    assert (seen == 1).all() and half_is_right(taken, x, weight, None)


@pytest.mark.parametrize("flags", [("-march=sapphirerapids",), ("-march=cooperlake",)])
def test_instructions_of_half_precision_compile(flags: tuple[str, ...]) -> None:
    store = cache_store()
    toolchain = need_toolchain(store)
    if platform.machine() != "x86_64" or "-march=native" not in toolchain.compile_flags:
        pytest.skip("the flags are those of compilers for x86-64")
    plain = [flag for flag in toolchain.compile_flags if flag != "-march=native"]
    own_library((HALF_UNIT,), store, replace(toolchain, compile_flags=(*plain, *flags, "-O1")))


def test_half_precision_inside_of_a_graph(always_half: None) -> None:
    def program(x: Any, w: Any, b: Any, v: Any) -> Any:
        h = torch.addmm(b, x, w.t())
        return F.gelu(h) @ v, h

    def inputs() -> list[torch.Tensor]:
        sizes = ((37, 70), (45, 70), (45,), (45, 33))
        return [(torch.randn(size) / size[-1] ** 0.5).bfloat16() for size in sizes]

    compiled = compile_fx(torch.fx.symbolic_trace(program), inputs())
    for _ in range(3):
        given = inputs()
        torch.testing.assert_close(compiled(*given), program(*given), rtol=2e-2, atol=2e-2)


def test_frozen_weights_of_half_precision(always_half: None) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(70, 90), torch.nn.GELU(), torch.nn.Linear(90, 33))
    model = model.eval().bfloat16()
    compiled = dynamo.compile(model)
    for _ in range(3):
        x = torch.randn(40, 70).bfloat16()
        torch.testing.assert_close(compiled(x), model(x), rtol=2e-2, atol=2e-2)
        with torch.no_grad():
            model[0].weight.mul_(1.5)


@pytest.mark.parametrize("m", [1, 3, 8])
def test_few_rows_in_a_compiled_graph(monkeypatch: pytest.MonkeyPatch, m: int) -> None:
    """With what follows them, and no copy of the weights; weights that change are seen."""
    taken = []

    def fastest(chooser: Any, linear: Any) -> str:
        assert "plain" in gemm_trials.names_of(linear, chooser.ours(linear.dtype))
        taken.append((linear.m, linear.frozen))
        return "plain"

    monkeypatch.setattr(gemm_choice.Chooser, "fastest", fastest)
    model = torch.nn.Sequential(
        torch.nn.Linear(301, 130), torch.nn.GELU(), torch.nn.Linear(130, 77, bias=False))
    compiled = dynamo.compile(model, options={"library_kernels": "measure"})
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(m, 301)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
            model[0].weight.normal_()
    assert taken and set(taken) == {(m, True)}
