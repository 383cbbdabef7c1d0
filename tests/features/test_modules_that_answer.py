"""Modules with a `__getattr__`: what it does is done in each call, as often as in eager."""

from __future__ import annotations

import os
import sys
import sysconfig
import types
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import dynamo

SOURCE = """
import warnings
log = []
keep = False
def __getattr__(name):
    log.append(name)
    if name in ("absent", "__path__"):
        raise AttributeError(name)
    warnings.warn(f"{name} is old", DeprecationWarning, stacklevel=2)
    if keep:  # and warns no more
        globals()[name] = 5
    return 5
"""
FOLDERS = {"program": "", "library": sysconfig.get_path("purelib") + os.sep}
READS = {
    "attribute": "return x + m.old",
    "getattr": "return x + getattr(m, 'old', 0) + getattr(m, 'absent', 3)",
    "hasattr": "return x + hasattr(m, 'old')",
    "from": "from answering import old; return x + old",
    "from, other": "from answering import log; return x + 1",
    "from, both": "from answering import log, old as new; return x + new",
    "absent": "try:\n        from answering import absent\n    except ImportError: return x + 7",
}


@pytest.fixture(params=[False, True], ids=["module", "package"])
def package(request: pytest.FixtureRequest) -> Iterator[bool]:
    yield request.param
    sys.modules.pop("answering", None)


@pytest.mark.parametrize("place", FOLDERS)
@pytest.mark.parametrize("read", READS)
@pytest.mark.parametrize("keep", [False, True], ids=["each time", "once"])
def test_effects_of_getattr(package: bool, keep: bool, read: str, place: str) -> None:
    x, results = torch.rand(2), []
    for compiled in (False, True):
        module: Any = types.ModuleType("answering")
        module.__file__ = FOLDERS[place] + "answering.py"
        if package:
            module.__path__ = []
        exec(compile(SOURCE, FOLDERS[place] + "answering.py", "exec"), module.__dict__)
        module.keep = keep
        sys.modules["answering"] = module
        scope: dict[str, Any] = {"m": module}
        exec(compile(f"def f(x):\n    {READS[read]}", "reader.py", "exec"), scope)
        f = dynamo.compile(scope["f"], backend="eager") if compiled else scope["f"]
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            values = [f(x).tolist() for _ in range(3)]
        found = [(str(one.message), one.filename, one.lineno) for one in told]
        results.append((values, found, module.log))
    assert results[1] == results[0]
