"""Seconds of the first call beyond eager's first call, with an empty and with a filled cache.

    python -m benchmarks.warm_start          # two operations, BERT, GPT2, Llama, T5, ResNet-50
    python -m benchmarks.warm_start --models bert --kinds train --implementations dynamo torch
    python -m benchmarks.warm_start --pairs 8      # empty cache, without and with kept traces

Each run is a new process. Eager's first call comes before the compiled one in the same process, so
that what both need once (libraries, threads) counts for neither; imports are shown apart. The
models have four layers.
"""

from __future__ import annotations

import argparse
import itertools
import json
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


def build(name: str, size: str, trains: bool) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The model or function and its arguments, with seeded random weights."""
    torch.manual_seed(0)
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
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(name: str, size: str, kind: str, implementation: str) -> dict[str, Any]:
    """One process: eager's first call, then ours (or torch.compile's)."""
    trains = kind == "train"
    model, args, given = build(name, size, trains)
    eager = seconds(lambda: step(model, args, given, trains))
    made: dict[str, Any] = {"eager": eager, "stages": {}}
    if implementation == "torch":
        compiled = torch.compile(model)
        made["first"] = seconds(lambda: step(compiled, args, given, trains))
        return made
    start = time.perf_counter()
    import dynamo
    import inductor  # noqa: F401

    made["imports"] = time.perf_counter() - start
    compiled = dynamo.compile(model)
    made["first"] = seconds(lambda: step(compiled, args, given, trains))
    made["stages"] = {
        stage: took for stage, took in dynamo.compile_times().items() if took >= 0.001
    }
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
        "--one",
        name,
        kind,
        implementation,
    ]
    env = {
        **os.environ,
        "DYNAMO_CACHE_DIR": folder,
        "TORCHINDUCTOR_CACHE_DIR": folder + "/torch",
        "OMP_NUM_THREADS": str(options.threads),
        **settings,
    }
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def line_of(label: str, runs: list[dict[str, Any]]) -> str:
    cold, *warm = [run["first"] - run["eager"] for run in runs]
    imports = statistics.median(run.get("imports", 0.0) for run in runs)
    stages = ", ".join(f"{stage} {took:.3f}" for stage, took in runs[-1]["stages"].items())
    return f"{label:24}{cold:8.3f}{statistics.median(warm):8.3f}{imports:9.3f}  {stages}"


def line_of_pairs(options: argparse.Namespace, name: str, kind: str) -> str:
    """Processes with empty folders, by turns without and with the cache of traces."""
    took: dict[str, list[float]] = {"0": [], "1": []}
    for number in range(options.pairs):
        for keeps in ("0", "1") if number % 2 else ("1", "0"):
            with tempfile.TemporaryDirectory() as folder:
                run = in_process(
                    options, name, kind, "dynamo", folder, DYNAMO_CAPTURE_CACHE=keeps
                )
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
    parser.add_argument(
        "--cache", help="a folder that may be filled already; by default an empty one"
    )
    parser.add_argument(
        "--pairs", type=int, default=0, help="cold processes without and with kept traces"
    )
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
        print(json.dumps(measure(options.one[0], options.size, *options.one[1:])))
        return
    if options.pairs:
        print(f"{'':24}{'without':>8}{'with':>8}{'ratio':>9}  of each pair")
        for name, kind in itertools.product(options.models, options.kinds):
            print(line_of_pairs(options, name, kind), flush=True)
        return
    print(f"{'':24}{'cold':>8}{'warm':>8}{'imports':>9}  stages of a warm start")
    with tempfile.TemporaryDirectory() as empty:
        for name, kind, implementation in itertools.product(
            options.models, options.kinds, options.implementations
        ):
            folder = options.cache or empty
            runs = [
                in_process(options, name, kind, implementation, folder)
                for _ in range(1 + options.runs)
            ]
            print(line_of(f"{implementation} {name} {kind}", runs), flush=True)


if __name__ == "__main__":
    main()
