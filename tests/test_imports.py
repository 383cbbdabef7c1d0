"""Starting costs little and drags nobody else's compiler in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes import run_python

ROOT = Path(__file__).parents[1]
COMPETITION = ("torch._dynamo", "torch._inductor", "torch._functorch.aot_autograd")


def run(script: str) -> str:
    """Output of a process that has imported torch alone."""
    done = run_python("-c", script, bare=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


LOADED = """
import sys, torch
before = set(sys.modules)
import dynamo
imported = set(sys.modules) - before
dynamo.compile
used = set(sys.modules) - before - imported
print(*sorted(imported))
print(*sorted(used))
"""
LOADER = {"dynamo", "dynamo._C", "dynamo.base", "dynamo.base.extension", "dynamo.base.loading", "dynamo.base.torch_parts"}


def test_import_is_cheap() -> None:
    """The package loads itself when a public name is first used, and then neither the backend nor other libraries.

    What is loaded decides what an import costs; seconds would depend on the machine.
    """
    imported, used = (set(line.split()) for line in run(LOADED).splitlines())
    assert imported == LOADER
    assert not {name for name in used if name.partition(".")[0] == "inductor"}
    others = {name for name in used if name.partition(".")[0] not in ("dynamo", "torch")}
    assert len(others) < 10, others


def test_every_public_name_can_be_loaded() -> None:
    script = """
import dynamo
from dynamo import *
missing = [name for name in dynamo.__all__ if getattr(dynamo, name, None) is None]
import dynamo.reporting.explanation, dynamo.exporting.whole_graph
print(missing, callable(dynamo.explain), callable(dynamo.export), set(dynamo.__all__) <= set(dir(dynamo)))
"""
    assert run(script) == "[] True True True"


def test_use_does_not_import_the_competition() -> None:
    """Importing the package and compiling a function with static shapes."""
    script = f"""
import sys, torch, dynamo
f = dynamo.compile(lambda x, y: torch.relu(x + y) * 2, backend="eager")
assert f(torch.ones(3), torch.ones(3)).eq(4).all()
assert dynamo.counters["stats"]["graphs"] == 1
print([m for m in {COMPETITION} if m in sys.modules])
"""
    assert run(script) == "[]"


@pytest.mark.parametrize("folder", ["dynamo", "inductor", "examples"])
def test_sources_never_name_the_competition(folder: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in ROOT.glob(f"{folder}/**/*")
        if path.suffix in (".py", ".c", ".cpp", ".h")
        for name in (*COMPETITION, "from torch import _dynamo", "from torch import _inductor")
        if name in path.read_text()
    ]
    assert not wrong, wrong
