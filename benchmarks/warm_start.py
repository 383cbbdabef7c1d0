"""Seconds of the first call beyond eager's first call, with an empty and with a filled cache.

    python -m benchmarks.warm_start          # two operations, BERT, GPT2, Llama, T5, ResNet-50
    python -m benchmarks.warm_start --models bert --kinds train --implementations dynamo torch
    python -m benchmarks.warm_start --pairs 8      # empty cache, without and with cached traces
    python -m benchmarks.warm_start --dynamic --models bert gpt2
    python -m benchmarks.warm_start --device cuda --dtype float16 --size real --shared-imports

Each run is a new process; with --shared-imports they are forked from one that has imported torch,
the models and this package, and those with an empty cache run at the same time. Eager's first call
comes before the compiled one in the same process, so that what both need once (libraries, threads)
counts for neither; imports are shown apart. The models have four layers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

RAW = argparse.RawDescriptionHelpFormatter
MODELS = ("two", "bert", "gpt2", "llama", "t5", "resnet50")
# hidden, heads, sequence, vocabulary
SHAPES = {"small": (128, 4, 32, 1000), "real": (768, 12, 128, 30000)}
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def two_operations(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + y)


def build(
    name: str, size: str, trains: bool, device: str, dtype: torch.dtype
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The model or function and its arguments, with seeded random weights."""
    torch.manual_seed(0)
    model, args, given = build_on_cpu(name, size, trains)
    if isinstance(model, torch.nn.Module):
        model = model.to(device, dtype)

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        kind = dtype if value.is_floating_point() else value.dtype
        return value.detach().to(device, kind).requires_grad_(value.requires_grad)

    return model, tuple(map(moved, args)), {key: moved(item) for key, item in given.items()}


def build_on_cpu(name: str, size: str, trains: bool) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The same in float32 on a CPU."""
    if name == "two":
        return two_operations, (torch.randn(64, 64, requires_grad=trains), torch.randn(64, 64)), {}
    import transformers

    if name == "resnet50":
        pixels = torch.randn(2, 3, *((224, 224) if size == "real" else (64, 64)))
        images: Any = transformers.ResNetForImageClassification(transformers.ResNetConfig())
        labels = {"labels": torch.tensor([0, 1])} if trains else {}
        return images.train(trains), (), {"pixel_values": pixels, **labels}
    hidden, heads, length, words = SHAPES[size]
    common: dict[str, Any] = {"vocab_size": words, "use_cache": False}
    wide = {
        "hidden_size": hidden,
        "num_hidden_layers": 4,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        **common,
    }
    if name == "bert":
        dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        model: Any = transformers.BertForMaskedLM(transformers.BertConfig(**wide, **dropout))
    elif name == "gpt2":
        shape = {
            "n_embd": hidden,
            "n_layer": 4,
            "n_head": heads,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }
        dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, **common, **dropout))
    elif name == "t5":
        model = transformers.T5ForConditionalGeneration(
            transformers.T5Config(
                d_model=hidden,
                d_kv=hidden // heads,
                d_ff=4 * hidden,
                num_layers=4,
                num_heads=heads,
                dropout_rate=0.0,
                decoder_start_token_id=0,
                **common,
            )
        )
    else:
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(num_key_value_heads=4, **wide)
        )
    ids = torch.randint(3, words, (2, length))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if name == "t5" and not trains:
        given["decoder_input_ids"] = ids.clone()
    if trains:
        given["labels"] = ids.clone()
    return model.train(trains), (), given


def step(
    call: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any], trains: bool
) -> None:
    if not trains:
        with torch.no_grad():
            call(*args, **given)
        return
    result = call(*args, **given)
    loss = result.sum() if isinstance(result, torch.Tensor) else result.loss
    loss.backward()


def seconds(run: Callable[[], Any]) -> float:
    """Of one run, from an idle GPU to an idle GPU."""
    start = time.perf_counter()
    run()
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def measure(
    options: argparse.Namespace, name: str, kind: str, implementation: str
) -> dict[str, Any]:
    """One process: eager's first call, then ours (or torch.compile's)."""
    trains = kind == "train"
    dtype = getattr(torch, options.training_dtype if trains else options.dtype)
    model, args, given = build(name, options.size, trains, options.device, dtype)
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    eager = seconds(lambda: step(model, args, given, trains))
    made: dict[str, Any] = {"eager": eager, "stages": {}}
    if implementation == "torch":
        compiled = torch.compile(model, dynamic=True if options.dynamic else None)
        made["first"] = seconds(lambda: step(compiled, args, given, trains))
        return made
    start = time.perf_counter()
    import dynamo
    import inductor  # noqa: F401

    made["imports"] = time.perf_counter() - start
    compiled = dynamo.compile(model, mode=options.mode, dynamic=True if options.dynamic else None)
    made["first"] = seconds(lambda: step(compiled, args, given, trains))
    made["stages"] = {
        stage: took for stage, took in dynamo.compile_times().items() if took >= 0.001
    }
    stats = dynamo.counters["stats"]
    graphs = inductor.metrics.snapshot()["graphs_reused"]
    made["reused"] = [stats["captures_reused"], stats["frames"], graphs]
    made["triton"] = "triton" in sys.modules
    return made


def in_process(
    options: argparse.Namespace,
    name: str,
    kind: str,
    implementation: str,
    folder: str,
    **settings: str,
) -> dict[str, Any]:
    module = "benchmarks.warm_start"
    command = [
        sys.executable,
        "-m",
        module,
        "--size",
        options.size,
        "--device",
        options.device,
        "--dtype",
        options.dtype,
        "--training-dtype",
        options.training_dtype,
        *(["--mode", options.mode] if options.mode else []),
        *(["--dynamic"] if options.dynamic else []),
        "--one",
        name,
        kind,
        implementation,
    ]
    env = {
        **os.environ,
        "DYNAMO_CACHE_DIR": folder,
        "TORCHINDUCTOR_CACHE_DIR": folder + "/torch",
        "TRITON_CACHE_DIR": folder + "/triton",
        "OMP_NUM_THREADS": str(options.threads),
        **settings,
    }
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if options.log:
        with open(options.log, "a") as file:
            file.write(f"--- {name} {kind} {implementation}\n{done.stderr}\n")
    if done.returncode:
        raise SystemExit(f"{name} {kind} {implementation} failed\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def forked(options: argparse.Namespace, rows: list[tuple[str, str, str]], folder: str) -> None:
    """Runs with shared imports: those that fill the folder at once, then one by one."""
    os.environ.update(
        {
            "DYNAMO_CACHE_DIR": folder,
            "TORCHINDUCTOR_CACHE_DIR": folder + "/torch",
            "TRITON_CACHE_DIR": folder + "/triton",
            "OMP_NUM_THREADS": str(options.threads),
        }
    )
    context = multiprocessing.get_context("forkserver")
    names = ("bert", "gpt2", "llama", "t5", "resnet")
    models = [f"transformers.models.{name}.modeling_{name}" for name in names]
    context.set_forkserver_preload(
        ["torch", "dynamo", "inductor", "benchmarks.warm_start", *models]
    )

    def start(row: tuple[str, str, str]) -> Any:
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=report, args=(there, options, *row))
        process.start()
        return process, here

    def wait(started: Any) -> dict[str, Any]:
        process, here = started
        found: dict[str, Any] = here.recv()
        process.join()
        return found

    cold = [wait(each) for each in [start(row) for row in rows]]
    for row, first in zip(rows, cold, strict=True):
        warm = [wait(start(row)) for _ in range(options.runs)]
        name, kind, implementation = row
        print(line_of(f"{implementation} {name} {kind}", [first, *warm]), flush=True)


def report(connection: Any, options: argparse.Namespace, *row: str) -> None:
    torch.set_num_threads(options.threads)
    connection.send(measure(options, *row))


def line_of(label: str, runs: list[dict[str, Any]]) -> str:
    cold, *warm = [run["first"] - run["eager"] for run in runs]
    imports = statistics.median(run.get("imports", 0.0) for run in runs)
    stages = ", ".join(f"{stage} {took:.3f}" for stage, took in runs[-1]["stages"].items())
    eager = statistics.median(run["eager"] for run in runs)
    numbers = f"{eager:8.3f}{cold:8.3f}{statistics.median(warm):8.3f}{imports:9.3f}"
    last = runs[-1]
    if last.get("reused"):
        captures, frames, graphs = last["reused"]
        stages += f"; {captures} of {frames} traces and {graphs} graphs reused"
        stages += ", with Triton" if last["triton"] else ""
    return f"{label:24}{numbers}  {stages}"


def line_of_pairs(options: argparse.Namespace, name: str, kind: str) -> str:
    """Processes with empty folders, by turns without and with the cache of traces."""
    took: dict[str, list[float]] = {"0": [], "1": []}
    for number in range(options.pairs):
        for keeps in ("0", "1") if number % 2 else ("1", "0"):
            with tempfile.TemporaryDirectory() as folder:
                run = in_process(options, name, kind, "dynamo", folder, DYNAMO_CAPTURE_CACHE=keeps)
            took[keeps].append(run["first"])
    without, kept = map(statistics.median, (took["0"], took["1"]))
    ratios = sorted(one / other for one, other in zip(took["1"], took["0"], strict=True))
    label = f"{name} {kind}"
    return f"{label:24}{without:8.3f}{kept:8.3f}{kept / without:9.3f}  " + " ".join(
        f"{ratio:.2f}" for ratio in ratios
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=RAW)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument(
        "--kinds", nargs="+", default=("inference", "train"), choices=("inference", "train")
    )
    parser.add_argument(
        "--implementations", nargs="+", default=("dynamo",), choices=("dynamo", "torch")
    )
    parser.add_argument("--size", default="small", choices=tuple(SHAPES))
    parser.add_argument(
        "--runs", type=int, default=3, help="with a filled cache: the median counts"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rows", nargs="+", help="as bert:train, instead of models and kinds")
    parser.add_argument("--training-dtype", default="float32")
    parser.add_argument("--mode", help="of dynamo.compile")
    parser.add_argument("--dynamic", action="store_true", help="all sizes are symbols")
    parser.add_argument("--log", help="a file for what the processes write to stderr")
    parser.add_argument(
        "--cache", help="a folder that may be filled already; by default an empty one"
    )
    parser.add_argument(
        "--pairs", type=int, default=0, help="cold processes without and with cached traces"
    )
    parser.add_argument(
        "--shared-imports", action="store_true", help="processes are forked behind their imports"
    )
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
        print(json.dumps(measure(options, *options.one)))
        return
    if options.pairs:
        print(f"{'':24}{'without':>8}{'with':>8}{'ratio':>9}  of each pair")
        for name, kind in itertools.product(options.models, options.kinds):
            print(line_of_pairs(options, name, kind), flush=True)
        return
    print(f"{'':24}{'eager':>8}{'cold':>8}{'warm':>8}{'imports':>9}  stages of a warm start")
    pairs = [tuple(row.split(":")) for row in options.rows or ()]
    pairs = pairs or list(itertools.product(options.models, options.kinds))
    rows = [(*pair, way) for pair in pairs for way in options.implementations]
    with tempfile.TemporaryDirectory() as empty:
        if options.shared_imports:
            forked(options, rows, options.cache or empty)
            return
        for name, kind, implementation in rows:
            folder = options.cache or empty
            runs = [
                in_process(options, name, kind, implementation, folder)
                for _ in range(1 + options.runs)
            ]
            print(line_of(f"{implementation} {name} {kind}", runs), flush=True)


if __name__ == "__main__":
    main()
