"""What a run has found: a line for every crash point and fault, and one JSON object."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.checks import Findings

BEGIN, END = "<!-- chaos:begin -->", "<!-- chaos:end -->"
HEADINGS = (
    *("point or fault", "in", "killed", "answer lost", "paused"),
    *("operations", "rows expected", "rows found", "doubled", "leftovers"),
)


@dataclass
class Line:
    """One crash point, or one fault."""

    name: str
    module: str = ""
    struck: set[str] = field(default_factory=set)
    """Which processes were."""
    done: dict[str, int] = field(default_factory=dict)
    """How often, by what was done."""
    missed: list[str] = field(default_factory=list)
    """Strikes that nothing came by for."""
    operations: int = 0
    rows_expected: int = 0
    rows_found: int = 0
    rows_doubled: int = 0
    leftovers: int = 0

    def cells(self) -> tuple[str, ...]:
        def times(kind: str) -> str:
            if kind in self.missed:
                return "NOT REACHED"
            return str(self.done.get(kind, "")) or "."

        return (
            self.name,
            ", ".join(sorted(self.struck)),
            times("die") if self.module else str(self.done.get("fault", "")),
            times("lost"),
            times("sleep"),
            f"{self.operations:,}",
            f"{self.rows_expected:,}",
            f"{self.rows_found:,}",
            f"{self.rows_doubled:,}",
            f"{self.leftovers:,}",
        )


@dataclass
class Report:
    """All of it."""

    seed: int
    points: list[str]
    """Those that were to be killed."""
    lines: dict[str, Line] = field(default_factory=dict)
    total: Findings = field(default_factory=Findings)
    operations: int = 0
    stuck: list[str] = field(default_factory=list)
    untried: int = 0
    """Strikes and faults that time did not allow for."""
    seconds: float = 0.0
    reads: int = 0
    etcd: str = ""

    def line(self, name: str, module: str = "") -> Line:
        return self.lines.setdefault(name, Line(name, module))

    @property
    def killed(self) -> list[str]:
        return [name for name in self.points if name in self.lines and self.lines[name].done.get("die")]

    @property
    def missed(self) -> list[str]:
        return [f"{line.name}={kind}" for line in self.lines.values() for kind in line.missed]

    @property
    def good(self) -> bool:
        complete = len(self.killed) == len(self.points) and not self.untried and not self.missed
        return complete and self.total.good and not self.stuck

    def summary(self) -> dict[str, Any]:
        return {
            "points": len(self.points),
            "points_killed": len(self.killed),
            "faults": sum(line.done.get("fault", 0) for line in self.lines.values()),
            "operations": self.operations,
            "rows_expected": self.total.rows_expected,
            "rows_found": self.total.rows_found,
            "rows_lost": self.total.rows_lost,
            "rows_doubled": self.total.rows_doubled,
            "leftovers": len(self.total.leftovers),
            "stuck": len(self.stuck),
            "wrong": len(self.total.wrong),
            "seed": self.seed,
            "seconds": round(self.seconds),
        }

    def text(self) -> str:
        rows = [HEADINGS, *(self.lines[name].cells() for name in self._order())]
        widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
        made = [
            "  ".join(
                cell.ljust(width) if column < 2 else cell.rjust(width)
                for column, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        ]
        return "\n".join(made)

    def _order(self) -> list[str]:
        return sorted(self.lines, key=lambda name: (not self.lines[name].module, name))

    def problems(self) -> list[str]:
        """Everything that keeps the run from being good, in words."""
        lines = [f"WRONG: {sentence}" for sentence in self.total.wrong]
        lines += [f"LEFT OVER: {path}" for path in self.total.leftovers]
        lines += [f"STUCK: {name}" for name in self.stuck]
        if self.total.rows_lost or self.total.rows_doubled:
            lines.append(f"ROWS: {self.total.rows_lost} lost, {self.total.rows_doubled} doubled")
        lines += [f"NOT REACHED: {point}: no workload comes by there" for point in self.missed]
        if self.untried:
            lines.append(f"UNTRIED: {self.untried} strikes and faults, for lack of time")
        return lines

    def markdown(self) -> str:
        summary = self.summary()
        head = (
            f"Seed {self.seed}, etcd {self.etcd}, {self.seconds / 60:.0f} minutes: "
            f"{summary['points_killed']} of {summary['points']} points killed, "
            f"{summary['operations']:,} operations, "
            f"{summary['rows_found']:,} of {summary['rows_expected']:,} rows found, "
            f"{summary['rows_doubled']} doubled, {summary['leftovers']} leftovers, {summary['stuck']} stuck. "
            f"A reader in a loop looked {self.reads:,} times."
        )
        if self.untried:
            head += f" There was no time for {self.untried} lost answers, pauses and faults."
        rows = [self.lines[name].cells() for name in self._order()]
        table = [
            "| " + " | ".join(HEADINGS) + " |",
            "|---|---|" + "--:|" * (len(HEADINGS) - 2),
            *("| " + " | ".join([f"`{row[0]}`", *row[1:]]) + " |" for row in rows),
        ]
        return "\n".join([head, "", *table, ""])

    def write_markdown(self, path: Path) -> None:
        """Put the table between the marks of a document, or make the document if there is none."""
        part = f"{BEGIN}\n{self.markdown()}{END}"
        text = path.read_text() if path.exists() else ""
        if BEGIN in text and END in text:
            before, after = text.partition(BEGIN)[0], text.partition(END)[2]
            path.write_text(before + part + after)
        else:
            path.write_text(text + part + "\n")

    def json(self) -> str:
        return json.dumps(self.summary())
