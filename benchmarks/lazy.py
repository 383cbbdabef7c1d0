"""Lazy tensors beside eager, `dynamo.compile` and PyTorch's own lazy tensors, on the CPU.

    python -m benchmarks.lazy

Three tables: small models of transformers in inference and training (is it right, what does the
second step compile, time of a step over eager's), the cost of recording an operation beside
`torch._lazy`'s, and a step of large operations beside `dynamo.compile`. All times are medians of
alternating rounds within one process; compare the ratios only.
"""

from __future__ import annotations

import contextlib
import copy
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import transformers

import dynamo
import lazy

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
ROUNDS = 15


def build(name: str, training: bool) -> tuple[torch.nn.Module, dict[str, Any]]:
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


def lazily(step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    def call() -> torch.Tensor:
        with lazy.mode("cpu"):
            return lazy.eager(step())
    return call


def medians(*steps: Callable[[], Any]) -> list[float]:
    """Seconds of each, measured in turn."""
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(ROUNDS):
        for found, step in zip(times, steps, strict=True):
            start = time.perf_counter()
            step()
            found.append(time.perf_counter() - start)
    return [statistics.median(found) for found in times]


def models() -> Iterator[str]:
    yield "| model | | error | compiles, 1st step | later | eager / lazy | eager / compiled |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name in MODELS:
        for training in (False, True):
            model, given = build(name, training)
            other, third = copy.deepcopy(model), copy.deepcopy(model)
            lazy.reset()
            expected = step_of(model, given, training)
            found = lazily(step_of(other, given, training))
            compiled = dynamo.compile(third)
            last = step_of(compiled, given, training)
            error, first = 0.0, 0
            for n in range(3):
                torch.manual_seed(n)
                wanted = expected()
                torch.manual_seed(n)
                error = max(error, float((wanted - found()).abs().max()))
                first = first or lazy.metrics().compiles
                last()
            later = lazy.metrics().compiles - first
            eager_s, lazy_s, compiled_s = medians(expected, found, last)
            kind = "training" if training else "inference"
            yield (f"| {name} | {kind} | {error:.0e} | {first} | {later} | {eager_s / lazy_s:.2f} "
                   f"| {eager_s / compiled_s:.2f} |")  # fmt: skip


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(100):
        x = torch.relu(x @ w) + 1.5
    return x


def overhead() -> Iterator[str]:
    """A step of 300 tiny operations: recorded, found in the table, run."""
    import torch._lazy
    import torch._lazy.ts_backend
    torch._lazy.ts_backend.init()
    x, w = torch.randn(4, 4), torch.randn(4, 4) / 4
    theirs, their_w = x.to("lazy"), w.to("lazy")

    def torchs() -> None:
        kept = chain(theirs, their_w)
        torch._lazy.mark_step(wait=True)
        del kept

    def ours() -> None:
        kept = chain(x, w)
        lazy.mark_step()
        del kept

    context = lazy.mode("cpu")
    with context:
        for _ in range(5):
            torchs()
            ours()

    def in_mode() -> None:
        with context:
            ours()

    eager_s, torch_s, our_s = medians(lambda: chain(x, w), torchs, in_mode)
    yield "| microseconds an operation | eager | torch._lazy | lazy |"
    yield "| --- | --- | --- | --- |"
    scale = 1e6 / 300
    yield f"| whole step | {eager_s * scale:.1f} | {torch_s * scale:.1f} | {our_s * scale:.1f} |"


def long_steps() -> Iterator[str]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[
        torch.nn.Sequential(torch.nn.Linear(768, 768), torch.nn.LayerNorm(768), torch.nn.GELU())
        for _ in range(8)
    ])  # fmt: skip
    x = torch.randn(512, 768)
    compiled = dynamo.compile(model)

    def run(call: Any, context: Any) -> Callable[[], None]:
        def step() -> None:
            with torch.no_grad(), context:
                call(x)
                lazy.mark_step()
        return step

    def ours() -> None:
        with torch.no_grad(), lazy.mode("cpu"):
            lazy.eager(model(x))

    steps = (run(model, contextlib.nullcontext()), ours, run(compiled, contextlib.nullcontext()))
    for step in steps:
        step()
        step()
    eager_s, lazy_s, compiled_s = medians(*steps)
    yield "| long steps | eager ms | lazy ms | dynamo.compile ms | lazy / compiled |"
    yield "| --- | --- | --- | --- | --- |"
    yield (f"| 8 layers, 512 x 768 | {eager_s * 1e3:.1f} | {lazy_s * 1e3:.1f} "
           f"| {compiled_s * 1e3:.1f} | {lazy_s / compiled_s:.2f} |")  # fmt: skip


def main() -> None:
    for table in (overhead, long_steps, models):
        for line in table():
            print(line, flush=True)
        print()


if __name__ == "__main__":
    main()
