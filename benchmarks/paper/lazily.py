"""Lazy tensors (the LazyTensor paper) beside eager, `dynamo.compile` and `torch._lazy`.

Small models of transformers: is a step right, how many traces and compiles the first three steps
make, how many later ones, and the time of a step over eager's. `chain`: what it costs to record an
operation and find the trace (a hit). `long`: steps of large operations beside `dynamo.compile`.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

import dynamo
import lazy
from benchmarks.paper.models import import_transformers
from benchmarks.paper.report import Row
from benchmarks.paper.table import Run, Table
from benchmarks.paper.theirs import torch_lazy
from benchmarks.paper.timing import held, medians
from benchmarks.small_models import CannotBuild

SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1000,
         "intermediate_size": 512}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "BertForMaskedLM": ("BertConfig", SMALL),
    "RobertaForMaskedLM": ("RobertaConfig", SMALL),
    "LlamaForCausalLM": ("LlamaConfig", {**SMALL, "num_key_value_heads": 4}),
    "Qwen2ForCausalLM": ("Qwen2Config", {**SMALL, "num_key_value_heads": 4}),
    "GPT2LMHeadModel": ("GPT2Config", {"n_embd": 128, "n_layer": 2, "n_head": 4,
                                       "vocab_size": 1000}),
    "OPTForCausalLM": ("OPTConfig", {"hidden_size": 128, "num_hidden_layers": 2, "ffn_dim": 512,
                                     "num_attention_heads": 4, "vocab_size": 1000,
                                     "word_embed_proj_dim": 128}),
}  # fmt: skip
CHAIN, LONG = "chain of 300 operations", "8 layers, 512 x 768"


def build(name: str, training: bool) -> tuple[torch.nn.Module, dict[str, Any]]:
    transformers = import_transformers()
    if name not in MODELS:
        raise CannotBuild(f"no model {name!r}; there are {', '.join(MODELS)}")
    config, sizes = MODELS[name]
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, config)(**sizes, use_cache=False))
    ids = torch.randint(3, 1000, (2, 32))
    return model.train(training), {"input_ids": ids, **({"labels": ids} if training else {})}


def step_of(model: Any, given: dict[str, Any], training: bool) -> Callable[[], torch.Tensor]:
    if not training:
        def infer() -> torch.Tensor:
            with torch.no_grad():
                return model(**given).logits
        return infer
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def train() -> torch.Tensor:
        loss = model(**given).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train


def lazily(step: Callable[[], torch.Tensor], device: str) -> Callable[[], torch.Tensor]:
    def call() -> torch.Tensor:
        with lazy.mode(device):
            return lazy.eager(step())
    return call


def rows(run: Run) -> Iterator[Row]:
    if run.model == CHAIN:
        yield hit_cost(run)
    elif run.model == LONG:
        yield long_steps(run)
    else:
        yield from (of_model(run, training) for training in (False, True))


def of_model(run: Run, training: bool) -> Row:
    model, given = build(run.model, training)
    model.to(run.device)
    given = {name: value.to(run.device) for name, value in given.items()}
    other, third = copy.deepcopy(model), copy.deepcopy(model)
    lazy.reset()
    expected = step_of(model, given, training)
    found = lazily(step_of(other, given, training), run.device)
    last = step_of(dynamo.compile(third), given, training)
    error, first = 0.0, 0
    for n in range(3):
        torch.manual_seed(n)
        wanted = expected()
        torch.manual_seed(n)
        error = max(error, float((wanted - found()).abs().max()))
        first = first or lazy.metrics().compiles
        last()
    metrics = lazy.metrics()
    with held(run.hold):
        times = medians({"eager": expected, "lazy": found, "compiled": last}, run.seconds / 2,
                        run.cuda)  # fmt: skip
    return {
        "model": run.model, "kind": "training" if training else "inference", "error": error,
        "traces of 3 steps": metrics.traces, "compiles, 1st": first,
        "later": metrics.compiles - first, "hits": metrics.hits, "fallbacks": metrics.fallbacks,
        "eager ms": 1e3 * times["eager"], "eager / lazy": times["eager"] / times["lazy"],
        "eager / compiled": times["eager"] / times["compiled"], "spread": times.spread,
    }  # fmt: skip


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(100):
        x = torch.relu(x @ w) + 1.5
    return x


def hit_cost(run: Run) -> Row:
    """Microseconds for each of 300 tiny operations: recorded, found in the table, run."""
    x, w = torch.randn(4, 4, device=run.device), torch.randn(4, 4, device=run.device) / 4
    context = lazy.mode(run.device)

    def ours() -> None:
        with context:
            kept = chain(x, w)
            lazy.mark_step()
            del kept

    calls: dict[str, Callable[[], Any]] = {"eager": lambda: chain(x, w), "lazy": ours}
    try:
        if run.cuda:
            raise RuntimeError("theirs is measured on a CPU only")
        own = torch_lazy()
        theirs, their_w = x.to("lazy"), w.to("lazy")

        def torchs() -> None:
            kept = chain(theirs, their_w)
            own.mark_step(wait=True)
            del kept

        torchs()
        calls["torch lazy"] = torchs
    except (ImportError, RuntimeError) as error:
        print(f"without torch's own lazy tensors: {error}", flush=True)
    for _ in range(5):
        for call in calls.values():
            call()
    with held(run.hold):
        times = medians(calls, run.seconds / 2, run.cuda)
    return {"model": CHAIN, "kind": "inference",
            **{f"{name} µs/op": 1e6 / 300 * value for name, value in times.items()}}  # fmt: skip


def long_steps(run: Run) -> Row:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[
        torch.nn.Sequential(torch.nn.Linear(768, 768), torch.nn.LayerNorm(768), torch.nn.GELU())
        for _ in range(8)
    ]).to(run.device)  # fmt: skip
    x = torch.randn(512, 768, device=run.device)
    compiled = dynamo.compile(model)

    def plainly(call: Any) -> Callable[[], None]:
        def step() -> None:
            with torch.no_grad(), contextlib.nullcontext():
                call(x)
        return step

    def ours() -> None:
        with torch.no_grad(), lazy.mode(run.device):
            lazy.eager(model(x))

    calls = {"eager": plainly(model), "lazy": ours, "compiled": plainly(compiled)}
    for call in calls.values():
        call()
        call()
    with held(run.hold):
        times = medians(calls, run.seconds / 2, run.cuda)
    return {"model": LONG, "kind": "inference", "eager ms": 1e3 * times["eager"],
            "eager / lazy": times["eager"] / times["lazy"],
            "eager / compiled": times["eager"] / times["compiled"]}  # fmt: skip


def notes(rows: Sequence[Row]) -> list[str]:
    found = []
    models = [row for row in rows if "later" in row]
    if models:
        later = sum(row["later"] for row in models)
        found.append(f"{len(models)} runs of models, largest error "
                     f"{max(row['error'] for row in models):.0e}; compiles after the first step: "
                     f"{later}")  # fmt: skip
    for row in rows:
        if "torch lazy µs/op" in row:
            ours = row["lazy µs/op"] - row["eager µs/op"]
            theirs = row["torch lazy µs/op"] - row["eager µs/op"]
            found.append(f"over eager, a hit costs {ours:.1f} µs an operation, that of torch's "
                         f"lazy tensors {theirs:.1f} µs")  # fmt: skip
    return found


TABLE = Table(
    "Lazy tensors", "Small models, whole steps: training is forward, backward and the optimizer. "
    "`traces of 3 steps`, `compiles` and `hits` are those of three steps. Times over eager's: "
    "above 1 is faster. The chain has 300 operations on 16 numbers: nearly all its time is "
    "recording.", lambda: [*MODELS, CHAIN, LONG], "small", rows, notes)  # fmt: skip
