"""Which operations of a captured graph change something, and the end of a rewriting.

A captured graph may write in place (`relu(x, inplace=True)`, `x.add_(1)`), which no edge of it
tells.
"""

from __future__ import annotations

from torch import fx

WRITING = ("setitem", "__setitem__", "iadd", "isub", "imul", "itruediv")


def has_effect(module: fx.GraphModule, node: fx.Node) -> bool:
    """Whether it may change something that others read; true where that is not known."""
    if node.op not in ("call_function", "call_method", "call_module"):
        return node.is_impure()
    if node.op == "call_module":
        called = module.get_submodule(str(node.target))
        return called.training or any(getattr(m, "inplace", False) for m in called.modules())
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    written = in_place or name in WRITING or "out" in node.kwargs
    flags = (node.kwargs.get("inplace"), *node.args)
    return written or any(flag is True for flag in flags) or node.is_impure()


def finish(module: fx.GraphModule) -> fx.GraphModule:
    """Drops what nothing reads, checks the graph and makes its code anew."""
    module.graph.eliminate_dead_code(lambda node: has_effect(module, node))
    module.delete_all_unused_submodules()
    module.graph.lint()
    module.recompile()
    return module
