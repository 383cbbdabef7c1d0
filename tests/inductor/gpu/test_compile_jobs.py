"""Other processes compile Triton functions as this one would, for a GPU that need not be here."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from dynamo.base.processes import Processes
from inductor import metrics
from inductor.codegen.python_wrapper import HEAD
from inductor.codegen.triton.print_kernel import MODULE_HEAD
from inductor.config import config
from inductor.driver import cuda
from inductor.lowering.run import lower_graph
from inductor.package.gpu_kernels import POINTERS
from inductor.runtime import triton_launch
from inductor.runtime.binaries import Started
from inductor.runtime.modules import import_file
from inductor.runtime.triton_launch import Preparation
from inductor.scheduler.run import schedule_graph

sys.path.append(str(Path(__file__).parents[1] / "symbolic"))
from for_all_sizes import capture  # noqa: E402

triton = pytest.importorskip("triton", reason="triton is not installed here")
if triton.knobs.runtime.interpret:
    pytest.skip("TRITON_INTERPRET is set", allow_module_level=True)

from inductor.runtime import compile_jobs, compile_worker  # noqa: E402
from inductor.runtime.compile_worker import Job, compile_job  # noqa: E402
from inductor.runtime.ptx import install_unpacking, other_hooks  # noqa: E402

TARGET = ("cuda", 90, 32)
TEXT = HEAD.format(kernel_imports=MODULE_HEAD) + """


@triton.jit
def add(in0, in1, out2, count, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr):
    x = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)
    tl.store(out2 + x, tl.load(in0 + x, x < count) + tl.load(in1 + x, x < count), x < count)


@triton.jit
def wrong(in0, in1, out2, count, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr):
    tl.store(out2 + no_such_name, 0)
"""
DTYPES = (torch.float32,) * 3
CHOICE = (256, 1, 4)


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "generated_for_jobs.py"
    path.write_text(TEXT)
    yield import_file("generated_for_jobs", path)
    del sys.modules["generated_for_jobs"]


@pytest.fixture
def no_gpu(monkeypatch):
    """Two processes, whatever the machine has, and a driver that loads nothing."""
    started = []

    def start(binary, device):
        started.append(binary)
        return Started(1, binary.threads, binary.shared)

    monkeypatch.setattr(triton_launch, "start_of", start)
    monkeypatch.setattr(compile_jobs, "are_worth_it", lambda: True)
    monkeypatch.setattr(compile_jobs, "target_of", lambda device: TARGET)
    monkeypatch.setattr(compile_jobs, "Processes", lambda name, count, *more, **options: Processes(
        name, 2, *more, **options))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with compile_jobs.processes.__wrapped__() as two:
        list(two.results([None, None]))  # no jobs, but whoever answers is ready
        monkeypatch.setattr(compile_jobs, "processes", lambda: two)
        yield started


def prepared(module, *names):
    preparation = Preparation(torch.device("cuda", 0))
    for name in names:
        preparation.prepare(getattr(module, name), (CHOICE,), DTYPES, (), False, True, kinds="i")
    return preparation


def test_kernels_come_from_other_processes(module, no_gpu, monkeypatch):
    monkeypatch.setattr(triton_launch, "_error_of", lambda launcher: ValueError("not here"))
    preparation = prepared(module, "add", "add", "add", "add")
    before = metrics.snapshot()["not_by_processes"]
    assert preparation.compile_all(1) == {}
    assert metrics.snapshot()["not_by_processes"] == before
    for launcher in preparation.launchers:
        assert launcher.started[False] == Started(1, 128, 0)
        assert launcher.binary() in no_gpu and launcher.binary().cubin.startswith(b"\x7fELF")


def program(x):
    return x.softmax(-1), x.cumsum(1), (x * 2).amax(0), x.sin().sum(1), x.t().contiguous()


def test_a_generated_module(no_gpu, tmp_path, monkeypatch):
    """With all that stands in it beside the kernels."""
    monkeypatch.setattr(triton_launch, "_error_of", lambda launcher: ValueError("not here"))
    with config.patch(gpu="sm_90"):
        graph = lower_graph(capture(program, [torch.empty(300, 1000)], mode="fake")).graph
        there = replace(graph, device=torch.device("cuda", 0))
        text = cuda.generate(there, schedule_graph(there, 8)).text
    path = tmp_path / "generated_whole.py"
    path.write_text(text)
    preparation = Preparation(torch.device("cuda", 0))
    import_file("generated_whole", path).make([], preparation.prepare, None)
    before = metrics.snapshot()["not_by_processes"]
    assert preparation.compile_all(1) == {}
    assert metrics.snapshot()["not_by_processes"] == before
    assert len(preparation.launchers) >= 4 and all(one.made for one in preparation.launchers)


def test_what_fails_there_fails_here_with_its_own_error(module, no_gpu):
    preparation = prepared(module, "add", "wrong", "add", "wrong")
    tried = []

    def compiled(launcher):
        tried.append(launcher)
        return NameError("no_such_name")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(triton_launch, "_error_of", compiled)
        before = metrics.snapshot()["not_by_processes"]
        errors = preparation.compile_all(1)
        assert metrics.snapshot()["not_by_processes"] >= before + 2
    assert set(errors) >= {"wrong"} and isinstance(errors["wrong"], NameError)
    assert preparation.launchers[1] in tried and preparation.launchers[3] in tried


def test_few_kernels_are_compiled_here(module, no_gpu):
    preparation = prepared(module, "add")
    left = triton_launch.by_processes(preparation.launchers, preparation.device)
    assert left == preparation.launchers and not no_gpu


def test_what_triton_has_to_start_has_no_cubin(module, monkeypatch):
    job = prepared(module, "add").launchers[0].job(TARGET)
    from triton.runtime import driver

    before = driver._active
    try:
        assert compile_job(job).cubin
        monkeypatch.setattr(compile_worker, "is_simple", lambda made: False)
        assert not compile_job(replace(job, numbers=1)).cubin
    finally:
        driver._active = before
        compile_worker.compile_for.cache_clear()


@pytest.mark.parametrize("dtype", [*POINTERS, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_dtypes_are_those_of_torch(dtype):
    """Triton knows them by their text."""
    from triton.runtime.jit import MockTensor, mangle_type

    name = str(dtype).removeprefix("torch.")
    ours, theirs = MockTensor(compile_worker.Dtype(name)), MockTensor(dtype)
    assert mangle_type(ours) == mangle_type(theirs)


def test_hooks_of_the_program_keep_kernels_here(monkeypatch):
    from triton import knobs

    monkeypatch.setattr(knobs.runtime, "add_stages_inspection_hook", None)
    install_unpacking()
    assert not other_hooks()
    monkeypatch.setattr(knobs.runtime, "jit_post_compile_hook", lambda **_: None)
    assert other_hooks() and not compile_jobs.are_worth_it()
    monkeypatch.setattr(knobs.runtime, "jit_post_compile_hook", None)
    monkeypatch.setattr(knobs.runtime, "add_stages_inspection_hook", lambda *_: None)
    install_unpacking()
    assert other_hooks()


def test_a_job_knows_its_file(module):
    launcher = prepared(module, "add").launchers[0]
    job = launcher.job(TARGET)
    assert isinstance(job, Job) and job.path == module.__file__
    assert job.name == "add" and job.numbers == 1 and job.options["num_warps"] == 4
    assert SimpleNamespace(**job.options).XBLOCK == 256


@pytest.mark.parametrize(("ranks", "count"), [(None, 12), ("4", 3), ("0", 12), ("all", 12)])
def test_ranks_share_the_processors(ranks, count, monkeypatch):
    monkeypatch.setattr(compile_jobs.os, "sched_getaffinity", lambda pid: range(12))
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if ranks is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert compile_jobs.processor_count() == count


def test_programs_that_hold_python_compile_in_threads(monkeypatch):
    monkeypatch.setattr(compile_jobs, "processor_count", lambda: 12)
    monkeypatch.setattr(compile_jobs, "other_hooks", lambda: False)
    assert compile_jobs.are_worth_it()
    for executable in ("/usr/bin/uwsgi", "", None):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", executable)
            assert not compile_jobs.are_worth_it()
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert not compile_jobs.are_worth_it()


BROKEN = """
def make(constants, prepare, slow):
    launcher = prepare(wrong, ((256, 1, 4),), (torch.float32,) * 3, (), False, True, kinds="i")
    return lambda: launcher
"""


def test_modules_are_compiled_together(no_gpu, monkeypatch):
    """Candidates of a measurement, say: one that Triton can't compile is left out alone."""
    asked = []
    compile_together = cuda.compile_launchers

    def noted(launchers, device, workers):
        asked.append(len(launchers))
        return compile_together(launchers, device, workers)

    monkeypatch.setattr(cuda, "compile_launchers", noted)
    monkeypatch.setattr(
        triton_launch, "_error_of",
        lambda launcher: ValueError("not here") if launcher.function.__name__ == "wrong" else None)
    there = torch.device("cuda", 0)
    modules = []
    with config.patch(gpu="sm_90"):
        for count in (300, 301, 302):
            graph = replace(lower_graph(capture(program, [torch.empty(count, 96)], mode="fake")).graph, device=there)
            modules.append((cuda.generate(graph, schedule_graph(graph, 8)).text, graph))
    modules[1:1] = [(TEXT + BROKEN, graph), ("def make(", graph)]
    found = cuda.load_all(modules)
    assert len(asked) == 1 and asked[0] > 3 and len(no_gpu) == asked[0] - 1
    assert [type(one) for one in found[1:3]] == [ValueError, SyntaxError]
    assert all(map(callable, (found[0], *found[3:])))
