"""The programs of `benchmarks.gpu_programs`, at full size, compiled as for a GPU that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import dynamo
from benchmarks.gpu_programs.one import load
from benchmarks.gpu_programs.program import PROGRAMS, Place, Unfit

triton = pytest.importorskip("triton", reason="triton is not installed here")
if triton.knobs.runtime.interpret:
    pytest.skip("TRITON_INTERPRET is set", allow_module_level=True)

from as_on_gpu import compiling  # noqa: E402

load()
CALLS = 2
# Of what only data tell, tensors that lie nowhere have no answer; the graphs before that are compiled.
NOWHERE = (NotImplementedError, AttributeError)
NAMES = [pytest.param(name, id=f"{function.__module__.rpartition('.')[2]}-{name}") for name, function in PROGRAMS.items()]
known: set[str] = set()  # kernels that a program before had, too


def norms(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    normed = torch.nn.functional.layer_norm(x, x.shape[-1:])
    return torch.nn.functional.gelu(normed @ w) + y, normed.cumsum(1).softmax(-1), x.new_zeros(3) + 1


@pytest.mark.parametrize("templates", [False, True])
def test_a_small_program(templates: bool, tmp_path: Path) -> None:
    dynamo.reset()
    given = [torch.empty(size, dtype=torch.bfloat16, device="meta") for size in ((512, 256), (256, 1024), (1, 1024))]
    with compiling(tmp_path, templates) as found:
        results = dynamo.compile(norms)(*given)
    assert [result.shape for result in results] == [(512, 1024), (512, 256), (3,)]
    assert found.graphs == 1 and found.kernels >= 3 and not found.errors and not found.slow
    assert ('torch.device("cuda:0")' in found.texts[0]) and ("fused_mm" in found.texts[0]) == templates
    assert not dynamo.counters["not_compiled"]


@pytest.mark.long
@pytest.mark.parametrize("templates", [False, True], ids=["likely", "templates"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.every_combination
def test_kernels_compile(name: str, templates: bool, tmp_path: Path) -> None:
    """None is refused by Triton or runs as ATen operators, and no graph runs as it was captured."""
    dynamo.reset()
    torch.manual_seed(0)
    with compiling(tmp_path, templates, known) as found:
        try:
            step = PROGRAMS[name](dynamo.compile, Place("meta", False))
            for _ in range(CALLS):
                step()
        except (ImportError, Unfit) as error:  # a library that is not installed, or a GPU's alone
            pytest.skip(f"{type(error).__name__}: {error}")
        except NOWHERE as error:
            if not found.graphs:
                pytest.skip(f"{type(error).__name__}: {error}")
    assert not found.errors, "\n".join(found.errors)
    assert not found.slow
    assert not dynamo.counters["not_compiled"]
