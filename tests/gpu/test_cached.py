"""What a second process takes from the cache on a GPU: traces, graphs, kernels; and compiled code in files.

Each program runs twice, in processes that share a folder. The second one traces, lowers and compiles nothing; Triton is not
even imported. Results are those of eager in the same process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
OUTSIDE = {name: value for name, value in os.environ.items() if not name.startswith("DYNAMO_")}  # tests have no caches
HEAD = """
import json, sys
import torch
import torch.nn.functional as F
from torch import nn
import dynamo
import inductor

DEVICE = torch.device("cuda", torch.cuda.current_device())

def data(*size, dtype=torch.float32):
    return torch.randn(*size, device=DEVICE).to(dtype)

def near(found, wanted, exact=0):
    if isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted):
            near(one, other, exact)
    elif isinstance(wanted, torch.Tensor):
        slack = {torch.float16: 2e-2, torch.bfloat16: 6e-2}.get(wanted.dtype, 2e-3)
        assert found.device == wanted.device and found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted, rtol=0 if exact else slack, atol=0 if exact else slack)
    else:
        assert found == wanted, (found, wanted)

def near_gradients(compiled, module, x):
    grads = []
    for call in (compiled, module):
        module.zero_grad()
        call(x).pow(2).mean().backward()
        grads.append([p.grad.clone() for p in module.parameters()])
    near(*grads)
"""
TAIL = """
torch.manual_seed(0)
run()
torch.cuda.synchronize()
stats = dynamo.counters["stats"]
counts = inductor.metrics.snapshot()
print(json.dumps({"frames": stats["frames"], "kept": stats["captures_reused"], "graphs": counts["graphs_reused"],
                  "lowered": counts["graphs"], "triton": "triton" in sys.modules, "recorded": counts["cuda_graphs_recorded"],
                  "defects": dict(dynamo.counters["internal_errors"]), "left": dict(dynamo.counters["not_compiled"])}))
"""


@pytest.fixture
def twice(tmp_path: Path) -> Callable[..., tuple[dict[str, Any], dict[str, Any], str]]:
    """Runs a program in two processes; what they counted, and what the second one said."""

    def run(source: str, second: str | None = None, **env: str) -> tuple[dict[str, Any], dict[str, Any], str]:
        found = []
        for number, text in enumerate((source, source if second is None else second)):
            path = tmp_path / "program.py"
            path.write_text(HEAD + text + TAIL)
            more = env if number else {}
            done = subprocess.run(
                [sys.executable, "-W", "ignore", str(path)], capture_output=True, text=True, timeout=240, cwd=tmp_path,
                env=OUTSIDE | {"DYNAMO_CACHE_DIR": str(tmp_path / "cache"), "DYNAMO_LOGS": "cache", "PYTHONPATH": str(ROOT),
                                  "TRITON_CACHE_DIR": str(tmp_path / f"triton{number}")} | more)
            assert done.returncode == 0, done.stderr[-3000:]
            found.append(json.loads(done.stdout.splitlines()[-1]))
            assert not found[-1]["defects"], found[-1]
        return found[0], found[1], done.stderr

    return run


def assert_taken(first: dict[str, Any], second: dict[str, Any], said: str, triton: bool = False) -> None:
    """All of the second process came from the first."""
    assert first["lowered"] > 0 and first["kept"] < first["frames"]
    assert second["kept"] == second["frames"] == first["frames"], said[-3000:]
    assert second["lowered"] == 0 and second["graphs"] > 0, said[-3000:]
    assert second["triton"] is triton, said[-3000:]


PROGRAMS = {
    "two operations": """
def f(x, y):
    return torch.relu(x + y) * 2
def run():
    compiled = dynamo.compile(f)
    for _ in range(3):
        x, y = data(64, 33), data(64, 33)
        near(compiled(x, y), f(x, y))
    odd = data(64 * 33 + 1)[1:].view(64, 33)  # no kernel was compiled for it
    if len(sys.argv) > 1:
        near(compiled(odd, y), f(odd, y))
""",
    "layers in half": """
def run():
    module = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 8), nn.Softmax(-1))
    module = module.to(DEVICE, torch.float16)
    compiled = dynamo.compile(module)
    with torch.no_grad():
        for _ in range(2):
            x = data(32, 64, dtype=torch.float16)
            near(compiled(x), module(x))
""",
    "training": """
def run():
    module = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 8)).to(DEVICE)
    compiled = dynamo.compile(module)
    for _ in range(2):
        near_gradients(compiled, module, data(32, 64))
""",
    "all sizes": """
def run():
    module = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 8)).to(DEVICE)
    compiled = dynamo.compile(module, dynamic=True)
    for rows in (32, 48, 64):
        near_gradients(compiled, module, data(rows, 64))
""",
    "a compiled step": """
def run():
    states = []
    for compiles in (True, False):
        torch.manual_seed(1)
        params = [nn.Parameter(data(32, 16)) for _ in range(9)]
        optimizer = torch.optim.AdamW(params, lr=1e-2)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        step = dynamo.compile(lambda: optimizer.step()) if compiles else optimizer.step
        for _ in range(5):
            for p in params:
                p.grad = data(32, 16)
            step()
            schedule.step()
        states.append([p.detach().clone() for p in params])
    near(*states)
""",
    "dropout": """
def f(x):
    return F.dropout(x + 1, 0.25) * 2
def run():
    compiled = dynamo.compile(f)
    for seed in range(3):
        x = data(64, 768)
        torch.manual_seed(seed); wanted = f(x); after = torch.rand(3, device=DEVICE)
        torch.manual_seed(seed); found = compiled(x)
        near([found, torch.rand(3, device=DEVICE)], [wanted, after], exact=1)
""",
    "made inside": """
def f(x):
    a = torch.arange(8, device="cuda") + torch.ones(8, device="cuda:0")
    return x * a + torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8], device=x.device)
def run():
    compiled = dynamo.compile(f)
    x = data(4, 8)
    near(compiled(x), f(x))
""",
    "autocast": """
module = nn.Linear(64, 64).to(DEVICE)
def f(x):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return torch.tanh(module(x)) + 1
def run():
    compiled = dynamo.compile(f)
    x = data(8, 64)
    with torch.no_grad():
        near(compiled(x), f(x))
""",
    "asks about the gpu": """
def f(x):
    if torch.cuda.get_device_capability() >= (8, 0) and torch.cuda.is_bf16_supported():
        return x * 2
    return x * 3
def run():
    near(dynamo.compile(f)(x := data(8)), f(x))
""",
    "attention": """
def f(q, k, v):
    return F.scaled_dot_product_attention(q, k, v) * 2
def run():
    compiled = dynamo.compile(f)
    for _ in range(2):
        q, k, v = (data(2, 4, 128, 64, dtype=torch.float16) for _ in range(3))
        near(compiled(q, k, v), f(q, k, v))
""",
    "a break": """
def f(x):
    y = torch.sin(x) + 1
    dynamo.graph_break()
    return torch.cos(y) * x
def run():
    near(dynamo.compile(f)(x := data(64)), f(x))
""",
    "rotated products": """
class Three(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(256, 256), nn.Linear(256, 256), nn.Linear(256, 256)
    def forward(self, x):
        q, k, v = (y.view(2, 64, 4, 64).transpose(1, 2) for y in (self.q(x), self.k(x), self.v(x)))
        return F.scaled_dot_product_attention(q, k, v)
def run():
    module = Three().to(DEVICE, torch.float16)
    compiled = dynamo.compile(module)
    with torch.no_grad():
        near(compiled(x := data(2, 64, 256, dtype=torch.float16)), module(x))
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, twice: Any) -> None:
    first, second, said = twice(PROGRAMS[name])
    if name == "a compiled step":  # torch's optimizers import Triton
        second["triton"] = False
    assert_taken(first, second, said)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_small_transformers(name: str, twice: Any) -> None:
    first, second, said = twice(f"""
from tests.package.test_package import small_model
def run():
    model = small_model({name!r}).to(DEVICE, torch.float16)
    compiled = dynamo.compile(model)
    with torch.no_grad():
        for _ in range(2):
            ids = torch.randint(0, 50, (2, 12), device=DEVICE)
            near(compiled(input_ids=ids)[0], model(input_ids=ids)[0])
""")
    assert_taken(first, second | {"triton": False}, said)  # transformers may import it


def test_steps_of_an_optimizer(twice: Any) -> None:
    first, second, said = twice("""
def run():
    states = []
    for compiles in (True, False):
        torch.manual_seed(1)
        module = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 1)).to(DEVICE)
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
        call, losses = dynamo.compile(module) if compiles else module, []
        for _ in range(4):
            optimizer.zero_grad()
            loss = call(data(16, 32)).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach().clone())
        states.append([*losses, *[p.detach().clone() for p in module.parameters()]])
    near(*states)
""")
    assert_taken(first, second | {"triton": False}, said)  # torch's optimizers import it


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
def test_modes(mode: str, twice: Any) -> None:
    first, second, said = twice(f"""
def run():
    module = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.LayerNorm(512), nn.Linear(512, 256)).to(DEVICE, torch.float16)
    compiled = dynamo.compile(module, mode={mode!r})
    with torch.no_grad():
        for _ in range(6):
            x = data(128, 256, dtype=torch.float16)
            near(compiled(x).clone(), module(x))
""")
    assert_taken(first, second, said)
    assert first["recorded"] == second["recorded"] > 0


def test_tensors_at_odd_addresses(twice: Any) -> None:
    """No kernel was compiled for those: Triton comes in, and is right."""
    source = PROGRAMS["two operations"]
    first, second, said = twice(source, source.replace("len(sys.argv) > 1", "True"))
    assert_taken(first, second, said, triton=True)


def test_a_thread_of_its_own(twice: Any) -> None:
    assert_taken(*twice("""
import threading
def f(x):
    return torch.sin(x) * x + 1
def run():
    compiled = dynamo.compile(f)
    x, found = data(1000), []
    near(compiled(x), f(x))
    thread = threading.Thread(target=lambda: found.append(compiled(x)))
    thread.start(); thread.join()
    near(found[0], f(x))
"""))


@pytest.mark.parametrize("line, word", [
    ("from dynamo.store import gpu_facts; gpu_facts.kinds_of_gpus = lambda: '1 NVIDIA H1 9.1 x1'", "gpus"),
    ("from dynamo.store import gpu_facts; gpu_facts.driver = lambda: 'CUDA 9000, 1.2.3'", "driver"),
    ("from dynamo.store import gpu_facts; gpu_facts.triton_version = lambda: '2.9'", "triton"),
])
def test_another_machine_is_another_key(line: str, word: str, twice: Any) -> None:
    source = PROGRAMS["attention"]
    first, second, said = twice(f"import dynamo.store.gpu_facts\n{source}", f"{line}\n{source}")
    assert second["kept"] == 0 and second["graphs"] == 0 and second["lowered"] == first["lowered"]
    for kind in ("capture", "graph"):
        assert f"the nearest {kind} differs in: {word} (" in said, said[-2000:]


@pytest.mark.parametrize("weights", [False, True])
def test_files(weights: bool, twice: Any, tmp_path: Path) -> None:
    model = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.out = nn.Linear(256, 768), nn.Linear(256, 8)
    def forward(self, x):
        q, k, v = (y.view(2, 64, 4, 64).transpose(1, 2) for y in self.q(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return F.gelu(self.out(y))
def made():
    torch.manual_seed(3)
    return Net().to(DEVICE, torch.float16)
"""
    saves = model + f"""
def run():
    with torch.no_grad():
        program = dynamo.compile(made()).aot_compile(data(2, 64, 256, dtype=torch.float16))
    program.save("net.compiled", weights={weights})
"""
    loads = model + f"""
def run():
    module = made()
    fast = dynamo.load_compiled("net.compiled", {None if weights else "module"})
    with torch.no_grad():
        for _ in range(2):
            near(fast(x := data(2, 64, 256, dtype=torch.float16)), module(x))
        try:
            fast(x.float())
        except dynamo.exc.GuardFailed:
            pass
        else:
            raise AssertionError
"""
    _, second, said = twice(saves, loads, DYNAMO_CACHE_DIR=str(tmp_path / "other"))
    assert second["frames"] == 0 and second["lowered"] == 0 and not second["triton"], said[-2000:]


def test_a_file_for_another_gpu_is_refused(twice: Any) -> None:
    saves = """
def run():
    dynamo.compile(torch.nn.ReLU()).aot_compile(data(4)).save("relu.compiled")
"""
    loads = """
from dynamo.store import gpu_facts
gpu_facts.kind_of_gpu = lambda number: "NVIDIA H1 9.1 x1"
def run():
    try:
        dynamo.load_compiled("relu.compiled", torch.nn.ReLU())
    except dynamo.exc.LoadError as error:
        assert "it was made for cuda:0 " in str(error) and "here is NVIDIA H1 9.1 x1" in str(error), error
    else:
        raise AssertionError
"""
    twice(saves, loads)
