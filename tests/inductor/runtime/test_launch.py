"""`Launcher`: inputs checked, extern calls, arena, output pool, errors, threads."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import dynamo
from dynamo.store.content import Store
from dynamo.store.toolchain import Toolchain, find_toolchain
from inductor.runtime.build import build_library

_launch = pytest.importorskip("inductor.runtime._launch", reason="the extension is not built")

PRELUDE = """
struct Runtime {
  void** data; int (*call)(Runtime*, long); void (*drop)(Runtime*, long);
  void (*sgemm)(const char*, const char*, const int*, const int*, const int*, const float*,
                const float*, const int*, const float*, const int*, const float*, float*,
                const int*);
  long code, value, bound; void* state;
};
static void relu(const void* from, void* to, long n) {
  for (long i = 0; i < n; i++) ((float*)to)[i] = ((float*)from)[i] > 0 ? ((float*)from)[i] : 0;
}
extern "C" __attribute__((visibility("default"))) int run(Runtime* rt) {
"""
F = torch.float32


@pytest.fixture(scope="module")
def compile_run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    store = Store(Path(tmp_path_factory.mktemp("cache")))
    toolchain = find_toolchain(store)
    assert isinstance(toolchain, Toolchain), toolchain

    def build(body: str) -> str:
        return str(build_library([PRELUDE + body + "\nreturn 0; }"], toolchain, store).path)

    return build


def square(n: int, *slots: tuple[str, int]) -> dict[str, Any]:
    """A description whose slots are n x n float matrices; one view for each, the last returned."""
    meta = (F, (n, n), (n, 1))
    return {
        "name": "g",
        "arena_bytes": n * n * 4 * sum(kind == "arena" for kind, _ in slots),
        "release_gil": False,
        "slots": [(kind, position, *meta) for kind, position in slots],
        "views": [(i, 0, *meta) for i in range(len(slots))],
        "constants": [],
        "externs": [],
        "outputs": [("view", len(slots) - 1)],
    }


MM_OUT = ("aten::mm", "out", [("view", 0), ("view", 0), ("view", 1)], [-1])


def relu_of_mm(n: int) -> dict[str, Any]:
    return square(n, ("input", 0), ("arena", 0), ("output", 0)) | {"externs": [MM_OUT]}


def relu_of_mm_body(n: int) -> str:
    return f"if (rt->call(rt, 0)) return 1; relu(rt->data[1], rt->data[2], {n * n});"


@pytest.mark.parametrize("release_gil", [False, True])
def test_extern_call_into_the_arena(compile_run: Any, release_gil: bool) -> None:
    spec = relu_of_mm(8) | {"release_gil": release_gil}
    launcher = _launch.Launcher(compile_run(relu_of_mm_body(8)), spec)
    for _ in range(3):
        x = torch.randn(8, 8)
        (got,) = launcher(x)
        assert torch.equal(got, torch.relu(x @ x))
    assert not got.is_inference()
    with torch.inference_mode():
        assert launcher(x)[0].is_inference()


def test_product_without_the_dispatcher(compile_run: Any) -> None:
    body = """if (!rt->sgemm) return 1; int n = 8; float one = 1, zero = 0;
    const float* x = (float*)rt->data[0];
    rt->sgemm("N", "N", &n, &n, &n, &one, x, &n, x, &n, &zero, (float*)rt->data[1], &n);"""
    launcher = _launch.Launcher(compile_run(body), square(8, ("input", 0), ("output", 0)))
    x = torch.randn(8, 8)
    torch.testing.assert_close(launcher(x)[0], x @ x)


def test_result_of_a_view_operator_never_looks_into_the_arena(compile_run: Any) -> None:
    spec = square(8, ("input", 0), ("arena", 0), ("extern", 0))
    spec["externs"] = [MM_OUT, ("aten::alias", "", [("view", 1)], [2])]
    launcher = _launch.Launcher(
        compile_run("if (rt->call(rt, 0) || rt->call(rt, 1)) return 1;"), spec
    )
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    first, second = launcher(x)[0], launcher(y)[0]
    assert torch.equal(first, x @ x) and torch.equal(second, y @ y)


def test_other_strides_of_a_result_are_made_the_expected_ones(compile_run: Any) -> None:
    spec = square(8, ("input", 0), ("extern", 0))
    spec["externs"] = [("aten::t", "", [("view", 0)], [1])]
    launcher = _launch.Launcher(compile_run("if (rt->call(rt, 0)) return 1;"), spec)
    x = torch.randn(8, 8)
    (got,) = launcher(x)
    assert got.stride() == (8, 1) and torch.equal(got, x.t())


def test_error_of_an_operator_is_eagers(compile_run: Any) -> None:
    spec = square(8, ("input", 0), ("extern", 0))
    operands = [("view", 0), ("constant", 0), ("constant", torch.tensor([9]))]
    operands[2] = ("view", 2)
    spec["constants"] = [torch.tensor([9])]
    spec["slots"].append(("constant", 0, torch.int64, (1,), (1,)))
    spec["views"].append((2, 0, torch.int64, (1,), (1,)))
    spec["externs"] = [("aten::index_select", "", operands, [1])]
    launcher = _launch.Launcher(compile_run("if (rt->call(rt, 0)) return 1;"), spec)
    with pytest.raises(IndexError) as eager:
        torch.index_select(torch.randn(8, 8), 0, torch.tensor([9]))
    for _ in range(2):
        with pytest.raises(IndexError) as ours:
            launcher(torch.randn(8, 8))
        assert str(ours.value) == str(eager.value)


def test_error_of_a_kernel(compile_run: Any) -> None:
    body = "rt->code = 1; rt->value = 9; rt->bound = 8; return 1;"
    launcher = _launch.Launcher(compile_run(body), square(8, ("input", 0), ("output", 0)))
    with pytest.raises(IndexError, match="index 9 is out of bounds for dimension with size 8"):
        launcher(torch.randn(8, 8))


@pytest.mark.parametrize(
    "wrong",
    [
        torch.randn(8, 7),
        torch.randn(8, 8).t(),
        torch.randn(8, 8).double(),
        torch.empty(8, 8, device="meta"),
        torch.randn(8, 8).to_sparse(),
        3,
    ],
    ids=["size", "stride", "dtype", "device", "layout", "type"],
)
def test_wrong_input_is_a_type_error(compile_run: Any, wrong: Any) -> None:
    launcher = _launch.Launcher(compile_run(relu_of_mm_body(8)), relu_of_mm(8))
    with pytest.raises(TypeError, match="input 0"):
        launcher(wrong)
    with pytest.raises(TypeError, match="takes 1 positional inputs, got 0"):
        launcher()


def test_output_blocks_come_back_within_the_peak(compile_run: Any) -> None:
    n = 256
    launcher = _launch.Launcher(compile_run(relu_of_mm_body(n)), relu_of_mm(n))
    _launch.release_memory()
    x = torch.randn(n, n)
    before = _launch.report_memory()
    held = [launcher(x)[0] for _ in range(2)]
    del held
    address = launcher(x)[0].data_ptr()
    assert launcher(x)[0].data_ptr() == address
    after = _launch.report_memory()
    assert after["new_blocks"] - before["new_blocks"] == 2
    assert after["reused_blocks"] > before["reused_blocks"]
    assert after["live_bytes"] + after["cached_bytes"] <= after["peak_live_bytes"]
    assert after["arenas"] >= 1
    kept = launcher(x)[0]
    _launch.release_memory()
    freed = _launch.report_memory()
    assert freed["cached_bytes"] == 0 and freed["arenas"] == 0
    assert torch.equal(kept, torch.relu(x @ x)) and torch.equal(launcher(x)[0], kept)


def test_output_may_be_resized_and_written(compile_run: Any) -> None:
    launcher = _launch.Launcher(compile_run(relu_of_mm_body(128)), relu_of_mm(128))
    out = launcher(torch.randn(128, 128))[0]
    out.add_(1).resize_(256, 256).zero_()
    assert out.sum() == 0


def test_larger_graph_takes_over_the_arena(compile_run: Any) -> None:
    _launch.release_memory()
    small = _launch.Launcher(compile_run(relu_of_mm_body(8)), relu_of_mm(8))
    large = _launch.Launcher(compile_run(relu_of_mm_body(128)), relu_of_mm(128))
    x, y = torch.randn(8, 8), torch.randn(128, 128)
    for _ in range(3):
        assert torch.equal(small(x)[0], torch.relu(x @ x))
        assert torch.equal(large(y)[0], torch.relu(y @ y))
    report = _launch.report_memory()
    assert report["arenas"] == 1 and report["arena_bytes"] == 128 * 128 * 4


def test_threads_have_an_arena_each(compile_run: Any) -> None:
    spec = relu_of_mm(64) | {"release_gil": True}
    launcher = _launch.Launcher(compile_run(relu_of_mm_body(64)), spec)

    def check(seed: int) -> bool:
        x = torch.randn(64, 64, generator=torch.Generator().manual_seed(seed))
        want = torch.relu(x @ x)
        return all(torch.equal(launcher(x)[0], want) for _ in range(50))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(check, range(8)))


def test_description_that_does_not_fit_is_refused(compile_run: Any) -> None:
    path = compile_run(relu_of_mm_body(8))
    outside = relu_of_mm(8) | {"arena_bytes": 16}
    with pytest.raises(RuntimeError, match="outside the arena"):
        _launch.Launcher(path, outside)
    escaping = relu_of_mm(8) | {"outputs": [("view", 1)]}
    with pytest.raises(RuntimeError, match="can't live in the arena"):
        _launch.Launcher(path, escaping)
    gc.collect()


def test_a_lazy_clone_becomes_a_real_one_before_it_is_written() -> None:
    base = torch.randn(100)
    kept, clone = base.clone(), torch._lazy_clone(base)

    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    result = dynamo.compile(f)(clone)
    assert torch.equal(base, kept)
    assert torch.equal(clone, kept + 1)
    assert torch.equal(result, (kept + 1) * 2)
