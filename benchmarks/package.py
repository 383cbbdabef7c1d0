"""Packages beside eager and `dynamo.compile`: time of a call, in blocks; size of the folder.

    python -m benchmarks.package [--models bert resnet50] [--folder /tmp/packages] [--calls 15]

The program in C++ is `tests/package/runner.cpp`, in an empty environment. Times are medians of
blocks of calls.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import dynamo
from tests.package.test_package import HEADERS, ROOT, tensors_in, write_tensors

MODELS = ("bert", "gpt2", "resnet50", "mlp")


def model_of(name: str) -> tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]:
    """A model with random weights, and its inputs."""
    if name == "mlp":
        layers = [torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 512)]
        return torch.nn.Sequential(*layers), (torch.randn(32, 512),), {}
    import transformers

    ids = {"input_ids": torch.randint(0, 1000, (2, 128))}
    small = {"vocab_size": 30522, "use_cache": False}
    if name == "bert":
        return transformers.BertModel(transformers.BertConfig(num_hidden_layers=4)), (), ids
    if name == "gpt2":
        config = transformers.GPT2Config(n_layer=4, bos_token_id=1, eos_token_id=1, **small)
        return transformers.GPT2LMHeadModel(config), (), ids
    model = transformers.ResNetForImageClassification(transformers.ResNetConfig())
    return model, (torch.randn(4, 3, 224, 224),), {}


def median_of(call: Callable[[], Any], calls: int) -> float:
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def measure(name: str, root: Path, calls: int, runner: Path) -> None:
    model, args, kwargs = model_of(name)
    model.eval()
    begin = time.perf_counter()
    folder = dynamo.package(model, args, root / name, kwargs)
    made = time.perf_counter() - begin
    compiled, loaded = dynamo.compile(model), dynamo.load_package(folder)
    inputs = root / f"{name}.in"
    write_tensors(inputs, tensors_in((args, kwargs)))
    times: dict[str, list[float]] = {"eager": [], "compiled": [], "loader": [], "C++": []}
    command = ["env", "-i", str(runner), str(folder), str(inputs), str(root / "out"), str(calls)]
    with torch.no_grad():
        for call in (compiled, loaded):
            call(*args, **kwargs)
        for _ in range(3):
            for label, call in (("eager", model), ("compiled", compiled), ("loader", loaded)):
                times[label].append(median_of(lambda call=call: call(*args, **kwargs), calls))
            done = subprocess.run(command, check=True, capture_output=True)
            times["C++"].append(float(done.stdout))
    size = sum(path.stat().st_size for path in folder.iterdir()) / 2**20
    weights = sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20
    library = (folder / "libmodel.so").stat().st_size / 2**20
    row = "  ".join(f"{label} {statistics.median(ms) * 1e3:.2f}" for label, ms in times.items())
    print(f"{name}: ms a call: {row}; made in {made:.1f} s; {size:.0f} MB (library {library:.2f}, "
          f"weights of the model {weights:.0f})", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "packages")
    parser.add_argument("--calls", type=int, default=15)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    runner = given.folder / "runner"
    source = ROOT / "tests/package/runner.cpp"
    subprocess.run(["g++", "-std=c++17", "-O2", "-I", str(HEADERS), str(source), "-o", str(runner),
                    "-ldl", "-lpthread"], check=True)
    for name in given.models:
        measure(name, given.folder, given.calls, runner)


if __name__ == "__main__":
    main()
