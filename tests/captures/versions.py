"""Runs all programs of one version in one process, for `test_edited_programs.py`.

In: a folder for modules and cache, which version. Out: a row for each program: whether it differs from eager, how
many frames had a cached trace, how many were traced.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import re
import subprocess
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from tests.captures.edited import PROGRAMS
from tests.captures.processes import CONTEXT, HEAD, SECONDS, check_equal

ROOT = Path(__file__).parents[2]


class Row(NamedTuple):
    """difference: "" for none. reused, traced: frames. defects: of the cache."""

    difference: str
    reused: int
    traced: int
    defects: str
    said: str


def text_of(source: str, version: int) -> str:
    return re.sub(r"<<(.*?)\|(.*?)>>", lambda found: found[1 + version], source, flags=re.DOTALL)


def all_rows(folder: Path, version: int, only: list[str] | None = None) -> dict[str, Row]:
    here, there = CONTEXT.Pipe()
    process = CONTEXT.Process(target=work, args=(there, str(folder), version, only))
    process.start()
    assert here.poll(SECONDS * 3), "no answer"
    found = here.recv()
    process.join()
    assert isinstance(found, dict), found
    return found


def rows_of_new_process(folder: Path, version: int) -> dict[str, Row]:
    """The same of a process that is no copy of this one: objects have other addresses, and texts other hashes."""
    found = folder / "rows"
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-m", __name__, str(folder), str(version), str(found)], env=environment, check=True,
                   timeout=SECONDS * 3, cwd=ROOT)
    rows = pickle.loads(found.read_bytes())
    return {name: Row(*row) for name, row in rows.items()}


def work(connection: Any, folder: str, version: int, only: list[str] | None) -> None:
    try:
        connection.send(run_all(folder, version, only))
    except BaseException:
        connection.send(traceback.format_exc())


def run_all(folder: str, version: int, only: list[str] | None) -> dict[str, Row]:
    import torch

    from dynamo.base import logs
    from dynamo.base.config import config
    from inductor.config import config as backend

    torch.set_num_threads(2)
    backend.kernels = backend.graph_cache = False
    config.load({"cache_dir": folder + "/cache", "capture_cache": True})
    logs.set_logs(cache=only is not None)  # of all, saying why a trace is not there takes a third of the time
    said = Path(folder) / f"log {os.getpid()}"
    os.dup2(os.open(said, os.O_RDWR | os.O_CREAT), 2)
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    warnings.simplefilter("ignore")
    return {name: run_one(folder, f"program{number}", text_of(source, version), said)
            for number, (name, source) in enumerate(PROGRAMS.items()) if only is None or name in only}


def run_one(folder: str, name: str, source: str, said: Path) -> Row:
    import dynamo
    from dynamo.base.counters import counters

    path = Path(folder) / f"{name}.py"
    path.write_text(HEAD + source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    length = said.stat().st_size
    difference = ""
    try:
        spec.loader.exec_module(module)
        for compiled, eager in module.run():
            check_equal(compiled, eager)
    except Exception:
        difference = traceback.format_exc()
    now = dict(counters["stats"])
    reused, frames = now.get("captures_reused", 0), now.get("frames", 0)
    defects = dict(counters["internal_errors"])
    dynamo.reset()
    return Row(difference, reused, frames - reused, repr(defects or ""), said.read_text()[length:])


if __name__ == "__main__":
    rows = run_all(sys.argv[1], int(sys.argv[2]), None)
    Path(sys.argv[3]).write_bytes(pickle.dumps({name: tuple(row) for name, row in rows.items()}))
