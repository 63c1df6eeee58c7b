"""Draws docs/rooms.svg: the rooms of each folder, and which imports which. ``make rooms`` runs it.

An arrow that follows from others is left out: where a imports b, and b imports c, none leads from a to c.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import grimp

HERE = Path(__file__).parent
FOLDERS = sorted(package.parent.name for package in (HERE.parent / "src" / "distop").glob("*/__init__.py"))
PANELS = [["distop", "lake", "executor"], ["coordinator", "spark_jobs", "sources"], ["cli", "metastore"]]

Graph = dict[str, set[str]]

COLUMN, ROW, BOX_HEIGHT, CHARACTER, GAP = 330, 46, 26, 7.4, 14
STYLE = """
    .panel { fill: none; stroke: #d0d7de; stroke-width: 1.5 }
    .box { fill: #f6f8fa; stroke: #57606a; stroke-width: 1.2 }
    .line { fill: none; stroke: #57606a; stroke-width: 1.2; marker-end: url(#tip) }
    .tip { fill: #57606a }
    .title { fill: #0969da; font-weight: 600; font-size: 15px }
    .name { fill: #1f2328; text-anchor: middle }
    @media (prefers-color-scheme: dark) {
      .panel { stroke: #30363d }
      .box { fill: #161b22; stroke: #8b949e }
      .line { stroke: #8b949e }
      .tip { fill: #8b949e }
      .title { fill: #58a6ff }
      .name { fill: #e6edf3 }
    }
"""


def imports() -> dict[str, Graph]:
    """The arrows between the folders (``distop``), and in each folder those between its rooms."""
    graph = grimp.build_graph("distop", cache_dir=None)
    found: dict[str, Graph] = {"distop": {folder: set() for folder in FOLDERS}}
    for importer in sorted(graph.modules - {"distop"}):
        (_, folder, *room), within = importer.split("."), found.setdefault(importer.split(".")[1], {})
        arrows = within.setdefault(room[0], set()) if room and room[0] != "__main__" else set()
        for imported in graph.find_modules_directly_imported_by(importer):
            _, other, *inner = imported.split(".")
            if folder != other:
                found["distop"][folder].add(other)
            elif inner and room and inner[0] != room[0]:
                arrows.add(inner[0])
    return found


def below(arrows: Graph, room: str, path: tuple[str, ...] = ()) -> set[str]:
    """All that a room imports, directly or not."""
    assert room not in path, f"a circle: {' -> '.join((*path, room))}"
    return arrows[room].union(*(below(arrows, other, (*path, room)) for other in arrows[room]))


def placed(arrows: Graph) -> tuple[dict[str, tuple[float, float]], list[list[str]]]:
    """Where each room lies, and the arrows: each as the places it leads over, one a row."""
    direct = {
        room: others - set().union(*(below(arrows, other) for other in others))
        for room, others in arrows.items()
    }
    height: dict[str, int] = {}
    for room in sorted(direct, key=lambda room: len(below(arrows, room))):
        height[room] = 1 + max((height[other] for other in direct[room]), default=-1)
    for room in set(direct) - set().union(*direct.values()):
        if not direct[room]:  # it neither imports another one nor is imported
            height[room] = max(height.values())
    rows: list[list[str]] = [[] for _ in range(1 + max(height.values()))]
    for room in sorted(height):
        rows[height[room]].append(room)
    paths = []
    for room, others in direct.items():
        for other in sorted(others):
            # An arrow over several rows has a place of its own in each, so that it crosses no box.
            bends = [f"{room}>{other}@{level}" for level in range(height[room] - 1, height[other], -1)]
            for level, bend in zip(range(height[room] - 1, height[other], -1), bends, strict=True):
                rows[level].append(bend)
            paths.append([room, *bends, other])
    neighbours: Graph = defaultdict(set)
    for path in paths:
        for upper, lower in pairwise(path):
            neighbours[upper].add(lower)
            neighbours[lower].add(upper)
    x: dict[str, float] = {}
    for _ in range(8):
        for row in [*rows, *reversed(rows)]:
            near = {name: [x[other] for other in neighbours[name] if other in x] for name in row}
            row.sort(key=lambda name: (sum(near[name]) / len(near[name]) if near[name] else 0.0, name))
            at = -(sum(map(width, row)) + GAP * (len(row) - 1)) / 2
            for name in row:
                x[name] = at + width(name) / 2
                at += width(name) + GAP
    top = len(rows) - 1
    return {name: (x[name], ROW * (top - level)) for level, row in enumerate(rows) for name in row}, paths


def width(name: str) -> float:
    return 8 if "@" in name else 16 + CHARACTER * len(name)


def panel(title: str, arrows: Graph, left: float, top: float) -> tuple[list[str], float]:
    """The drawing of a folder, and its height."""
    places, paths = placed(arrows)
    tall = max(y for _, y in places.values()) + BOX_HEIGHT + 56
    middle, first = left + COLUMN / 2, top + 40
    frame = f'x="{left + 6}" y="{top}" width="{COLUMN - 12}" height="{tall}" rx="8"'
    lines = [
        f'<rect class="panel" {frame}/>',
        f'<text class="title" x="{left + 18}" y="{top + 23}">{title}</text>',
    ]
    for path in sorted(paths):
        points = []
        for number, name in enumerate(path):
            x, y = places[name]
            ends = (
                [y + BOX_HEIGHT]
                if number == 0
                else [y - 1]
                if number == len(path) - 1
                else [y, y + BOX_HEIGHT]
            )
            points += [f"{middle + x:.0f} {first + end}" for end in ends]
        lines.append(f'<path class="line" d="M{" L".join(points)}"/>')
    for name, (x, y) in sorted(places.items()):
        if "@" not in name:
            w = width(name)
            box = f'x="{middle + x - w / 2:.0f}" y="{first + y}" width="{w:.0f}" height="{BOX_HEIGHT}" rx="5"'
            lines.append(f'<rect class="box" {box}/>')
            lines.append(f'<text class="name" x="{middle + x:.0f}" y="{first + y + 17}">{name}</text>')
    return lines, tall


def picture() -> str:
    """The whole file."""
    found, lines, top = imports(), [], 6.0
    for row in PANELS:
        tallest = 0.0
        for column, folder in enumerate(row):
            drawn, tall = panel(folder, found[folder], column * COLUMN, top)
            lines += drawn
            tallest = max(tallest, tall)
        top += tallest + 12
    size = f"{COLUMN * max(map(len, PANELS))} {top:.0f}"
    drawing = "\n".join(f"  {line}" for line in lines)
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img" aria-labelledby="t"
     font-family="system-ui, sans-serif" font-size="13">
  <title id="t">The rooms of each folder, and which imports which</title>
  <style>{STYLE}  </style>
  <defs>
    <marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="6" markerHeight="6" orient="auto">
      <path class="tip" d="M0 0 10 5 0 10z"/>
    </marker>
  </defs>
{drawing}
</svg>
"""


if __name__ == "__main__":
    (HERE / "rooms.svg").write_text(picture())
