"""What the processes of `dynamo.base.processes` run: a file that is started by its path, so that
nothing is imported but what their jobs need.

    python process_leader.py MODULE:FUNCTION PLACES IDLE PATH

PLACES: file descriptors of connections, one for each process, with commas; IDLE: seconds without a
job after which one ends; PATH: entries of `sys.path` as a literal.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

READY, DONE, FAILED = "ready", "done", "failed"


def lead(function: str, places: Sequence[int], idle: float) -> None:
    """Import the function, and fork a process for each connection. It ends when all have ended."""
    module, _, name = function.partition(":")
    do = getattr(importlib.import_module(module), name)
    for place in places:
        if os.fork() == 0:
            code = 1
            try:
                for other in places:
                    if other != place:
                        os.close(other)
                serve(Connection(place), do, idle)
                code = 0
            finally:
                os._exit(code)
    for place in places:
        os.close(place)
    for _ in places:
        os.wait()


def serve(connection: Connection[Any, Any], do: Callable[[Any], Any], idle: float) -> None:
    """Do jobs until there are none for a while, or nobody who wants them."""
    with contextlib.suppress(EOFError, OSError):
        connection.send((READY, None))
        while connection.poll(idle):
            job = connection.recv()
            try:
                answer = DONE, do(job)
            except Exception as error:
                answer = FAILED, f"{type(error).__name__}: {error}"
            connection.send(answer)


if __name__ == "__main__":
    given, numbers, seconds, path = sys.argv[1:]
    sys.path[:] = ast.literal_eval(path)
    lead(given, [int(number) for number in numbers.split(",")], float(seconds))
