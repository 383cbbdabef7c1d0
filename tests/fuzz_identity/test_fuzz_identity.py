"""Which object a tensor is, which memory it has: some random programs, and a long run (`-m long`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dynamo.base.config import config
from tests.fuzz_identity.__main__ import check
from tests.fuzz_identity.compare import difference, generate
from tests.fuzz_identity.program import Call, Program
from tests.seeds import drawn, some


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    with config.patch(cache_dir=str(tmp_path_factory.getbasetemp() / "cache")):
        yield


# What once differed, as it was shrunk: (lines, how the arguments of each call are made).
FOUND: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "the node of a view": (("v = a.view(-1)", "return v.grad_fn is v.grad_fn, a * 1"), ("a = fresh().requires_grad_(); b = a",)),
    "asked beside a change": (("a.t_()", "return b.stride()"), ("a, b = fresh(), fresh()", "a = b = fresh()")),
    "an attribute in one call": (("a.tag = 1", "return hasattr(b, 'tag')"), ("a = b = fresh()", "a, b = fresh(), fresh()")),
    "memory handed over": (
        ("v = a.clone()", "w = torch.from_dlpack(v.detach())", "v.sub_(v)", "return w * 1"), ("a = fresh().requires_grad_() * 2",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", FOUND)
def test_found_program_equals_eager(name: str, backend: str) -> None:
    lines, makings = FOUND[name]
    assert check(Program(lines, tuple(map(Call, makings))), backend) == ""


@pytest.mark.parametrize("seed", some(range(12), 4))
def test_program_equals_eager(seed: int) -> None:
    assert check(generate(seed), "eager") == ""


@pytest.mark.long
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_many_programs(backend: str) -> None:
    for seed in drawn(range(500_000, 500_100)):
        assert check(generate(seed, backend == "eager"), backend) == "", seed


def wrong_value(results: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: x * 1.5, results)


def other_object(results: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: x.view_as(x), results)


def other_memory(results: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, results)


@pytest.mark.parametrize("fault", [wrong_value, other_object, other_memory])
def test_a_fault_is_found(fault: Callable[[Any], Any]) -> None:
    program = Program(("return a, a[1:]",), (Call("a, b = fresh(), fresh()"),))
    assert difference(program, lambda f: lambda *given: fault(f(*given))) != ""
