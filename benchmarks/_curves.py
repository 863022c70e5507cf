"""Draws a grid of small line charts as SVG, with only the standard library.

    Curve("x16, linear", points=[(samples, value), ...], colour="#d55e00", dash="7 4", stopped=None)
    draw(title, subtitle, {"adamw": [curve, ...], ...}, legend, x_label, y_label)

All charts have the same axes. A curve that leaves the top of its chart is cut there. If it ends above the chart or stopped
early, the upper right corner shows its name and numbers, so that the limits hide nothing.
"""

import math
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT, COLUMNS = 480, 330, 2  # of a chart with its margins; charts per row
LEFT, RIGHT, TOP, BOTTOM = 58, 16, 34, 48  # margins of a chart
HEAD, FOOT = 64, 60  # above and below the grid
INK, FAINT = "#222222", "#dddddd"


@dataclass
class Curve:
    name: str
    points: list  # (x, y), in the order of x
    colour: str
    dash: str = ""  # for stroke-dasharray
    stopped: float | None = None  # the x at which it diverged


def ticks(low, high, about):
    """About that many round numbers from low to high."""
    raw = (high - low) / about
    size = 10 ** math.floor(math.log10(raw))
    step = next(m * size for m in (1, 2, 2.5, 5, 10) if m * size >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [i * step for i in range(first, last + 1)]


def limits(curves, tallest=2.5):
    """y from just below the best value to above the worst end, at most tallest: first values would squeeze the last."""
    values = [y for curve in curves for _, y in curve.points]
    ends = [curve.points[-1][1] for curve in curves if curve.points and curve.stopped is None]
    if not values:
        return 0.0, 1.0
    low = math.floor((min(values) - 0.05) * 4) / 4
    high = math.ceil((max(ends or values) + 0.3) * 4) / 4
    return low, min(max(high, low + 1.5), low + tallest)


def text(x, y, words, size=12, anchor="start", colour=INK, more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{colour}"{more}>{escape(words)}</text>'


def cross(x, y, colour):
    return f'<path d="M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10" stroke="{colour}" stroke-width="2.5" fill="none"/>'


def stroke(curve, points):
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    dash = f' stroke-dasharray="{curve.dash}"' if curve.dash else ""
    return f'<path d="{path}" fill="none" stroke="{curve.colour}" stroke-width="2" stroke-linejoin="round"{dash}/>'


def chart(title, curves, index, x_high, y_low, y_high, x_label, y_label):
    left = (index % COLUMNS) * WIDTH + LEFT
    top = (index // COLUMNS) * HEIGHT + HEAD + TOP
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def place(x, y):
        return left + x / x_high * wide, top + (y_high - y) / (y_high - y_low) * tall

    out = [text(left, top - 10, title, 15, more=' font-weight="bold"')]
    for y in ticks(y_low, y_high, 6):
        at = place(0, y)[1]
        out.append(f'<path d="M{left} {at:.1f}h{wide}" stroke="{FAINT}"/>')
        out.append(text(left - 7, at + 4, f"{y:.2f}".rstrip("0").rstrip("."), 11, "end"))
    for x in ticks(0, x_high, 5):
        at = place(x, y_low)[0]
        out.append(f'<path d="M{at:.1f} {top + tall}v4" stroke="{INK}"/>')
        out.append(text(at, top + tall + 17, f"{x:,.0f}", 11, "middle"))
    out.append(text(left + wide / 2, top + tall + 35, x_label, 12, "middle"))
    at = (left - 42, top + tall / 2)
    out.append(text(*at, y_label, 12, "middle", more=f' transform="rotate(-90 {at[0]:.1f} {at[1]:.1f})"'))
    out.append(f'<clipPath id="chart{index}"><rect x="{left}" y="{top}" width="{wide + 6}" height="{tall}"/></clipPath>')
    out.append(f'<g clip-path="url(#chart{index})">')
    notes = []
    for curve in curves:
        points = [place(x, y) for x, y in curve.points]
        if len(points) > 1:
            out.append(stroke(curve, points))
        last = curve.points[-1][1] if curve.points else y_high
        if curve.stopped is not None:
            x, y = place(curve.stopped, min(max(last, y_low), y_high))
            out.append(cross(x, max(y, top + 7), curve.colour))
            notes.append((f"{curve.name}: diverged at {curve.stopped:,.0f}", curve.colour))
        elif curve.points:
            out.append(f'<circle cx="{points[-1][0]:.1f}" cy="{points[-1][1]:.1f}" r="3" fill="{curve.colour}"/>')
            if last > y_high:
                notes.append((f"{curve.name}: ends at {last:.2f}", curve.colour))
    out.append("</g>")
    out.append(f'<path d="M{left} {top}v{tall}h{wide}" fill="none" stroke="{INK}"/>')
    if not curves:
        notes.append(("not run yet", INK))
    if notes:  # a background, so that no curve crosses the text
        longest = max(len(words) for words, _ in notes)
        out.append(f'<rect x="{left + wide - 6.2 * longest - 6:.1f}" y="{top + 2}" width="{6.2 * longest + 6:.1f}" '
                   f'height="{15 * len(notes) + 4}" fill="white" fill-opacity="0.85"/>')
    out += [text(left + wide - 4, top + 15 + 15 * i, words, 11, "end", colour) for i, (words, colour) in enumerate(notes)]
    return out


def draw(title, subtitle, charts, legend, x_label, y_label):
    """The picture as text; charts: title -> curves, legend: curves without points, in the order to show them."""
    curves = [curve for some in charts.values() for curve in some]
    y_low, y_high = limits(curves)
    x_high = max([x for curve in curves for x, _ in curve.points] + [c.stopped for c in curves if c.stopped], default=1)
    wide = WIDTH * COLUMNS
    tall = HEAD + FOOT + HEIGHT * math.ceil(len(charts) / COLUMNS)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {tall}" width="{wide}" height="{tall}" '
           'font-family="DejaVu Sans, Helvetica, Arial, sans-serif">',
           f"<title>{escape(title)}</title>", f'<rect width="{wide}" height="{tall}" fill="white"/>',
           text(LEFT, 32, title, 19, more=' font-weight="bold"'), text(LEFT, 54, subtitle, 12)]
    for index, (name, some) in enumerate(charts.items()):
        out += chart(name, some, index, x_high, y_low, y_high, x_label, y_label)
    each = (wide - LEFT - RIGHT) / 4
    for i, curve in enumerate(legend):
        x, y = LEFT + i % 4 * each, tall - FOOT + 14 + i // 4 * 24
        if curve.stopped is not None:
            out.append(cross(x + 20, y, curve.colour))
        else:
            out.append(stroke(curve, [(x, y), (x + 40, y)]))
        out.append(text(x + 48, y + 4, curve.name))
    return "\n".join([*out, "</svg>", ""])
