"""Configuration: every knob is a row with a default, one sentence and an environment name.

`config.x` reads, `config.x = v` writes for the process, `with config.patch(x=v):` for this thread's
context only. Values are checked against the type of the default.

    >>> with config.patch(recompile_limit=3):
    ...     config.recompile_limit
    3
"""

from __future__ import annotations

import contextlib
import contextvars
import difflib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from torch.compiler import config as torch_settings


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting. env: names of environment variables, the first that is set wins; without them
    it is DYNAMO_ and the name in capitals. choices: texts that it may be, too. numbers: what is on
    or off may be a whole number, too, of which 0 is off. switch: it may be on or off, too."""

    name: str
    default: Any
    sentence: str
    env: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    numbers: bool = False
    switch: bool = False

    def parse(self, text: str) -> Any:
        kind = bool if self.switch else type(self.default)
        if text in self.choices:
            return text
        if self.numbers and text.isdecimal() and int(text) > 1:
            return int(text)
        if kind is bool:
            return text.strip().lower() not in ("", "0", "false", "no", "off")
        return text if self.default is None else kind(text)

    def initial(self) -> Any:
        """The default, or what the environment says; a value that does not parse: ValueError."""
        for name in self.env or (f"DYNAMO_{self.name.upper()}",):
            if name in os.environ:
                try:
                    return self.parse(os.environ[name])
                except ValueError:
                    raise ValueError(
                        f"{name}={os.environ[name]!r}: {self.name} takes "
                        f"{type(self.default).__name__}: {self.sentence}"
                    ) from None
        return self.default

    def check(self, value: Any) -> None:
        if self.choices and isinstance(value, str) and value not in self.choices:
            raise ValueError(
                f"config.{self.name} may be {' or '.join(self.choices)}, not {value!r}")
        if value in self.choices or self.numbers and type(value) is int and value >= 0:
            return
        if self.default is None or type(value) is type(self.default):
            return
        if self.switch and isinstance(value, bool):
            return
        if isinstance(self.default, float) and isinstance(value, int):
            return
        raise TypeError(
            f"config.{self.name} takes {type(self.default).__name__}, not {value!r}: "
            f"{self.sentence}"
        )


class Config:
    """A set of knobs. Attribute access reads and writes; an unknown name is an AttributeError.

    aliases: other names of knobs. fixed: names of torch's that have one value here: they can be
    read, and set to it. borrowed: names of torch's public settings, read where they are.
    """

    _knobs: dict[str, Knob]
    _aliases: Mapping[str, str]
    _fixed: Mapping[str, Any]
    _borrowed: tuple[str, ...]
    _values: dict[str, Any]
    _overlay: contextvars.ContextVar[Mapping[str, Any]]

    def __init__(
        self, title: str, knobs: list[Knob], aliases: Mapping[str, str] = MappingProxyType({}),
        fixed: Mapping[str, Any] = MappingProxyType({}), borrowed: tuple[str, ...] = (),
    ) -> None:
        object.__setattr__(self, "_knobs", {knob.name: knob for knob in knobs})
        object.__setattr__(self, "_aliases", aliases)
        object.__setattr__(self, "_fixed", fixed)
        object.__setattr__(self, "_borrowed", borrowed)
        object.__setattr__(self, "_values", {knob.name: knob.initial() for knob in knobs})
        object.__setattr__(
            self, "_overlay", contextvars.ContextVar(title, default=MappingProxyType({}))
        )
        _configs.append(self)

    def __getattr__(self, name: str) -> Any:
        overlay = self._overlay.get()
        if name in overlay:
            return overlay[name]
        try:
            return self._values[name]
        except KeyError:
            if name in self._aliases:
                return getattr(self, self._aliases[name])
            if name in self._fixed:
                return self._fixed[name]
            if name in self._borrowed:
                return getattr(torch_settings, name, "")
            raise AttributeError(self._unknown(name)) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self._values.update(self._checked({name: value}))

    def _checked(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """The changes by the names of knobs. Errors: AttributeError, TypeError, ValueError."""
        found = {}
        for name, value in changes.items():
            name = self._aliases.get(name, name)
            if name not in self._fixed:
                self._check(name, value)
                found[name] = value
            elif value != self._fixed[name]:
                raise ValueError(f"config.{name} is {self._fixed[name]} here, always")
        return found

    def _check(self, name: str, value: Any) -> None:
        if name not in self._knobs:
            raise AttributeError(self._unknown(name))
        self._knobs[name].check(value)

    def _unknown(self, name: str) -> str:
        near = difflib.get_close_matches(name, self._knobs, 1)
        meant = f"did you mean {near[0]}? There" if near else "there"
        return f"no such setting: {name}; {meant} are {', '.join(sorted(self._knobs))}"

    @contextlib.contextmanager
    def patch(
        self, changes: Mapping[str, Any] | str | None = None, /, *value: Any, **more: Any
    ) -> Iterator[None]:
        """Settings for the duration of a `with` block or a decorated function, in this thread: by
        keywords, in a mapping, or one name and its value."""
        if bool(value) != isinstance(changes, str) or value[1:]:
            raise TypeError("config.patch takes keywords, a mapping, or a name and its value")
        given = {changes: value[0]} if isinstance(changes, str) else changes or {}
        changes = self._checked({**given, **more})
        token = self._overlay.set(MappingProxyType({**self._overlay.get(), **changes}))
        try:
            yield
        finally:
            self._overlay.reset(token)

    def snapshot(self) -> Mapping[str, Any]:
        """All values as a frozen mapping."""
        borrowed = {name: getattr(self, name) for name in self._borrowed}
        return MappingProxyType({**self._values, **self._overlay.get(), **borrowed})

    def save(self) -> dict[str, Any]:
        """All values as a plain dict, to be given to `load` here or in another process."""
        return {name: value for name, value in self.snapshot().items()
                if name not in self._borrowed}

    def load(self, values: Mapping[str, Any]) -> None:
        """Sets all values of the mapping, or none if one of them is wrong."""
        self._values.update(self._checked(values))

    save_config, load_config = save, load  # torch's names

    def list_options(self) -> dict[str, str]:
        """Name of each knob and its sentence."""
        return {name: knob.sentence for name, knob in self._knobs.items()}


_configs: list[Config] = []


def settings_now() -> tuple[Mapping[str, Any], ...]:
    """The values of all settings, those of backends too."""
    return tuple(each.snapshot() for each in _configs)


def debug_folder_of_torch(environment: Mapping[str, str]) -> str:
    """Where torch.compile would write what it did, by its variables; empty where they are not set.

    >>> debug_folder_of_torch({"TORCH_COMPILE_DEBUG": "1", "TORCH_COMPILE_DEBUG_DIR": "/tmp/all"})
    '/tmp/all/torch_compile_debug'
    """
    if environment.get("TORCH_COMPILE_DEBUG", "0") != "1":
        return ""
    return os.path.join(
        environment.get("TORCH_COMPILE_DEBUG_DIR", os.getcwd()), "torch_compile_debug")


config = Config(
    "dynamo_config",
    [
        Knob(
            "disable",
            False,
            "Run everything as it is, compile nothing.",
            ("DYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"),
        ),
        Knob(
            "suppress_errors",
            True,
            "A defect of the compiler runs the frame in eager, with one warning.",
            ("DYNAMO_SUPPRESS_ERRORS", "TORCHDYNAMO_SUPPRESS_ERRORS"),
        ),
        Knob(
            "fullgraph_compiles",
            True,
            "fullgraph=True raises where a graph would run as captured, not only where it breaks.",
            ("DYNAMO_FULLGRAPH_COMPILES",),
        ),
        Knob(
            "verbose",
            False,
            "Error messages show internal frames too.",
            ("DYNAMO_VERBOSE", "TORCHDYNAMO_VERBOSE"),
        ),
        Knob(
            "recompile_limit",
            8,
            "Entries per function and call of `compile`; later values run eager.",
            ("DYNAMO_RECOMPILE_LIMIT",),
        ),
        Knob(
            "accumulated_recompile_limit",
            256,
            "Entries per function over all calls of `compile`; later values run eager.",
            ("DYNAMO_ACCUMULATED_RECOMPILE_LIMIT",),
        ),
        Knob("fail_on_recompile_limit_hit", False, "Raise at the recompile limit."),
        Knob("error_on_recompile", False, "Raise when a frame would be compiled a second time."),
        Knob("assume_static_by_default", True, "Sizes are constants until a second value is seen."),
        Knob(
            "automatic_dynamic_shapes",
            True,
            "A size or number that changes becomes symbolic; \"unbacked\": for 0 and 1 too.",
            choices=("unbacked",),
        ),
        Knob("specialize_int", False, "Integer inputs stay constants for ever."),
        Knob("specialize_float", False, "Float inputs stay constants for ever."),
        Knob(
            "capture_scalar_outputs",
            False,
            "`item()` gives an unbacked number instead of a break.",
            ("DYNAMO_CAPTURE_SCALAR_OUTPUTS", "TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS"),
        ),
        Knob(
            "capture_dynamic_output_shape_ops",
            False,
            "`nonzero()`, `x[mask]` and the like stay in the graph.",
            ("DYNAMO_CAPTURE_DYNAMIC_OUTPUT_SHAPE_OPS",
             "TORCHDYNAMO_CAPTURE_DYNAMIC_OUTPUT_SHAPE_OPS"),
        ),
        Knob("max_steps", 400_000, "Instructions per trace; a longer trace breaks the graph."),
        Knob(
            "repro",
            "",
            "crash or accuracy: graphs that fail, or are wrong, end in the smallest script that "
            "shows it.",
            ("DYNAMO_REPRO",),
        ),
        Knob(
            "debug_dir",
            debug_folder_of_torch(os.environ),
            "Folder for all records of each compile, as files that can be read or run.",
            ("DYNAMO_DEBUG_DIR",),
        ),
        Knob(
            "report",
            "",
            "Folder for a page about all that was compiled, written at the end of the process.",
            ("DYNAMO_REPORT",),
        ),
        Knob(
            "progress",
            True,
            "One line on a terminal where a compile takes more than two seconds.",
            ("DYNAMO_PROGRESS",),
        ),
        Knob(
            "background",
            False,
            "Calls run as captured while their graphs are compiled (options={'background': True}).",
            ("DYNAMO_BACKGROUND",),
        ),
        Knob(
            "background_calls",
            0,
            "The call of a graph that waits for the compile in the background; 0: none does.",
            ("DYNAMO_BACKGROUND_CALLS",),
        ),
        Knob(
            "background_processes",
            0,
            "Processes that compile in the background; 0: a thread of the program does.",
            ("DYNAMO_BACKGROUND_PROCESSES",),
        ),
        Knob(
            "capture_cache",
            True,
            "What tracing a frame has found is cached for later processes, which do not trace it.",
            ("DYNAMO_CAPTURE_CACHE",),
        ),
        Knob(
            "cache_dir",
            os.path.expanduser("~/.cache/dynamo-jit"),
            "Where compiled code is kept.",
            ("DYNAMO_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"),
        ),
        Knob(
            "cache_megabytes",
            4096,
            "How large that folder grows; beyond, what was used longest ago is removed.",
            ("DYNAMO_CACHE_MEGABYTES",),
        ),
    ],
    aliases={"cache_size_limit": "recompile_limit",
             "accumulated_cache_size_limit": "accumulated_recompile_limit"},
    fixed={
        "allow_unspec_int_on_nn_module": True, "force_parameter_static_shapes": False,
        "force_nn_module_property_static_shapes": False, "guard_nn_modules": True,
        "inline_inbuilt_nn_modules": True, "nested_graph_breaks": True,
        "skip_nnmodule_hook_guards": False,
    },
    borrowed=("dynamic_sources", "unbacked_sources"),
)  # fmt: skip
