"""What symbolic numbers go into besides arithmetic: texts, `round`, and `torch.tensor` of floats."""

from __future__ import annotations

import contextlib
import io
import logging
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter

LOGGER = logging.getLogger("tests.shapes.texts")


def in_text(x: torch.Tensor) -> Any:
    n = x.shape[0]
    name = f"{n:>5}|" + "rows: %d of %s" % (n, 2 * n) + "{} {}".format(n, "a")  # noqa: UP031, UP032
    return x * 2, name, [f"{n!r}", str(n / 4)], {"name": ", ".join(["a", str(n), f"{x.shape}"])}


def printing(x: torch.Tensor) -> Any:
    y = x * 2
    print("shape", x.shape, f"{y.shape} {(len(x), 3)} {[len(x)]} {(len(x),)}", x.shape[0] + 1)
    return y + 1


def kept_in_attribute(x: torch.Tensor, notes: dict[str, Any]) -> Any:
    notes["last"] = f"size {x.shape[0]}"
    return x + 1


def behind_a_break(x: torch.Tensor) -> Any:
    text = f"{x.shape[0]} rows"
    dynamo.graph_break()
    return x.sin(), text


def as_key(x: torch.Tensor) -> Any:
    return {f"n{x.shape[0]}": x + 1}


def deciding(x: torch.Tensor) -> Any:
    return x + 1 if f"{x.shape[0]}".endswith("0") else x - 1


def rounds(x: torch.Tensor) -> Any:
    n = x.shape[0]
    return x.new_ones(round(n / 3) + 2), round(n / 4), round(-n / 2), round(n * 0.5), round(n * -0.37)


def floats(x: torch.Tensor) -> Any:
    n = x.shape[0]
    return (
        x * torch.tensor(float(n)), torch.tensor([n / 4, 1, 2.0]), torch.as_tensor(n**0.5),
        torch.tensor(n / 3, dtype=torch.float64), torch.tensor(n, dtype=torch.int32),
    )


# program; how many graphs there may be for all sizes
CASES: dict[str, tuple[Callable[..., Any], int]] = {
    "in text": (in_text, 2), "printing": (printing, 2), "behind a break": (behind_a_break, 2),
    "attribute": (lambda x: (kept_in_attribute(x, notes := {}), notes), 2),
    "key": (as_key, 20), "deciding": (deciding, 20), "rounds": (rounds, 2), "floats": (floats, 2),
}  # fmt: skip


def plain(value: Any) -> Any:
    """Tensors as their dtypes and items, so that nests compare."""
    if isinstance(value, torch.Tensor):
        return value.dtype, value.tolist()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def printed(function: Callable[..., Any], *args: Any) -> tuple[Any, str]:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        return function(*args), out.getvalue()


@pytest.mark.draws
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", CASES)
def test_each_size_has_its_own(name: str, dynamic: bool | None) -> None:
    function, graphs = CASES[name]
    counter = CompileCounter()
    compiled = dynamo.compile(function, backend=counter, dynamic=dynamic, recompile_limit=20)
    for size in random.sample(range(4, 60), 8):
        x = torch.randn(size, dtype=torch.float64)
        found, wanted = printed(compiled, x), printed(function, x)
        assert plain(found) == plain(wanted)
    assert counter.frame_count <= graphs


def test_a_text_that_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    def log(x: torch.Tensor) -> torch.Tensor:
        LOGGER.warning("%s rows: %s", x.shape[0], f"{x.shape[0]}")
        return x + 1

    compiled = dynamo.compile(log, backend=CompileCounter(), dynamic=True)
    for size in (5, 7):
        compiled(torch.randn(size))
    assert [record.getMessage() for record in caplog.records
            if record.name == LOGGER.name] == ["5 rows: 5", "7 rows: 7"]


@pytest.mark.parametrize("count", [4.0, 1e-300, 0.49999999999999994, 0.5, 2.5, 3.5, 16777217.5])
def test_rounding_of_a_float_that_changes(count: float) -> None:
    """Halves go to the even neighbour, and what lies just beside a half does not."""
    def scaled(x: torch.Tensor, f: float) -> Any:
        return x * 2, round(f), round(-f)

    compiled = dynamo.compile(scaled, backend="eager")
    x = torch.randn(3)
    for value in (1.25, 7.75, count, -count, count + 1):
        assert compiled(x, value)[1:] == scaled(x, value)[1:]


def test_wrong_formats_raise() -> None:
    compiled = dynamo.compile(lambda x: (x + 1, f"{x.shape[0]:s}"), backend="eager", dynamic=True)
    with pytest.raises(ValueError, match="Unknown format code 's'"):
        compiled(torch.randn(5))


def test_a_float_that_float32_cannot_hold() -> None:
    def made(x: torch.Tensor, f: float) -> Any:
        return x * torch.tensor(f)

    compiled = dynamo.compile(made, backend="eager")
    x = torch.randn(3)
    for value in (1.5, 2.5, 1e39, float("inf"), 3.5):
        torch.testing.assert_close(compiled(x, value), made(x, value), rtol=0, atol=0)
