"""Import statements: of modules that are imported already."""

from __future__ import annotations

import builtins
import sys

from dynamo.base.errors import Break
from dynamo.guards.sources import ModuleSource
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import absolute_name, find_module
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.python.global_names import GlobalNames
from dynamo.symbolic.python.python_modules import FIXED_ROOTS, has_attribute, has_traced_getattr

IMPORT = builtins.__import__


def import_module(
    tx: Frame, name: str, fromlist: tuple[str, ...] | None, level: int
) -> Var:
    """`import name`, for modules that are already imported."""
    tx.trace.state(GlobalNames).expect_builtin(tx, IMPORT)
    package = tx.globals.get("__package__") if level else None
    full = absolute_name(name, package, level)
    if tx.trace.objects.var_of(sys.modules) in tx.trace.effects.targets():
        raise Break("import_of_new_module", f"{full}, behind a change of sys.modules")
    module = find_module(full)
    if module is None:
        raise Break("import_of_new_module", full)
    if not fromlist and not level:
        full = full.partition(".")[0]
    found = find_module(full)
    if found is None:
        raise Break("import_of_new_module", full)
    if full.partition(".")[0] not in FIXED_ROOTS:
        tx.trace.guard("ID", ModuleSource(full), found)
    var = tx.trace.wrap(found, ModuleSource(full))
    asks = has_traced_getattr(module)
    if fromlist and not (asks and not var.has_attr(tx, "__path__")):  # is it a package?
        for item in fromlist:
            has = var.has_attr(tx, item) if asks else has_attribute(module, item)
            if not has and find_module(f"{full}.{item}") is None:
                raise Break("import_of_new_module", f"{full}.{item}")
    return var


def import_from(tx: Frame, module: Var, name: str) -> Var:
    """`from module import name`."""
    try:
        return module.get_attr(tx, name)
    except ObservedException:  # `sys.modules` is asked next, and the error is another one
        raise Break("import_of_new_module", f"{name} from {module!r}") from None
