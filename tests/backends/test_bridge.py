"""Backends that were registered for torch.compile, here; ours, under torch.compile."""

from __future__ import annotations

import os
import sys
import tomllib
from pathlib import Path

import pytest

from tests.processes import run_python

ROOT = Path(__file__).parent.parent.parent
OURS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]

UNDER_TORCH = """
import copy, torch, inductor, dynamo
assert "dynamo_inductor" not in dynamo.list_backends()
net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.GELU(), torch.nn.Linear(5, 2))
other = copy.deepcopy(net)
compiled = torch.compile(net, backend="dynamo_inductor")
for size in (3, 4, 6):
    x = torch.randn(size, 4)
    got, wanted = compiled(x), other(x)
    torch.testing.assert_close(got, wanted)
    got.sum().backward(), wanted.sum().backward()
    for p, q in zip(net.parameters(), other.parameters()):
        torch.testing.assert_close(p.grad, q.grad)
assert inductor.metrics.snapshot()["kernels"] > 0, inductor.metrics.snapshot()

@torch.compile(backend="dynamo_inductor", dynamic=True)
def scale(x, n):
    return (x * n).sum(0) + x.shape[0]

for size, n in ((3, 2), (5, 3), (6, 7)):
    x = torch.randn(size, 4)
    torch.testing.assert_close(scale(x, n), (x * n).sum(0) + size)
print("fine")
"""

UNDER_OURS = """
import torch, dynamo
assert "doubling" in dynamo.list_backends(), dynamo.list_backends()
x = torch.randn(3)
assert torch.equal(dynamo.compile(lambda x: x + 1, backend="doubling")(x), 2 * (x + 1))
print("fine")
"""
DOUBLING = """
def doubling(gm, example_inputs):
    return lambda *inputs: tuple(2 * value for value in gm(*inputs))
"""


def run(code: str, folder: Path, name: str, points: dict[str, str]) -> None:
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = "\n".join(f"{key} = {value}" for key, value in points.items())
    (info / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{lines}\n")
    paths = [str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = run_python("-c", code, PYTHONPATH=os.pathsep.join(paths))
    assert done.stdout.strip() == "fine", done.stderr


@pytest.mark.long
def test_ours_under_torch_compile(tmp_path: Path) -> None:
    run(UNDER_TORCH, tmp_path, "ours", OURS["torch_dynamo_backends"])


def test_backends_registered_for_torch_are_found(tmp_path: Path) -> None:
    (tmp_path / "doubling_module.py").write_text(DOUBLING)
    run(UNDER_OURS, tmp_path, "theirs", {"doubling": "doubling_module:doubling"})


def test_entry_points_name_what_exists() -> None:
    for value in OURS["torch_dynamo_backends"].values():
        module, _, attribute = value.partition(":")
        __import__(module)
        assert callable(getattr(sys.modules[module], attribute))
