"""Several processes that compute together over gloo, each forked from one that has imported the compiler.

In: a function of a module of tests, and what it is called with. Out: what it gives in each of the processes. A process
that fails, ends or does not answer is an AssertionError here, and the others are ended.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.captures.processes import CONTEXT

SECONDS = 120


def run_ranks(
    function: Callable[..., Any], folder: Path, *args: Any, count: int = 2, seconds: float = SECONDS,
    ends: tuple[int, ...] = (),
) -> list[Any]:
    """The results of `function(rank, *args)`, by rank. folder: an empty one. ends: the ranks that end their process, for
    which there is None."""
    started = {}
    for rank in range(count):
        here, there = CONTEXT.Pipe()
        process = CONTEXT.Process(target=_work, args=(there, str(folder / "store"), rank, count, function, args, not ends))
        process.start()
        there.close()
        started[here] = (rank, process)
    results: dict[int, Any] = {}
    try:
        while len(results) < count:
            left: list[Connection] = [pipe for pipe, (rank, _) in started.items() if rank not in results]
            ready = wait(left, seconds)
            assert ready, f"no answer of ranks {sorted(set(range(count)) - results.keys())}"
            for pipe in ready:
                rank, process = started[pipe]
                try:
                    good, results[rank] = pipe.recv()
                except EOFError:
                    good, results[rank] = rank in ends, None
                assert good, f"rank {rank}: {results[rank] or 'it ended without an answer'}"
    finally:
        for _, process in started.values():
            process.join(0 if len(results) < count else 5)
            process.kill()
    return [results[rank] for rank in range(count)]


def _work(
    connection: Any, store: str, rank: int, count: int, function: Callable[..., Any], args: tuple[Any, ...], together: bool
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", store=dist.FileStore(store, count), rank=rank, world_size=count,
                                timeout=timedelta(seconds=SECONDS))
        answer = True, function(rank, *args)
        if together:
            dist.barrier()  # nobody leaves while another one still reads from it
    except BaseException:
        answer = False, traceback.format_exc()
    connection.send(answer)
    connection.close()
    sys.stdout.flush()
    os._exit(0)
