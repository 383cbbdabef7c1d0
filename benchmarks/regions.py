"""Layers that a model repeats, marked with `nested_compile_region`: first call, a step after it.

    python benchmarks/regions.py [--layers 48] [--width 256] [--training] [--cuda]
        [--mode reduce-overhead] [--no-peer]

A BERT of so many layers of that width (2 x 32 tokens, or 2 x 128 from a width of 768 on), ours and
torch.compile, with and without the mark, each in a process of its own with new caches. Seconds of
the first call, milliseconds of a step (median), the largest distance of results and gradients from
eager's, as a part of the largest element of each. Float32; with --cuda float16, in training
bfloat16.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
STEPS = 20
CASES = (("ours", False), ("ours", True), ("torch.compile", False), ("torch.compile", True))


def model_of(options: argparse.Namespace) -> tuple[Any, Any]:
    """The model and its tokens."""
    import torch
    import transformers

    width = options.width
    config = transformers.BertConfig(
        num_hidden_layers=options.layers, hidden_size=width, intermediate_size=4 * width,
        num_attention_heads=width // 64, vocab_size=1000, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    model = transformers.BertForMaskedLM(config).train(options.training)
    tokens = torch.randint(0, 1000, (2, 128 if width >= 768 else 32))
    if options.cuda:
        model = model.cuda().to(torch.bfloat16 if options.training else torch.float16)
        tokens = tokens.cuda()
    return model, tokens


def step_of(model: Any, tokens: Any, training: bool) -> Callable[[Any], list[Any]]:
    """What runs a callable of the model once: its result, and the gradients."""
    import torch

    def step(call: Any) -> list[Any]:
        if not training:
            with torch.no_grad():
                return [call(input_ids=tokens)[0]]
        model.zero_grad()
        loss = call(input_ids=tokens, labels=tokens).loss
        loss.backward()
        return [loss.detach(), *[p.grad for p in model.parameters() if p.grad is not None]]

    return step


def distance(found: list[Any], wanted: list[Any]) -> float:
    """The largest, each as a part of the largest element; of all but gradients that are noise."""
    assert len(found) == len(wanted)
    largest = max(float(other.abs().max()) for other in wanted)
    rows = zip(found, wanted, strict=True)
    return max(float((one - other).abs().max()) / max(float(other.abs().max()), 1e-3 * largest)
               for one, other in rows)  # fmt: skip


def work(options: argparse.Namespace) -> None:
    """One case, in this process."""
    import torch
    from transformers.models.bert.modeling_bert import BertLayer

    import dynamo

    torch.set_num_threads(2)
    ours = options.case.startswith("ours")
    model, tokens = model_of(options)
    if options.case.endswith("marked"):
        mark = dynamo.nested_compile_region if ours else torch.compiler.nested_compile_region
        BertLayer.forward = mark(BertLayer.forward)
    mode = None if options.mode == "default" else options.mode
    compiled = (dynamo if ours else torch).compile(model, mode=mode)
    step = step_of(model, tokens, options.training)

    def timed() -> float:
        torch.compiler.cudagraph_mark_step_begin()
        begin = time.perf_counter()
        step(compiled)
        if options.cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    first = timed()
    found = [x.clone() for x in step(compiled)]
    away = distance(found, step(model))
    times = statistics.median(timed() for _ in range(STEPS))
    left = sum(dynamo.counters["not_compiled"].values()) if ours else 0
    told = f", {left} NOT COMPILED" if left else ""
    print(f"| {options.case} | {first:.2f} | {1e3 * times:.1f} | {away:.1e}{told} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--mode", default="default")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    for flag in ("--training", "--cuda", "--no-peer"):
        parser.add_argument(flag, action="store_true")
    options = parser.parse_args()
    if options.case:
        work(options)
        return 0
    print("| | first call, s | step, ms | distance |\n| --- | --- | --- | --- |", flush=True)
    worst = 0
    for engine, is_marked in CASES:
        if options.no_peer and engine != "ours":
            continue
        case = f"{engine}, marked" if is_marked else engine
        with tempfile.TemporaryDirectory() as folder:
            env = {**os.environ, "DYNAMO_CACHE_DIR": f"{folder}/ours", "PYTHONPATH": str(ROOT),
                   "TORCHINDUCTOR_CACHE_DIR": f"{folder}/peer"}  # fmt: skip
            command = [sys.executable, __file__, *sys.argv[1:], "--case", case]
            worst = max(worst, subprocess.run(command, env=env, check=False).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main())
