"""Options of torch.compile by its names: what each asks of this backend.

In: `options={...}` of one compile. Out: the same by our names. Exists because programs come with
options that they were tuned with: each is honoured, or accepted with one note that says what it
means here, or refused with what to write instead; none is ignored in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from dynamo.base import counters, logs
from inductor.torch_option_notes import NOTES, note_of

# What is on here always; False leaves a stage out.
STAGE_OF = {
    "epilogue_fusion": "fusion", "layout_optimization": "layout", "pattern_matcher": "patterns",
    "attention": "attention", "symbolic_on_gpu": "symbolic",
}

# Other names of one option.
SAME = {
    "fx_graph_cache": "graph_cache", "max_autotune_gemm": "max_autotune",
    "max_autotune_pointwise": "max_autotune", "triton.cudagraphs": "cudagraphs",
}

VERIFY = 'write options={"verify": True}, which compares each call with eager'
# What must be as it is here, with the value that it has, and what to do for another one.
FIXED: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("debug_check_inf_and_nan", "nan_asserts", "runtime_triton_nan_asserts"),
                    (False, VERIFY)),
    "guard_filter_fn": (
        None, "guards are all needed; dynamo.mark_static and `dynamic=` say what may change"),
    "custom_partitioner_fn": (
        None, "a backend of your own gives partition= to dynamo.aot.compile_training"),
    **dict.fromkeys(("_pre_fusion_custom_pass", "_post_fusion_custom_pass"),
                    (None, "passes of your own get graphs: `passes` in inductor.list_options()")),
    "inductor_choices_class": (None, "`max_autotune` and `kernels` say how kernels are chosen"),
    "implicit_fallbacks": (True, "DYNAMO_LOGS=fallbacks shows what falls back to ATen"),
}

NAMES = frozenset({*STAGE_OF, *SAME, *FIXED, *NOTES, "force_disable_caches"})


def translate(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Options by our names. Errors: ValueError for a value that torch's option can't have here,
    TypeError for one that it can't have at all.

    >>> dict(translate({"fx_graph_cache": False, "epilogue_fusion": False, "freezing": True}))
    {'graph_cache': False, 'freezing': True, 'leave_out': 'fusion'}
    """
    found: dict[str, Any] = {}
    left_out = [options["leave_out"]] if options.get("leave_out") else []
    for name, value in options.items():
        if name in STAGE_OF:
            if not isinstance(value, bool):
                raise TypeError(f"options={{{name!r}: ...}} takes True or False, not {value!r}")
            if not value:
                left_out.append(STAGE_OF[name])
        elif name in FIXED:
            here, instead = FIXED[name]
            if value is not here:
                raise ValueError(f"the inductor backend has {name}={here!r} always: {instead}")
        elif name in SAME:
            ours = SAME[name]
            found[ours] = value or found[ours] if ours in found else value
        elif name == "force_disable_caches":
            if value:
                found["graph_cache"] = False
        elif (sentence := note_of(name)) is not None:
            _tell(name, value, sentence)
        else:
            found[name] = value
    if left_out:
        found["leave_out"] = ", ".join(left_out)
    return MappingProxyType(found)


def _tell(name: str, value: Any, sentence: str) -> None:
    """Says what an option of torch's means here, once for each."""
    if counters.once(("option of torch", name)):
        logs.tell(f"options={{{name!r}: {value!r}}} is accepted and changes nothing: {sentence}")
