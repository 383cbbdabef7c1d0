"""Packages run without Python: programs in C++ and the loader give what eager gives."""

from __future__ import annotations

import os
import struct
import subprocess
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

import dynamo
from dynamo.base.dtype_numbers import NUMBERS
from dynamo.exc import GuardFailed, LoadError, Unsupported
from dynamo.exporting.packaged import DTYPES
from dynamo.store.content import cache_store
from examples.package import make
from inductor.driver.cpu import need_toolchain
from inductor.package.link import needed_instructions
from inductor.scheduler import convolution_chains

ROOT = Path(__file__).parents[2]
HEADERS = ROOT / "inductor" / "package" / "cpp"


@pytest.fixture(scope="session")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that knows nothing but `model.h`."""
    program = tmp_path_factory.mktemp("runner") / "runner"
    source = Path(__file__).with_name("runner.cpp")
    subprocess.run(["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-I", str(HEADERS), str(source),
                    "-o", str(program), "-ldl", "-lpthread"], check=True)
    return program


def span(tensor: torch.Tensor) -> int:
    return 0 if 0 in tensor.shape else 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))


def write_tensors(path: Path, tensors: list[torch.Tensor]) -> None:
    parts = [struct.pack("<q", len(tensors))]
    for one in tensors:
        content = one.as_strided((span(one),), (1,)).view(torch.uint8).numpy().tobytes()
        numbers = (NUMBERS[one.dtype], one.dim(), *one.shape, *one.stride(), len(content))
        parts += [struct.pack(f"<{len(numbers)}q", *numbers), content]
    path.write_bytes(b"".join(parts))


def read_tensors(path: Path) -> list[torch.Tensor]:
    content, at, found = path.read_bytes(), 0, []

    def numbers(count: int) -> tuple[int, ...]:
        nonlocal at
        at += 8 * count
        return struct.unpack_from(f"<{count}q", content, at - 8 * count)

    for _ in range(*numbers(1)):
        kind, dims = numbers(2)
        sizes, strides, (size,) = numbers(dims), numbers(dims), numbers(1)
        flat = torch.frombuffer(bytearray(content[at : at + size]), dtype=DTYPES[kind])
        found.append(flat.as_strided(sizes, strides))
        at += size
    return found


def run_program(runner: Path, folder: Path, inputs: list[torch.Tensor], *more: str) -> list[torch.Tensor]:
    """In an empty environment: no Python, no libraries of torch."""
    given, got = folder.with_suffix(".in"), folder.with_suffix(".out")
    write_tensors(given, inputs)
    done = subprocess.run(["env", "-i", str(runner), str(folder), str(given), str(got), *more],
                          capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return read_tensors(got)


def tensors_in(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def check(runner: Path, folder: Path, model: Any, make: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]],
          *more: str, exact: bool = False) -> Any:
    """Packages a model, and compares both ways of running it with eager on two fresh sets of inputs."""
    args, kwargs = make()
    dynamo.package(model, args, folder, kwargs)
    loaded = dynamo.load_package(folder)
    close = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-4, "atol": 1e-5}
    for _ in range(2):
        args, kwargs = make()
        with torch.no_grad():
            wanted = model(*args, **kwargs)
        in_cpp = run_program(runner, folder, tensors_in((args, kwargs)), *more)
        torch.testing.assert_close(in_cpp, tensors_in(wanted), check_stride=True, **close)
        in_python = loaded(*args, **kwargs)
        assert pytree.tree_structure(in_python) == pytree.tree_structure(wanted)
        torch.testing.assert_close(tensors_in(in_python), tensors_in(wanted), check_stride=True, **close)
        others = [leaf for leaf in pytree.tree_leaves(wanted) if not isinstance(leaf, torch.Tensor)]
        assert others == [leaf for leaf in pytree.tree_leaves(in_python) if not isinstance(leaf, torch.Tensor)]
    return loaded


def mlp() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(24, 40), torch.nn.GELU(), torch.nn.LayerNorm(40), torch.nn.Linear(40, 1)).eval()


def test_an_mlp_from_several_threads(runner: Path, tmp_path: Path) -> None:
    """The program runs it in three threads at once, which must agree."""
    check(runner, tmp_path / "mlp", mlp(), lambda: ((torch.randn(3, 24),), {}), "1", "3")
    needed = subprocess.run(["ldd", str(tmp_path / "mlp" / "libmodel.so")], capture_output=True, text=True).stdout
    assert "libgomp" in needed and "python" not in needed and "torch" not in needed, needed


def small_model(name: str) -> torch.nn.Module:
    transformers = pytest.importorskip("transformers")
    small = {"vocab_size": 50, "use_cache": False}
    if name == "bert":
        return transformers.BertModel(transformers.BertConfig(
            hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=50)).eval()
    if name == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(
            n_embd=32, n_layer=2, n_head=2, n_positions=32, bos_token_id=1, eos_token_id=1, **small)).eval()
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=64,
        **small)).eval()


@pytest.mark.parametrize("name", ["bert", "gpt2", pytest.param("llama", marks=pytest.mark.long)])
def test_small_transformers(runner: Path, tmp_path: Path, name: str) -> None:
    def make() -> tuple[tuple[Any, ...], dict[str, Any]]:
        mask = torch.ones(2, 12, dtype=torch.int64)
        mask[1, int(torch.randint(4, 12, ())):] = 0
        more = {"attention_mask": mask} if name == "bert" else {}
        return (), {"input_ids": torch.randint(0, 50, (2, 12)), **more}

    check(runner, tmp_path / name, small_model(name), make)


def test_the_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make.main(str(tmp_path / "classifier"))
    with torch.no_grad():
        rows = make.classifier()(torch.arange(16.0).reshape(2, 8) / 16).tolist()
    wanted = [[f"{value:.4f}" for value in row] for row in rows]
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == wanted
    program = tmp_path / "main"
    source = ROOT / "examples" / "package" / "main.cpp"
    subprocess.run(["g++", "-std=c++17", str(source), "-I", str(tmp_path / "classifier"), "-ldl", "-o", str(program)],
                   check=True)
    out = subprocess.run(["env", "-i", str(program), str(tmp_path / "classifier")], capture_output=True, text=True)
    assert [line.split() for line in out.stdout.splitlines()] == wanted, out.stderr


class Convolutions(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        conv, norm = torch.nn.Conv2d, torch.nn.BatchNorm2d
        self.layers = torch.nn.Sequential(
            conv(3, 16, 3, padding=1), norm(16), torch.nn.ReLU(), torch.nn.MaxPool2d(2),
            conv(16, 16, 3, padding=1, groups=16), conv(16, 32, 3, stride=2, padding=1, bias=False), norm(32),
            torch.nn.SiLU(), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(32, 5))
        for one in self.layers:
            if isinstance(one, norm):
                torch.nn.init.uniform_(one.running_mean)
                torch.nn.init.uniform_(one.running_var, 0.5, 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def test_a_convolutional_net(runner: Path, tmp_path: Path) -> None:
    check(runner, tmp_path / "conv", Convolutions().eval(), lambda: ((torch.randn(2, 3, 20, 20),), {}))


def test_convolutions_in_strips(
    runner: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convolution_chains, "FEWEST_BYTES", 0)
    nn = torch.nn
    block = [nn.Conv2d(16, 48, 1), nn.ReLU6(), nn.Conv2d(48, 48, 3, 2, 1, groups=48), nn.SiLU()]
    model = nn.Sequential(*block, nn.Conv2d(48, 24, 1)).eval()
    check(runner, tmp_path / "strips", model, lambda: ((torch.randn(2, 16, 33, 31),), {}))


@pytest.mark.long
def test_a_whole_resnet(runner: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig()).eval()
    check(runner, tmp_path / "resnet", model, lambda: ((torch.randn(1, 3, 64, 64),), {}))


class Results(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4, 3))
        self.register_buffer("table", torch.arange(12).reshape(3, 4))

    def forward(self, x: torch.Tensor, pair: tuple[torch.Tensor, float], *, flag: bool) -> dict[str, Any]:
        y = x @ self.weight.relu()
        parts = y.chunk(3, 1)
        return {
            "sum": y.sum(), "parts": parts, "turned": x.t()[1:], "same": x, "again": [y, y], "none": None,
            "weight": self.weight, "table": self.table + pair[0].cumsum(1), "number": pair[1], "flag": flag,
            "stack": torch.bmm(x[:, None], self.weight.expand(5, 4, 3)), "less": pair[0] > 2,
            "halves": (y.half(), y.double(), y.bfloat16()),
        }


def test_all_kinds_of_results(runner: Path, tmp_path: Path) -> None:
    def make() -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (torch.randn(5, 4), (torch.randint(0, 9, (3, 4)), 0.5)), {"flag": True}

    loaded = check(runner, tmp_path / "results", Results(), make)
    args, kwargs = make()
    got = loaded(*args, **kwargs)
    assert got["same"] is args[0] and got["again"][0] is got["again"][1]
    assert got["turned"].untyped_storage().data_ptr() == args[0].data_ptr() or torch.equal(got["turned"], args[0].t()[1:])
    with pytest.raises(GuardFailed, match="an argument was True, now it is False"):
        loaded(*args, flag=False)
    with pytest.raises(GuardFailed, match="another structure"):
        loaded(args[0], list(args[1]), flag=True)


def products(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> list[torch.Tensor]:
    """Products of all kinds of operands, which are small numbers: a [6, 8], b [8, 4], c [2, 6, 8]."""
    add, half = torch.addmm, torch.bfloat16
    return [
        a @ b, a.t() @ a, a[:1] @ b, a[:, :1] @ b[:1], a @ b[:, :1], a[::2] @ b, a[:, ::2] @ b[::2], a[:, ::2] @ b[1::2],
        a[:1].expand(6, 8) @ b, a @ b[:, :1].expand(8, 4), a @ a[1], b[0] @ b[1], torch.addmv(a[:, 3], a, b[:, 0], beta=2),
        add(a[:, :4], a, b, beta=0.5, alpha=2), add(b[0], a, b), add(a[0, ::2], a, b), add(a[:, :4], a, b, beta=0),
        torch.bmm(c, c.mT), torch.bmm(c.mT, c), torch.bmm(c[:1], b[None]), c @ b, a @ c.mT, torch.bmm(c[:, :, ::2], c.mT[:, ::2]),
        torch.baddbmm(c[:, :, :4], c, b.expand(2, 8, 4), alpha=3), torch.einsum("bij,bkj->bik", c, c),
        a.double() @ b.double(), torch.bmm(c.double(), c.double().mT), a.to(half) @ b.to(half), a.half() @ b.half(),
        torch.addmm(b[0].to(half), a.to(half), b.to(half)), torch.bmm(c.to(half), c.to(half).mT),
        torch.conv1d(c, TAPS, STARTS, 2, 1), a.cumsum(0), a.t().cumsum(1), a.double().cumsum(1), a.int().cumsum(0), (a > 0).cumsum(1),
    ]  # fmt: skip


TAPS, STARTS = torch.randn(5, 6, 3), torch.randn(5)


def test_products_of_all_kinds(runner: Path, tmp_path: Path) -> None:
    def numbers(*size: int) -> torch.Tensor:
        return torch.randint(-4, 5, size).float() / 2

    loaded = check(runner, tmp_path / "products", products,
                   lambda: ((numbers(6, 8), numbers(8, 4), numbers(2, 6, 8)), {}))
    assert len(loaded.description["outputs"]) == 37


WINDOWS = torch.randint(-4, 5, (3, 4, 3, 3)).float() / 2


def halves(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """Half precision, for which some processors have instructions and some libraries kernels. x [2, 4, 6, 6], y [2, 4, 7]."""
    found = []
    for dtype in (torch.bfloat16, torch.float16):
        image, row = x.to(dtype), y.to(dtype)
        found += [F.conv2d(image, WINDOWS.to(dtype), padding=1), F.conv1d(row, WINDOWS[..., 0].to(dtype)),
                  F.scaled_dot_product_attention(image, image, image), row[0] @ row[1].mT, row[0, :1] @ row[1, :1].mT,
                  F.linear(image[0, :, :, :3], image[0, 0, :, 3:], image[0, 0, :, 0]), row[0].mT @ row[1]]  # fmt: skip
    return found


def test_half_precision(runner: Path, tmp_path: Path) -> None:
    def numbers(*size: int) -> torch.Tensor:
        return torch.randint(-4, 5, size).float() / 2

    dynamo.package(halves, (numbers(2, 4, 6, 6), numbers(2, 4, 7)), tmp_path / "halves")
    given = [numbers(2, 4, 6, 6), numbers(2, 4, 7)]
    for got in (run_program(runner, tmp_path / "halves", given), dynamo.load_package(tmp_path / "halves")(*given)):
        torch.testing.assert_close(got, halves(*given), check_stride=True, rtol=1e-2, atol=1e-2)


def test_results_outlive_the_model_and_are_not_overwritten(tmp_path: Path) -> None:
    model = mlp()
    dynamo.package(model, (torch.randn(3, 24),), tmp_path / "mlp")
    loaded = dynamo.load_package(tmp_path / "mlp")
    inputs = [torch.randn(3, 24) for _ in range(5)]
    results = [loaded(x) for x in inputs]
    del loaded
    for x, result in zip(inputs, results):
        torch.testing.assert_close(result, model(x).detach(), rtol=1e-4, atol=1e-5)


def test_an_argument_that_is_written(runner: Path, tmp_path: Path) -> None:
    def f(cache: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        cache[1] = x * 2
        return cache.sum(0)

    dynamo.package(f, (torch.zeros(3, 4), torch.ones(4)), tmp_path / "f")
    loaded = dynamo.load_package(tmp_path / "f")
    mine, eager, x = torch.randn(3, 4), torch.empty(3, 4), torch.randn(4)
    eager.copy_(mine)
    torch.testing.assert_close(loaded(mine, x), f(eager, x))
    assert torch.equal(mine, eager)
    with pytest.raises(GuardFailed, match="input cache, which the model writes, shares memory with x"):
        loaded(mine, mine[0])


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def f(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return x[at] * TABLE

    return dynamo.package(f, (torch.randn(4, 8), torch.tensor([1, 2])), tmp_path_factory.mktemp("bad") / "f")


TABLE = torch.randn(8)


@pytest.mark.parametrize("x, at, said", [
    (torch.zeros(5, 8), torch.tensor([1, 2]), r"input 0 \(x\) is float32 \[5, 8\] .* made for float32 \[4, 8\]"),
    (torch.zeros(8, 4).t(), torch.tensor([1, 2]), r"with strides \[1, 4\]; .* with strides \[8, 1\]"),
    (torch.zeros(4, 8), torch.tensor([1, 2], dtype=torch.int32), r"input 1 \(at\) is int32 .* made for int64"),
    (torch.zeros(4, 8), torch.tensor([[1, 2]]), r"input 1 \(at\) is int64 \[1, 2\]"),
])  # fmt: skip
def test_inputs_that_do_not_fit(runner: Path, packaged: Path, x: torch.Tensor, at: torch.Tensor, said: str) -> None:
    with pytest.raises(GuardFailed, match=said):
        dynamo.load_package(packaged)(x, at)
    with pytest.raises(RuntimeError, match=said):
        run_program(runner, packaged, [x, at])


def test_too_few_inputs_and_a_bad_index(runner: Path, packaged: Path) -> None:
    with pytest.raises(RuntimeError, match="f takes 2 inputs, not 1"):
        run_program(runner, packaged, [torch.zeros(4, 8)])
    with pytest.raises(GuardFailed, match="another structure"):
        dynamo.load_package(packaged)(torch.zeros(4, 8))
    beyond = torch.tensor([1, 4])
    with pytest.raises(IndexError, match="index 4 is out of bounds for dimension with size 4"):
        dynamo.load_package(packaged)(torch.zeros(4, 8), beyond)
    with pytest.raises(RuntimeError, match="index 4 is out of bounds for dimension with size 4"):
        run_program(runner, packaged, [torch.zeros(4, 8), beyond])


def copy_of(packaged: Path, target: Path) -> Path:
    target.mkdir()
    for path in packaged.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def damage(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_damaged_packages(runner: Path, packaged: Path, tmp_path: Path) -> None:
    inputs = [torch.zeros(4, 8), torch.tensor([1, 2])]
    folders = []
    for name, at, said in [("weights.bin", -1, "weights.bin is damaged: its contents"),
                           ("weights.bin", 3, "weights.bin is no file of weights"),
                           ("libmodel.so", 4000, "libmodel.so is damaged"),
                           ("model.json", 30, "model.json is damaged")]:  # fmt: skip
        folder = copy_of(packaged, tmp_path / f"{name}{at}")
        damage(folder / name, at)
        folders.append((folder, said))
    for name in ("weights.bin", "libmodel.so", "package.sum"):
        folder = copy_of(packaged, tmp_path / f"no_{name}")
        (folder / name).unlink()
        folders.append((folder, "No such file|can't be read|no whole package"))
    short = copy_of(packaged, tmp_path / "short")
    (short / "weights.bin").write_bytes((packaged / "weights.bin").read_bytes()[:-64])
    folders.append((short, "weights.bin is damaged: it has"))
    for folder, said in folders:
        with pytest.raises(LoadError, match=said):
            dynamo.load_package(folder)
        if "model.json" not in said:
            with pytest.raises(RuntimeError, match=said):
                run_program(runner, folder, inputs)


def test_weights_of_another_package(packaged: Path, tmp_path: Path) -> None:
    folder = copy_of(packaged, tmp_path / "mixed")
    dynamo.package(lambda x, at: x[at] * OTHER, (torch.randn(4, 8), torch.tensor([1, 2])), tmp_path / "other")
    (folder / "weights.bin").write_bytes((tmp_path / "other" / "weights.bin").read_bytes())
    with pytest.raises(LoadError, match="weights.bin holds the weights of another package"):
        dynamo.load_package(folder)


OTHER = torch.randn(8)


def test_another_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runner: Path) -> None:
    monkeypatch.setattr("inductor.package.folder.needed_instructions", lambda toolchain: "fpu made_up")
    dynamo.package(lambda x: x + 1, (torch.randn(4),), tmp_path / "add")
    said = "this processor lacks instructions that the package was compiled for: made_up;"
    with pytest.raises(LoadError, match=said):
        dynamo.load_package(tmp_path / "add")
    with pytest.raises(RuntimeError, match=said):
        run_program(runner, tmp_path / "add", [torch.randn(4)])


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="names of processors")
def test_packages_for_other_processors(tmp_path: Path, runner: Path) -> None:
    flags = needed_instructions(need_toolchain(cache_store())).split()
    same, other = ("x86-64-v4", "x86-64-v3") if "avx512f" in flags else ("x86-64-v3", "x86-64-v2")
    model, x = mlp(), torch.randn(64, 24)
    if not {"avx512_bf16", "amx_bf16"} & set(flags):
        dynamo.package(model, (x,), tmp_path / "mlp", processor=same, threads=1)
        loaded = dynamo.load_package(tmp_path / "mlp")
        assert loaded.description["threads"] == 1 and "avx2" in loaded.description["processor"].split()
        x = torch.randn(64, 24)
        torch.testing.assert_close(loaded(x), model(x).detach(), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match=f"processor='{other}' has other vectors than this machine"):
        dynamo.package(model, (x,), tmp_path / "older", processor=other)
    with pytest.raises(ValueError, match="processor='made-up': the compiler says"):
        dynamo.package(model, (x,), tmp_path / "none", processor="made-up")


def test_several_sizes_share_the_weights(tmp_path: Path, runner: Path) -> None:
    model = Convolutions().eval()
    images = [torch.randn(n, 3, 16, 16) for n in (1, 2, 5)]
    dynamo.package(model, (images[0],), tmp_path / "conv", more=[((x,), {}) for x in images[1:]])
    dynamo.package(model, (images[0],), tmp_path / "one")
    sizes = [(tmp_path / name / "weights.bin").stat().st_size for name in ("conv", "one")]
    assert sizes[0] < 1.5 * sizes[1]
    loaded = dynamo.load_package(tmp_path / "conv")
    for n in (5, 1, 2, 1):
        x = torch.randn(n, 3, 16, 16)
        with torch.no_grad():
            wanted = model(x)
        torch.testing.assert_close(loaded(x), wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(run_program(runner, tmp_path / "conv", [x], "1", "2"), [wanted], rtol=1e-4, atol=1e-5)
    with pytest.raises(GuardFailed, match=r"is float32 \[3, .*made for float32 \[1, .*, or float32 \[2, .*, or float32 \[5, "):
        loaded(torch.randn(3, 3, 16, 16))
    with pytest.raises(Unsupported, match="for other sizes its arguments or results have another structure"):
        dynamo.package(lambda x, n: x * n, (images[0], 2), tmp_path / "f", more=[((images[1], 3), {})])


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x + self.calls


def breaks(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 0:
        return x + 1
    return x - 1


def sorts(x: torch.Tensor) -> torch.Tensor:
    return torch.sort(x)[0]


@pytest.mark.parametrize("f, said", [
    (breaks, r"test_package.py:\d+"),
    (sorts, r"test_package.py:\d+: aten::sort.*there is no kernel of ours"),
    (Counter().eval(), "writes into a tensor of the module"),
    (torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)), "call its eval"),
    (lambda x: (x + 1, object), "a result is"),
])  # fmt: skip
def test_what_no_package_can_have(f: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=said):
        dynamo.package(f, (torch.randn(4, 4),), tmp_path / "f")
    assert not list(tmp_path.iterdir())


def test_a_folder_of_somebody_else_stays(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="is no package"):
        dynamo.package(lambda x: x + 1, (torch.randn(4),), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_it_is_packaged_again_in_place(tmp_path: Path) -> None:
    for number in (1, 2):
        dynamo.package(lambda x, number=number: x + number, (torch.randn(4),), tmp_path / "f")
        assert dynamo.load_package(tmp_path / "f")(torch.zeros(4)).tolist() == [number] * 4
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_one_file(tmp_path: Path) -> None:
    """It is packaged again in place, moved, loaded, and leaves nothing behind."""
    model, (first, second) = torch.nn.Linear(64, 32), torch.randn(2, 5, 64)
    path = tmp_path / "deep" / "model.zip"
    for _ in range(2):
        assert dynamo.package(model, (first,), path) == path
    assert [one.name for one in path.parent.iterdir()] == ["model.zip"]
    moved = path.rename(tmp_path / "other name")
    before = set(Path(tempfile.gettempdir()).iterdir())
    loaded = dynamo.load_package(moved)
    made = set(Path(tempfile.gettempdir()).iterdir()) - before
    assert not [one for one in made if one.name.startswith("dynamo_package_")]
    moved.unlink()
    with torch.no_grad():
        torch.testing.assert_close(loaded(second), model(second))
    assert "other name" in repr(loaded)


@pytest.mark.parametrize("damage", ["half", "text", "folders", "changed"])
def test_files_that_are_no_package(damage: str, tmp_path: Path) -> None:
    path = dynamo.package(torch.nn.Linear(4, 4), (torch.ones(2, 4),), tmp_path / "model.zip")
    content = path.read_bytes()
    if damage == "half":
        path.write_bytes(content[: len(content) // 2])
    elif damage == "text":
        path.write_text("something else")
    elif damage == "changed":
        with zipfile.ZipFile(path, "a") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a second file of that name
            file.writestr("libmodel.so", b"other code")
    else:
        with zipfile.ZipFile(path, "a") as file:
            file.writestr("../above", "text")
    with pytest.raises(LoadError) as seen:
        dynamo.load_package(path)
    assert str(path) in str(seen.value)
    assert not (tmp_path.parent / "above").exists()


def test_a_file_of_something_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    path.write_text("mine")
    with pytest.raises(FileExistsError, match="model.zip is there"):
        dynamo.package(torch.sin, (torch.ones(2),), path)
    with pytest.raises(FileExistsError, match="notes is a file"):
        dynamo.package(torch.sin, (torch.ones(2),), path.rename(tmp_path / "notes"))
