"""Models of transformers, torchvision and timm on a GPU, as a table for `docs/gpu_models.md`.

    python benchmarks/gpu_models.py [--only BertForMaskedLM ...] [--processes 7] [--peer]
        [--what inference training] [--modes default reduce-overhead] [--layers 4]
        [--each 240] [--write docs/gpu_models.md] [--device cuda]

Each model runs in a process of its own, several at a time; only one is timed at a time. Inference
is in float16, training (forward, loss, backward) in bfloat16: as eager, as `dynamo.compile` and
with --peer as `torch.compile`. An error is |x - x64| / |x64| over all results or gradients, x64
from eager in float64 (eager itself where float64 fails); ours may be three times eager's, or a
hundredth. What did not run as compiled code is listed. Memory is the peak above the model, in MiB.
"""

from __future__ import annotations

import argparse
import copy
import fcntl
import json
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import dynamo  # noqa: E402
from benchmarks.gpu import norm_distance  # noqa: E402

# Of transformers: the model, and the configuration that is not named like it.
TEXT = """Albert:MaskedLM Bart:CausalLM Bert:MaskedLM BigBird:MaskedLM ConvBert:MaskedLM
DebertaV2:MaskedLM DistilBert:MaskedLM GPT2:LMHeadModel GPTNeo:CausalLM MBart:CausalLM
MegatronBert:CausalLM ModernBert:MaskedLM OPT:CausalLM Pegasus:CausalLM Roberta:CausalLM
T5:ConditionalGeneration TrOCR:CausalLM Llama:CausalLM Qwen2:CausalLM Gemma2:CausalLM
Phi3:CausalLM Mamba:CausalLM""".split()
IMAGES = ("ViTForImageClassification", "ConvNextForImageClassification")
VISION = """alexnet densenet121 mnasnet1_0 mobilenet_v2 resnet18 resnet50 squeezenet1_1
vgg16""".split()
TIMM = """resnet50 convnext_tiny vit_base_patch16_224 efficientnet_b0 deit_tiny_patch16_224
mixer_b16_224 nfnet_l0 ghostnet_100 mobilevit_s inception_v3""".split()
SIZES = {"hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 12}
DECODERS = ("Llama", "Qwen2", "Gemma2", "Phi3")  # whose own sizes are of several thousand millions
DEPTHS = """num_hidden_layers num_layers n_layer n_layers encoder_layers decoder_layers
num_decoder_layers""".split()
BATCH, LENGTH, PICTURES = 4, 256, 16
ROUNDS, CALLS = 5, 8
TIMES, LEAST = 3.0, 1e-2
DTYPES = {"inference": torch.float16, "training": torch.bfloat16}
Call = Callable[..., Any]
Row = dict[str, Any]


def model_names() -> list[str]:
    text = [entry.replace(":", "For", 1) for entry in TEXT]
    text = [name.replace("ForLMHeadModel", "LMHeadModel") for name in text]
    return [*text, *IMAGES, *(f"vision/{n}" for n in VISION), *(f"timm/{n}" for n in TIMM)]


# -- one model ------------------------------------------------------------------------------------


def build(name: str, layers: int, device: str) -> tuple[nn.Module, Row]:
    """The model without dropout, in float32, and its keyword arguments."""
    torch.manual_seed(0)
    if name.startswith("timm/"):
        import timm  # an optional package

        model = timm.create_model(name[5:])
        side = model.default_cfg["input_size"][-1]
        return ready(model, device), {"x": torch.randn(PICTURES, 3, side, side)}
    if name.startswith("vision/"):
        from torchvision import models  # an optional package

        return ready(getattr(models, name[7:])(), device), {"x": torch.randn(PICTURES, 3, 224, 224)}
    import transformers  # an optional package

    family = name.partition("For")[0].removesuffix("LMHeadModel")
    config = getattr(transformers, f"{family}Config")()
    for key in DEPTHS:
        if hasattr(config, key) and name not in IMAGES:
            setattr(config, key, min(layers, getattr(config, key)))
    if family in DECODERS:
        extra = {"num_key_value_heads": 4, "head_dim": 64, "pad_token_id": 0}
        config = getattr(transformers, f"{family}Config")(
            **SIZES, **extra, num_hidden_layers=layers, vocab_size=32000)
    config.use_cache = False
    model = ready(getattr(transformers, name)(config), device)
    if name in IMAGES:
        return model, {"pixel_values": torch.randn(PICTURES, 3, 224, 224)}
    words = torch.randint(5, config.vocab_size - 5, (BATCH, LENGTH))
    return model, {"input_ids": words} | ({"decoder_input_ids": words} if family == "T5" else {})


def ready(model: nn.Module, device: str) -> nn.Module:
    for module in model.modules():
        for key, value in vars(module).items():
            if "drop" in key and isinstance(value, float):
                setattr(module, key, 0.0)
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    return model.to(device)


def moved(inputs: Row, device: str, dtype: torch.dtype) -> Row:
    to = {key: x.to(device) for key, x in inputs.items()}
    return {key: x.to(dtype) if x.is_floating_point() else x for key, x in to.items()}


def tensors_of(result: Any) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(dict(result) if hasattr(result, "items") else result)
    return [x for x in leaves if isinstance(x, torch.Tensor) and x.is_floating_point()]


def step_of(model: nn.Module, call: Call, what: str) -> Call:
    """Results of inference, or the gradients of one step."""

    def infer(inputs: Row) -> list[torch.Tensor]:
        with torch.no_grad():
            return tensors_of(call(**inputs) if "x" not in inputs else call(inputs["x"]))

    def train(inputs: Row) -> list[torch.Tensor]:
        model.zero_grad(set_to_none=True)
        found = tensors_of(call(**inputs) if "x" not in inputs else call(inputs["x"]))
        sum(x.float().tanh().square().mean() for x in found).backward()  # type: ignore[union-attr]
        return [p.grad for p in model.parameters() if p.grad is not None]

    return infer if what == "inference" else train


def left_uncompiled() -> dict[str, int]:
    found = {str(key): count for key, count in dynamo.counters["not_compiled"].items()}
    as_captured = dynamo.counters["inductor"]["graphs run as captured"]
    return found | ({"graphs run as captured": as_captured} if as_captured else {})


def graphs_of(model: nn.Module, inputs: Row, what: str) -> int:
    made: list[Any] = []

    def backend(module: torch.fx.GraphModule, examples: list[Any]) -> Any:
        made.append(module)
        return module.forward

    mine = copy.deepcopy(model).train(what == "training")
    step_of(mine, dynamo.compile(mine, backend=backend), what)(inputs)
    dynamo.reset()
    return len(made)


def measure(name: str, options: argparse.Namespace) -> Iterable[Row]:
    base, given = build(name, options.layers, options.device)
    for what in options.what:
        dtype = DTYPES[what]
        model = base.to(dtype).train(what == "training")
        inputs = moved(given, options.device, dtype)
        steps: dict[str, Call] = {"eager": step_of(model, model, what)}
        row: Row = {"name": name, "what": what, "graphs": graphs_of(model, inputs, what)}
        try:
            twin = copy.deepcopy(model).double()
            exact = step_of(twin, twin, what)(moved(given, options.device, torch.float64))
            del twin
        except RuntimeError:
            exact = [x.double() for x in steps["eager"](inputs)]
        for mode in options.modes:
            mine = copy.deepcopy(model)
            call = dynamo.compile(mine, mode=None if mode == "default" else mode)
            steps[mode] = step_of(mine, call, what)
            if options.peer:
                other = copy.deepcopy(model)
                call = torch.compile(other, mode=None if mode == "default" else mode)
                steps[f"peer {mode}"] = step_of(other, call, what)
        for kind, step in steps.items():
            row[kind] = checked(step, inputs, exact, options.device)
            row[kind]["left"] = left_uncompiled() if kind in options.modes else {}
        with open(options.lock, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            for kind, took in times_of(steps, inputs, options.device).items():
                row[kind]["ms"] = took
        yield row
        dynamo.reset()


def checked(step: Call, inputs: Row, exact: list[torch.Tensor], device: str) -> Row:
    """The error after some calls, seconds of the first one, the peak of memory of the last."""
    start = time.perf_counter()
    found = step(inputs)
    synchronize(device)
    seconds = time.perf_counter() - start
    for _ in range(4):
        found = step(inputs)
    error = norm_distance(found, exact)
    del found
    memory = 0.0
    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(inputs)
        memory = (torch.cuda.max_memory_allocated() - before) / 2**20
    return {"error": error, "seconds": seconds, "memory": memory}


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def times_of(steps: dict[str, Call], inputs: Row, device: str) -> dict[str, float]:
    """Milliseconds of a call of each; they take turns."""
    times: dict[str, list[float]] = {kind: [] for kind in steps}
    for _ in range(ROUNDS):
        for kind, step in steps.items():
            synchronize(device)
            start = time.perf_counter()
            for _ in range(CALLS):
                step(inputs)
            synchronize(device)
            times[kind].append((time.perf_counter() - start) / CALLS * 1000)
    return {kind: statistics.median(values) for kind, values in times.items()}


# -- all models -----------------------------------------------------------------------------------


def in_a_process(name: str, given: list[str], limit: float) -> list[Row]:
    command = [sys.executable, __file__, "--worker", name, *given]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        text, rest = done.stdout, done.stderr
    except subprocess.TimeoutExpired as error:
        text, rest = str(error.stdout or ""), f"no end after {limit} s"
    rows = [json.loads(line[4:]) for line in text.splitlines() if line.startswith("ROW ")]
    if not rows:
        print(f"{name} FAILED\n{rest[-1200:]}", flush=True)
        return [{"name": name, "what": "", "failed": (rest.splitlines() or ["?"])[-1][:160]}]
    print(*map(line_of, rows), sep="\n", flush=True)
    return rows


def is_good(row: Row, mode: str) -> bool:
    allowed = max(TIMES * row["eager"]["error"], LEAST)
    return bool(row[mode]["error"] <= allowed and not row[mode]["left"])


def line_of(row: Row) -> str:
    """One row of the table."""
    if "failed" in row:
        return f"| {row['name']} | failed: {row['failed']} |"
    eager = row["eager"]
    parts = [row["name"], row["what"], str(row["graphs"])]
    parts += [f"{eager['ms']:.2f}", f"{eager['memory']:.0f}"]
    for mode in (kind for kind in row if kind in ("default", "reduce-overhead")):
        mine, peer = row[mode], row.get(f"peer {mode}")
        good = "ok" if is_good(row, mode) else f"WRONG {mine['error']:.1e} {mine['left'] or ''}"
        parts += [good, f"{mine['ms']:.2f}", f"{eager['ms'] / mine['ms']:.2f}"]
        parts += [f"{peer['ms'] / mine['ms']:.2f}" if peer else "-", f"{mine['memory']:.0f}"]
    return f"| {' | '.join(parts)} |"


def page_of(rows: list[Row], options: argparse.Namespace) -> str:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    machine = torch.cuda.get_device_name() if options.device != "cpu" else "CPU"
    heads = ["model", "what", "graphs", "eager ms", "eager MiB"]
    for mode in options.modes:
        heads += [mode, "ms", "eager / ours", "torch.compile / ours", "MiB"]
    where = f"{machine}, torch {torch.__version__}, commit {commit.stdout.strip() or 'unknown'}"
    return "\n".join([
        "# Models on a GPU", "",
        f"`python benchmarks/gpu_models.py` on {where}.",
        "Inference is in float16, a training step in bfloat16; a model is right where it is as",
        "near to float64 as eager and nothing was left uncompiled. MiB: the peak above the model.",
        "",
        f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}", *map(line_of, rows), "",
    ])  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=model_names(), metavar="NAME")
    parser.add_argument("--processes", type=int, default=7)
    parser.add_argument("--peer", action="store_true", help="torch.compile, too")
    parser.add_argument("--what", nargs="+", choices=list(DTYPES), default=list(DTYPES))
    modes = ["default", "reduce-overhead"]
    parser.add_argument("--modes", nargs="+", choices=modes, default=modes)
    parser.add_argument("--layers", type=int, default=4, help="of models of transformers")
    parser.add_argument("--each", type=float, default=240.0, help="seconds for one")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--write", default="", help="a file for the table")
    parser.add_argument("--lock", default="", help=argparse.SUPPRESS)
    parser.add_argument("--worker", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        try:
            for row in measure(options.worker, options):
                print("ROW " + json.dumps(row), flush=True)
        except Exception:
            traceback.print_exc()
            return 1
        return 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.processes) as pool:
        given = ["--what", *options.what, "--modes", *options.modes]
        given += ["--layers", str(options.layers), "--device", options.device]
        given += ["--lock", str(Path(folder) / "lock")]
        given += ["--peer"] * options.peer
        names = options.only or model_names()
        found = pool.map(lambda name: in_a_process(name, given, options.each), names)
        rows = [row for rows in found for row in rows]
    page = page_of(rows, options)
    print(page)
    if options.write:
        Path(options.write).write_text(page)
    bad = [r for r in rows if "failed" in r or not all(is_good(r, m) for m in options.modes)]
    print(f"{len(rows)} rows, {len(bad)} failed or wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
