"""Calls with arguments of changing making: histories that once differed, some more, and a long run (`-m long`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from dynamo.base.config import config
from tests.fuzz_arguments.__main__ import check
from tests.fuzz_arguments.history import Call, History, difference, generate
from tests.seeds import drawn, some


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> object:
    with config.patch(cache_dir=str(tmp_path_factory.getbasetemp() / "cache")):
        yield


PLAIN = Call((), "fresh", "fresh", ((2, 2), (2, 2)), "plain", True, 1)
# What once differed, as it was shrunk: (pieces, calls, dynamic).
FOUND: dict[str, tuple[tuple[str, ...], tuple[Call, ...], bool]] = {
    "bytes of symbolic sizes": (("storage",), (PLAIN,), True),
    "a negative under inference mode": (("converted",), (replace(PLAIN, second="negative bit", state="inference mode"),), False),
    "a view detached in place": (("detach_",), (replace(PLAIN, second="channels last"),), False),
    "an inference tensor is not saved": (("product", "data"), (replace(PLAIN, first="inference", second="leaf"),), False),
    "an inference view written past autograd": (("detached write", "parameters"), (replace(PLAIN, first="inference view"),), False),
    "a view without history learns": (("requires_grad_",), (PLAIN, replace(PLAIN, first="view of no grad")), False),
    "a view that no grad mode made is written": (("relu_",), (replace(PLAIN, first="view of no grad", state="inference mode"),), False),
    "a result of inference mode learns": (("learned",), (replace(PLAIN, state="inference mode"), replace(PLAIN, first="another former result")), False),
    "a gradient of another dtype": (("parameters",), (replace(PLAIN, changes=("to double",)), replace(PLAIN, changes=("weight.data = new",))), False),
}  # fmt: skip


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", FOUND)
def test_found_history_equals_eager(name: str, backend: str) -> None:
    pieces, calls, dynamic = FOUND[name]
    assert check(History(0, pieces, dynamic, calls), backend) == ""


@pytest.mark.parametrize("seed", some(range(8), 3))
def test_history_equals_eager(seed: int) -> None:
    assert check(generate(seed), "eager") == ""


@pytest.mark.long
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_many_histories(backend: str) -> None:
    for seed in drawn(range(10_000, 10_150)):
        assert check(generate(seed), backend) == "", seed


def wrong_value(results: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: x * 1.5, results)


def other_object(results: Any) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda x: x.view_as(x), results)


@pytest.mark.parametrize("fault", [wrong_value, other_object])
def test_a_fault_is_found(fault: Callable[[Any], Any]) -> None:
    history = History(0, ("returned",), False, (PLAIN,))
    assert difference(history, lambda f: lambda *given: fault(f(*given))) != ""
