"""Settings of the default backend: `inductor.config.x`, or `options={...}` of one compile.

    >>> import inductor.config
    >>> inductor.config.freezing
    True
    >>> with inductor.config.patch(freezing=False):
    ...     inductor.config.freezing
    False
"""

from __future__ import annotations

import difflib
import re
import sys
import types
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from dynamo.base.config import Config, Knob
from dynamo.base.config import config as of_compile
from inductor import torch_options
from inductor.collectives.machine import machine_of

BATCHES = "batches"  # as a value of `cudagraphs`
PATIENCE = 10.0  # seconds for a rank that compiles for others, where `compile_on` names none

config = Config(
    "inductor_config",
    [
        Knob(
            "library_kernels",
            "measure",
            "How the library of a GEMM is chosen: measure (once, cached on disk), known (what has "
            "been measured), default, or own (our kernels alone, where they can; so in packages).",
            ("DYNAMO_LIBRARY_KERNELS",),
        ),
        Knob(
            "measure_seconds",
            3.0,
            "How long GEMMs, convolutions and attention of one graph may be measured all in "
            "all (half a second at most in the background); for what is left, the nearest known "
            "answer or the usual library is taken.",
            ("DYNAMO_MEASURE_SECONDS",),
        ),
        Knob(
            "freezing",
            True,
            "Inference on a CPU keeps copies of weights in the order in which they are read, and "
            "makes them again when the weights have changed. A number: megabytes that the copies "
            "of one graph may take, instead of a quarter of the machine's memory.",
            ("DYNAMO_FREEZING", "TORCHINDUCTOR_FREEZING"),
            numbers=True,
        ),
        Knob(
            "graph_cache",
            True,
            "Compiled graphs are cached on disk: the next process does not compile them.",
            ("DYNAMO_GRAPH_CACHE", "TORCHINDUCTOR_FX_GRAPH_CACHE"),
        ),
        Knob(
            "compile_on",
            "",
            "rank0: of several processes that compute together that one compiles, and the others "
            "load what it has made, with its choices, over the store of the process group. "
            "rank0:30: after so many seconds (else 10) without a sign of it, they compile.",
            ("DYNAMO_COMPILE_ON",),
        ),
        Knob(
            "kernels",
            True,
            "Off, the functional ATen graphs run as they are (the backend aot_eager): an error "
            "that stays lies in front of the kernels.",
            ("DYNAMO_KERNELS",),
        ),
        Knob(
            "activation_memory_budget",
            1.0,
            "How much of what forward would save for backward may be saved, 0 to 1; the rest is "
            "recomputed.",
            ("DYNAMO_ACTIVATION_MEMORY_BUDGET",),
        ),
        Knob(
            "collectives",
            None,
            "Numbers by which collectives are planned, the same on all ranks, as a dict: megabytes "
            "that early starts may take, links and kernels (`inductor.collectives.machine`).",
            (),
        ),
        Knob(
            "cudagraphs",
            BATCHES,
            "On: record whole graphs on a GPU as CUDA graphs, where that is safe. batches: "
            "consecutive kernels alone, where they get the same addresses again; no memory is "
            "kept for that. Off: neither.",
            ("DYNAMO_CUDAGRAPHS",),
            choices=(BATCHES,),
            switch=True,
        ),
        Knob(
            "gpu",
            "",
            "The GPU that kernels are cut for, whatever is there: an architecture (sm_80, gfx942) "
            "or a name (L40S); empty stands for the graph's device.",
            ("DYNAMO_GPU",),
        ),
        Knob(
            "max_autotune",
            False,
            "Measure templates for GEMMs and convolutions, and blocks of kernels, while "
            "compiling (on a GPU).",
            ("DYNAMO_MAX_AUTOTUNE", "TORCHINDUCTOR_MAX_AUTOTUNE"),
        ),
        Knob(
            "leave_out",
            "",
            "Optimizations that are not done, by their names: see `inductor.config.STAGES`. For "
            "finding what each is worth, or which one is wrong.",
            ("DYNAMO_LEAVE_OUT",),
        ),
        Knob(
            "passes",
            None,
            "Functions of your own on graphs, by their place: see `inductor.fx_passes.custom`.",
            (),
        ),
    ],
    aliases={"triton.cudagraphs": "cudagraphs"},
)

OWN = "own"  # as a value of `library_kernels`

STAGES: dict[str, str] = {
    "decompositions": "operators that ATen has kernels for stay whole, unless they are lowered",
    "fusion": "each tensor that is stored has a kernel of its own; GEMMs have no epilogues",
    "inlining": "the result of each operator is stored, not recomputed where it is read",
    "layout": "convolutions keep their format, loops run over the dimensions as they are written",
    "patterns": "attention that is written out stays so; biases stay with GEMMs; parts of "
    "tensors are read as they are written",
    "lists": "on a GPU, kernels that could be one launch are started one by one",
    "dropout": "masks of dropout on a GPU are ATen's, and kept for backward",
    "templates": "no GEMMs or convolutions of our own: the library's alone",
    "attention": "no attention by kernels of our own: the library's alone",
    "losses": "the logits of a loss over a large vocabulary are there as a whole",
    "overlap": "collectives start, and are waited for, where the program has them",
    "buckets": "small collectives are sent one by one",
    "symbolic": "Triton kernels are built for each of the first eight sizes, not for all sizes",
}
"""What `leave_out` may name, and what happens then."""

MODES: dict[str, dict[str, Any]] = {
    "lite": {"kernels": False},
    "reduce-overhead": {"cudagraphs": True},
    "max-autotune": {"max_autotune": True, "cudagraphs": True},
    "max-autotune-no-cudagraphs": {"max_autotune": True},
}


PLACES = (
    "pre_grad_custom_pass", "joint_custom_pre_pass", "joint_custom_post_pass",
    "post_grad_custom_pre_pass", "post_grad_custom_post_pass",
)


def with_passes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings where places of passes (torch's names) became parts of `passes`.

    >>> with_passes({"freezing": False, "joint_custom_pre_pass": print})["passes"]
    {'joint_custom_pre_pass': <built-in function print>}
    """
    found = {name: value for name, value in changes.items() if name not in PLACES}
    passes = {name: value for name, value in changes.items() if name in PLACES}
    if passes:
        before = found.get("passes", config.passes) or {}
        found["passes"] = {
            name: value for name, value in {**before, **passes}.items() if value is not None}
    return found


def patch(
    changes: Mapping[str, Any] | str | None = None, /, *value: Any, **more: Any
) -> AbstractContextManager[None]:
    """`Config.patch` of these settings, which takes the names of the places of passes, too."""
    if isinstance(changes, str) and len(value) == 1:
        changes, value = {changes: value[0]}, ()
    if isinstance(changes, Mapping):
        changes = with_passes(changes)
    return config.patch(changes, *value, **with_passes(more))


# Options of `compile`, whatever the backend, each with its sentence.
OF_COMPILE = {
    "verify": "Each call is compared with eager, and raises a VerifyError where they differ.",
    **{name: of_compile.list_options()[name] for name in ("background", "background_calls")},
}


def check_passes(passes: Any) -> None:
    """Errors: TypeError, ValueError for what can't be `passes`."""
    if passes is None:
        return
    if not isinstance(passes, dict):
        raise TypeError(f"passes takes a dict of functions by place, not {passes!r}")
    for place, function in passes.items():
        if place not in PLACES:
            raise ValueError(f"passes: there is no place {place!r}; places are {', '.join(PLACES)}")
        if not callable(function):
            raise TypeError(f"passes: {place} takes a function of a graph, not {function!r}")


def compiling_rank() -> tuple[int, float] | None:
    """The number in `compile_on`, and seconds of patience; None where each rank compiles.
    Errors: ValueError.

    >>> with config.patch(compile_on="rank0:30"):
    ...     compiling_rank()
    (0, 30.0)
    """
    if not config.compile_on:
        return None
    rank, _, seconds = str(config.compile_on).removeprefix("rank").partition(":")
    if not rank.isdecimal() or not re.fullmatch(r"\d*\.?\d*", seconds):
        raise ValueError(
            f"compile_on takes 'rank0', 'rank0:30' or the like, not {config.compile_on!r}")
    return int(rank), float(seconds or PATIENCE)


def records_graphs() -> bool:
    """Whether whole graphs on a GPU are recorded as CUDA graphs.

    >>> with config.patch(cudagraphs="batches"):
    ...     records_graphs()
    False
    """
    return bool(config.cudagraphs) and config.cudagraphs != BATCHES


def is_enabled(stage: str) -> bool:
    """Whether an optimization of `STAGES` is done.

    >>> with config.patch(leave_out="fusion, layout"):
    ...     is_enabled("fusion"), is_enabled("inlining")
    (False, True)
    """
    assert stage in STAGES, stage
    return stage not in left_out(config.leave_out)


def left_out(text: str) -> frozenset[str]:
    """The names in a text, with commas or spaces between. Errors: ValueError for an unknown one."""
    names = frozenset(text.replace(",", " ").split())
    for name in sorted(names - STAGES.keys()):
        raise ValueError(f"leave_out: there is no {name!r}; there are {', '.join(STAGES)}")
    return names


def settings_of(mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The settings that a mode or options ask for. Errors: ValueError names what there is."""
    chosen = dict(MODES.get(mode or "", {}))
    known = config.list_options()
    for name, value in with_passes(torch_options.translate(options or {})).items():
        name = config._aliases.get(name, name)
        if name not in known:
            raise ValueError(_unknown(name))
        chosen[name] = value
    return chosen


def _unknown(name: str) -> str:
    """What an error says of an option that there is not."""
    every = [*config.list_options(), *OF_COMPILE]
    near = difflib.get_close_matches(name, [*every, *torch_options.NAMES], 1)
    meant = f"; did you mean {near[0]!r}? There" if near else "; there"
    return (f"the inductor backend has no option {name!r}{meant} are "
            + ", ".join(sorted(every)))  # fmt: skip


def list_options() -> dict[str, str]:
    """What `options={...}` of one compile may set: each name with its sentence.

    >>> "freezing" in list_options()
    True
    """
    return {**config.list_options(), **OF_COMPILE}


def list_mode_options(mode: str | None = None) -> dict[str, Any]:
    """The options that a mode stands for; without a mode those of all modes, by mode.

    Errors: ValueError for an unknown mode.

    >>> list_mode_options("reduce-overhead")
    {'cudagraphs': True}
    """
    every = {"default": {}, **MODES}
    if mode is None:
        return {name: dict(options) for name, options in every.items()}
    if mode not in every:
        raise ValueError(f"mode={mode!r} is unknown; modes are {', '.join(every)}")
    return dict(every[mode])


def check_options(mode: str | None, options: Mapping[str, Any] | None) -> None:
    """Errors: ValueError, TypeError where compiling by these would fail."""
    with config.patch(**settings_of(mode, options)):
        check_passes(config.passes)
        machine_of("cpu", config.collectives)
        compiling_rank()
        left_out(config.leave_out)


class _Settings(types.ModuleType):
    """This module, whose attributes are the settings too."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in PLACES:
            return (config.passes or {}).get(name)
        return getattr(config, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.__dict__ or name.startswith("__"):
            super().__setattr__(name, value)
        else:
            for setting, content in with_passes({name: value}).items():
                setattr(config, setting, content)


sys.modules[__name__].__class__ = _Settings
