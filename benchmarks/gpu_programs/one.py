"""One program in one way, in a process of its own; prints a line `ROW` and JSON."""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_programs.program import PROGRAMS, Place, Step, Unfit, leaves

MODULES = (
    "control", "decoders", "diffusion", "diffusion_models", "diffusion_transformers", "experts",
    "generation", "kernels", "losses", "low_bits", "optimizers", "quantized", "rounding", "science",
    "science_sequences", "series", "structures", "vision", "vision_losses",
)  # fmt: skip
WARM, RUNS = 3, 15


def load() -> None:
    """Fill the table with the programs of all modules."""
    for name in MODULES:
        importlib.import_module(f"benchmarks.gpu_programs.{name}")


def compiler(way: str) -> Any:
    if way == "eager":
        return lambda function, **options: function
    if way == "torch":
        return torch.compile
    import dynamo

    return dynamo.compile


def synchronize(place: Place) -> None:
    if place.device == "cuda":
        torch.cuda.synchronize()


def wait(gate: Path) -> None:
    """Until all of a batch are compiled and it is this one's turn."""
    gate.with_suffix(".ready").touch()
    while not gate.with_suffix(".go").exists():
        time.sleep(0.02)


def timed(step: Step, place: Place) -> dict[str, Any]:
    for _ in range(WARM):
        step()
    synchronize(place)
    if place.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        step()
        synchronize(place)
        times.append((time.perf_counter() - begin) * 1e3)
    row: dict[str, Any] = {"ms": round(statistics.median(times), 3)}
    if place.device == "cuda":
        row["mb"] = round(torch.cuda.max_memory_allocated() / 2**20)
        row |= of_kernels(step)
    return row


def of_kernels(step: Step) -> dict[str, Any]:
    """Milliseconds of the GPU in a step, launches, and the kernels that take longest."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(2):
            step()
        torch.cuda.synchronize()
    events = [e for e in found.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    by_name: dict[str, list[float]] = {}
    for event in events:
        by_name.setdefault(event.name, []).append(event.time_range.elapsed_us() / 2)
    most = sorted(by_name.items(), key=lambda item: -sum(item[1]))[:8]
    total = sum(map(sum, by_name.values()))
    names = [[name[:110], round(sum(took), 1), len(took) // 2] for name, took in most]
    return {"gpu": round(total / 1e3, 4), "kernels": len(events) // 2, "most": names}


def run(name: str, way: str, place: Place, results: Path, gate: Path | None) -> dict[str, Any]:
    row: dict[str, Any] = {"program": name, "way": way}
    torch.manual_seed(0)
    step = PROGRAMS[name](compiler(way), place)
    synchronize(place)
    begin = time.perf_counter()
    for number in range(4):
        torch.manual_seed(1 + number)
        result = step()
        synchronize(place)
        if number == 0:
            row["first"] = round(time.perf_counter() - begin, 1)
    row["four"] = round(time.perf_counter() - begin, 1)
    torch.save([leaf.detach().cpu() for leaf in leaves(result)], results)
    if way == "dynamo":
        import dynamo

        row["breaks"] = dict(dynamo.counters["graph_break"])
        row["uncompiled"] = dict(dynamo.counters["not_compiled"])
        row["graphs"] = dynamo.counters["stats"].get("graphs")
    if way == "torch":
        from torch._dynamo.utils import counters

        row["breaks"] = dict(counters["graph_break"])
        row["graphs"] = counters["stats"].get("unique_graphs")
    if gate is not None:
        wait(gate)
        row |= timed(step, place)
    return row


def main() -> None:
    name, way, device, size, results, gate = sys.argv[1:]
    load()
    torch.set_float32_matmul_precision("high")
    place = Place(device, size == "small")
    if place.small:
        torch.set_num_threads(2)
    try:
        row = run(name, way, place, Path(results), Path(gate) if gate else None)
    except Unfit as error:
        row = {"program": name, "way": way, "unfit": str(error)}
    except BaseException as error:  # a row of the table
        row = {"program": name, "way": way, "error": f"{type(error).__name__}: {error}"[:600],
               "trace": traceback.format_exc()[-2500:]}  # fmt: skip
    print("ROW " + json.dumps(row, default=str), flush=True)


if __name__ == "__main__":
    main()
