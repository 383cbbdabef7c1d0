"""A captured graph as a Python file that runs alone.

In: a graph module and its inputs. Out: text, and files beside it for tensors too large for a text.
"""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import torch
from torch import fx

from dynamo.base import logs
from dynamo.diagnose.definitions import NoText, text_of

INLINE = 256  # elements that a text shows
HEAD = '''"""{title}"""

import sys
from math import inf, nan

import torch

import dynamo
'''
MAKE = '''

def make(values, dtype, size, stride, requires_grad=False):
    """A tensor with these sizes, strides and values."""
    made = torch.empty_strided(size, stride, dtype=dtype)
    made.copy_(torch.tensor(values, dtype=dtype).reshape(size))
    return made.requires_grad_(requires_grad)


def make_random(dtype, size, stride, requires_grad=False):
    """The same with random values."""
    made = torch.empty_strided(size, stride, dtype=dtype)
    whole = not dtype.is_floating_point and not dtype.is_complex
    made.copy_(torch.randint(0, 2, size) if whole else torch.randn(size, dtype=dtype))
    return made.requires_grad_(requires_grad)
'''


def script_of(
    module: fx.GraphModule, inputs: list[Any], folder: Path, title: str, tail: str,
    exact: bool = True,
) -> str:
    """The text of a file in `folder` that makes the graph (`Graph`) and its inputs (`INPUTS`).

    tail: what it does with them. exact: large inputs lie in files beside it; else they are random.
    """
    code = module.graph.python_code("self")
    lines = [HEAD.format(title=title)]
    lines += [_import(name, value) for name, value in code.globals.items()]
    attributes = _attributes(module)
    if attributes:
        torch.save(attributes, folder / "attributes.pt")
    body = code.src.strip("\n").replace("\n", "\n    ").rstrip()
    lines += [MAKE, "\nclass Graph(torch.nn.Module):"]
    if attributes:
        lines += [
            "    def __init__(self):", "        super().__init__()",
            f"        parts = torch.load({str(folder / 'attributes.pt')!r}, weights_only=False)",
            "        for name, part in parts.items():", "            setattr(self, name, part)", ""]
    lines += [f"    {body}\n\n", "INPUTS = ["]
    for number, value in enumerate(inputs):
        lines.append(f"    {_text_of(value, number, folder, exact)},")
    return "\n".join([*lines, "]\n", tail])


def _import(name: str, value: Any) -> str:
    if name in ("inf", "nan", "torch"):
        return ""
    if isinstance(value, types.ModuleType):
        return f"import {value.__name__} as {name}"
    home = getattr(value, "__module__", None) or type(value).__module__
    own = getattr(value, "__qualname__", getattr(value, "__name__", None))
    if value is type(None):
        return f"{name} = type(None)"
    if home == "builtins" and own is not None:
        return "" if own == name else f"{name} = {own}"
    try:
        return text_of({name: value})
    except NoText:
        return f"# unknown: {name} = {value!r}"


def _attributes(module: fx.GraphModule) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for node in module.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            name = str(node.target).partition(".")[0]
            found[name] = getattr(module, name)
    return found


def _text_of(value: Any, number: int, folder: Path, exact: bool) -> str:
    if not isinstance(value, torch.Tensor):
        return repr(value)
    plain = value.layout is torch.strided and value.device.type == "cpu" and not value.is_quantized
    flag = ", True" if value.requires_grad else ""
    facts = f"{value.dtype}, {tuple(value.shape)}, {value.stride() if plain else ()}{flag}"
    if plain and value.numel() > INLINE and not exact:
        return f"make_random({facts})"
    if not plain or value.numel() > INLINE:
        path = folder / f"input_{number}.pt"
        torch.save(value.detach(), path)
        flag = ".requires_grad_()" if value.requires_grad else ""
        return f"torch.load({str(path)!r}, weights_only=False){flag}"
    values = value.detach().flatten().tolist()
    return f"make({values}, {facts})"


CHECK = '''
if __name__ == "__main__":
    from dynamo.diagnose.minify import recheck

    recheck(Graph(), INPUTS, {backend}, {extra}, {grad!r}){lost}
'''
RUN = '''
if __name__ == "__main__":
    with torch.set_grad_enabled({grad!r}):
        for result in Graph()(*INPUTS):
            print(result)
'''


def keep_graph(module: fx.GraphModule, inputs: list[Any], place: str) -> None:
    """`graph.py` in the debug folder of what is compiled now."""
    folder = Path(logs.debug_folder())
    tail = RUN.format(grad=torch.is_grad_enabled())
    title = f"The captured graph of {place}, on inputs like those of its first call."
    logs.keep("graph.py", script_of(module, inputs, folder, title, tail, exact=False))
