"""Says in one sentence why the C++ extension can't be used, before anything else imports it.

In: nothing. Out: `TORCH`, the torch version that `dynamo._C` was built against. Exists because a
missing or foreign build would otherwise show as an undefined symbol in the middle of an import. The
private parts of torch are looked at first.
"""

from __future__ import annotations

import importlib

import torch

from dynamo.base import torch_parts

BUILD = ("install dynamo-jit again from its source beside this torch (`make setup`, or: "
         "pip install --force-reinstall --no-deps --no-cache-dir FOLDER)")


def check_extension(name: str, installed: str) -> str:
    """The torch version that the extension was built against. Errors: ImportError, one sentence.

    name: the extension module. installed: the torch version of this process.
    """
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise ImportError(
            f"dynamo-jit: the extension {name} is not built for this Python; {BUILD}."
        ) from None
    except ImportError as error:
        raise ImportError(
            f"dynamo-jit: the extension {name} does not load with torch {installed} ({error}); "
            f"it was probably built against another torch: {BUILD}."
        ) from None
    built = str(getattr(module, "torch_version", installed))
    if built.split("+")[0] != installed.split("+")[0]:
        raise ImportError(
            f"dynamo-jit: the extension {name} was built against torch {built}, this is torch "
            f"{installed}; {BUILD}."
        )
    return built


torch_parts.check(torch.__version__)
torch_parts.check_version(torch.__version__)
TORCH = check_extension("dynamo._C", torch.__version__)
