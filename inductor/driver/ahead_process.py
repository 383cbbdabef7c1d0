"""The process that compiles graphs ahead of the program: `inductor/driver/ahead.py` starts it.

In, on stdin: requests, each with its length in front. Out, on stdout: a line of JSON for each; what
counts is what lies in the cache folder by then. It ends when the program does, or after a minute
without work.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO

import torch

from dynamo.aot.plain_graphs import module_of
from dynamo.background.examples import make
from dynamo.background.jobs import collecting
from dynamo.base.config import config as dynamo_config
from dynamo.base.recursion import recursion_room
from inductor.cache.graph_rows import read_rows
from inductor.config import config
from inductor.driver.ahead import BYE, READY
from inductor.driver.compile_fx import compile_fx
from inductor.driver.known_results import cache_entry_for, settings_now

IDLE = 60.0  # seconds


def main() -> None:
    """Answers requests until there are no more."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nothing else is written there
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, requests), daemon=True).start()
    _say(out, READY)
    while True:
        try:
            request = requests.get(timeout=IDLE)
        except queue.Empty:
            break
        _say(out, answer(request))
    _say(out, BYE)


def _say(out: Any, text: str) -> None:
    out.write(json.dumps(text) + "\n")
    out.flush()


def _read(source: BinaryIO, requests: queue.SimpleQueue[bytes]) -> None:
    """Hands requests on; the end of the program is the end of this process and of compilers that it
    has started."""
    while True:
        length = source.read(8)
        request = source.read(int.from_bytes(length, "little")) if len(length) == 8 else b""
        if not request:
            os.killpg(os.getpgid(0), signal.SIGKILL)
        requests.put(request)


def answer(request: bytes) -> str:
    """What has become of a request, in words."""
    given = pickle.loads(request)
    try:
        with _settings(given), recursion_room():
            return _compiled(given)
    except Exception as error:  # the program compiles the graph itself, and tells
        return f"{type(error).__name__}: {error}"


@contextlib.contextmanager
def _settings(given: dict[str, Any]) -> Iterator[None]:
    torch.set_num_threads(given["threads"])
    torch.set_default_dtype(given["torch"]["dtype"])
    if torch.get_float32_matmul_precision() != given["torch"]["matmul"]:
        torch.set_float32_matmul_precision(given["torch"]["matmul"])
    with (dynamo_config.patch(given["dynamo"]), config.patch(given["inductor"]),
          given["modes"].entered()):
        yield


def _compiled(given: dict[str, Any]) -> str:
    module = module_of(read_rows(given["graph"]))
    examples = given["examples"]
    for node in module.graph.nodes:
        if node.name in given["differentiated"]:
            node.meta["example_value"].requires_grad_()
    storages = [torch.UntypedStorage(size, device=device) for size, device in examples.storages]
    inputs = make(examples, storages.__getitem__)
    extra = given["extra"]
    entry = cache_entry_for(module, inputs, settings_now(**extra, background=True))
    if entry is None or entry.key != given["key"]:
        there = {} if entry is None else dict(entry.key.parts)
        parts = [name for name, text in given["key"].parts if there.get(name) != text]
        return f"the graph has another key there: {', '.join(parts)}"
    with collecting() as prepares:
        compile_fx(module, inputs, **extra)
        for prepare in prepares:
            prepare()
    return "cached" if entry.is_cached() else "nothing is cached"
