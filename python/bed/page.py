"""``page``: an HTML page of the zoo's CSV with plots, in one file without scripts."""

import argparse
import html
import math
import pathlib

from . import table

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 1200px; padding: 0 1rem; color: #222; background: #fff; }
h1, h2 { font-weight: 600; } svg { background: #fafafa; border: 1px solid #ddd; } svg text { font: 11px system-ui, sans-serif; fill: #555; }
table { border-collapse: collapse; font-size: 13px; } th, td { padding: 2px 8px; text-align: right; border-bottom: 1px solid #eee; }
th:first-child, td:first-child, td.text { text-align: left; } tr.bad td { background: #fdecea; } .plots { display: flex; flex-wrap: wrap; gap: 1rem; }
"""
WIDTH, HEIGHT, MARGIN = 560, 340, 46


def _ticks(low, high):
    """Powers of ten and their halves, doubles and fives between two positive numbers."""
    ticks = []
    for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1):
        ticks += [factor * 10.0**power for factor in (1, 2, 5)]
    ticks = [tick for tick in ticks if low <= tick <= high]
    return ticks if len(ticks) <= 8 else [tick for tick in ticks if f"{tick:e}".startswith("1")]


class _Scale:
    """A logarithmic axis."""

    def __init__(self, values, start, end):
        self.low, self.high = min(values) / 1.15, max(values) * 1.15
        self.start, self.end = start, end

    def __call__(self, value):
        share = (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return self.start + share * (self.end - self.start)


def _frame(title, across, up, x, y, marks):
    parts = [f'<figure><figcaption>{html.escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">']
    if x is not None:
        for tick in _ticks(x.low, x.high):
            parts.append(f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="20" y2="{HEIGHT - MARGIN}" stroke="#e4e4e4"/>')
            parts.append(f'<text x="{x(tick):.1f}" y="{HEIGHT - MARGIN + 15}" text-anchor="middle">{tick:g}</text>')
    for tick in _ticks(y.low, y.high):
        parts.append(f'<line x1="{MARGIN}" x2="{WIDTH - 15}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{MARGIN - 5}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">{html.escape(across)}</text>')
    parts.append(f'<text x="12" y="{HEIGHT / 2}" text-anchor="middle" transform="rotate(-90 12 {HEIGHT / 2})">{html.escape(up)}</text>')
    return "".join(parts + marks) + "</svg></figure>"


def ranked(title, up, pairs):
    """Ratios in rising order on a logarithmic axis, with a line at 1. ``pairs``: (name, ratio)."""
    pairs = sorted(((name, value) for name, value in pairs if value and value > 0), key=lambda pair: pair[1])
    if not pairs:
        return ""
    y = _Scale([value for _, value in pairs] + [1.0, 2.0], HEIGHT - MARGIN, 20)
    step = (WIDTH - MARGIN - 25) / len(pairs)
    marks = [f'<line x1="{MARGIN}" x2="{WIDTH - 15}" y1="{y(1):.1f}" y2="{y(1):.1f}" stroke="#888" stroke-dasharray="4 3"/>']
    for number, (name, value) in enumerate(pairs):
        colour = "#2a7de1" if value >= 1 else "#d1495b"
        tip = f"<title>{html.escape(name)}: {value:.2f}×</title>"
        marks.append(f'<circle cx="{MARGIN + (number + 0.5) * step:.1f}" cy="{y(value):.1f}" r="3" fill="{colour}">{tip}</circle>')
    return _frame(title, f"{len(pairs)} models, in order", up, None, y, marks)


def scatter(title, across, up, points):
    """Two positive figures of each model, with the line where they are equal. ``points``: (name, x, y)."""
    points = [point for point in points if point[1] and point[2] and point[1] > 0 and point[2] > 0]
    if not points:
        return ""
    values = [value for point in points for value in point[1:]]
    x, y = _Scale(values, MARGIN, WIDTH - 15), _Scale(values, HEIGHT - MARGIN, 20)
    ends = x.low * 1.001, x.high * 0.999
    marks = [f'<line x1="{x(ends[0]):.1f}" y1="{y(ends[0]):.1f}" x2="{x(ends[1]):.1f}" y2="{y(ends[1]):.1f}" stroke="#888" stroke-dasharray="4 3"/>']
    for name, one, other in points:
        tip = f"<title>{html.escape(name)}: {one:.3g}, {other:.3g}</title>"
        marks.append(f'<circle cx="{x(one):.1f}" cy="{y(other):.1f}" r="3" fill="#2a7de1" fill-opacity="0.7">{tip}</circle>')
    return _frame(title, across, up, x, y, marks)


SHOWN = [
    ("name", "model"), ("accuracy", "accuracy"), ("unique_graphs", "graphs"), ("graph_breaks", "breaks"), ("fallback_nodes", "fallbacks"),
    ("frontend_s", "frontend s"), ("backend_s", "backend s"), ("other_backend_s", "other s"), ("eager_ms", "eager ms"),
    ("abs_latency", "ms"), ("other_ms", "other ms"), ("speedup", "× eager"), ("speedup_over_other", "× other"), ("why", "why"),
]


def _cell(key, value):
    if value is None:
        return "<td></td>"
    if isinstance(value, (int, float)):
        return f"<td>{value:.3g}</td>" if isinstance(value, float) and value != int(value) else f"<td>{value:.0f}</td>"
    kind = ' class="text"' if key in ("why", "accuracy") else ""
    return f"<td{kind}>{html.escape(str(value)[:200])}</td>"


def render(rows, lines):
    """The page as text."""
    this = next((row["backend"] for row in rows if row.get("backend")), "")
    other = next((row["other_backend"] for row in rows if row.get("other_backend")), "the other backend")
    right = [row for row in rows if row.get("accuracy") == "pass"]
    plots = [
        ranked(f"{this}: speed-up over eager", "× eager", [(row["name"], row.get("speedup")) for row in right]),
        ranked(f"{this}: speed-up over {other}", f"× {other}", [(row["name"], row.get("speedup_over_other")) for row in right]),
        scatter(
            "Backend's part of the first call, seconds",
            other,
            this,
            [(row["name"], row.get("other_backend_s"), row.get("backend_s")) for row in right],
        ),
        scatter(
            "Error against float64",
            "eager",
            this,
            [(row["name"], row.get("eager_error"), row.get("error")) for row in rows],
        ),
    ]
    body = [f"<h1>Models under backend={html.escape(repr(this))}</h1>", "<ul>"]
    body += [f"<li>{html.escape(line)}</li>" for line in lines]
    body += ["</ul>", '<div class="plots">', *plots, "</div>", "<table><thead><tr>"]
    body += [f"<th>{html.escape(text.replace('other', other))}</th>" for _, text in SHOWN]
    body.append("</tr></thead><tbody>")
    for row in sorted(rows, key=lambda row: (row.get("accuracy") == "pass", row["name"])):
        kind = "" if row.get("accuracy") == "pass" else ' class="bad"'
        body.append(f"<tr{kind}>" + "".join(_cell(key, row.get(key)) for key, _ in SHOWN) + "</tr>")
    body.append("</tbody></table>")
    return f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(this)}</title><style>{STYLE}</style>{"".join(body)}</html>\n'


def write(path, rows, lines):
    """Writes the page to a file."""
    pathlib.Path(path).write_text(render(rows, lines))


def main(argv):
    from .zoo import summary

    parser = argparse.ArgumentParser(prog="bed page", description=__doc__)
    parser.add_argument("csv", type=pathlib.Path, nargs="+", help="one or more files of zoo (shards)")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args(argv)
    rows = [row for path in options.csv for row in table.read(path)]
    out = options.out or options.csv[0].with_suffix(".html")
    write(out, rows, summary(rows))
    print("\n".join([*summary(rows), str(out)]))
    return 0
