"""Steps of torchtitan's llama3 (its debug model, cut) over gloo: eager, torch.compile and ours.

    pip install --no-deps --target SITE torchtitan==0.3.0 spmd_types tyro docstring_parser
    PYTHONPATH=SITE python benchmarks/distributed_llama.py [--ways tp,fsdp,...] [--rounds 15]

Each block is compiled with `fullgraph=True` where torchtitan does it: behind tensor parallelism and
checkpoints, before FSDP. Printed for each: the losses' and gradients' largest distance to eager's,
graphs and breaks of a step, milliseconds of one (median; the modes run by turns).
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.tensor import DTensor
from torch.nn.attention.flex_attention import flex_attention

import dynamo

# Degrees of tensor parallelism; how a block is checkpointed, the attention, a compiled loss.
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tp": {"tp": 2},
    "tp, no sp": {"tp": 2, "sequence": False},
    "fsdp": {"fsdp": 2},
    "fsdp, selective": {"fsdp": 2, "checkpoints": "selective"},
    "fsdp, full": {"fsdp": 2, "checkpoints": "full"},
    "tp, selective": {"tp": 2, "checkpoints": "selective"},
    "fsdp x tp": {"fsdp": 2, "tp": 2},
    "fsdp, loss": {"fsdp": 2, "loss": True},
    "tp, flex": {"tp": 2, "flex": True},  # forward alone: torch has no backward of it on CPUs
    "fsdp, half": {"fsdp": 2, "half": True},
}
COMPILERS: dict[str, Callable[..., Any]] = {
    "eager": lambda function, **_: function,
    "torch": torch.compile,
    "ours": dynamo.compile,
}


def build(way: dict[str, Any], given: argparse.Namespace) -> tuple[Any, Any]:
    """torchtitan's model with its states, and its meshes."""
    from torchtitan.config import ParallelismConfig
    from torchtitan.distributed import ParallelDims, parallel_dims
    from torchtitan.models import llama3
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3.sharding import set_llama3_sharding_config

    parallel_dims.device_type = "cpu"
    degree, shards = way.get("tp", 1), way.get("fsdp", 1)
    config = copy.deepcopy(llama3._debugmodel("flex"))
    config.layers = config.layers[: given.layers]
    for layer in config.layers:
        layer.attention.rope.max_seq_len = given.length
        if not way.get("flex"):
            layer.attention.inner_attention = ScaledDotProductAttention.Config()
    parallelism = ParallelismConfig(
        tensor_parallel_degree=degree, data_parallel_shard_degree=shards,
        spmd_backend="partial_dtensor")
    set_llama3_sharding_config(config, enable_sp=way.get("sequence", True))
    dims = ParallelDims.from_config(parallelism, dist.get_world_size())
    dims.build_mesh()
    model = config.build()
    if degree > 1:
        model.parallelize(dims)
    torch.manual_seed(0)
    model.init_states(buffer_device=torch.device("cpu"))
    return model, dims


class Case:
    """One way to run the model."""

    def __init__(self, name: str, way: dict[str, Any], given: argparse.Namespace) -> None:
        from torchtitan.components.loss import cross_entropy_loss
        from torchtitan.distributed import fsdp
        from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
        from torchtitan.models.common.attention import FlexAttention

        self.name, self.way = name, way
        self.model, dims = build(way, given)
        policies = {"selective": SelectiveAC, "full": FullAC}
        if "checkpoints" in way:
            policy = policies[way["checkpoints"]]
            policy(policy.Config()).apply(self.model)
        for block in self.model.layers.values():
            if name == "torch":
                block.compile(fullgraph=True)
            elif name == "ours":
                dynamo.compile_in_place(block, fullgraph=True)
        FlexAttention._compiled_flex_attn = flex_attention
        if "fsdp" in way:
            fsdp.disable_fsdp_gradient_division = lambda model: None  # gloo has no PREMUL_SUM
            fsdp.apply_fsdp_to_decoder(
                self.model, dims.get_mesh(["fsdp"]), pp_enabled=False,
                param_dtype=torch.bfloat16 if way.get("half") else torch.float32,
                reduce_dtype=torch.float32)
        compiler = COMPILERS[name] if way.get("loss") else COMPILERS["eager"]
        self.loss = compiler(cross_entropy_loss)
        self.best = torch.optim.AdamW(self.model.parameters(), lr=1e-3, foreach="tp" not in way)
        self.times: list[float] = []
        self.losses: list[float] = []
        self.gradients: list[torch.Tensor] = []

    def step(self, tokens: torch.Tensor, labels: torch.Tensor) -> None:
        start = time.perf_counter()
        positions = torch.arange(tokens.shape[1]).expand(tokens.shape)
        masks = self.model.get_attention_masks(positions) if self.way.get("flex") else None
        with torch.set_grad_enabled(not self.way.get("flex")):
            out = self.model(tokens, positions, masks)
        loss = self.loss(out, labels) / labels.numel()
        if loss.requires_grad:
            loss.backward()
        self.times.append((time.perf_counter() - start) * 1e3)
        self.losses.append(loss.item())
        if not loss.requires_grad:
            return
        gradients = [p.grad for p in self.model.parameters()]
        self.gradients = [
            (g.full_tensor() if isinstance(g, DTensor) else g).clone() for g in gradients]
        self.best.step()
        self.best.zero_grad()


def graphs(name: str) -> tuple[int, int]:
    """Graphs and breaks up to now."""
    if name == "torch":
        counters = torch._dynamo.utils.counters
        return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
    return dynamo.counters["stats"]["graphs"], sum(dynamo.counters["graph_break"].values())


def work(rank: int, store: str, label: str, world: int, given: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    way = WAYS[label]
    from torchtitan.distributed.utils import set_spmd_backend

    set_spmd_backend("partial_dtensor")
    cases = [Case(name, way, given) for name in given.modes.split(",")]
    torch.manual_seed(rank // way.get("tp", 1))
    shown: dict[str, list[list[int]]] = {}
    for _ in range(given.rounds):
        tokens = torch.randint(0, 2048, (given.rows, given.length + 1))
        for case in cases:
            before = graphs(case.name)
            case.step(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
            after = graphs(case.name)
            if case.name != "eager":
                shown.setdefault(case.name, []).append(
                    [b - a for a, b in zip(before, after, strict=True)])
    if rank == 0:
        for case in cases:
            apart = max(abs(a - b) for a, b in zip(case.losses, cases[0].losses, strict=True))
            pairs = zip(case.gradients, cases[0].gradients, strict=True)
            error = max((float((a - b).abs().max() / b.abs().max()) for a, b in pairs), default=0.0)
            ms = statistics.median(case.times[3:] or case.times)
            print(f"{label:16} {case.name:6} {ms:8.1f} ms  losses {apart:.0e}  "
                  f"gradients {error:.0e}  graphs {shown.get(case.name)}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for option, value in (("layers", 2), ("rows", 2), ("length", 64), ("rounds", 4)):
        parser.add_argument(f"--{option}", type=int, default=value)
    parser.add_argument("--ways", default=";".join(WAYS))
    parser.add_argument("--modes", default="eager,torch,ours")
    options = parser.parse_args()
    for chosen in options.ways.split(";"):
        number = WAYS[chosen].get("tp", 1) * WAYS[chosen].get("fsdp", 1)
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(work, (folder + "/store", chosen, number, options), nprocs=number)
