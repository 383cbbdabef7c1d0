"""Compiling in another process, ahead of the thread that will find the result in the cache.

In: a captured graph and its inputs as data. Out: nothing but files in the cache folder, under the
key that this process will ask for. So what another process does can't be wrong, only useless: where
it has found another key, or cached nothing, the thread compiles the graph itself.

The processes are `config.background_processes`, one for each thread that compiles. Their
priority is low; a thread that has waited for a minute compiles by itself. They end with this
process, and after a minute without work. Why processes: Python code in a
thread keeps the interpreter from the program's thread, for up to five milliseconds at each
operation (`benchmarks/background.py`).
"""

from __future__ import annotations

import io
import json
import os
import pickle
import select
import subprocess
import sys
import threading
from typing import Any

import torch
from torch import fx

from dynamo.background.examples import Examples
from dynamo.background.jobs import pool
from dynamo.background.modes import ThreadModes
from dynamo.base import logs
from dynamo.base.config import config as dynamo_config
from dynamo.base.errors import DynamoError, Unsupported
from dynamo.store.content import Key
from dynamo.store.records import Uncacheable
from inductor.cache.graph_rows import write_rows
from inductor.config import config

# Before anything is imported: this process computes in what time the program leaves.
BOOT = """\
import json, os, sys
os.nice(10)
sys.path[:] = json.loads(sys.argv[1])
from inductor.driver.ahead_process import main
main()
"""
PATIENCE = 60.0  # seconds
UNSET = ("DYNAMO_LOGS", "DYNAMO_TRACE", "DYNAMO_DEBUG_DIR", "DYNAMO_REPRO", "DYNAMO_BACKGROUND")
READY, BYE = "ready", "bye"


class ProcessEnded(DynamoError):
    """The process that compiled a graph has ended, as by a signal."""


def compile_ahead(
    gm: fx.GraphModule, examples: Examples, extra: dict[str, Any], key: Key
) -> None:
    """Waits until another process has compiled the graph, if one can. key: under which it is
    cached.

    Errors: ProcessEnded.
    """
    log = logs.log("cache")
    alone = dynamo_config.debug_dir or dynamo_config.repro
    if not dynamo_config.background_processes or alone or not sys.executable:
        return
    try:
        request = _written(gm, examples, extra, key)
    except (Unsupported, Uncacheable, pickle.PicklingError, TypeError, AttributeError) as error:
        reason = str(error)
        log.emit(lambda: f"this graph is compiled in a thread: {reason}")
        return
    with pool.waiting():
        answer = _of_thread.process.ask(request)
    log.emit(lambda: f"another process has compiled a graph: {answer}")


def _written(
    gm: fx.GraphModule, examples: Examples, extra: dict[str, Any], key: Key
) -> bytes:
    """The request; errors: those of what can't be written."""
    shown = [(node.name, node.meta.get("example_value")) for node in gm.graph.nodes
             if node.op == "placeholder"]  # fmt: skip
    out = io.BytesIO()
    pickle.Pickler(out, protocol=5).dump({
        "graph": write_rows(gm), "examples": examples,
        "extra": extra, "key": key, "modes": ThreadModes.now(),
        "differentiated": {name for name, value in shown
                           if isinstance(value, torch.Tensor) and value.requires_grad},
        "threads": torch.get_num_threads(), "dynamo": dynamo_config.save(),
        "inductor": config.save(),
        "torch": {"dtype": torch.get_default_dtype(),
                  "matmul": torch.get_float32_matmul_precision()},
    })  # fmt: skip
    return out.getvalue()


class _Process:
    """One process and the pipes to it; used by one thread."""

    def __init__(self) -> None:
        self.popen: subprocess.Popen[bytes] | None = None
        self.usable = True

    def ask(self, request: bytes) -> str:
        """The answer, or why there is none. Errors: ProcessEnded."""
        for _ in range(2):
            if not self._started():
                return "no process can be started"
            assert self.popen is not None
            answer = self._answer_of(self.popen, request)
            if answer != BYE:
                return answer
            self.popen = None
        return "the process has no time"

    def _answer_of(self, popen: subprocess.Popen[bytes], request: bytes) -> str:
        assert popen.stdin is not None
        try:
            popen.stdin.write(len(request).to_bytes(8, "little") + request)
            popen.stdin.flush()
        except OSError:
            pass  # it has ended: what it has said before tells why
        line = self._line_of(popen)
        if line:
            return str(json.loads(line))
        self.popen = None
        if line is None:
            return "the process has found no time"
        if pool.stopped:
            return "the program ends"
        raise ProcessEnded(
            f"the process that compiled it has ended (exit status {popen.wait()}).\n"
            "  What to do: look whether memory was short; DYNAMO_BACKGROUND_PROCESSES=0 compiles "
            "in a thread.")

    def _started(self) -> bool:
        if self.popen is not None or not self.usable:
            return self.usable
        env = {name: value for name, value in os.environ.items() if name not in UNSET}
        command = [sys.executable, "-c", BOOT, json.dumps(_search_path())]
        try:
            popen = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, process_group=0, env=env)
        except OSError:
            self.usable = False
            return False
        self.popen = popen
        line = self._line_of(popen)
        self.usable = json.loads(line) == READY if line else False
        return self.usable

    def _line_of(self, popen: subprocess.Popen[bytes]) -> bytes | None:
        """What it says next, nothing where it has ended; None where that takes too long: then it is
        ended."""
        assert popen.stdout is not None
        ready, *_ = select.select([popen.stdout], [], [], PATIENCE)
        if not ready:
            self.end()
            return None
        return popen.stdout.readline()

    def end(self) -> None:
        """At the end of the program: without waiting for what it does."""
        if self.popen is not None:
            try:
                os.killpg(self.popen.pid, 9)
            except OSError:
                pass  # it has ended


def _search_path() -> list[str]:
    """Where modules are, with this package first."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    return [root, *(path or os.getcwd() for path in sys.path if isinstance(path, str))]


class _OfThread(threading.local):
    """What a thread of the pool has; a child of a fork has a pool of its own."""

    def __init__(self) -> None:
        self.process = _Process()
        pool.at_stop.append(self.process.end)


_of_thread = _OfThread()
