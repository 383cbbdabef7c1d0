"""Every name of docs/torch_compile.md, and what of it is small enough to be tested here."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dynamo
import inductor.config
from dynamo import testing
from dynamo.base.config import Config, Knob, config
from dynamo.base.environment import of_torch
from tests.processes import run_python

ROOT = Path(__file__).parent.parent.parent
ROWS = [
    [cell.strip() for cell in line[1:].rstrip().removesuffix("|").split("|")]
    for line in (ROOT / "docs" / "torch_compile.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith(("| ---", "| torch.compile |"))
]
NAMES = sorted({name for row in ROWS for name in re.findall(r"`([^`]+)`", row[1])})
SOURCES = "".join(path.read_text() for path in (ROOT / "dynamo" / "base").glob("*.py"))
VARIABLES = {name for one in (config, inductor.config.config) for knob in one._knobs.values()
             for name in (*knob.env, f"DYNAMO_{knob.name.upper()}")}


def resolve(name: str) -> Any:
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            value = getattr(value, part)
        return value
    raise AssertionError(name)


@pytest.mark.parametrize("name", NAMES)
def test_names_of_the_page_exist(name: str) -> None:
    if name.startswith("DYNAMO_"):
        assert name in VARIABLES or f'"{name}"' in SOURCES
    elif "." in name:
        resolve(name)
    else:
        assert name in dynamo.list_backends()


def test_the_page_has_a_state_in_each_row() -> None:
    assert len(ROWS) > 60
    for row in ROWS:
        assert len(row) == 3 and row[2].startswith(("there", "differs", "no")), row
        assert row[1] or row[2].startswith(("no", "there: C++")), row


def test_there_are_few_knobs() -> None:
    assert len(config.list_options() | inductor.list_options()) < 40


def test_patch_takes_a_dict() -> None:
    with config.patch({"recompile_limit": 3}, verbose=True):
        assert config.recompile_limit == 3 and config.verbose
    with config.patch("recompile_limit", 4), dynamo.patch_dynamo_config("verbose", True):
        assert config.recompile_limit == 4 and config.verbose
    assert config.recompile_limit == 8 and not config.verbose
    for wrong in (("recompile_limit",), ({"recompile_limit": 3}, 4), (None, 3)):
        with pytest.raises(TypeError, match="a name and its value"), config.patch(*wrong):
            pass
    with pytest.raises(AttributeError, match="no such setting: recompile_limits"):
        with config.patch({"recompile_limits": 3}):
            pass


def test_knobs_have_a_variable_without_being_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAMO_MAX_THINGS", "7")
    assert Config("test", [Knob("max_things", 1, "So many.")]).max_things == 7
    assert Config("test", [Knob("max_things", True, "Some.", numbers=True)]).max_things == 7


def test_settings_of_inductor_are_attributes_of_the_module() -> None:
    before = inductor.config.freezing
    try:
        inductor.config.freezing = not before
        assert inductor.config.config.freezing is not before
        with inductor.config.patch({"freezing": before}):
            assert inductor.config.freezing is before
        with pytest.raises(AttributeError, match="no such setting"):
            inductor.config.freezin = True
        with pytest.raises(AttributeError, match="did you mean freezing"):
            inductor.config.freezings  # noqa: B018
        with pytest.raises(TypeError):
            inductor.config.freezing = "yes"
    finally:
        inductor.config.freezing = before


def test_variables_of_torch() -> None:
    lines = of_torch({"TORCHINDUCTOR_CPP_WRAPPER": "1", "TORCHINDUCTOR_FREEZING": "1", "TORCHDYNAMO_REPRO_AFTER": "aot",
                      "TORCH_COMPILE_DEBUG": "1", "TORCH_TRACE": "/tmp"})
    assert lines == ["TORCHDYNAMO_REPRO_AFTER: DYNAMO_REPRO=crash or DYNAMO_REPRO=accuracy",
                     "TORCHINDUCTOR_CPP_WRAPPER: there is no such setting here",
                     "TORCH_TRACE: DYNAMO_TRACE names the file of events"]


def test_variables_are_honoured_or_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    code = ("import dynamo, inductor.config; f = dynamo.compile(lambda x: x); g = dynamo.compile(lambda x: x);"
            "print(dynamo.config.verbose, inductor.config.freezing, dynamo.config.cache_dir)")
    monkeypatch.delenv("DYNAMO_CACHE_DIR", raising=False)
    done = run_python("-c", code, bare=True, TORCHDYNAMO_VERBOSE="1", TORCHINDUCTOR_FREEZING="0",
                      TORCHINDUCTOR_CACHE_DIR="/tmp/there", TORCHINDUCTOR_SIZE_ASSERTS="1")
    assert done.stdout.split() == ["True", "False", "/tmp/there"]
    assert done.stderr.count("TORCHINDUCTOR_SIZE_ASSERTS: there is no such setting here") == 1
    assert "FREEZING" not in done.stderr


def test_folder_of_records_by_the_variables_of_torch(tmp_path: Path) -> None:
    code = "import torch, dynamo; dynamo.compile(lambda x: x.sin() + 1)(torch.ones(3))"
    done = run_python("-c", code, bare=True, TORCH_COMPILE_DEBUG="1", TORCH_COMPILE_DEBUG_DIR=str(tmp_path))
    assert "have no effect" not in done.stderr
    assert any((tmp_path / "torch_compile_debug").rglob("*.py"))


def test_lite_makes_no_kernels() -> None:
    before = inductor.metrics.generated_kernel_count
    x = torch.randn(5)
    assert torch.equal(dynamo.compile(lambda x: x.sin() + 1, mode="lite")(x), x.sin() + 1)
    assert inductor.metrics.generated_kernel_count == before


def test_eager_noexcept_tells_of_errors() -> None:
    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return nn.functional.embedding(i, x)

    x, compiled = torch.randn(4, 2), dynamo.compile(f, backend="eager_noexcept")
    assert torch.equal(compiled(x, torch.tensor([1])), x[1:2])
    with pytest.raises(dynamo.exc.InternalError, match="a captured graph raised IndexError"):
        compiled(x, torch.tensor([4]))


def test_eager_debug_checks_schemas() -> None:
    x = torch.randn(4)
    assert torch.equal(dynamo.compile(lambda x: x.sin().add_(1), backend="eager_debug")(x), x.sin() + 1)

    library = torch.library.Library("surface_test", "DEF")
    library.define("liar(Tensor x) -> Tensor")
    library.impl("liar", lambda x: x.add_(1), "CPU")
    library.impl("liar", lambda x: torch.empty_like(x), "Meta")
    lying = dynamo.compile(lambda x: torch.ops.surface_test.liar(x) * 2, backend="eager_debug")
    with pytest.raises(dynamo.exc.BackendError, match="Argument x is not defined to alias output"):
        lying(x)
    with pytest.raises(IndexError):  # the program's own
        dynamo.compile(lambda x: x.sin().sum(3), backend="eager_debug")(x)


def test_optimize_is_the_old_spelling() -> None:
    @dynamo.optimize("eager", nopython=True)
    def f(x: torch.Tensor) -> torch.Tensor:
        dynamo.graph_break()
        return x

    with pytest.raises(dynamo.exc.Unsupported):
        f(torch.ones(1))


def test_nonstrict_trace_is_one_node() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 2

    graphs, x = testing.EagerAndRecordGraphs(), torch.randn(3)
    dynamo.nonstrict_trace(inner)
    compiled = dynamo.compile(lambda x: inner(x) + 1, backend=graphs)
    assert torch.equal(compiled(x), x.sin() * 2 + 1)
    targets = [node.target for node in graphs.graphs[0].graph.nodes if node.op == "call_function"]
    assert inner in targets and len(targets) == 2


def test_recorded_graphs() -> None:
    keeper, net, x = testing.AotEagerAndRecordGraphs(), nn.Linear(3, 2), torch.randn(4, 3)
    compiled = dynamo.compile(net, backend=keeper)
    compiled(x).sum().backward()
    assert torch.equal(net.weight.grad, x.sum(0).expand(2, 3))
    assert [len(keeper.graphs), len(keeper.fw_graphs), len(keeper.bw_graphs)] == [1, 1, 1]
    assert "aten.addmm" in keeper.fw_graphs[0].code


def test_same() -> None:
    one = {"a": torch.ones(3), "b": [1, None]}
    assert testing.same(one, {"a": torch.ones(3) + 1e-6, "b": [1, None]})
    assert not testing.same(one, {"a": torch.ones(3) + 1e-2, "b": [1, None]})
    assert not testing.same(one, {"a": torch.ones(3), "b": [2, None]})
    assert not testing.same(one, {"a": torch.ones(3).double(), "b": [1, None]})
    assert not testing.same(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
    assert testing.same(torch.tensor([float("nan")]), torch.tensor([float("nan")]), equal_nan=True)


def replaces_sin(graph: torch.fx.Graph) -> None:
    for node in graph.nodes:
        if node.target is torch.ops.aten.sin.default:
            node.target = torch.ops.aten.cos.default
        elif node.target == "sin":
            node.target = "cos"


@pytest.mark.parametrize("place", [
    "pre_grad_custom_pass", "post_grad_custom_pre_pass", "joint_custom_pre_pass", "joint_custom_post_pass"])
def test_passes_of_users(place: str) -> None:
    x = torch.randn(5, requires_grad=place.startswith("joint"))
    compiled = dynamo.compile(lambda x: x.sin() + 1, options={"passes": {place: replaces_sin}})
    torch.testing.assert_close(compiled(x), x.cos() + 1)


def test_passes_are_checked() -> None:
    with pytest.raises(ValueError, match="there is no place 'post_grad'"):
        dynamo.compile(lambda x: x, options={"passes": {"post_grad": replaces_sin}})
    with pytest.raises(TypeError, match="takes a function of a graph"):
        dynamo.compile(lambda x: x, options={"passes": {"pre_grad_custom_pass": 3}})


def test_a_pass_that_fails_is_told() -> None:
    def fails(graph: torch.fx.Graph) -> None:
        raise RuntimeError("not mine")

    x = torch.randn(5)
    compiled = dynamo.compile(lambda x: x.sin() + 1, options={"passes": {"post_grad_custom_pre_pass": fails}})
    with pytest.warns(UserWarning, match="not mine"):
        torch.testing.assert_close(compiled(x), x.sin() + 1)


def test_compiling_without_the_frontend() -> None:
    gm = torch.fx.symbolic_trace(lambda x: (x.sin() + 1,))
    x = torch.randn(4)
    (result,) = inductor.standalone_compile(gm, [x])(x)
    torch.testing.assert_close(result, x.sin() + 1)


def test_names_of_settings_that_torch_has() -> None:
    with config.patch({"cache_size_limit": 3, "guard_nn_modules": True}):
        assert config.recompile_limit == config.cache_size_limit == 3
    assert config.allow_unspec_int_on_nn_module and not config.force_parameter_static_shapes
    config.allow_unspec_int_on_nn_module = True
    with pytest.raises(ValueError, match="guard_nn_modules is True here, always"):
        config.guard_nn_modules = False
    with pytest.raises(ValueError, match="force_parameter_static_shapes is False"):
        config.load_config({"force_parameter_static_shapes": True})
    with pytest.raises(TypeError, match="recompile_limit takes int"):
        config.cache_size_limit = "many"
    kept = config.save_config()
    assert kept == config.save() and "guard_nn_modules" not in kept
    config.load_config(kept)


def test_passes_by_their_own_names() -> None:
    """As options, in `patch` and as settings; the same graphs as by `passes`."""
    def negated(graph: torch.fx.Graph) -> None:
        for node in list(graph.nodes):
            if node.target is torch.ops.aten.sin.default:
                node.target = torch.ops.aten.cos.default

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 3

    x, place = torch.randn(7), "post_grad_custom_pre_pass"
    torch.testing.assert_close(dynamo.compile(program, options={place: negated})(x), x.cos() * 3)
    for given in (({place: negated},), (place, negated)):
        with inductor.config.patch(*given):
            assert inductor.config.post_grad_custom_pre_pass is negated
            torch.testing.assert_close(dynamo.compile(program)(x), x.cos() * 3)
    with inductor.config.patch(post_grad_custom_pre_pass=negated):
        both = dynamo.compile(program, options={"pre_grad_custom_pass": lambda graph: None})
        torch.testing.assert_close(both(x), x.cos() * 3)
    try:
        inductor.config.post_grad_custom_pre_pass = negated
        assert inductor.config.passes == {place: negated}
    finally:
        inductor.config.post_grad_custom_pre_pass = None
    assert not inductor.config.passes and inductor.config.pre_grad_custom_pass is None
    torch.testing.assert_close(dynamo.compile(program)(x), x.sin() * 3)
    inductor.config.passes = None
    with pytest.raises(TypeError, match="takes a function of a graph"):
        dynamo.compile(program, options={place: 3})(x)


def test_options_of_torch_are_taken_or_told_of() -> None:
    compiled = dynamo.compile(lambda x: x.sin() + 1, options={"triton.cudagraphs": False})
    assert torch.allclose(compiled(torch.ones(3)), torch.ones(3).sin() + 1)
    with inductor.config.patch({"triton.cudagraphs": True}):
        assert inductor.config.cudagraphs
    settings = inductor.config.settings_of
    assert settings(None, {"epilogue_fusion": False, "layout_optimization": True, "pattern_matcher": False}) == {
        "leave_out": "fusion, patterns"}
    assert settings(None, {"leave_out": "fusion", "layout_optimization": False})["leave_out"] == "fusion, layout"
    assert settings(None, {"max_autotune_gemm": True, "max_autotune_pointwise": False}) == {"max_autotune": True}
    assert settings(None, {"trace.enabled": True, "guard_filter_fn": None, "fallback_random": True}) == {}
    assert settings(None, {"force_disable_caches": True, "rocm.arch": ["gfx942"]}) == {"graph_cache": False}
    for refused, instead in (("nan_asserts", '"verify": True'), ("guard_filter_fn", "dynamo.mark_static")):
        with pytest.raises(ValueError, match=f"{refused}=.* always: .*{instead}"):
            dynamo.compile(lambda x: x, options={refused: True})
    with pytest.raises(TypeError, match="'epilogue_fusion': ...}} takes True or False, not 3".replace("}}", "}")):
        dynamo.compile(lambda x: x, options={"epilogue_fusion": 3})
    with pytest.raises(ValueError, match="did you mean 'shape_padding'"):
        dynamo.compile(lambda x: x, options={"shape_paddings": True})


THEIRS = """
import torch._inductor.config as theirs
import inductor
for name in sorted(theirs._config):
    if name != "TYPE_CHECKING" and not name.startswith("_"):
        value = theirs._config[name].default
        try:
            inductor.config.settings_of(None, {name: value})
        except ValueError as error:
            print(name, error)
"""


def test_every_option_of_the_installed_torch_has_a_place() -> None:
    done = run_python("-c", THEIRS)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout


def test_options_of_torch_without_effect_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    dynamo.reset()
    given = {"max_autotune": True, "epilogue_fusion": True, "shape_padding": True, "fallback_random": True}
    for _ in range(2):
        compiled = dynamo.compile(lambda x: x.sin() + 1, options=given)
        assert torch.allclose(compiled(torch.ones(3)), torch.ones(3).sin() + 1)
    told = caplog.text
    assert told.count("'shape_padding': True} is accepted and changes nothing") == 1
    assert told.count("random numbers are eager's") == 1 and "epilogue" not in told


def test_facts_of_compiles() -> None:
    dynamo.utils.clear_compilation_metrics()

    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() + 1
        dynamo.graph_break()
        return y * 2

    dynamo.compile(broken, backend="eager")(torch.ones(2))
    first, second = dynamo.utils.get_compilation_metrics()
    assert first.co_filename == __file__ and "broken" in first.co_name
    assert (first.graph_op_count, second.graph_op_count) == (2, 1)
    assert first.break_reason and second.break_reason is None
    assert first.co_firstlineno == broken.__code__.co_firstlineno


def test_is_exporting_is_a_constant() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if dynamo.is_exporting() else x - 1

    x = torch.randn(3)
    assert torch.equal(dynamo.compile(program, fullgraph=True)(x), program(x))
    module, _ = dynamo.export(program, x)
    assert torch.equal(module(x), program(x))
