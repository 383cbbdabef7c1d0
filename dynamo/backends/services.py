"""What is loaded when it is first wanted: parts of the default backend, and large tools, by name.

In: a name of `SERVICES`. Out: its module. The compiler's front imports none of these: with another
backend they are never loaded, and a program that wants no report or file does not pay for them.
This table and that of `registry.py` are the only places which name modules of later layers.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

SERVICES: Mapping[str, str] = MappingProxyType({
    "captured_aten": "dynamo.aot.capture",  # a captured graph over ATen's operations
    "captured_graphs": "inductor.cache.captured",  # as bytes for the disk
    "costs": "dynamo.graphs.cost",
    "debug_scripts": "dynamo.diagnose.scripts",
    "gpu_records": "inductor.cache.recorded",
    "launched": "inductor.cache.launched",
    "launcher": "inductor.runtime._launch",
    "metrics": "inductor.metrics",
    "minifier": "dynamo.diagnose.minify",
    "package_writer": "inductor.package.api",
    "pictures": "dynamo.graphs.draw",
    "shipment_reader": "inductor.cache.shipped",
    "shipment_writer": "inductor.driver.shipping",
    "user_lines": "dynamo.graphs.lines",
})


def service(name: str) -> Any:
    """The module of a service, loaded now if it is not there."""
    return importlib.import_module(SERVICES[name])


def loaded_service(name: str) -> Any | None:
    """The module of a service if something has loaded it.

    >>> loaded_service("minifier") is None or callable(loaded_service("minifier").crash_backend)
    True
    """
    return sys.modules.get(SERVICES[name])
