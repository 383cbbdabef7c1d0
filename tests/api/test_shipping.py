"""Compiled code as a file: what it computes where it is loaded, what it refuses, and what can't be in one."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dynamo
from dynamo.exc import GuardFailed, LoadError, Unsupported
from inductor.cache import shipped
from tests.common import new_cache
from tests.processes import run_python


@pytest.fixture(autouse=True)
def inference(tmp_path: Path) -> Iterator[None]:
    dynamo.reset()
    with torch.no_grad(), new_cache(tmp_path / "cache"):
        yield


class Net(nn.Module):
    def __init__(self, scale: float = 2.0) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 4)
        self.register_buffer("shift", torch.randn(4))
        self.scale = scale

    def forward(self, x: torch.Tensor, *, flag: bool = True, k: Any = None) -> dict[str, Any]:
        y = self.last(torch.relu(self.first(x))) + self.shift
        return {"y": y * self.scale if flag else y, "k": k, "x": x, "shift": self.shift}


def shipped_and_loaded(f: Any, path: Path, *args: Any, module: Any = None, weights: bool = False, **kwargs: Any) -> Any:
    dynamo.compile(f).aot_compile(*args, **kwargs).save(path / "it", weights=weights)
    dynamo.reset()
    return dynamo.load_compiled(path / "it", module)


def test_a_module_with_the_weights_of_another(tmp_path: Path) -> None:
    loaded_for, x = Net(), torch.randn(3, 16)
    loaded = shipped_and_loaded(Net(), tmp_path, x, module=loaded_for, k=3)
    for _ in range(2):
        found, wanted = loaded(x, k=3), loaded_for(x, k=3)
        torch.testing.assert_close(found, wanted)
        assert found["x"] is x and found["shift"] is loaded_for.shift
        loaded_for.first.weight = nn.Parameter(torch.randn(32, 16))
        loaded_for.shift.add_(1)


def test_a_file_with_weights_needs_no_module(tmp_path: Path) -> None:
    net, x = Net(), torch.randn(3, 16)
    loaded = shipped_and_loaded(net, tmp_path, x, weights=True)
    torch.testing.assert_close(loaded(x), net(x))
    with pytest.raises(LoadError, match="holds no weights"):
        shipped_and_loaded(net, tmp_path, x)


def test_a_module_of_torch(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(16, 4), nn.ReLU(), nn.Dropout()).eval()
    x = torch.randn(3, 16)
    loaded = shipped_and_loaded(net, tmp_path, x, module=net)
    torch.testing.assert_close(loaded(x), net(x))
    net.train()
    with pytest.raises(GuardFailed, match="training"):
        loaded(x)


def test_functions_with_defaults_closures_writes_and_views(tmp_path: Path) -> None:
    table = torch.randn(5)

    def f(x: torch.Tensor, *rest: torch.Tensor, n: int = 2) -> tuple[Any, ...]:
        x.add_(1)
        return (torch.relu(x + table) * n, [x.t(), rest[0] + 1], 7)

    dynamo.compile(f).aot_compile(torch.ones(5, 5), torch.ones(2)).save(tmp_path / "it")
    loaded = dynamo.load_compiled(tmp_path / "it")
    x, rest = torch.randn(5, 5), torch.randn(2)
    x2 = x.clone()
    torch.testing.assert_close(loaded(x, rest), f(x2, rest))
    assert torch.equal(x, x2)
    with pytest.raises(GuardFailed, match="n was 2, now it is 3"):
        loaded(x, rest, n=3)
    with pytest.raises(GuardFailed, match="unexpected keyword"):
        loaded(x, rest, m=3)


CALLS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "shape": (lambda x: x[:2], {}, r"shape of args\[0\] was \[3, 16\], now it is \[2, 16\]"),
    "dtype": (lambda x: x.double(), {}, "dtype of args"),
    "strides": (lambda x: x.t().contiguous().t(), {}, "strides of args"),
    "branch": (lambda x: x, {"flag": False}, "flag"),
    "value": (lambda x: x, {"k": 4}, r"kwargs\['k'\] was 3, now it is 4"),
    "structure": (lambda x: x, {"k": (3,)}, "another structure"),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_that_a_guard_forbids(name: str, tmp_path: Path) -> None:
    net, x = Net(), torch.randn(3, 16)
    loaded = shipped_and_loaded(net, tmp_path, x, module=net, k=3, flag=True)
    change, more, text = CALLS[name]
    with pytest.raises(GuardFailed, match=text) as info:
        loaded(change(x), **{"k": 3, "flag": True, **more})
    assert "What to do" in str(info.value)
    torch.testing.assert_close(loaded(x, k=3, flag=True), net(x, k=3, flag=True))


def test_a_module_that_changes_behind_the_load(tmp_path: Path) -> None:
    net, x = Net(), torch.randn(3, 16)
    loaded = shipped_and_loaded(net, tmp_path, x, module=net)
    net.scale = 3.0
    with pytest.raises(GuardFailed, match=r"self.scale was 2.0, now it is 3.0.\n.*test_shipping.py:\d+ in forward: return"):
        loaded(x)
    net.scale = 2.0
    with torch.enable_grad(), pytest.raises(GuardFailed, match="grad mode was off, now it is on"):
        loaded(x)
    net.first = nn.Linear(16, 32, bias=False)
    with pytest.raises(GuardFailed, match="bias"):
        loaded(x)


class Other(Net):
    def forward(self, x: torch.Tensor) -> dict[str, Any]:  # type: ignore[override]
        return super().forward(x)


@pytest.mark.parametrize("weights", [False, True])
def test_arguments_that_share_memory(weights: bool, tmp_path: Path) -> None:
    class Writes(Net):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
            x.add_(1)
            return x + y + self.shift

    net = Writes()
    loaded = shipped_and_loaded(net, tmp_path, torch.ones(4), torch.ones(4), weights=weights, module=net)
    x = torch.ones(4)
    with pytest.raises(GuardFailed, match="two objects, now they are one"):
        loaded(x, x)
    assert torch.equal(x, torch.ones(4))


def test_another_module_is_refused(tmp_path: Path) -> None:
    x = torch.randn(3, 16)
    shipped_and_loaded(Net(), tmp_path, x, module=Net())
    with pytest.raises(LoadError, match="another class or other code"):
        dynamo.load_compiled(tmp_path / "it", Other())


def test_other_code_inside_of_forward_is_refused(tmp_path: Path) -> None:
    def net(source: str, lines: str = "") -> nn.Module:
        scope: dict[str, Any] = {}
        exec(f"{lines}def forward(self, x):\n    return (lambda y: {source})(x)", scope)
        return type("Inner", (nn.Module,), {"forward": scope["forward"]})()

    loaded = shipped_and_loaded(net("y + 1"), tmp_path, torch.ones(3), module=net("y + 1", "\n\n"))
    assert torch.equal(loaded(torch.ones(3)), torch.full((3,), 2.0))
    with pytest.raises(LoadError, match="other code"):
        dynamo.load_compiled(tmp_path / "it", net("y + 2"))


@pytest.mark.parametrize("fact", ["torch", "python", "dynamo-jit", "processor"])
def test_another_machine_or_version_is_refused(fact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    dynamo.compile(f).aot_compile(torch.ones(3)).save(tmp_path / "it")
    now = shipped.facts_now()
    monkeypatch.setattr(shipped, "facts_now", lambda devices: {**now, fact: "another"})
    with pytest.raises(LoadError, match=f"made for {fact} .*here is another"):
        dynamo.load_compiled(tmp_path / "it")


def rewritten(path: Path, member: str) -> None:
    """The file with one byte of a member changed, as a file of this form."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            changed = content[:-1] + bytes([content[-1] ^ 1]) if name == member else content
            archive.writestr(name, changed)


@pytest.mark.parametrize("damage", ["program", "record", "manifest.json", "bytes", "cut", "empty", "text"])
def test_damaged_files_are_not_run(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "it"
    shipped_and_loaded(lambda x: x * 2, tmp_path, torch.ones(3))
    if damage in ("bytes", "cut", "empty", "text"):
        content = path.read_bytes()
        middle = len(content) // 2
        path.write_bytes({"bytes": content[:middle] + bytes(8) + content[middle + 8 :], "cut": content[:middle], "empty": b"", "text": b"not a file of this kind"}[damage])
    else:
        rewritten(path, damage)
    with pytest.raises(LoadError, match="changed|no file of aot_compile"):
        dynamo.load_compiled(path)


def test_a_library_that_was_changed_on_the_disk_is_written_again(tmp_path: Path) -> None:
    loaded = shipped_and_loaded(lambda x: torch.relu(x) * 2, tmp_path, torch.ones(3))
    [library] = (tmp_path / "cache" / "shipped").rglob("library/*/*.so")
    content = library.read_bytes()
    library.unlink()  # the old one is mapped
    library.write_bytes(content[:100])
    assert torch.equal(dynamo.load_compiled(tmp_path / "it")(torch.ones(3)), loaded(torch.ones(3)))
    assert library.read_bytes() == content
    assert dynamo.cache.prune(0) > len(content) and not library.exists()
    assert torch.equal(dynamo.load_compiled(tmp_path / "it")(torch.ones(3)), loaded(torch.ones(3)))


class Strange:
    pass


def with_gradients(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_what_can_not_be_in_a_file() -> None:
    x = torch.randn(3)
    with torch.enable_grad(), pytest.raises(Unsupported, match="no_grad"):
        dynamo.compile(with_gradients).aot_compile(x.requires_grad_())
    x = torch.randn(3)
    with pytest.raises(Unsupported, match="plain values"):
        dynamo.compile(lambda x, y: x * 2).aot_compile(x, Strange())
    with pytest.raises(Unsupported):
        dynamo.compile(lambda x: x * 2 if x.sum() > 0 else x).aot_compile(x)
    with pytest.raises(Unsupported, match="returns"):
        dynamo.compile(lambda x: (x * 2, len)).aot_compile(x)
    with pytest.raises(Unsupported, match="bound method"):
        dynamo.compile(Net().forward).aot_compile(torch.randn(3, 16))
    table = torch.randn(3)
    with pytest.raises(Unsupported, match="writes into a tensor that is no argument"):
        dynamo.compile(lambda x: table.add_(x)).aot_compile(x)
    with pytest.raises(Unsupported, match="backend"):
        dynamo.compile(lambda x: x * 2, backend="eager").aot_compile(x)


LOAD = """
import sys, torch, dynamo
torch.set_grad_enabled(False)
torch.set_num_threads(int(sys.argv[3]))
loaded = dynamo.load_compiled(sys.argv[1])
print(loaded(torch.ones(3, 16))["y"].sum().item(), sum(dynamo.compile_times().get(n, 0) for n in ("trace", "inductor")))
"""


SAVE = """
import sys, torch, dynamo
sys.path.insert(0, sys.argv[2])
from test_shipping import Net
torch.set_grad_enabled(False)
torch.set_num_threads(int(sys.argv[3]))
net = Net()
dynamo.compile(net).aot_compile(torch.ones(3, 16)).save(sys.argv[1], weights=True)
print(net(torch.ones(3, 16))["y"].sum().item())
"""


def test_another_process_without_a_compiler(tmp_path: Path) -> None:
    """Saved by a new process, too: tests before this one leave settings that the file would ask for."""
    without = {"PATH": str(tmp_path), "CXX": "/bin/false", "DYNAMO_CACHE_DIR": str(tmp_path / "elsewhere")}
    printed = []
    for script, more in ((SAVE, {}), (LOAD, without)):
        threads = str(torch.get_num_threads())
        done = run_python("-c", script, str(tmp_path / "it"), str(Path(__file__).parent), threads, **more)
        assert done.returncode == 0, done.stderr
        printed.append([float(word) for word in done.stdout.split()])
    [[wanted], [total, seconds]] = printed
    assert abs(total - wanted) < 1e-3 and seconds == 0
