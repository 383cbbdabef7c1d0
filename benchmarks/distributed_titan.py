"""Training steps of torchtitan's llama3 on two GPUs: FSDP2, and tensor parallel of two.

    pip install --no-deps --target SITE torchtitan==0.3.0 spmd_types tyro docstring_parser
    PYTHONPATH=SITE:. python benchmarks/distributed_titan.py [--flavor 1B] [--budget 480]
    PYTHONPATH=SITE:. python benchmarks/distributed_titan.py --ranks 1 --layouts fsdp
    PYTHONPATH=SITE:. python benchmarks/distributed_titan.py --cpu    # the debug model over gloo

The model (with scaled_dot_product_attention), its `parallelize` function, its loss and its clipping
of gradients are torchtitan's own; tokens are drawn. Each block is compiled with `fullgraph=True`
where torchtitan does it, and the loss by itself. Each layout and compiler runs in fresh processes
with a limit of their own, and prints one line of JSON. Times are medians over steps behind the
first five; `loss_apart` is the largest distance to eager's losses. torch 2.11 lacks one name that
torchtitan imports for a layout that is not used here: it gets a placeholder.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

LAYOUTS = {"fsdp": 1, "tp": 2}
MODES = ("eager", "ours", "torch")
FIRST = 5  # steps whose losses are shown


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return made.getsockname()[1]


def run(
    layout: str, mode: str, limit: float, given: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    """What rank 0 says of its steps, or an error with the end of what the ranks have printed."""
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(given.ranks),
        "NCCL_NVLS_ENABLE": "0", "DYNAMO_CACHE_DIR": str(folder / f"ours_{layout}"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / f"torch_{layout}"),
        "TRITON_CACHE_DIR": str(folder / f"triton_{layout}_{mode}"),
        "OMP_NUM_THREADS": "1" if given.cpu else "8",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
    }
    outputs = [(folder / f"{layout}_{mode}_{rank}.txt").open("w+") for rank in range(given.ranks)]
    command = [sys.executable, __file__, *sys.argv[1:], "--worker", f"{layout},{mode}"]
    start = time.monotonic()
    ranks = [
        subprocess.Popen(
            command, env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
        for rank, output in enumerate(outputs)
    ]
    ended: float | None = None
    while any(rank.poll() is None for rank in ranks):
        now = time.monotonic()
        if ended is None and any(rank.poll() for rank in ranks):
            ended = now  # the other one waits for it
        if now - start > limit or (ended is not None and now - ended > 5):
            for rank in ranks:
                if rank.poll() is None:
                    os.killpg(rank.pid, signal.SIGKILL)
        time.sleep(0.1)
    texts = []
    for output in outputs:
        output.seek(0)
        texts.append(output.read())
        output.close()
    told = [line[2:] for line in texts[0].splitlines() if line.startswith("@@")]
    if told and not any(rank.returncode for rank in ranks):
        return json.loads(told[0]) | {"wall_s": round(time.monotonic() - start, 1)}
    pairs = zip(ranks, texts, strict=True)
    failed = next((text for rank, text in pairs if rank.returncode not in (0, -9)), texts[0])
    return {"layout": layout, "mode": mode, "error": f"exit {[rank.returncode for rank in ranks]}",
            "wall_s": round(time.monotonic() - start, 1), "tail": failed[-1500:]}


def drive(given: argparse.Namespace) -> None:
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for layout in given.layouts.split(","):
            losses: list[float] | None = None
            for mode in given.modes.split(","):
                left = given.budget - (time.monotonic() - start)
                result: dict[str, Any]
                if left < 20:
                    result = {"layout": layout, "mode": mode, "error": "no time left"}
                else:
                    result = run(layout, mode, min(given.limit, left), given, Path(folder))
                if mode == "eager":
                    losses = result.get("losses")
                elif losses and "losses" in result:
                    pairs = zip(losses, result["losses"], strict=True)
                    result["loss_apart"] = max(abs(a - b) for a, b in pairs)
                print(json.dumps(result), flush=True)


# What follows runs in the processes of the ranks.


def compile_with_ours(model: Any, **_: Any) -> None:
    import dynamo

    for block in model.layers.values():
        dynamo.compile_in_place(block, fullgraph=True)


def prepare(mode: str, given: argparse.Namespace) -> Any:
    """torchtitan's llama3, told how to compile and what this torch or link lacks."""
    import torch.distributed.fsdp as sharding

    if not hasattr(sharding, "DataParallelMeshDims"):
        sharding.DataParallelMeshDims = type("DataParallelMeshDims", (), {})
    from torchtitan.distributed import fsdp, parallel_dims
    from torchtitan.distributed.utils import set_spmd_backend
    from torchtitan.models import llama3

    set_spmd_backend("partial_dtensor")
    if mode == "ours":
        sys.modules["torchtitan.models.llama3.parallelize"].apply_compile = compile_with_ours
    if given.cpu:
        parallel_dims.device_type = "cpu"
        fsdp.disable_fsdp_gradient_division = lambda model: None  # gloo has no PREMUL_SUM
    return llama3


def build(mode: str, layout: str, device: Any, given: argparse.Namespace) -> tuple[Any, Any]:
    import torch

    llama3 = prepare(mode, given)
    from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
    from torchtitan.distributed import ParallelDims
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3.sharding import set_llama3_sharding_config

    degree = LAYOUTS[layout]
    parallelism = ParallelismConfig(
        tensor_parallel_degree=degree, data_parallel_shard_degree=given.ranks // degree,
        spmd_backend="partial_dtensor")
    flavor = "debugmodel" if given.cpu else given.flavor
    config = llama3.llama3_configs[flavor](attn_backend="flex")
    config.enable_weight_tying = True  # as the flavors of 1B and 3B have it
    if given.layers:
        config.layers = config.layers[: given.layers]
    for layer in config.layers:
        layer.attention.rope.max_seq_len = given.length
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    set_llama3_sharding_config(config, enable_sp=True)
    dims = ParallelDims.from_config(parallelism, given.ranks)
    dims.build_mesh()
    with torch.device("meta"):
        model = config.build()
    model = llama3.parallelize_llama(
        model, parallel_dims=dims, parallelism=parallelism,
        training=TrainingConfig(mixed_precision_param=given.dtype),
        compile_config=CompileConfig(enable=mode != "eager"), ac_config=None, dump_folder="")
    model.to_empty(device=device)
    torch.manual_seed(0)
    with torch.no_grad():
        model.init_states(buffer_device=device)
    model.train()
    return model, dims


def graphs(mode: str) -> dict[str, Any]:
    """Graphs and breaks of this process."""
    if mode == "torch":
        from torch._dynamo.utils import counters
    elif mode == "ours":
        from dynamo import counters
    else:
        return {"graphs": 0, "breaks": 0}
    number = counters["stats"]["unique_graphs" if mode == "torch" else "graphs"]
    return {"graphs": number, "breaks": sum(counters["graph_break"].values())}


def work(layout: str, mode: str, given: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    device = torch.device("cpu") if given.cpu else torch.device("cuda", rank)
    if given.cpu:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", timeout=timedelta(seconds=given.limit))
    else:
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device, timeout=timedelta(seconds=given.limit))
    result = {"layout": layout, "mode": mode, **measure(layout, mode, rank, device, given)}
    if rank == 0:
        print("@@" + json.dumps(result), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def compiled_loss(mode: str) -> Any:
    import torch
    from torchtitan.components.loss import cross_entropy_loss

    import dynamo

    compilers = {"eager": lambda loss: loss, "torch": torch.compile, "ours": dynamo.compile}
    return compilers[mode](cross_entropy_loss)


def measure(
    layout: str, mode: str, rank: int, device: Any, given: argparse.Namespace
) -> dict[str, Any]:
    import torch

    start = time.monotonic()
    model, _ = build(mode, layout, device, given)
    from torchtitan.distributed.utils import clip_grad_norm_

    loss_function = compiled_loss(mode)
    best = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=not given.cpu)
    parameters = sum(p.numel() for p in model.parameters())
    built = time.monotonic() - start
    torch.manual_seed(100 + rank // LAYOUTS[layout])  # ranks of tensor parallel see the same tokens
    positions = torch.arange(given.length, device=device).expand(given.rows, given.length)
    losses, times = [], []
    for step in range(FIRST + given.steps):
        drawn = torch.randint(0, model.config.vocab_size, (given.rows, given.length + 1)).to(device)
        tokens, labels = drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()
        if not given.cpu:
            torch.cuda.synchronize()
            if step == FIRST:
                torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        loss = loss_function(model(tokens, positions), labels) / labels.numel()
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        best.step()
        best.zero_grad()
        if not given.cpu:
            torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
        if step < FIRST:
            losses.append(loss.item())
        del loss
    ms = statistics.median(times[FIRST:])
    if given.cpu:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    else:
        peak = torch.cuda.max_memory_allocated()
    tokens_of_gpu = given.rows * given.length / LAYOUTS[layout]
    return {
        "parameters": parameters, "tokens_per_second_per_gpu": round(tokens_of_gpu / ms * 1e3),
        "ms": round(ms, 2), "ms_least": round(min(times[FIRST:]), 2),
        "peak_gb": round(peak / 1e9, 3), "losses": losses, **graphs(mode),
        "build_s": round(built, 1), "first_step_s": round(times[0] / 1e3, 1),
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--ranks", type=int, default=2,
                        help="1: all but the sending, with --layouts fsdp")
    parser.add_argument("--flavor", default="1B")
    parser.add_argument("--layers", type=int, default=0, help="so many layers; 0: all of them")
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--length", type=int, default=0)
    parser.add_argument("--dtype", help="of parameters in blocks; by default bfloat16 on GPUs")
    parser.add_argument("--steps", type=int, default=10, help="timed steps behind the first five")
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--limit", type=float, default=120,
                        help="seconds of one layout and compiler")
    parser.add_argument("--budget", type=float, default=480, help="seconds in all")
    parser.add_argument("--worker")
    options = parser.parse_args()
    options.rows = options.rows or (2 if options.cpu else 4)
    options.dtype = options.dtype or ("float32" if options.cpu else "bfloat16")
    options.length = options.length or (64 if options.cpu else 2048)
    if options.worker:
        work(*options.worker.split(","), options)
    else:
        drive(options)
