"""Programs in processes of their own that are forked from one that has imported torch and the compiler.

A new interpreter spends 2.5 seconds of CPU time on importing torch and 2 on the compiler and what it needs, which is
most of what such a test costs. Settings and logs are those of the program's environment; what else is read of it when
torch or OpenMP is loaded is that of the tests. A program that tests what our imports do is `bare`; one that tests the
interpreter's start and end takes a new interpreter: here, what was registered for the end is called, and no more.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BARE = ("torch",)
USUAL = (*BARE, "torch.distributed.tensor", "dynamo.api", "inductor.driver.compile_fx", "inductor.cache.graph_rows",
         "dynamo.aot.plain_graphs")
SERVER = """
import atexit, gc, importlib, json, os, runpy, sys, threading
sys.dont_write_bytecode = False  # what one program compiles of our files the next one loads
for name in sys.argv[1:]:
    importlib.import_module(name)
gc.freeze()  # no collection in a program walks what was imported, which would copy the pages

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
if "dynamo.api" in sys.modules:
    from dynamo.base import logs
    from dynamo.base.config import config
    from inductor.config import config as backend
    for settings in (config, backend):
        settings.load({name: knob.initial() for name, knob in settings._knobs.items()})
    logs.set_logs(os.environ.get("DYNAMO_LOGS", ""))
kind, name, sys.argv = request["kind"], request["program"], [request["program"], *request["arguments"]]
sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
sys.path.insert(0, os.path.dirname(os.path.abspath(name)) if kind == "file" else os.getcwd())
if request["quiet"]:
    import warnings
    warnings.simplefilter("ignore")
code = 0
try:
    if kind == "file":
        runpy.run_path(name, run_name="__main__")
    elif kind == "module":
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        sys.argv[0] = "-c"
        exec(compile(name, "<string>", "exec"), {"__name__": "__main__"})
except SystemExit as end:
    code = end.code if isinstance(end.code, int) else int(end.code is not None)
    if code and not isinstance(end.code, int):
        print(end.code, file=sys.stderr)
except BaseException:
    sys.excepthook(*sys.exc_info())
    code = 1
# What a program has registered is done; the interpreter is not taken apart, which takes a second.
threading._shutdown()
atexit._run_exitfuncs()
sys.stdout.flush()
sys.stderr.flush()
os._exit(code & 255)
"""


@functools.cache
def _server(modules: tuple[str, ...]) -> subprocess.Popen[str]:
    """Of this process of the tests, with these modules."""
    command = [sys.executable, "-c", SERVER, *modules]
    server = subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    atexit.register(server.communicate)  # the end of its input ends it
    return server


def run_python(
    *command: str, folder: Path = ROOT, quiet: bool = False, bare: bool = False, without: str = "",
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """As `python *command` in this folder with these variables beside those of the tests; `-c` and `-m` are known.

    quiet: no warnings. bare: nothing but torch is imported before. without: what variables of the tests begin with that
    are not there.
    """
    kind, rest = {"-c": "code", "-m": "module"}.get(command[0], "file"), command
    if kind != "file":
        rest = command[1:]
    kept = {name: value for name, value in os.environ.items() if not without or not name.startswith(without)}
    request = {"kind": kind, "program": rest[0], "arguments": rest[1:], "folder": str(folder), "quiet": quiet,
               "environment": {**kept, "PYTHONPATH": str(ROOT), **variables}}
    return _run(_server(BARE if bare else USUAL), request)


def _run(server: subprocess.Popen[str], request: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    assert server.stdin is not None and server.stdout is not None
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
        print(json.dumps({**request, "out": out.name, "err": err.name}), file=server.stdin, flush=True)
        code = int(server.stdout.readline())
        return subprocess.CompletedProcess(request["program"], code, out.read(), err.read())
