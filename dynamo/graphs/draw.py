"""A graph as a picture: SVG, or an HTML page in which parts can be searched.

In: a `torch.fx` graph module. Out: text. Operations stand in rows by depth; those of one module of
the program share a colour and a row of the legend, or those of one kernel of the compiled graph, or
those of which `label` says the same (the stage of a pipeline, say). No other program and no network
is needed.
"""

from __future__ import annotations

import colorsys
import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import fx

from dynamo.graphs.kernels import kernels_of
from dynamo.graphs.lines import user_line

BOX, GAP, ROW, HEIGHT = 150, 20, 60, 34
CHARACTERS = 22


@dataclass(frozen=True, slots=True)
class Place:
    """The upper left corner of a node's box, or where a line passes a row."""

    x: float
    y: float


Item = fx.Node | tuple[fx.Node, int]  # in a row: a box, or the line of a node that is read below
Bends = dict[tuple[fx.Node, int], Place]


def modules_of(graph: fx.Graph, depth: int = 2) -> dict[fx.Node, str]:
    """For each operation that calls a module or reads its weights, that module; "" for the others:
    the graph does not say whose they are.

    depth: parts of the module's path that are kept.
    """
    found: dict[fx.Node, str] = {}
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        owners = [str(given.target) for given in node.all_input_nodes if given.op == "get_attr"]
        paths = [owner.rpartition(".")[0] for owner in owners]
        if node.op == "call_module":
            paths.append(str(node.target))
        found[node] = ".".join(max(paths, key=len).split(".")[:depth]) if paths else ""
    return found


def to_svg(
    module: fx.GraphModule, label: Mapping[fx.Node, str] | Callable[[fx.Node], str] | None = None
) -> str:
    """The graph as one SVG image.

    label: what a node's colour stands for; its module unless given.

    >>> class Twice(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x + x
    >>> "add" in to_svg(fx.symbolic_trace(Twice()))
    True
    """
    nodes = [node for node in module.graph.nodes if node.op != "get_attr"]
    labels = _labels(module.graph, nodes, label)
    places, bends = _layout(nodes)
    colours = _colours(labels.values())
    widths = [place.x + BOX for place in places.values()] + [place.x for place in bends.values()]
    width = max(widths, default=0.0) + GAP
    height = max((place.y for place in places.values()), default=0.0) + ROW
    parts = [_edge(places[given], places[node], _between(given, node, bends, places))
             for node in nodes for given in node.all_input_nodes if given in places]  # fmt: skip
    parts += [_box(node, places[node], labels.get(node, ""), colours) for node in nodes]
    legend = _legend(colours, height)
    height += ROW + 20 * len(colours)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'font-family="monospace" font-size="11">\n' + "\n".join([*parts, *legend]) + "\n</svg>\n"
    )


def to_html(
    module: fx.GraphModule, label: Mapping[fx.Node, str] | Callable[[fx.Node], str] | None = None
) -> str:
    """A page with the picture; a field above it dims all boxes whose text does not match."""
    return PAGE.replace("{svg}", to_svg(module, label))


def draw(
    module: fx.GraphModule, path: str | Path,
    label: Mapping[fx.Node, str] | Callable[[fx.Node], str] | None = None,
    args: tuple[Any, ...] | None = None,
) -> Path:
    """Writes the picture to a file that ends in .svg or .html, and returns its path.

    label: what a node's colour stands for; its module unless given. args: arguments of the graph;
    colours are then the kernels that the default backend makes for them (`kernels_of`).
    Errors: ValueError for another ending, TypeError for both label and args.
    """
    path = Path(path)
    if args is not None:
        if label is not None:
            raise TypeError("draw takes label= or args=, not both")
        label = kernels_of(module, *args)
    makers = {".svg": to_svg, ".html": to_html}
    if path.suffix not in makers:
        raise ValueError(f"{path} ends neither in .svg nor in .html")
    path.write_text(makers[path.suffix](module, label))
    return path


def _labels(
    graph: fx.Graph, nodes: list[fx.Node],
    label: Mapping[fx.Node, str] | Callable[[fx.Node], str] | None,
) -> dict[fx.Node, str]:
    if label is None:
        return modules_of(graph)
    if callable(label):
        return {node: label(node) for node in nodes}
    return dict(label)


def _layout(nodes: list[fx.Node]) -> tuple[dict[fx.Node, Place], Bends]:
    """Rows by the longest way from an input; in a row, each near the middle of what it reads. What
    is read further down has a place in each row between, where its line passes the boxes."""
    depth: dict[fx.Node, int] = {}
    for node in nodes:
        above = [depth[given] for given in node.all_input_nodes if given in depth]
        depth[node] = max(above, default=-1) + 1
    rows: dict[int, list[Item]] = {}
    for node in nodes:
        rows.setdefault(depth[node], []).append(node)
        last = max((depth[user] for user in node.users if user in depth), default=0)
        for at in range(depth[node] + 1, last):
            rows.setdefault(at, []).append((node, at))
    places: dict[fx.Node, Place] = {}
    bends: Bends = {}
    for at in sorted(rows):
        wanted = {item: _middle(item, places, bends) for item in rows[at]}
        free = float(GAP)
        for item in sorted(rows[at], key=wanted.__getitem__):
            if isinstance(item, tuple):
                place = Place(max(free, wanted[item]), GAP + at * ROW)
                bends[item] = place
                free = place.x + GAP
            else:
                place = Place(max(free, wanted[item] - BOX / 2), GAP + at * ROW)
                places[item] = place
                free = place.x + BOX + GAP
    return places, bends


def _middle(item: Item, places: Mapping[fx.Node, Place], bends: Bends) -> float:
    """Where the middle of a box, or a line, is best in its row."""
    if isinstance(item, tuple):
        source, at = item
        above = bends.get((source, at - 1))
        return above.x if above is not None else places[source].x + BOX + GAP / 2
    above_it = [places[given].x + BOX / 2 for given in item.all_input_nodes if given in places]
    return sum(above_it) / len(above_it) if above_it else 0.0


def _between(
    source: fx.Node, target: fx.Node, bends: Bends, places: Mapping[fx.Node, Place]
) -> list[Place]:
    """Where the line from one box to another passes the rows between."""
    first, last = places[source].y, places[target].y
    passed = [place for (node, _), place in bends.items() if node is source]
    return [place for place in passed if first < place.y < last]


def _colours(labels: object) -> dict[str, str]:
    names = dict.fromkeys(name for name in labels if name)  # type: ignore[attr-defined]
    found = {}
    for at, name in enumerate(names):
        red, green, blue = colorsys.hls_to_rgb(at * 0.618 % 1, 0.83, 0.6)
        found[name] = f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
    return found


def _box(node: fx.Node, place: Place, label: str, colours: Mapping[str, str]) -> str:
    said = html.escape(f"{node.name}: {label or node.op}\n{user_line(node)}\n{_shape(node)}")
    name, shape = html.escape(node.name[:CHARACTERS]), html.escape(_shape(node)[:CHARACTERS])
    dashed = ' stroke-dasharray="4"' if node.op in ("placeholder", "output") else ""
    return (
        f'<g class="node"><title>{said}</title><rect x="{place.x:.0f}" y="{place.y:.0f}" '
        f'width="{BOX}" height="{HEIGHT}" rx="4" fill="{colours.get(label, "#ffffff")}" '
        f'stroke="#555555"{dashed}/><text x="{place.x + 6:.0f}" y="{place.y + 14:.0f}">{name}'
        f'</text><text x="{place.x + 6:.0f}" y="{place.y + 28:.0f}" fill="#555555">{shape}'
        f"</text></g>"
    )


def _shape(node: fx.Node) -> str:
    value: Any = node.meta.get("example_value", node.meta.get("val"))
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        return ""
    return f"{str(value.dtype).removeprefix('torch.')}{[*value.shape]}"


def _edge(source: Place, target: Place, between: list[Place]) -> str:
    """A line from the one box to the other, straight down beside the boxes of each row between."""
    x, y = source.x + BOX / 2, source.y + HEIGHT
    path = f"M{x:.0f},{y:.0f}"
    for place in between:
        path += _curve(x, y, place.x, place.y) + f" L{place.x:.0f},{place.y + HEIGHT:.0f}"
        x, y = place.x, place.y + HEIGHT
    path += _curve(x, y, target.x + BOX / 2, target.y)
    return f'<path d="{path}" fill="none" stroke="#999999"/>'


def _curve(x1: float, y1: float, x2: float, y2: float) -> str:
    bend = (y2 - y1) / 2
    return f" C{x1:.0f},{y1 + bend:.0f} {x2:.0f},{y2 - bend:.0f} {x2:.0f},{y2:.0f}"


def _legend(colours: Mapping[str, str], top: float) -> list[str]:
    return [
        f'<rect x="{GAP}" y="{top + 20 * at:.0f}" width="14" height="14" fill="{colour}"/>'
        f'<text x="{GAP + 20}" y="{top + 20 * at + 12:.0f}">{html.escape(name)}</text>'
        for at, (name, colour) in enumerate(colours.items())
    ]


PAGE = """<!DOCTYPE html>
<html><head><meta charset="utf-8"><title>graph</title>
<style>body { font-family: sans-serif; margin: 1em } .dim { opacity: 0.15 }</style></head><body>
<input id="find" placeholder="find" size="40">
<div>{svg}</div>
<script>
document.getElementById("find").addEventListener("input", event => {
  const wanted = event.target.value.toLowerCase();
  for (const box of document.querySelectorAll("g.node"))
    box.classList.toggle("dim", !box.textContent.toLowerCase().includes(wanted));
});
</script></body></html>
"""
