"""Packages for a GPU whose kernels run in Triton's interpreter: they give what eager gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

import dynamo
import inductor.package.folder
from dynamo.base.config import config
from tests.inductor.gpu.interpreter_repairs import repair
from tests.package.standin import Standin, build
from tests.package.test_package import small_model, tensors_in

Args = tuple[tuple[Any, ...], dict[str, Any]]
TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 6e-2, torch.float32: 1e-4}


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Standin:
    return Standin(build(tmp_path_factory.mktemp("driver")))


@pytest.fixture(autouse=True)
def own_kernels(driver: Standin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor.package.folder, "compile_functions", driver.compile_functions)
    driver.interpret(tmp_path)
    repair(monkeypatch)


def check(driver: Standin, folder: Path, model: Any, make: Callable[[], Args], dtype: torch.dtype = torch.float32,
          check_stride: bool = True) -> Any:
    """On two fresh sets of inputs, and what is written of these."""
    args, kwargs = make()
    dynamo.package(model, args, folder, kwargs, target="sm_90")
    loaded = dynamo.load_package(folder)
    for _ in range(2):
        args, kwargs = make()
        others = pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, (args, kwargs))
        with torch.no_grad():
            wanted = model(*others[0], **others[1])
        found = loaded(*args, **kwargs)
        assert not driver.errors, driver.errors
        assert pytree.tree_structure(found) == pytree.tree_structure(wanted)
        near = {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
        torch.testing.assert_close(tensors_in(found), tensors_in(wanted), check_stride=check_stride, **near)
        torch.testing.assert_close(tensors_in((args, kwargs)), tensors_in(others), **near)
    driver.log()
    return loaded


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_an_mlp(driver: Standin, tmp_path: Path, dtype: torch.dtype) -> None:
    model = torch.nn.Sequential(
        torch.nn.Linear(24, 40), torch.nn.GELU(), torch.nn.LayerNorm(40), torch.nn.Linear(40, 3)).eval().to(dtype)
    check(driver, tmp_path / "mlp", model, lambda: ((torch.randn(5, 24, dtype=dtype),), {}), dtype)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_small_transformers(driver: Standin, tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    def make() -> Args:
        mask = torch.ones(2, 6, dtype=torch.int64)
        mask[1, int(torch.randint(2, 6, ())):] = 0
        more = {"attention_mask": mask} if name == "bert" else {}
        return (), {"input_ids": torch.randint(0, 50, (2, 6)), **more}

    model = small_model(name).to(dtype)
    layers = {"bert": "encoder.layer", "gpt2": "transformer.h", "llama": "model.layers"}[name]
    del model.get_submodule(layers)[1:]
    check(driver, tmp_path / name, model, make, dtype)


def products(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = torch.bmm(x, y)
    row = y[0, 0]
    return (z.relu() + 1, torch.addmm(row, x[0], y[1], beta=0.5, alpha=2.0), torch.mv(x[0], y[0, :, 0]),
            torch.baddbmm(z, x, y), x[0].t() @ x[1], torch.dot(row, row))


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> Any:
    plain = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    masked = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3)
    grouped = F.scaled_dot_product_attention(q, k[:, :1], v[:, :1], enable_gqa=True)
    return plain.transpose(1, 2).flatten(2), masked.transpose(1, 2) * 2, grouped + 1


def in_place(x: torch.Tensor, cache: torch.Tensor, at: torch.Tensor) -> Any:
    cache.mul_(0.5)
    cache[at] = x * 2
    return cache.sum(-1), x.t(), cache, cache[1:]


def reductions(x: torch.Tensor) -> Any:
    return (x.softmax(-1), x.sum(), x.amax(0), x.var(1), x.argmax(-1), x.half().float().logsumexp(1),
            x.reshape(-1)[::3], x.cumsum(0), (x > 0).cumsum(1), x.half().cumsum(1)[:2], x.double().mean(), (x > 0).any(0), None, 3.0)


def test_products(driver: Standin, tmp_path: Path) -> None:
    check(driver, tmp_path / "products", products, lambda: ((torch.randn(2, 17, 24), torch.randn(2, 24, 24)), {}))


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("is_mask", [True, False])
def test_attention(driver: Standin, tmp_path: Path, dtype: torch.dtype, is_mask: bool) -> None:
    def make() -> Args:
        q, k, v = (torch.randn(1, 2, 9, 16, dtype=dtype) for _ in range(3))
        mask = torch.randn(1, 1, 9, 9)
        mask[:, :, :, 0] = 1.0
        return (q, k, v, mask > 0 if is_mask else mask.to(dtype)), {}

    check(driver, tmp_path / "attention", attended, make, dtype, check_stride=False)  # each way of torch's has its own


def test_writes_and_views(driver: Standin, tmp_path: Path) -> None:
    def make() -> Args:
        return (torch.randn(2, 6), torch.randn(5, 6), torch.randperm(5)[:2]), {}

    loaded = check(driver, tmp_path / "cache", in_place, make)
    (x, cache, at), _ = make()
    _, _, same, view = loaded(x, cache, at)
    assert same is cache and view.data_ptr() == cache[1:].data_ptr()


def test_reductions(driver: Standin, tmp_path: Path) -> None:
    check(driver, tmp_path / "reductions", reductions, lambda: ((torch.randn(7, 20),), {}))


def test_long_reductions_in_parts(driver: Standin, tmp_path: Path) -> None:
    """Kernels with scratch memory, several functions each."""
    check(driver, tmp_path / "long", lambda x: (x.sum(), (x * 2).sum(1)), lambda: ((torch.randn(3, 70000),), {}))
    assert config.cache_dir


def test_a_convolution_of_one_element(driver: Standin, tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(16, 24, 1), torch.nn.ReLU(), torch.nn.Conv2d(24, 8, 1)).eval()
    model = model.to(memory_format=torch.channels_last)

    def make() -> Args:
        return (torch.randn(2, 16, 5, 7).to(memory_format=torch.channels_last),), {}

    check(driver, tmp_path / "convolution", model, make)


@pytest.mark.parametrize("facts", [
    {"kernel_size": 3, "padding": 1}, {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0), "bias": False},
    {"kernel_size": 3, "dilation": 2, "padding": 2, "groups": 2}, {"kernel_size": 3, "groups": 4, "padding": 1},
    {"kernel_size": 1}, {"kernel_size": 1, "stride": 2},
], ids=str)
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.every_combination
def test_convolutions(driver: Standin, tmp_path: Path, facts: dict[str, Any], is_last: bool) -> None:
    order = torch.channels_last if is_last else torch.contiguous_format
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 8, **facts), torch.nn.BatchNorm2d(8), torch.nn.ReLU()).eval()
    model = model.to(memory_format=order)
    check(driver, tmp_path / "convolution", model, lambda: ((torch.randn(2, 4, 7, 6).to(memory_format=order),), {}))


def test_convolutions_of_other_dimensions(driver: Standin, tmp_path: Path) -> None:
    line = torch.nn.Sequential(torch.nn.Conv1d(4, 6, 3, padding=1), torch.nn.Tanh()).eval().half()
    check(driver, tmp_path / "line", line, lambda: ((torch.randn(2, 4, 9, dtype=torch.float16),), {}), torch.float16)
    space = torch.nn.Conv3d(2, 3, 2, stride=2).eval()
    check(driver, tmp_path / "space", space, lambda: ((torch.randn(1, 2, 4, 5, 4),), {}))


def test_several_sizes(driver: Standin, tmp_path: Path) -> None:
    model = torch.nn.Linear(8, 4).eval()
    dynamo.package(model, (torch.randn(2, 8),), tmp_path / "sizes", more=[((torch.randn(7, 8),), {})], target="sm_90")
    loaded = dynamo.load_package(tmp_path / "sizes")
    for rows in (7, 2, 7):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(loaded(x), model(x), rtol=1e-4, atol=1e-4)
    with pytest.raises(dynamo.exc.GuardFailed, match="was made for"):
        loaded(torch.randn(3, 8))
    assert not driver.errors
