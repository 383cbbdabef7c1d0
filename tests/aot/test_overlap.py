"""Overlap of tensors: compared with counting the elements that they touch."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import dynamo
from dynamo.aot.overlap import in_other_columns, overlap, overlaps_itself
from dynamo.shapes.facts import Facts, OpCache


def elements(facts: Facts) -> list[int]:
    index = torch.arange(256)
    return index.as_strided(facts.size, facts.stride, facts.offset).flatten().tolist()


def random_facts(rng: random.Random, cache: OpCache) -> Facts:
    rank = rng.randint(0, 3)
    size = tuple(rng.randint(0 if rng.random() < 0.1 else 1, 4) for _ in range(rank))
    stride = tuple(rng.choice([0, 1, 1, 2, 3, 4, 8, 12]) for _ in range(rank))
    return cache.facts(size, stride, rng.randint(0, 30), torch.float32, torch.device("cpu"))


def test_overlap_of_two() -> None:
    rng, cache = random.Random(0), OpCache()
    seen = set()
    for _ in range(500):
        one, other = random_facts(rng, cache), random_facts(rng, cache)
        expected = bool(set(elements(one)) & set(elements(other)))
        assert overlap(one, other) == expected
        seen.add(expected)
    assert len(seen) == 2


def test_overlap_with_itself_is_never_missed() -> None:
    rng, cache = random.Random(1), OpCache()
    free = 0
    for _ in range(500):
        facts = random_facts(rng, cache)
        touched = elements(facts)
        if len(set(touched)) != len(touched):
            assert overlaps_itself(facts)
        free += not overlaps_itself(facts)
    assert free > 50


def test_dense_layouts_do_not_overlap_themselves() -> None:
    cache = OpCache()
    base = torch.empty(3, 4, 5)
    for tensor in (base, base.permute(2, 0, 1), base[:, ::2], base[1], base[:, :1].expand(3, 1, 5)):
        assert not overlaps_itself(cache.facts_of(tensor, tensor.device))


def test_columns_without_overlap_have_none() -> None:
    rng, cache = random.Random(2), OpCache()
    apart = 0
    for _ in range(500):
        one, other = random_facts(rng, cache), random_facts(rng, cache)
        if in_other_columns(one, other):
            apart += 1
            assert not set(elements(one)) & set(elements(other))
    assert apart > 20


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_writes_through_views_that_name_elements_twice(backend: str, dynamic: bool) -> None:
    """Old values of such a view must not overwrite new ones."""
    views = {
        "rows": lambda x: x.as_strided((x.shape[0] - 1, 2), (1, 1)), "one": lambda x: x.as_strided((3,), (0,)),
        "windows": lambda x: x.unfold(0, 3, 1), "expanded": lambda x: x.expand(3, x.shape[0]),
        "apart": lambda x: x.as_strided((2, 2), (x.shape[0] // 2, 2)),
    }  # fmt: skip
    for view in views.values():
        def program(x: torch.Tensor) -> torch.Tensor:
            made = x * 1
            view(made)[1] = -1.0  # noqa: B023
            return made

        dynamo.reset()
        compiled = dynamo.compile(program, backend=backend, dynamic=dynamic)
        for size in (8, 10):
            x = torch.arange(float(size))
            assert compiled(x).tolist() == program(x).tolist()


def arrays() -> tuple[torch.Tensor, torch.Tensor]:
    array = numpy.arange(16.0)
    return torch.from_numpy(array), torch.from_numpy(array)


def parts_of_an_array() -> tuple[torch.Tensor, torch.Tensor]:
    array = numpy.arange(20.0)
    return torch.from_numpy(array[4:]), torch.from_numpy(array[:16])


def buffers() -> tuple[torch.Tensor, torch.Tensor]:
    data = bytearray(numpy.arange(16.0).tobytes())
    return torch.frombuffer(data, dtype=torch.float64), torch.frombuffer(data, dtype=torch.float64)


def handed_over() -> tuple[torch.Tensor, torch.Tensor]:
    one = torch.arange(16.0, dtype=torch.float64)
    return one, torch.from_dlpack(one.view(4, 4).t()).t().reshape(16)


def tensor_and_array() -> tuple[torch.Tensor, torch.Tensor]:
    one = torch.arange(16.0, dtype=torch.float64)
    return one, torch.from_numpy(one.numpy())


def apart() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(16.0, dtype=torch.float64), torch.arange(16.0, dtype=torch.float64)


def write_one(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> Any:
    before = b * 2
    a.mul_(3).add_(1)
    return before + b * w, b.sum()


def write_both(a: torch.Tensor, b: torch.Tensor, w: torch.Tensor) -> Any:
    a.add_(1)
    b.mul_(2)
    return a * w + b


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("program", [write_one, write_both])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_arguments_in_one_memory_with_storages_of_their_own(backend: str, program: Callable[..., Any], learns: bool) -> None:
    compiled = dynamo.compile(program, backend=backend)
    w = torch.rand(16, dtype=torch.float64, requires_grad=learns)
    for make in (arrays, apart, arrays, parts_of_an_array, buffers, handed_over, tensor_and_array, apart):
        wanted, found = make(), make()
        torch.testing.assert_close((compiled(*found, w), found), (program(*wanted, w), wanted))
