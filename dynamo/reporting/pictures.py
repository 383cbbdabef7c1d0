"""Small SVG pictures: bars over time, buffers over memory. Texts are escaped here."""

from __future__ import annotations

import html
import zlib
from collections.abc import Sequence

from dynamo.reporting.kernels import Part
from dynamo.reporting.timeline import Bar

WIDTH, ROW = 1000, 18
CHARACTER = 6.2  # pixels of one
LEAST = 0.4  # pixels: shorter bars are left out
MOST = 2_500  # bars
HEIGHT = 220


def bars_svg(bars: Sequence[Bar]) -> str:
    """Bars by time from left to right, in rows by depth. "" without any."""
    total = max((bar.end for bar in bars), default=0.0)
    if not total:
        return ""
    scale = WIDTH / total
    parts = []
    shown = sorted((b for b in bars if (b.end - b.begin) * scale >= LEAST),
                   key=lambda b: b.begin - b.end)[:MOST]  # fmt: skip
    for bar in shown:
        wide = (bar.end - bar.begin) * scale
        said = f"{bar.name}: {milliseconds(bar.end - bar.begin)}"
        parts.append(_box(bar.begin * scale, bar.depth * ROW, wide, ROW - 2, bar.group, said))
        if wide > 4 * CHARACTER:
            parts.append(_text(bar.begin * scale + 3, bar.depth * ROW + 12,
                               bar.name[:int(wide / CHARACTER)]))
    rows = max(bar.depth for bar in bars) + 1
    ticks = [_text(WIDTH * n / 4 - (0, 20, 20, 20, 60)[n], rows * ROW + 14,
                   milliseconds(total * n / 4), "currentColor") for n in range(5)]
    return _svg(WIDTH, rows * ROW + 20, [*parts, *ticks])


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
    hue = zlib.crc32(group.encode()) % 360
    return (f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2" '
            f'fill="hsl({hue} 60% 80%)" stroke="hsl({hue} 40% 55%)" stroke-width="0.5">'
            f"<title>{html.escape(said)}</title></rect>")


def _text(x: float, y: float, text: str, colour: str = "#1d2330") -> str:
    return (f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" pointer-events="none">'
            f"{html.escape(text)}</text>")
