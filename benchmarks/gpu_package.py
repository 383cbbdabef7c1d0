"""`python -m benchmarks.gpu_package`: packages for a GPU beside eager and `dynamo.compile`.

Milliseconds of a call (median of 20 between synchronizations, in turn), and the largest difference
from eager in float16, with eager's own from float32.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import dynamo

CALLS = 20


def models() -> dict[str, tuple[torch.nn.Module, tuple[torch.Tensor, ...]]]:
    """Modules in float32 on the host, and arguments."""
    import transformers

    torch.manual_seed(0)
    mlp = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.GELU(),
                              torch.nn.LayerNorm(4096), torch.nn.Linear(4096, 1024))  # fmt: skip
    bert = transformers.BertModel(transformers.BertConfig(num_hidden_layers=12))
    gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))
    ids = torch.randint(0, 30000, (8, 512))
    return {"MLP, 512 x 1024": (mlp.eval(), (torch.randn(512, 1024),)),
            "BERT, 8 x 512": (bert.eval(), (ids,)), "GPT2, 8 x 512": (gpt2.eval(), (ids,))}


def first_tensor(found: Any) -> torch.Tensor:
    """The main result."""
    if isinstance(found, torch.Tensor):
        return found
    return next(iter(found.values()))  # type: ignore[no-any-return]


def milliseconds(ways: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Medians, the ways in turn."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(CALLS):
        for name, way in ways.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            way()
            torch.cuda.synchronize()
            times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(taken) for name, taken in times.items()}


def row_of(name: str, model: torch.nn.Module, args: tuple[torch.Tensor, ...]) -> str:
    """One line of the table."""
    given = [x.cuda().half() if x.is_floating_point() else x.cuda() for x in args]
    exact = first_tensor(model.cuda()(*[x.cuda() for x in args])).float()
    model = model.half()
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        dynamo.package(model, tuple(given), Path(folder) / "model")
        made = time.perf_counter() - start
        loaded = dynamo.load_package(Path(folder) / "model")
        compiled = dynamo.compile(model)
        ways = {"eager": lambda: model(*given), "compiled": lambda: compiled(*given),
                "package": lambda: loaded(*given)}  # fmt: skip
        for way in ways.values():
            way()
        mine, own = (first_tensor(ways[one]()).float() for one in ("package", "eager"))
        ms = milliseconds(ways)
    errors = [(one - exact).abs().max().item() for one in (mine, own)]
    cells = [name, *(f"{ms[one]:.3f}" for one in ways), f"{made:.0f} s",
             *(f"{error:.4f}" for error in errors)]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Prints the table."""
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, float16")
    print("| model | eager | dynamo.compile | package | made in | error of the package | eager's |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    with torch.no_grad():
        for name, (model, args) in models().items():
            print(row_of(name, model, args), flush=True)


if __name__ == "__main__":
    main()
