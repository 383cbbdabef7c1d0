"""Programs in processes of their own that are forked from one that has imported torch, and nothing of ours.

A new interpreter spends 2.5 seconds of CPU time on importing torch, which is most of what such a test costs. What is
read of the environment when torch or OpenMP is loaded is that of the tests; a program that tests imports or the
interpreter's start and end takes a new interpreter instead.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SERVER = """
import json, os, runpy, sys
import torch

def requests():
    for line in sys.stdin:
        request = json.loads(line)
        process = os.fork()
        if not process:
            return request
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
    os._exit(0)

request = requests()
for descriptor, name in ((1, "out"), (2, "err")):
    os.dup2(os.open(request[name], os.O_WRONLY), descriptor)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
sys.stdin, sys.__stdin__ = open(0, closefd=False), None
os.environ.clear()
os.environ.update(request["environment"])
os.chdir(request["folder"])
kind, name, sys.argv = request["kind"], request["program"], [request["program"], *request["arguments"]]
sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
sys.path.insert(0, os.path.dirname(os.path.abspath(name)) if kind == "file" else os.getcwd())
if request["quiet"]:
    import warnings
    warnings.simplefilter("ignore")
if kind == "file":
    runpy.run_path(name, run_name="__main__")
elif kind == "module":
    runpy.run_module(name, run_name="__main__", alter_sys=True)
else:
    sys.argv[0] = "-c"
    exec(compile(name, "<string>", "exec"), {"__name__": "__main__"})
"""


@functools.cache
def _server() -> subprocess.Popen[str]:
    """Of this process of the tests."""
    server = subprocess.Popen([sys.executable, "-c", SERVER], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(server.communicate)  # the end of its input ends it
    return server


def run_python(
    *command: str, folder: Path = ROOT, quiet: bool = False, **variables: str
) -> subprocess.CompletedProcess[str]:
    """As `python *command` in this folder with these variables beside those of the tests; `-c` and `-m` are known.

    quiet: no warnings.
    """
    kind, rest = {"-c": "code", "-m": "module"}.get(command[0], "file"), command
    if kind != "file":
        rest = command[1:]
    return _run(kind, rest, folder, quiet, {**os.environ, "PYTHONPATH": str(ROOT), **variables})


def _run(
    kind: str, rest: Sequence[str], folder: Path, quiet: bool, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
        request = {"kind": kind, "program": rest[0], "arguments": rest[1:], "folder": str(folder), "quiet": quiet,
                   "environment": environment, "out": out.name, "err": err.name}
        print(json.dumps(request), file=server.stdin, flush=True)
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(list(rest), code, out.read(), err.read())
