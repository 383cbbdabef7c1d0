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
import sys
import threading
import warnings
from collections.abc import Callable, Iterator

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
    "recompiles": "why a frame is compiled again",
    "effects": "changes to objects that are replayed after the graph",
    "aot_graphs": "functional ATen graphs, as they are lowered",
    "ir_pre_fusion": "loop IR before fusion",
    "ir_post_fusion": "loop IR after fusion",
    "schedule": "order of kernels and lifetimes of buffers",
    "fusion": "which nodes were fused, and why others were not",
    "output_code": "generated wrapper and kernels",
    "kernel_code": "generated kernels",
    "autotuning": "what was measured while compiling, and which templates were chosen",
    "cudagraphs": "which graphs became CUDA graphs, and why others did not",
    "perf_hints": "what keeps a graph from being faster",
    "cache": "hits and misses of the caches, with the reason",
}


# TORCH_LOGS' words where ours differ.
ALIASES = {"side_effects": "effects"}

# What is said without being asked for: not by `warnings`, which the program records or makes
# errors, nor to its own handlers, which are its code.
_logger = logging.getLogger("dynamo")
_logger.propagate = False

_lock = threading.Lock()
_compile_id: contextvars.ContextVar[str] = contextvars.ContextVar("compile_id", default="")


@contextlib.contextmanager
def compiling(compile_id: str) -> Iterator[None]:
    """What this thread writes inside of the block belongs to that compile."""
    token = _compile_id.set(compile_id)
    try:
        yield
    finally:
        _compile_id.reset(token)


def compile_id_now() -> str:
    """Of what this thread compiles; "" outside of a compile."""
    return _compile_id.get()


def tell(text: str) -> None:
    """A message of the logger `dynamo` at level WARNING: on stderr, where it has no handler."""
    _logger.warning("%s", text)


class Artifact:
    """One kind of log output; `enabled` is a plain attribute: a disabled one costs nothing."""

    def __init__(self, name: str) -> None:
        self.name, self.enabled, self.verbose = name, False, False

    def emit(self, text: str | Callable[[], str], compile_id: str = "") -> None:
        """Prints the text (or what the callable returns) when the artifact is on."""
        if not self.enabled:
            return
        body = text if isinstance(text, str) else text()
        compile_id = compile_id or _compile_id.get()
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


def _named(word: str) -> list[Artifact]:
    return list(_artifacts.values()) if word == "all" else [_artifacts[ALIASES.get(word, word)]]


def set_logs(words: str = "", **switches: bool) -> None:
    """Turns artifacts on and off: `set_logs("graph_breaks,-guards")` or `set_logs(guards=True)`."""
    for word in filter(None, (w.strip() for w in words.split(","))):
        name = word.lstrip("+-")
        if name == "help":
            sys.stderr.write("".join(f"{n:18} {s}\n" for n, s in ARTIFACTS.items()))
        elif ALIASES.get(name, name) in _artifacts or name == "all":
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
        if name not in _artifacts:
            raise ValueError(f"no such artifact: {name}; there are {', '.join(ARTIFACTS)}")
        _artifacts[name].enabled = on


set_logs(os.environ.get("DYNAMO_LOGS", ""))
