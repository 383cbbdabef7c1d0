"""Convolutions of image models on a GPU: our template beside the library's and a kernel behind it.

    python benchmarks/gpu_convolutions.py [--models resnet50 densenet121 vgg16] [--batch 64]
        [--whole] [--mode max-autotune] [--quick] [--alone]

Layers: every distinct convolution of the models (those with a window, or a stride), with the norm
or bias and the ReLU behind it, half precision, channels last; microseconds as `max-autotune` finds
them, caches cold. --whole: milliseconds of the models in eager and compiled, with such templates
and without. --quick: no neighbours of the best blocks are tried.
--alone: nothing follows the layers.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import torchvision

sys.path.insert(0, str(Path(__file__).parents[1]))

import dynamo  # noqa: E402
from inductor.autotune import gpu_gemms
from inductor.autotune.gpu_gemms import LIBRARY  # noqa: E402
from inductor.autotune.tuning import Question, Times, Tuner  # noqa: E402
from inductor.driver import for_gpu  # noqa: E402
from inductor.scheduler import gemms  # noqa: E402

LAST = torch.channels_last
ROUNDS = 7
TOGETHER = 5  # layers in one graph
seen: dict[str, Times] = {}
Layer = tuple[torch.nn.Conv2d, tuple[int, ...]]


class Recording(Tuner):
    """Keeps what was found."""

    def answers(self, questions: Sequence[Question]) -> list[Times]:
        found = super().answers(questions)
        for question, times in zip(questions, found, strict=True):
            if LIBRARY in times:
                seen.setdefault(question.what, {}).update(times)
        return found


def layers_of(model: torch.nn.Module, x: torch.Tensor) -> dict[str, Layer]:
    """Distinct convolutions that are no plain product, by their description."""
    found: dict[str, Layer] = {}

    def note(layer: Any, args: Any, result: torch.Tensor) -> None:
        sizes = tuple(args[0].shape)
        plain = set(layer.kernel_size) == set(layer.stride) == {1}
        if layer.groups == 1 and not plain:
            words = f"{sizes[1]:4} -> {result.shape[1]:4}, {sizes[2]:3}, "
            words += f"{layer.kernel_size[0]}x{layer.kernel_size[1]} / {layer.stride[0]}"
            found.setdefault(words, (layer, sizes))

    for layer in model.modules():
        if isinstance(layer, torch.nn.Conv2d):
            layer.register_forward_hook(note)
    with torch.no_grad():
        model(x)
    for layer in model.modules():
        layer._forward_hooks.clear()
    return found


def measure_layers(found: dict[str, Layer], alone: bool) -> None:
    """One graph of some layers: their candidates are compiled side by side."""
    seen.clear()
    inputs = []
    for layer, sizes in found.values():
        x = torch.randn(sizes, device="cuda", dtype=torch.float16).to(memory_format=LAST)
        scale = torch.randn(2, layer.out_channels, 1, 1, device="cuda", dtype=torch.float16)
        inputs.append((x, layer.weight.detach(), layer.bias, scale))
    steps = [(layer.stride, layer.padding, layer.dilation) for layer, _ in found.values()]

    def all_of(given: Any) -> Any:
        results = []
        for (x, w, b, s), more in zip(given, steps, strict=True):
            y = F.conv2d(x, w, b, *more)
            if not alone:
                y = F.relu(y if b is not None else y * s[0] + s[1])
            results.append(y)
        return results

    start = time.perf_counter()
    with torch.no_grad():
        dynamo.compile(all_of, mode="max-autotune-no-cudagraphs")(inputs)
    print(f"{len(found)} layers, {time.perf_counter() - start:.0f} s to compile and measure")
    rows = [times for what, times in seen.items() if "window" in what]
    names = by_product(found)
    for what, times in seen.items():
        if "window" not in what:
            continue
        library = times[LIBRARY]
        ways = [each for each in times.items() if each[0] != LIBRARY]
        blocks, ours = min(ways, key=lambda each: each[1], default=("-", float("nan")))
        plain = min((us for name, us in ways if "descriptors" not in name), default=float("nan"))
        sizes = what.split(" ", 1)[1]
        print(f"| {names.get(sizes.split(',')[0], '')} ({sizes}) | {library:.1f} "
              f"| {ours:.1f} (without descriptors {plain:.1f}) | {ours / library:.2f} | {blocks} |")
    won = sum(min(times.values()) < times[LIBRARY] for times in rows)
    print(f"{won} of {len(rows)} are faster than the library", flush=True)


def by_product(found: dict[str, Layer]) -> dict[str, str]:
    """The descriptions by the sizes of the products."""
    names = {}
    for words, (layer, sizes) in found.items():
        made = layer(torch.empty(1, *sizes[1:], device="cuda", dtype=torch.float16)).shape
        terms = layer.in_channels * layer.kernel_size[0] * layer.kernel_size[1]
        names[f"1x{sizes[0] * made[2] * made[3]}x{made[1]}x{terms}"] = words
    return names


def milliseconds(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Medians; the ways take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(4):
            call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(5):
                call()
            torch.cuda.synchronize()
            times[name].append((time.perf_counter() - start) / 5 * 1e3)
    return {name: statistics.median(each) for name, each in times.items()}


def measure_model(name: str, model: torch.nn.Module, x: torch.Tensor, mode: str) -> None:
    start = time.perf_counter()
    compiled = {}
    find = gemms._convolution
    for way in ("without", "with"):
        gemms._convolution = find if way == "with" else lambda call: None
        copy = type(model).__new__(type(model))
        copy.__dict__.update(model.__dict__)
        compiled[way] = dynamo.compile(copy, mode=mode)
        want, got = model(x), compiled[way](x)
        error = (got - want).abs().max().item() / want.abs().max().item()
        assert error < 2e-2, (name, way, error)
        print(f"{name} {way}: {time.perf_counter() - start:.0f} s, error {error:.1e}", flush=True)
    gemms._convolution = find
    took = milliseconds({
        "eager": lambda: model(x), **{way: (lambda c=call: c(x)) for way, call in compiled.items()}
    })  # fmt: skip
    print(f"| {name} | " + " | ".join(f"{way} {ms:.3f} ms" for way, ms in took.items()) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["resnet50", "densenet121", "vgg16"])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--mode", default="max-autotune")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--alone", action="store_true")
    options = parser.parse_args()
    for_gpu.Tuner = Recording  # type: ignore[misc]
    if options.quick:
        gpu_gemms.ROUNDS = 0
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    x = torch.randn(options.batch, 3, 224, 224, device="cuda").half().to(memory_format=LAST)
    found: dict[str, Layer] = {}
    with torch.no_grad():
        for name in options.models:
            model = getattr(torchvision.models, name)().cuda().half().eval().to(memory_format=LAST)
            if options.whole:
                measure_model(name, model, x, options.mode)
            else:
                found |= layers_of(model, x)
        if found:
            print("| layer | library and kernel, us | ours, us | ratio | blocks |")
            print("| --- " * 5 + "|")
        items = list(found.items())
        for first in range(0, len(items), TOGETHER):
            dynamo.reset()
            measure_layers(dict(items[first : first + TOGETHER]), options.alone)


if __name__ == "__main__":
    main()
