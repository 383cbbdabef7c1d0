"""Programs that run one after the other in processes of their own, which share a cache folder.

In: the source of a module whose `run()` gives pairs (compiled, eager). Out: how often a trace was found in the cache,
and whether all pairs are equal. The processes are forked from one that has imported the compiler, so that each takes a
fraction of a second.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

CONTEXT = multiprocessing.get_context("forkserver")
# The compiler is imported when it is first used, and so is what `torch.testing` needs: two seconds in each process.
CONTEXT.set_forkserver_preload(["torch", "torch.distributed.tensor", "dynamo.api", "inductor", "inductor.driver.compile_fx",
                                "inductor.cache.graph_rows", "dynamo.aot.plain_graphs", "tests.captures.frozen"])
SECONDS = 240
HEAD = """
import torch
import dynamo
from torch import nn
import torch.nn.functional as F

def pair(f, *args, grad=False):
    with torch.set_grad_enabled(grad):
        compiled = dynamo.compile(f)
        return compiled(*args), f(*args)
"""


class Outcome(NamedTuple):
    """reused: cached traces that were taken; traced: frames that were traced; said: the log `cache`; warned: counters of
    defects."""

    reused: int
    traced: int
    said: str
    defects: Mapping[str, int]


def run(folder: Path, source: str, name: str = "program", **settings: Any) -> Outcome:
    """Runs the program; AssertionError where it raises or differs from eager."""
    return start(folder, source, name, **settings)()


def start(folder: Path, source: str, name: str = "program", **settings: Any) -> Any:
    """Starts the program; what is given waits for its outcome."""
    path = folder / f"{name}.py"
    if not path.exists() or path.read_text() != HEAD + source:  # another process may be reading it
        path.write_text(HEAD + source)
    here, there = CONTEXT.Pipe()
    process = CONTEXT.Process(target=work, args=(there, str(folder), str(path), name, settings))
    process.start()

    def outcome() -> Outcome:
        assert here.poll(SECONDS), "no answer"
        found = here.recv()
        process.join()
        assert isinstance(found, Outcome), found
        return found

    return outcome


def work(connection: Any, folder: str, path: str, name: str, settings: dict[str, Any]) -> None:
    try:
        connection.send(outcome_of(folder, path, name, settings))
    except BaseException:
        connection.send(traceback.format_exc())


def outcome_of(folder: str, path: str, name: str, settings: dict[str, Any]) -> Outcome:
    import torch

    from dynamo.base import logs
    from dynamo.base.config import config
    from dynamo.base.counters import counters
    from inductor.config import config as backend

    torch.set_num_threads(2)
    backend.kernels = backend.graph_cache = bool(settings.pop("kernels", False))  # or ATen runs the graphs
    config.load({"cache_dir": folder + "/cache", "capture_cache": True, **settings})
    logs.set_logs(cache=True)
    said = Path(folder) / f"log {os.getpid()}"
    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 2)
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    for compiled, eager in module.run():
        check_equal(compiled, eager)
    stats = counters["stats"]
    return Outcome(stats["captures_reused"], stats["frames"] - stats["captures_reused"],
                   said.read_text(), dict(counters["internal_errors"]))


def check_equal(compiled: Any, eager: Any) -> None:
    """Containers of tensors, and of what is equal or not."""
    import torch

    assert type(compiled) is type(eager)
    if isinstance(eager, list | tuple):
        assert len(compiled) == len(eager)
        for one, other in zip(compiled, eager):
            check_equal(one, other)
    elif isinstance(eager, dict):
        assert list(compiled) == list(eager)
        check_equal(list(compiled.values()), list(eager.values()))
    elif isinstance(eager, torch.Tensor):
        torch.testing.assert_close(compiled, eager, equal_nan=True, rtol=1e-5, atol=1e-5)
    else:
        assert compiled == eager
