"""Generated texts as modules of Python."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def import_file(name: str, path: Path) -> ModuleType:
    """Runs a generated file as the module `name`; Triton wants to find its source there. Errors:
    those of the file."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
