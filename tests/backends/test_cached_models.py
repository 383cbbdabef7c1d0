"""What an engine's converter has made is kept in the cache folder, without weights."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dynamo
from dynamo.backends.engines import libraries
from dynamo.backends.engines.compile import backend_of
from dynamo.backends.engines.records import Engine
from inductor.config import config


class Converter:
    """An engine whose models are exported programs; it counts what is converted and loaded."""

    def __init__(self, refuses: bool = False) -> None:
        self.converted = 0
        self.weights: list[list[int]] = []
        self.refuses = refuses

    def convert(self, module: torch.fx.GraphModule, examples: list[torch.Tensor]) -> bytes:
        self.converted += 1
        out = io.BytesIO()
        torch.export.save(libraries.exported(module, examples), out)
        return out.getvalue()

    def load(self, model: bytes, weights: Mapping[int, torch.Tensor]) -> Any:
        self.weights.append(list(weights))
        if self.refuses:
            raise RuntimeError("exp is not for us")
        program = torch.export.load(io.BytesIO(model)).module()
        constants = {place: value.clone() for place, value in weights.items()}

        def call(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
            rest, count = iter(inputs), len(inputs) + len(constants)
            results = program(*(constants[n] if n in constants else next(rest) for n in range(count)))
            return [results] if isinstance(results, torch.Tensor) else list(results)

        return call

    def compile(self, f: Any, name: str = "stand_in") -> Any:
        dynamo.reset()
        engine = Engine(name, None, (), "", ("cpu",), libraries.FLOATS,
                        convert=self.convert, load=self.load)
        return dynamo.compile(f, backend=backend_of(engine))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with config.patch(graph_cache=True), dynamo.config.patch(cache_dir=str(tmp_path)):
        yield tmp_path


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.GELU())


X = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))


def test_the_next_compile_converts_nothing() -> None:
    converter, other = Converter(), network()
    with torch.no_grad():
        for model in (network(), network(), other):
            other[0].weight.add_(1)  # the same model for other weights
            torch.testing.assert_close(converter.compile(model)(X), model(X))
    assert converter.converted == 1
    assert converter.weights[0] == [] and all(len(places) == 2 for places in converter.weights[1:])


def test_new_weights_load_the_same_model() -> None:
    converter, model = Converter(), network()
    compiled = converter.compile(model)
    with torch.no_grad():
        for _ in range(5):
            torch.testing.assert_close(compiled(X), model(X))
            model[0].weight.mul_(1.5)
    assert converter.converted == 1
    assert [len(places) for places in converter.weights] == [0, 2, 2, 0]  # then it takes them


@pytest.mark.parametrize("change", ["sizes", "operators", "engine", "settings"])
def test_what_differs_is_converted(change: str) -> None:
    converter = Converter()
    with torch.no_grad():
        converter.compile(torch.exp)(X)
        other = {"sizes": X[:1], "operators": X}.get(change, X)
        function = torch.sin if change == "operators" else torch.exp
        with config.patch(leave_out="fusion" if change == "settings" else ""):
            name = "another" if change == "engine" else "stand_in"
            torch.testing.assert_close(converter.compile(function, name)(other), function(other))
    assert converter.converted == 2


def test_damaged_files_are_not_read(folder: Path) -> None:
    converter = Converter()
    with torch.no_grad():
        converter.compile(torch.exp)(X)
        (file,) = folder.glob("engine/*/*.model")
        file.write_bytes(file.read_bytes()[:-1] + b"?")
        torch.testing.assert_close(converter.compile(torch.exp)(X), X.exp())
        converter.compile(torch.exp)(X)
    assert converter.converted == 2


def test_nothing_is_kept_without_a_cache(folder: Path) -> None:
    converter = Converter()
    with torch.no_grad(), config.patch(graph_cache=False):
        for _ in range(2):
            converter.compile(torch.exp)(X)
    assert converter.converted == 2 and not list(folder.glob("engine/*"))


def test_what_the_engine_refuses_is_not_kept(folder: Path) -> None:
    converter = Converter(refuses=True)
    with torch.no_grad():
        assert torch.equal(converter.compile(torch.exp)(X), X.exp())
    assert dynamo.counters["not_compiled"] and not list(folder.glob("engine/*/*.model"))


@pytest.mark.parametrize("name, package", [("onnxrt", "onnxruntime"), ("openvino", "openvino")])
def test_real_engines_convert_once(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    model = network()
    with torch.no_grad():
        dynamo.reset()
        torch.testing.assert_close(dynamo.compile(model, backend=name)(X), model(X))

        def fail(*args: Any, **kwargs: Any) -> None:
            raise AssertionError("converted again")

        monkeypatch.setattr(libraries, "exported", fail)
        model[0].weight.add_(1)
        dynamo.reset()
        torch.testing.assert_close(dynamo.compile(model, backend=name)(X), model(X))
    assert not dynamo.counters["not_compiled"]
