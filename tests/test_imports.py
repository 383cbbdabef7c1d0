"""Starting costs little and drags nobody else's compiler in."""

from __future__ import annotations

import subprocess
import sys

COMPETITION = "('torch._dynamo', 'torch._inductor', 'torch._functorch.aot_autograd')"


def run(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_is_cheap() -> None:
    """Under 0.1 s beyond `import torch`; the best of three processes, because machines are shared."""
    script = "import torch, time; t = time.perf_counter(); import dynamo; print(time.perf_counter() - t)"
    assert min(float(run(script)) for _ in range(3)) < 0.1


def test_use_does_not_import_the_competition() -> None:
    """Importing the package and compiling a function with static shapes."""
    script = f"""
import sys, torch, dynamo
f = dynamo.compile(lambda x, y: torch.relu(x + y) * 2, backend="eager")
assert f(torch.ones(3), torch.ones(3)).eq(4).all()
print([m for m in {COMPETITION} if m in sys.modules])
"""
    assert run(script) == "[]"
