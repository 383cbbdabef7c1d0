"""An operation that fails inside of a compiled graph: its line, and those of its callers, are in the traceback."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import dynamo
from tests.common import new_cache
from tests.parametrize import rotated

BACKENDS = ("inductor", "aot_eager", "eager")


@torch.library.custom_op("failing_lines::refuse", mutates_args=())
def refuse(x: torch.Tensor) -> torch.Tensor:
    if x.sum() > 100:
        raise ValueError("more than a hundred")
    return x.clone()


refuse.register_fake(lambda x: torch.empty_like(x))


@torch.library.custom_op("failing_lines::refuse_later", mutates_args=())
def refuse_later(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


refuse_later.register_fake(lambda x: torch.empty_like(x))
refuse_later.register_autograd(lambda ctx, grad: refuse(grad), setup_context=lambda ctx, inputs, output: None)


def factor(a: torch.Tensor) -> torch.Tensor:
    return torch.linalg.cholesky(a)  # the inner line


def factored(x: torch.Tensor) -> torch.Tensor:
    a = x * 1
    b = factor(a)  # the outer line
    return b + 1


def picked(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    z = y[at]  # the line that fails
    return z * 2 + y.sum()


def looked_up(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    z = torch.nn.functional.embedding(at, y)  # the line that fails
    return z * 2


def large(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    z = y.new_zeros(int(y.dim()) << 44)  # the line that fails
    return z + 1


def refusing(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    z = refuse(y)  # the line that fails
    return z * 2


def written(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    x.add_(1)
    z = y[at]  # the line that fails
    return z * 2


def written_by_operator(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    x.mul_(2)
    z = refuse(y)  # the line that fails
    return z * 2


ROW, GOOD, BAD = torch.ones(3, 3), torch.tensor([1]), torch.tensor([7])
FAILURES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...]]] = {
    "factored": (factored, (torch.eye(3),), (torch.zeros(3, 3),)),
    "picked": (picked, (ROW, GOOD), (ROW, BAD)),
    "looked_up": (looked_up, (ROW, GOOD), (ROW, BAD)),
    "large": (large, (), (ROW,)),
    "refusing": (refusing, (ROW,), (ROW * 100,)),
    "written": (written, (ROW, GOOD), (ROW, BAD)),
    "written_by_operator": (written_by_operator, (ROW,), (ROW * 100,)),
}


def lines_of(error: BaseException) -> list[str]:
    return [str(frame.line) for frame in traceback.extract_tb(error.__traceback__) if frame.filename == __file__]


def check(compiled: Callable[..., Any], plain: Callable[..., Any], given: tuple[Any, ...]) -> list[str]:
    with pytest.raises(Exception) as wanted:
        plain(*[value.clone() for value in given])
    with pytest.raises(wanted.type) as found:
        compiled(*[value.clone() for value in given])
    lines = lines_of(found.value)
    for line in lines_of(wanted.value)[1:]:
        if "raise ValueError" not in line:
            assert lines.count(line) == 1, (line, lines)
    return lines


@pytest.fixture(autouse=True)
def nothing_counted() -> None:
    dynamo.counters.clear()


@rotated("name, backend", [*FAILURES], BACKENDS)
def test_forward(name: str, backend: str) -> None:
    plain, good, bad = FAILURES[name]
    compiled = dynamo.compile(plain, backend=backend)
    if good:
        torch.testing.assert_close(compiled(*[v.clone() for v in good]), plain(*[v.clone() for v in good]))
    for _ in range(2):  # the same each time: nothing is kept of the first
        lines = check(compiled, plain, bad)
        assert any("# the" in line for line in lines)
    assert not dynamo.counters["not_compiled"]


@pytest.mark.parametrize("name", ["picked", "written", "written_by_operator"])
def test_in_code_of_a_cache_and_for_all_sizes(name: str, tmp_path: Path) -> None:
    plain, good, bad = FAILURES[name]
    with new_cache(tmp_path):
        for dynamic in (False, True):
            for _ in range(2):
                dynamo.reset()
                compiled = dynamo.compile(plain, dynamic=dynamic)
                compiled(*[value.clone() for value in good])
                check(compiled, plain, bad)


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_backward(backend: str, tmp_path: Path) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        z = refuse_later(y)  # the line that fails
        return z * 3

    def g(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return f(x)[at]

    with new_cache(tmp_path):
        for _ in range(2):  # of the cache the second time
            dynamo.reset()
            compiled = dynamo.compile(f, backend=backend)
            for scale in (1000.0, 1.0, 1000.0, 1000.0):  # before and after a backward that succeeds
                x = torch.ones(3, requires_grad=True)
                loss = (compiled(x) * scale).sum()
                if scale == 1.0:
                    loss.backward()
                    assert x.grad is not None and x.grad.tolist() == [6, 6, 6]
                    continue
                with pytest.raises(ValueError, match="more than a hundred") as error:
                    loss.backward()
                assert sum("# the line that fails" in line for line in lines_of(error.value)) == 1


def test_nothing_is_added_where_nothing_is_known() -> None:
    def broken(gm: Any, inputs: Any) -> Any:
        def call(*args: Any) -> Any:
            raise KeyError("no")
        return call

    with pytest.raises(KeyError) as error:
        dynamo.compile(refusing, backend=broken)(ROW)
    assert not any("# the line" in line for line in lines_of(error.value))


# -- anomalies ------------------------------------------------------------------------------------


def rooted(x: torch.Tensor) -> torch.Tensor:
    y = x * 0
    z = y.sqrt()  # the line that fails
    return (z * 0 + x).sum()


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected")
def test_anomalies_are_looked_for_in_compiled_code(backend: str) -> None:
    compiled = dynamo.compile(rooted, backend=backend)
    x = torch.ones(3, requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=False):
        compiled(x).backward()
    assert x.grad is not None and bool(x.grad.isnan().all())
    with torch.autograd.detect_anomaly():
        for plain in (rooted, compiled):
            with pytest.raises(RuntimeError, match="returned nan values in its 0th output") as error:
                plain(x).backward()
    assert any("# the line that fails" in line for line in lines_of(error.value))
    assert not dynamo.counters["not_compiled"]


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_no_anomaly_is_found_where_there_is_none(backend: str, recwarn: pytest.WarningsRecorder) -> None:
    x = torch.ones(3, 3, requires_grad=True)
    with torch.autograd.detect_anomaly():
        dynamo.compile(lambda x: (x * 2).sum(), backend=backend)(x).backward()
    assert x.grad is not None and x.grad.eq(2).all() and not dynamo.counters["not_compiled"]
    assert not any("Error detected" in str(told.message) for told in recwarn)
