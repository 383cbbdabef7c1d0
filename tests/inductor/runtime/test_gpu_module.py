"""Compiled graphs for a GPU as plain data, without a GPU: what is written, read, and started."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx

from dynamo.aot.recipes import not_cacheable
from dynamo.base import logs
from dynamo.base.config import config as dynamo_config
from dynamo.store import gpu_facts
from dynamo.store.content import Store, watched_files
from dynamo.store.records import Uncacheable
from inductor.cache import graph_key, kernel_binaries
from inductor.cache.gpu_module import GpuModule, by_sizes, loaded_call, loaded_variant, with_recipe
from inductor.cache.graph_cache import read_record, write_record
from inductor.cache.launched import Watched
from inductor.codegen.python_wrapper import HEAD, host_part
from inductor.config import config
from inductor.dynamic_shapes.symbolic import Variant
from inductor.ir.extent import Sizes
from inductor.lowering.sizes import Source
from inductor.runtime import binaries, triton_binary, triton_launch
from inductor.runtime.binaries import Binary, Later, NotLoaded, Started, binary_of, start_of
from inductor.runtime.triton_launch import CachedPreparation, Preparation

DEVICE = torch.device("cuda", 0)
GRIDS = ((4, 2, 1), (8, 1, 1))
CHOICES = ((64, 8, 4), (32, 8, 4))
DTYPES = (torch.float32, torch.float32)
BINARY = Binary("kernel", b"\0cubin\n\1", 128, 96)
TEXT = HEAD.format(kernel_imports="raise ImportError('triton is wanted')\n") + '''
device = torch.device("cpu")

def twice_1a(a, b):
    raise ImportError("triton is wanted")

def make(constants, prepare, slow):
    c0, = constants
    triton0 = prepare(twice_1a, ((64, 1, 4),), (torch.float32, torch.float32, ), unsure=(0,), asserts=False, repeatable=True)

    def bind():
        launch0 = triton0.at(((1, 1, 1),), ())
        new0 = Allocation((3,), (1,), torch.float32, device)

        def of_list(args):
            arg0, = args
            args.clear()
            buf0 = new0()
            launch0(77, arg0, buf0)
            return (buf0, view(c0, (2,), (1,), 1), )

        return boxed(of_list)

    return bind
'''


class Driver:
    """In the place of CUDA's: what each kernel was started with."""

    def __init__(self) -> None:
        self.starts: list[tuple[Any, ...]] = []
        number, place = ctypes.c_uint, ctypes.c_void_p
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, place, *[number] * 7, place, ctypes.POINTER(ctypes.POINTER(place)), place)
        self.function = kind(self.start)
        self.address = ctypes.cast(self.function, place).value

    def start(self, function: int, *rest: Any) -> int:
        self.starts.append((function, rest[:7], rest[7]))
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    made = Driver()
    for module in (triton_launch, triton_binary):
        monkeypatch.setattr(module, "driver_launch", lambda: made.address)
    monkeypatch.setattr(triton_launch, "start_of", lambda binary, device: Started(55, binary.threads, binary.shared))
    yield made


def module_of(device: torch.device = DEVICE) -> GpuModule:
    steps = [("twice", (), "k0", "kernel", ("a.py:3",), 24, 3)]
    return GpuModule(TEXT, device, (torch.arange(4.0),), (BINARY,), None, steps, {"twice_1a": "k0"})


def test_the_host_part_has_no_kernels() -> None:
    text = host_part(TEXT, DEVICE)
    assert "import triton" not in text and "ImportError" not in text
    assert "twice_1a = 'twice_1a'" in text and 'device = torch.device("cuda:0")' in text
    assert text.endswith(TEXT[TEXT.index("def make("):])


def test_a_record_gives_the_call_again(driver: Driver, tmp_path: Path) -> None:
    """Plain data: kernels start at the first call, without Triton, and lines follow the program that reads it."""
    graph = fx.Graph()
    graph.output(())
    given = {"gm": fx.GraphModule({}, graph), "keeping": object(), "traces": [None, '  File "a.py", line 3, in f\n']}
    content = write_record(with_recipe(lambda: None, module_of(torch.device("cpu"))), given, Watched(), Store(tmp_path))
    assert b"a.py" not in content
    moved = {**given, "traces": [None, '  File "b.py", line 8, in g\n']}
    call = read_record(content, moved, Store(tmp_path))
    found = call(torch.ones(3))
    assert [tuple(part.shape) for part in found] == [(3,), (2,)] and found[1].tolist() == [1.0, 2.0]
    assert [(function, shape, stream) for function, shape, stream in driver.starts] == [(55, (1, 1, 1, 128, 1, 1, 96), 77)]
    given_list = [torch.ones(3)]
    call.of_list(given_list)
    assert not given_list and len(driver.starts) == 2
    repeatable = read_record(write_record(call, moved, Watched(), Store(tmp_path)), moved, Store(tmp_path))
    assert repeatable.recipe.given[0].steps == [("twice", (), "k0", "kernel", ("b.py:8",), 24, 3)]


def test_code_for_all_sizes_comes_back(driver: Driver, tmp_path: Path) -> None:
    """With what it assumes of them; a kernel starts for each sizes, without Triton."""
    text = TEXT.replace("def bind():", "def bind(k0):").replace("((1, 1, 1),), ()", "((k0, 1, 1),), ()").replace("((3,),", "((k0,),")
    sizes = Sizes()
    sizes.assume_positive(sizes.symbol(hint=8, low=2) - 4)
    module = GpuModule(text, torch.device("cpu"), (torch.arange(4.0),), (BINARY,), None, [], {})
    variant = loaded_variant(module, sizes, (Source(0, 0),), (0,))
    graph = fx.Graph()
    graph.output(())
    given = {"gm": fx.GraphModule({}, graph), "keeping": object(), "traces": []}
    for _ in range(2):  # what was read can be written again
        variant = read_record(write_record(variant, given, Watched(), Store(tmp_path)), given, Store(tmp_path))
    assert variant.holds(5) and not variant.holds(4) and variant.sources == (Source(0, 0),)
    assert variant.broken((4,)) and not variant.broken((5,))
    for size in (5, 9):
        found = variant.bind((size,))(torch.ones(size))
        assert [tuple(part.shape) for part in found] == [(size,), (2,)]
    assert [shape[0] for _, shape, _ in driver.starts] == [5, 9]


def test_measured_code_for_all_sizes_is_not_kept(tmp_path: Path) -> None:
    variant = Variant(lambda *_: True, lambda _: "", by_sizes(lambda *_: len, None), (), (), Sizes())
    with pytest.raises(Uncacheable, match="measured"):
        write_record(variant, {"gm": None, "keeping": object(), "traces": []}, Watched(), Store(tmp_path))


def test_what_is_not_kept_says_why(tmp_path: Path) -> None:
    graph = fx.Graph()
    graph.output(())
    given = {"gm": fx.GraphModule({}, graph), "keeping": object(), "traces": []}
    with pytest.raises(Uncacheable, match="k0 runs as ATen operators"):
        write_record(not_cacheable(lambda: None, "k0 runs as ATen operators"), given, Watched(), Store(tmp_path))


def test_odd_addresses_bring_the_whole_module(driver: Driver, tmp_path: Path) -> None:
    call = loaded_call(module_of(torch.device("cpu")))
    with dynamo_config.patch(cache_dir=str(tmp_path)), pytest.raises(ImportError, match="triton is wanted"):
        call(torch.ones(4)[1:])
    assert not driver.starts


def test_kept_launchers_start_at_once(driver: Driver) -> None:
    made = CachedPreparation(DEVICE, iter([BINARY, None]), lambda: SimpleNamespace(f=None))
    launcher = made.prepare("f", CHOICES, DTYPES, (0,), False, True, likely_even=True)
    tensors = torch.randn(64), torch.randn(64)
    launcher.at(GRIDS)(7, *tensors)
    assert driver.starts == [(55, (4, 2, 1, 128, 1, 1, 96), 7)]
    assert not made.prepare("f", CHOICES, DTYPES, (), False, True).started


def test_what_becomes_bytes() -> None:
    def compiled(**special: int) -> Any:
        facts = SimpleNamespace(shared=96, num_ctas=1, num_warps=8, **special)
        return SimpleNamespace(asm={"cubin": b"c"}, name="n", metadata=facts)

    assert binary_of(compiled(), 128) == Binary("n", b"c", 128, 96)
    assert binary_of(compiled(global_scratch_size=8), 128) is None  # Triton starts it
    assert binary_of(compiled(global_scratch_size=8), 256, True) == Binary("n", b"c", 256, 96)
    launcher = Preparation(DEVICE).prepare(None, CHOICES, DTYPES, (), False, True)
    assert launcher.binary() is None
    launcher.compiled = compiled()
    assert launcher.binary() == Binary("n", b"c", 128, 96)


def test_functions_of_a_module_that_is_imported_later() -> None:
    calls: list[Any] = []

    class Function:
        def warmup(self, *args: Any, **kwargs: Any) -> str:
            return f"warm {args} {kwargs}"

        def __getitem__(self, grid: Any) -> str:
            return f"at {grid}"

    def module() -> Any:
        calls.append(1)
        return SimpleNamespace(f=Function())

    later = Later("f", module)
    assert later.__name__ == "f" and not calls
    assert later.warmup(1, grid=2) == "warm (1,) {'grid': 2}" and later[3, 1] == "at (3, 1)"


class Library:
    """In the place of libcuda: it fails at the call of that name."""

    def __init__(self, fails: str = "") -> None:
        self.fails, self.asked = fails, []

    def __getattr__(self, name: str) -> Any:
        def ask(*args: Any) -> int:
            self.asked.append(name)
            return 201 if name == self.fails else 0

        return ask


@pytest.mark.parametrize("shared", [96, 100_000])
def test_the_driver_loads_a_kernel(shared: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(
        shared_memory_per_block_optin=232_448))
    monkeypatch.setattr(binaries, "_need_context", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    library = Library()
    monkeypatch.setattr(binaries, "_driver", lambda: library)
    binary = Binary("k", b"c", 64, shared)
    assert start_of(binary, DEVICE) == Started(0, 64, shared)
    wanted = ["cuModuleLoadData", "cuModuleGetFunction"]
    more = ["cuFuncSetCacheConfig", "cuFuncGetAttribute", "cuFuncSetAttribute"]
    assert library.asked == wanted + (more if shared > 48 << 10 else [])
    library.fails = "cuModuleLoadData"
    with pytest.raises(NotLoaded, match="cuModuleLoadData gives the CUDA error 201"):
        start_of(binary, DEVICE)
    with pytest.raises(NotLoaded, match="k needs 300000 bytes of shared memory, of 232448"):
        start_of(Binary("k", b"c", 64, 300_000), DEVICE)


# -- facts and keys --------------------------------------------------------------------------------


def test_no_gpu_no_facts() -> None:
    if not torch.cuda.is_initialized():
        assert gpu_facts.parts_of_gpus() == {}


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: SimpleNamespace(
        name="H200" if number else "T4", major=9 if number else 7, minor=0, multi_processor_count=132))
    monkeypatch.setattr(gpu_facts, "DRIVER", Path("/nowhere"))
    monkeypatch.setenv("TRITON_SOMETHING", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", "/tmp/t")
    for function in (gpu_facts.kinds_of_gpus, gpu_facts.kind_of_gpu, gpu_facts.driver):
        function.cache_clear()
    yield
    for function in (gpu_facts.kinds_of_gpus, gpu_facts.kind_of_gpu, gpu_facts.driver):
        function.cache_clear()


def test_facts_of_several_gpus(two_gpus: None) -> None:
    found = gpu_facts.parts_of_gpus()
    assert found["gpus"] == "1 T4 7.0 x132, 2 H200 9.0 x132" and found["current gpu"] == "1"
    assert found["driver"].endswith("unknown")
    assert found["triton's settings"] == "[('TRITON_SOMETHING', '1')]"


def test_binaries_in_the_folder(two_gpus: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    x = torch.ones(2)

    def key(text: str = "def k(): ..", rows: int = 64, tensor: torch.Tensor = x) -> Any:
        return kernel_binaries.key_of(text, "k", {"ROWS": rows}, [tensor])

    with config.patch(graph_cache=True), dynamo_config.patch(cache_dir=str(tmp_path)):
        assert kernel_binaries.find(key()) is None
        with watched_files() as files:
            kernel_binaries.keep(key(), BINARY)
        assert [path.parent.parent.name for path in files if path.suffix == ".cubin"] == ["binary"]
        assert kernel_binaries.find(key()) == BINARY
        for other in (key("def k(): pass"), key(rows=32), key(tensor=x.half())):
            assert kernel_binaries.find(other) is None
        logs.set_logs(cache=True)
        try:
            with monkeypatch.context() as patch:
                patch.setattr(gpu_facts, "driver", lambda: "CUDA 9, 1")
                assert kernel_binaries.find(key()) is None
        finally:
            logs.set_logs("-cache")
        assert "the nearest binary differs in: driver ('CUDA" in capfd.readouterr().err


def test_a_damaged_binary_is_not_used(two_gpus: None, tmp_path: Path) -> None:
    with config.patch(graph_cache=True), dynamo_config.patch(cache_dir=str(tmp_path)):
        key = kernel_binaries.key_of("text", "k", {}, [torch.ones(2)])
        kernel_binaries.keep(key, BINARY)
        path = next(tmp_path.glob("binary/??/*.cubin"))
        path.write_bytes(path.read_bytes()[:-1] + b"?")
        assert kernel_binaries.find(key) is None


def test_nothing_is_kept_where_the_cache_is_off(two_gpus: None) -> None:
    with config.patch(graph_cache=False):
        assert kernel_binaries.key_of("text", "k", {}, [torch.ones(2)]) is None


class OnGpu(torch.Tensor):
    """Looks like a matrix on a GPU, at an address."""

    is_cuda = True
    at = 0

    def data_ptr(self) -> int:
        return self.at


def matrix(rows: int, at: int) -> torch.Tensor:
    made = torch.zeros(rows, 4).as_subclass(OnGpu)
    made.at = at
    return made


def test_the_key_knows_which_weights_lie_in_order() -> None:
    weights = [matrix(4, 64), matrix(4, 0), matrix(2, 128), matrix(4, 4096)]
    text = "call_function torch._C._nn.linear tuple(%0, %1, None) {} []"
    assert graph_key._order(text, weights) == "[(1, 0), (0, 2)]"
    assert graph_key._order(text, [torch.zeros(4, 4), weights[0], matrix(2, 256)]) == "[]"
    step = "call_function torch._foreach_lerp_ tuple(tuple(%0, %1), tuple(%2, %3), 0.5) {} []"
    assert graph_key._order(step, weights) == graph_key._order(step, [])
