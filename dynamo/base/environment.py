"""Environment variables of torch.compile: which are honoured here, and what ours is for others.

Those with the same meaning are names of knobs (`config.py`). The others are reported once, when the
first function is compiled: who sets one should not believe that it has an effect.

    >>> of_torch({"TORCHINDUCTOR_PROFILE": "1", "HOME": "/"})
    ['TORCHINDUCTOR_PROFILE: dynamo.profile(f, *args) tells the time of each kernel']
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from dynamo.base import counters, logs

PREFIXES = ("TORCHDYNAMO_", "TORCHINDUCTOR_", "TORCH_COMPILE_", "TORCH_BISECT_")
HONOURED = frozenset({
    "TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE", "TORCHDYNAMO_VERBOSE",
    "TORCHDYNAMO_SUPPRESS_ERRORS", "TORCHDYNAMO_CAPTURE_SCALAR_OUTPUTS",
    "TORCHDYNAMO_CAPTURE_DYNAMIC_OUTPUT_SHAPE_OPS", "TORCHINDUCTOR_CACHE_DIR",
    "TORCHINDUCTOR_FREEZING", "TORCHINDUCTOR_MAX_AUTOTUNE", "TORCHINDUCTOR_FX_GRAPH_CACHE",
    "TORCH_COMPILE_DEBUG", "TORCH_COMPILE_DEBUG_DIR",
})
OURS = {
    "TORCHDYNAMO_REPRO_AFTER": "DYNAMO_REPRO=crash or DYNAMO_REPRO=accuracy",
    "TORCHDYNAMO_REPRO_LEVEL": "DYNAMO_REPRO=crash or DYNAMO_REPRO=accuracy",
    "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "DYNAMO_GRAPH_CACHE=0, and DYNAMO_CACHE_DIR names an "
    "empty folder",
    "TORCHINDUCTOR_PROFILE": "dynamo.profile(f, *args) tells the time of each kernel",
    "TORCH_TRACE": "DYNAMO_TRACE names the file of events",
}
NONE = "there is no such setting here"


def of_torch(environment: Mapping[str, str]) -> list[str]:
    """A line for each variable that is set for torch.compile and has no effect here."""
    return [
        f"{name}: {OURS.get(name, NONE)}" for name in sorted(environment)
        if name in OURS or name.startswith(PREFIXES) and name not in HONOURED]


def warn_of_torch() -> None:
    """Says so, once for a process."""
    lines = of_torch(os.environ)
    if lines and counters.once("environment of torch"):
        listed = "".join(f"\n  {line}" for line in lines)
        logs.tell(f"These environment variables are torch.compile's and have no effect:{listed}")
