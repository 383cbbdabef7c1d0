"""What the processes of `dynamo.base.processes` run: a file that is started by its path, so that
nothing is imported but what their jobs need.

    python process_leader.py MODULE:FUNCTION PLACES IDLE PATH BARE GIVEN

PLACES: file descriptors of connections, one for each process, with commas; IDLE: seconds without a
job after which one ends; PATH: entries of `sys.path` as a literal. BARE: packages, with commas, of
which modules are imported and `__init__` is not. GIVEN: a literal for the module's `prepare`, which
is called before the others are forked, so that they have what it leaves; `None` where there is
nothing to prepare.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

READY, DONE, FAILED = "ready", "done", "failed"


def lead(function: str, places: Sequence[int], idle: float, given: Any = None) -> None:
    """Import the function, and fork a process for each connection. It ends when all have ended."""
    name, _, attribute = function.partition(":")
    module = importlib.import_module(name)
    do = getattr(module, attribute)
    if given is not None:
        module.prepare(given)
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


def import_bare(name: str) -> None:
    """A package of which modules can be imported, as if its `__init__` were empty."""
    found = importlib.util.find_spec(name)
    assert found is not None
    sys.modules[name] = importlib.util.module_from_spec(found)


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
    do_function, numbers, seconds, path, packages, given_text = sys.argv[1:]
    sys.path[:] = ast.literal_eval(path)
    for package in filter(None, packages.split(",")):
        import_bare(package)
    lead(do_function, [int(number) for number in numbers.split(",")], float(seconds),
         ast.literal_eval(given_text))
