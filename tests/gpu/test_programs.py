"""Programs of users: CUDA graphs, sizes that change, optimizers, operators of libraries."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynamo
from tests.gpu.support import DEVICE, DTYPES, assert_near, check, data, kernels_of, left_uncompiled

LIBRARY = "dynamo_gpu_tests"


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
def test_sizes_that_change(dtype: torch.dtype) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = F.layer_norm(x @ w, w.shape[1:])
        return F.gelu(y).softmax(-1), y.sum(0), x.float().cumsum(0).mean()

    rows = iter((8, 17, 64, 3, 130, 257))
    check(f, lambda: (data(next(rows), 48, dtype=dtype), data(48, 100, dtype=dtype)), calls=6, slack=8.0)


@pytest.mark.parametrize("dynamic", [True, None])
def test_training_with_sizes_that_change(dynamic: bool | None) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        out = F.silu(x @ w).log_softmax(-1)
        return out, torch.autograd.grad(out.square().mean(), (x, w))

    rows = iter((8, 17, 64, 3))

    def make() -> tuple[Any, ...]:
        return data(next(rows), 48).requires_grad_(), data(48, 64).requires_grad_()

    check(f, make, calls=4, slack=16.0, dynamic=dynamic)


def test_recorded_calls() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = F.relu(x @ w)
        for _ in range(4):
            y = F.relu(y @ w + x)
        return y, y.sum(-1)

    w = data(64, 64) * 0.1
    check(f, lambda: (data(32, 64), w.clone()), calls=6, mode="reduce-overhead", slack=32.0)


def test_results_of_recorded_calls_stay() -> None:
    f = dynamo.compile(lambda x, w: ((x @ w).relu() @ w).relu() @ w, mode="reduce-overhead")
    w = data(64, 64) * 0.1
    given = [data(32, 64) for _ in range(6)]
    with torch.no_grad():
        found = [f(x, w) for x in given]
        for x, y in zip(given, found, strict=True):
            torch.testing.assert_close(y, ((x @ w).relu() @ w).relu() @ w, rtol=1e-3, atol=1e-4)
    assert not left_uncompiled(), left_uncompiled()


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop"])
def test_optimizers_under_a_schedule(kind: str, mode: str | None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 4)).to(DEVICE)

    def trained(compiles: bool) -> list[torch.Tensor]:
        torch.manual_seed(1)
        mine = copy.deepcopy(model)
        extra = {"momentum": 0.9} if kind == "SGD" else {}
        optimizer = getattr(torch.optim, kind)(mine.parameters(), lr=0.01, **extra)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            loss = F.cross_entropy(mine(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        run = dynamo.compile(step, mode=mode) if compiles else step
        for _ in range(12):
            run(data(16, 32), torch.randint(0, 4, (16,), device=DEVICE))
            schedule.step()
        return [p.detach() for p in mine.parameters()]

    for found, wanted in zip(trained(True), trained(False), strict=True):
        torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-4)
    assert not left_uncompiled(), left_uncompiled()


@torch.library.custom_op(f"{LIBRARY}::scaled", mutates_args=())
def scaled(x: torch.Tensor, k: float) -> torch.Tensor:
    return x * k


@scaled.register_fake
def _(x: torch.Tensor, k: float) -> torch.Tensor:
    return torch.empty_like(x)


def keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.k = inputs[1]


scaled.register_autograd(lambda ctx, g: (scaled(g, ctx.k), None), setup_context=keep)


@torch.library.custom_op(f"{LIBRARY}::fill", mutates_args={"x"})
def fill(x: torch.Tensor, k: float) -> None:
    x.fill_(k)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_operators_of_libraries(mode: str | None) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        out = scaled(x.sin() @ w, 2.0).relu() @ w
        return out.detach(), torch.autograd.grad(out.sum(), (x, w))

    check(f, lambda: (data(16, 16).requires_grad_(), data(16, 16).requires_grad_()), calls=4, mode=mode, slack=16.0)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_operators_that_write(mode: str | None) -> None:
    def f(x: torch.Tensor) -> Any:
        t = x.exp()
        before = t * 2
        fill(t, 3.0)
        return before, (t + x).cos() @ x, t

    check(f, lambda: (data(16, 16),), calls=4, mode=mode, slack=16.0)


def test_writes_into_inputs() -> None:
    def f(cache: torch.Tensor, new: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        cache.index_copy_(1, at, new * 2)
        return cache.softmax(-1)

    def make() -> tuple[Any, ...]:
        return data(2, 64, 32), data(2, 1, 32), torch.randint(0, 64, (1,), device=DEVICE)

    check(f, make, calls=4)


def test_questions_about_the_gpu() -> None:
    """As mixtures of experts ask in each layer whether a GEMM of groups may be used."""

    def f(x: torch.Tensor) -> torch.Tensor:
        able = torch.cuda.get_device_capability(x.device) >= (8, 0)
        named = torch.cuda.get_device_name(x.device).startswith("NVIDIA")
        return x + 1 if able and named and torch.cuda.is_bf16_supported() else x - 1

    x = data(8)
    assert torch.equal(dynamo.compile(f, fullgraph=True)(x), f(x))


def test_gradients_of_values_written_at_a_mask() -> None:
    def f(x: torch.Tensor, mask: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x = x * 2
        x[mask] = y.sin()
        return x.exp()

    mask = torch.arange(64, device=DEVICE).reshape(8, 8) % 5 == 0
    x, y = data(8, 8, 16), data(13, 16).requires_grad_()
    (wanted,) = torch.autograd.grad(f(x, mask, y).sum(), y)
    dynamo.reset()
    (found,) = torch.autograd.grad(dynamo.compile(f, fullgraph=True)(x, mask, y).sum(), y)
    assert not left_uncompiled()
    torch.testing.assert_close(found, wanted)


def test_large_reductions() -> None:
    def f(x: torch.Tensor) -> Any:
        return x.sum(), x.float().var(-1), x.softmax(-1), x.amax(0), x.argmax(-1), F.cross_entropy(x.float(), x.argmax(-1))

    check(f, lambda: (data(512, 50257, dtype=torch.bfloat16),), calls=2, slack=8.0)


def test_on_another_stream() -> None:
    if DEVICE == "cpu":
        pytest.skip("streams are of GPUs")
    f = dynamo.compile(lambda x: (x.sin() + 1).softmax(-1) @ x)
    side = torch.cuda.Stream()
    for _ in range(3):
        x = data(64, 64)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            found = f(x)
        torch.cuda.current_stream().wait_stream(side)
        assert_near(found, (x.sin() + 1).softmax(-1) @ x, (x.double().sin() + 1).softmax(-1) @ x.double(), 16.0)


def peak_of(step: Any) -> int:
    """Bytes that a step holds at most, beside what was there before."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def test_gradients_lie_over_saved_values_that_die() -> None:
    """The gradient of the GEMM's result has the memory of what forward saved, if it goes here."""
    if DEVICE == "cpu":
        pytest.skip("memory is counted on GPUs")

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).tanh().square().mean()

    compiled = dynamo.compile(f)
    x, w = data(4096, 256, dtype=torch.bfloat16), data(256, 4096, dtype=torch.bfloat16)
    x, w = x.requires_grad_(), w.requires_grad_()
    wanted = torch.autograd.grad(f(x, w), (x, w))
    exact = torch.autograd.grad(f(x.double(), w.double()), (x, w))
    large = 4096 * 4096 * 2
    assert peak_of(lambda: torch.autograd.grad(compiled(x, w), (x, w))) < large * 1.5
    for found, one, other in zip(torch.autograd.grad(compiled(x, w), (x, w)), wanted, exact, strict=True):
        assert_near(found, one, other, 16.0)
    loss = compiled(x, w)
    for again in (True, True, False):
        for found, one, other in zip(
            torch.autograd.grad(loss, (x, w), retain_graph=again), wanted, exact, strict=True
        ):
            assert_near(found, one, other, 16.0)


def test_training_holds_less_than_eager() -> None:
    """Backward of GELU lies over the GEMM's result, and weights' gradients let saved tensors go first."""
    if DEVICE == "cpu":
        pytest.skip("memory is counted on GPUs")
    layers = [nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)) for _ in range(3)]
    model = nn.Sequential(*layers).to(DEVICE, torch.bfloat16)
    twin, x = copy.deepcopy(model), data(8192, 256, dtype=torch.bfloat16)
    probe = data(8192, 256, dtype=torch.bfloat16)
    compiled = dynamo.compile(model)

    def step(owner: nn.Module, call: Any) -> list[torch.Tensor]:
        owner.zero_grad(set_to_none=True)
        call(x).backward(probe)
        return [parameter.grad for parameter in owner.parameters()]  # type: ignore[misc]

    large = 8192 * 1024 * 2
    eager = peak_of(lambda: step(twin, twin))
    assert peak_of(lambda: step(model, compiled)) <= eager - large // 2
    exact = copy.deepcopy(twin).double()
    exact(x.double()).backward(probe.double())
    wanted = [parameter.grad for parameter in exact.parameters()]
    assert_near(step(model, compiled), step(twin, twin), wanted, 16.0)
    assert not left_uncompiled()


def test_graphs_and_kernels_lie_in_named_ranges() -> None:
    """What torch.profiler and NVTX show of a compiled function: its graph, and its kernels in it."""

    def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x @ w, w.shape[1:]).relu()

    for mode in (None, "reduce-overhead"):
        compiled = dynamo.compile(scaled, mode=mode)
        x, w = data(16, 32), data(32, 48)
        for _ in range(4):
            compiled(x, w)
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profiler:
            compiled(x, w)
            torch.cuda.synchronize()
        names = [event.name for event in profiler.events()]
        graphs = [name for name in names if name.startswith("scaled ") and "compiled" not in name]
        assert any(name.endswith("scaled (compiled)") for name in names) and graphs, names
        if mode is None:
            graph = next(event for event in profiler.events() if event.name == graphs[0])
            assert graph.device_time_total > 0
        with torch.autograd.profiler.emit_nvtx():
            assert_near(compiled(x, w), scaled(x, w), scaled(x.double(), w.double()), 16.0)


def test_a_table_of_sizes_on_the_device() -> None:
    """Encoders of images read their grids on the device: known, as on a CPU, until they change."""

    def vision(x: torch.Tensor, grid: torch.Tensor) -> Any:
        frames = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0])
        ends = F.pad(frames.cumsum(0), (1, 0))
        at = torch.arange(frames.sum(), device=x.device)
        parts = [part.softmax(0) for part in torch.split(x, (ends[1:] - ends[:-1]).tolist())]
        return torch.cat(parts) + at[:, None] % 4, ends

    compiled = dynamo.compile(vision)
    for rows in ([[1, 2, 4], [1, 4, 4]], [[1, 2, 4], [1, 4, 4]], [[2, 2, 4], [1, 4, 4]]):
        grid = torch.tensor(rows, device=DEVICE)
        x = data(int(grid.prod(-1).sum()), 5)
        dynamo.counters.clear()
        with torch.no_grad():
            for ours, eager in zip(compiled(x, grid), vision(x, grid), strict=True):
                assert_near(ours, eager, eager)
        assert bool(dynamo.counters["graph_break"]) == (rows[0][0] == 2)
        assert not left_uncompiled()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
def test_root_mean_square_norms(dtype: torch.dtype) -> None:
    """`aten._fused_rms_norm` becomes part of a kernel."""
    def f(x: torch.Tensor, w: torch.Tensor, s: torch.Tensor) -> Any:
        y = F.rms_norm(x, w.shape, w, 1e-6)
        out = F.silu(y) * (1 + s) + F.rms_norm(y + x, w.shape)
        return out, torch.autograd.grad(out.float().square().mean(), (x, w, s))

    def make() -> tuple[Any, ...]:
        return tuple(data(*size, dtype=dtype).requires_grad_() for size in ((4, 33, 320), (320,), (4, 1, 320)))

    compiled = check(f, make, slack=16.0)
    text = "".join(kernels_of(lambda: compiled(*make())))
    assert "cuComputePartGradGammaBeta" not in text and "vectorized_layer_norm" not in text


@pytest.mark.parametrize("make", [
    lambda ps: torch.optim.AdamW(ps, lr=1e-2, foreach=True), lambda ps: torch.optim.AdamW(ps, lr=1e-2, fused=True),
    lambda ps: torch.optim.Adafactor(ps), lambda ps: torch.optim.RAdam(ps),
    lambda ps: torch.optim.RAdam(ps, lr=1e-2, capturable=True), lambda ps: torch.optim.AdamW(ps, foreach=False),
    lambda ps: torch.optim.NAdam(ps), lambda ps: torch.optim.ASGD(ps, t0=1), lambda ps: torch.optim.Adamax(ps),
    lambda ps: torch.optim.Adagrad(ps, lr_decay=0.1), lambda ps: torch.optim.RMSprop(ps)])
def test_counters_of_optimizers_stay_where_they_are(make: Any) -> None:
    """On the CPU, or on the GPU; a step more compiles nothing."""
    ours, eagers = ([nn.Parameter(torch.ones(16, 8, device=DEVICE) * n) for n in (1, 2, 3)] for _ in range(2))
    mine, wanted = make(ours), make(eagers)
    step = dynamo.compile(mine.step, fullgraph=True)
    for n in range(6):
        for p, q in zip(ours, eagers, strict=True):
            p.grad = data(16, 8)
            q.grad = p.grad.clone()
        step()
        wanted.step()
        torch.testing.assert_close(ours, eagers, atol=1e-5, rtol=1e-5)
        for p, q in zip(ours, eagers, strict=True):
            for name, value in wanted.state[q].items():
                assert mine.state[p][name].device == value.device, name
        if n == 2:
            graphs = dynamo.counters["stats"]["graphs"]
    assert dynamo.counters["stats"]["graphs"] == graphs
    assert not left_uncompiled(), left_uncompiled()


def test_numbers_on_the_cpu_are_new_at_each_call() -> None:
    def f(x: torch.Tensor) -> Any:
        number = torch.tensor(2.0)
        return number, number.view(1), x * number

    compiled = dynamo.compile(f, fullgraph=True)
    for _ in range(3):
        found = compiled(x := data(5))
        assert [y.device.type for y in found] == ["cpu", "cpu", x.device.type]
        torch.testing.assert_close(found, f(x))
        found[1].add_(5)


@pytest.mark.skipif(torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 9),
                    reason="the device converts no float8")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=lambda dtype: str(dtype)[6:])
def test_float8_is_made_of_what_eager_has(dtype: torch.dtype) -> None:
    """A value that leaves half precision is rounded first: all but single elements are eager's."""
    def f(x: torch.Tensor) -> Any:
        y = F.silu(x)
        scale = (y.abs().amax(1, keepdim=True) / 448).float()
        return (y.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale

    x = data(512, 1024, dtype=dtype)
    (found, scale), (wanted, scale_there) = dynamo.compile(f, fullgraph=True)(x), f(x)
    assert (scale == scale_there).float().mean() > 0.99
    assert (found.float() == wanted.float()).float().mean() > 0.99
    assert not left_uncompiled(), left_uncompiled()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32], ids=str)
def test_division_by_numbers(dtype: torch.dtype) -> None:
    """Bits of eager's kernels: they multiply with a reciprocal, but divide floats by lists of numbers."""
    def f(x: torch.Tensor) -> Any:
        return [x / number for number in (3.3, 7, 0.1, 1e-3, 0, float("inf"))], torch._foreach_div([x, x + 1], 3.3), torch._foreach_div([x, x + 1], [3.3, 1e-3])

    x = (data(777) * 100).to(dtype)
    for found, wanted in zip(*(torch.utils._pytree.tree_leaves(call(x)) for call in (dynamo.compile(f), f)), strict=True):
        if dtype.itemsize == 2:  # what is rounded to half precision is divided by the device's approximation
            torch.testing.assert_close(found, wanted, equal_nan=True)
        else:
            assert torch.equal(found.nan_to_num(7, 8, 9), wanted.nan_to_num(7, 8, 9))
