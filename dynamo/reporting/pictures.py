"""Small pictures: bars over time, buffers over memory. Texts are escaped here."""

from __future__ import annotations

import html
import zlib
from collections.abc import Sequence

from dynamo.reporting.kernels import Part
from dynamo.reporting.timeline import Bar

WIDTH = 1000
LEAST, NAMED = 0.0004, 0.03  # of the width: shorter bars are left out, or without a name
MOST = 2_500  # bars
HEIGHT = 220


def lanes_html(bars: Sequence[Bar]) -> str:
    """Bars by time from left to right, in lanes by depth. "" without any."""
    total = max((bar.end for bar in bars), default=0.0)
    if not total:
        return ""
    shown = sorted((b for b in bars if (b.end - b.begin) / total >= LEAST),
                   key=lambda b: b.begin - b.end)[:MOST]  # fmt: skip
    parts = []
    for bar in shown:
        wide = (bar.end - bar.begin) / total
        said = f"{bar.name}: {milliseconds(bar.end - bar.begin)}"
        name = html.escape(bar.name) if wide >= NAMED else ""
        parts.append(f'<i style="left:{bar.begin / total:.2%};width:{wide:.2%};--d:{bar.depth};'
                     f'--h:{_hue(bar.group)}" title="{html.escape(said)}">{name}</i>')
    ticks = "".join(f"<span>{milliseconds(total * n / 4)}</span>" for n in range(5))
    rows = max(bar.depth for bar in bars) + 1
    return (f'<div class="lanes" style="--rows:{rows}">{"".join(parts)}</div>'
            f'<div class="ticks">{ticks}</div>')


def memory_svg(part: Part) -> str:
    """The arena of a graph: steps from left to right, bytes from below to above."""
    if not part.lives:
        return ""
    steps = max(life.last for life in part.lives) + 1
    wide, high = WIDTH / max(steps, 1), HEIGHT / max(part.arena, 1)
    parts = [
        _box(life.first * wide, HEIGHT - (life.begin + life.bytes) * high,
             max((life.last + 1 - life.first) * wide - 0.5, 0.5), max(life.bytes * high, 0.5),
             f"{life.begin}", f"{life.text}, {megabytes(life.bytes)} MB at byte {life.begin}, "
                              f"steps {life.first} to {life.last}")
        for life in sorted(part.lives, key=lambda life: -life.bytes)[:MOST]
    ]
    return _svg(WIDTH, HEIGHT, parts)


def milliseconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def megabytes(size: int) -> str:
    return f"{size / 1e6:.3f}"


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'width="100%" font-family="monospace" font-size="10">{"".join(parts)}</svg>')


def _box(x: float, y: float, width: float, height: float, group: str, said: str) -> str:
    hue = _hue(group)
    return (f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2" '
            f'fill="hsl({hue} 60% 80%)" stroke="hsl({hue} 40% 55%)" stroke-width="0.5">'
            f"<title>{html.escape(said)}</title></rect>")


def _hue(group: str) -> int:
    return zlib.crc32(group.encode()) % 360
