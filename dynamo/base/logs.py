"""`DYNAMO_LOGS`: which artifacts are printed, with TORCH_LOGS' grammar.

`DYNAMO_LOGS="graph_breaks,+guards,-bytecode"` turns artifacts on (`+x` the same, with detail) and
off (`-x`); `help` prints the table. An unknown word is one warning, never a crash. Output goes to
stderr or to the file that DYNAMO_LOGS_OUT names.
"""

from __future__ import annotations

import contextlib
import contextvars
import difflib
import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dynamo.base.config import config

ARTIFACTS = {
    "dynamo": "functions that are run as they are, with the reason",
    "inductor": "what the default backend leaves to ATen or runs as captured, with the reason",
    "dynamic": "symbolic sizes: where they come from, what fixes them",
    "bytecode": "the original and the new bytecode of each frame",
    "graph": "the captured graph, node by node",
    "graph_code": "the captured graph as Python",
    "graph_breaks": "each graph break: the user's line, the reason, what to do",
    "guards": "what each compiled entry assumes",
    "verbose_guards": "guards with the line that caused each",
    "recompiles": "why a frame is recompiled",
    "effects": "changes to objects that are replayed after the graph",
    "aot_graphs": "functional ATen graphs, as they are lowered",
    "ir_pre_fusion": "loop IR before fusion",
    "ir_post_fusion": "loop IR after fusion",
    "schedule": "order of kernels and lifetimes of buffers",
    "collectives": "which collectives are sent together, which have moved, what that should save",
    "fusion": "which nodes were fused, and why others were not",
    "wrapper": "the Python function around a compiled graph: what is written and viewed behind it",
    "output_code": "generated kernels with your lines, wrapper and prelude",
    "kernel_code": "generated kernels",
    "autotuning": "what was measured while compiling, and which templates were chosen",
    "cudagraphs": "which graphs became CUDA graphs, and why others did not",
    "perf_hints": "what keeps a graph from being faster",
    "cache": "hits and misses of the caches, with the reason",
}


# TORCH_LOGS' words where ours differ, with the artifact that shows what is nearest.
ALIASES = {"side_effects": "effects"}
NEAREST = {
    "aot": "aot_graphs", "aot_joint_graph": "aot_graphs", "aot_graphs_effects": "aot_graphs",
    "post_grad_graphs": "aot_graphs", "pre_grad_graphs": "graph_code",
    "graph_code_verbose": "graph_code", "graph_sizes": "graph",
    "recompiles_verbose": "recompiles", "trace_source": "bytecode", "trace_call": "graph_code",
    "trace_bytecode": "bytecode", "sym_node": "dynamic", "trace_shape_events": "dynamic",
    "loop_ordering": "schedule", "loop_tiling": "schedule", "compute_dependencies": "schedule",
    "cudagraph_static_inputs": "cudagraphs", "benchmarking": "autotuning",
    "inductor_metrics": "schedule", "overlap": "collectives", "node_runtime_estimation": "schedule",
    "fake_tensor": "dynamic", "export": "graph_code", "async_compile": "cache",
    "caching": "cache", "compiled_autograd": "aot_graphs", "not_implemented": "dynamo",
}
# Components of torch that this compiler has no part of.
OTHERS = frozenset(
    "torch distributed autograd ddp ddp_graphs fsdp dtensor c10d pp onnx onnx_diagnostics".split())

# What is said without being asked for: not by `warnings`, which the program records or makes
# errors, nor to its own handlers, which are its code.
_logger = logging.getLogger("dynamo")
_logger.propagate = False

_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Compile:
    """Which compile something belongs to. id: frame/attempt; region: number of the call of
    `compile`; name: of the function; part: what is compiled at a later call, as "backward"."""

    id: str = ""
    region: int = 0
    name: str = ""
    part: str = ""

    def __str__(self) -> str:
        return f"{self.id} {self.part}" if self.part else self.id


NO_COMPILE = Compile()
_compile: contextvars.ContextVar[Compile] = contextvars.ContextVar("compile", default=NO_COMPILE)


@contextlib.contextmanager
def compiling(what: Compile) -> Iterator[None]:
    """What this thread writes inside of the block belongs to that compile."""
    token = _compile.set(what)
    try:
        yield
    finally:
        _compile.reset(token)


def compile_now() -> Compile:
    """What this thread compiles; `NO_COMPILE` outside of a compile."""
    return _compile.get()


def compile_id_now() -> str:
    """Its id; "" outside of a compile."""
    return str(_compile.get())


def tell(text: str) -> None:
    """A message of the logger `dynamo` at level WARNING: on stderr, where it has no handler."""
    _logger.warning("%s", text)


class Artifact:
    """One kind of log output; `enabled` is a plain attribute: a disabled one costs nothing."""

    def __init__(self, name: str) -> None:
        self.name, self.enabled, self.verbose = name, False, False

    def emit(self, text: str | Callable[[], str], compile_id: str = "") -> None:
        """Prints the text (or what the callable returns) when the artifact is on; keeps it in the
        debug folder, where there is one."""
        file_name = config.debug_dir and FILES.get(self.name, f"{self.name}.txt")
        if not self.enabled and not file_name:
            return
        body = text if isinstance(text, str) else text()
        if file_name:
            keep(file_name, body)
        if not self.enabled:
            return
        compile_id = compile_id or compile_id_now()
        prefix = f"[{compile_id} {self.name}] " if compile_id else f"[{self.name}] "
        lines = "".join(f"{prefix}{line}\n" for line in body.strip("\n").split("\n"))
        path = os.environ.get("DYNAMO_LOGS_OUT")
        with _lock:
            if path:
                with open(path, "a") as out:
                    out.write(lines)
            else:
                sys.stderr.write(lines)


_artifacts = {name: Artifact(name) for name in ARTIFACTS}


def log(name: str) -> Artifact:
    """The artifact of that name (a programming error where there is none)."""
    return _artifacts[name]


# Files of the debug folder where the artifact's name says less; "" is kept in another form.
FILES = {
    "ir_pre_fusion": "ir.txt", "ir_post_fusion": "ir.txt", "graph_code": "", "graph": "",
    "output_code": "kernels.txt", "kernel_code": "", "wrapper": "wrapper.py",
}
_folders: dict[tuple[str, Compile], str] = {}
_written_logs: set[str] = set()


def debug_folder() -> str:
    """The folder of what this thread compiles below `config.debug_dir`, made where it is missing:
    one for each compile, `0_0_forward` is the first of a function `forward`."""
    what = _compile.get()
    root = os.path.abspath(config.debug_dir)
    with _lock:
        if (root, what) not in _folders:
            parts = [what.id.replace("/", "_") or "none", what.name, what.part]
            name = re.sub(r"[^\w.]+", "_", "_".join(filter(None, parts)))
            taken = {folder for (_, _), folder in _folders.items()}
            folder = os.path.join(root, name)
            number = 1
            while folder in taken:  # another call of `compile` counts from 0, too
                number += 1
                folder = os.path.join(root, f"{name}.{number}")
            _folders[root, what] = folder
        os.makedirs(_folders[root, what], exist_ok=True)
        return _folders[root, what]


def keep(file: str, text: str) -> None:
    """Adds the text to a file of the compile's debug folder; without `config.debug_dir` nothing."""
    if not config.debug_dir or not file:
        return
    path = os.path.join(debug_folder(), file)
    with _lock:
        # What an earlier process has left goes.
        with open(path, "a" if path in _written_logs else "w") as out:
            out.write(text.rstrip("\n") + "\n")
        _written_logs.add(path)


def _named(word: str) -> list[Artifact]:
    name = ALIASES.get(word, word)
    return list(_artifacts.values()) if word == "all" else [_artifacts[NEAREST.get(name, name)]]


def _is_known(name: str) -> bool:
    return name == "all" or name in ALIASES or name in NEAREST or name in _artifacts


def set_logs(words: str = "", **switches: bool) -> None:
    """Turns artifacts on and off: `set_logs("graph_breaks,-guards")` or `set_logs(guards=True)`."""
    for word in filter(None, (w.strip() for w in words.split(","))):
        name = word.lstrip("+-")
        if name == "help":
            sys.stderr.write("".join(f"{n:18} {s}\n" for n, s in ARTIFACTS.items()))
        elif name in OTHERS:
            sys.stderr.write(f"DYNAMO_LOGS: nothing here is called {name!r}; TORCH_LOGS={name} "
                             "turns on torch's own\n")
        elif _is_known(name):
            if name in NEAREST:
                near_one = NEAREST[name]
                sys.stderr.write(f"DYNAMO_LOGS: {name!r} is shown by {near_one!r} here: "
                                 f"{ARTIFACTS[near_one]}\n")
            for artifact in _named(name):
                artifact.enabled = not word.startswith("-")
                artifact.verbose = word.startswith("+")
        else:
            near = difflib.get_close_matches(name, ARTIFACTS, 3)
            hint = "DYNAMO_LOGS=help lists the words"
            if near:
                hint = f"did you mean {', '.join(near)}?"
            warnings.warn(f"DYNAMO_LOGS: unknown word {word!r}; {hint}", stacklevel=2)
    for name, on in switches.items():
        name = ALIASES.get(name, name)
        name = NEAREST.get(name, name)
        if name not in _artifacts:
            raise ValueError(f"no such artifact: {name}; there are {', '.join(ARTIFACTS)}")
        _artifacts[name].enabled = on


set_logs(os.environ.get("DYNAMO_LOGS", ""))
