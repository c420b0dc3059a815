"""The figure of a simulation: what answers are worth."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tertium.files import replacing
from tertium.labelling.simulating import RULES, Point, averaged
from tertium.reporting.svg import COLOURS, add_legend, drawing, inline, panel


def draw_points(path: str | Path, points: Sequence[Point]) -> None:
    """Write the mean AP after so many answers, for each rule of asking, as SVG."""
    with replacing(path) as temporary:
        temporary.write_text(_drawn(points), encoding="utf-8")


def _drawn(points: Sequence[Point]) -> str:
    with drawing():
        figure, axes = panel("What answers are worth", "answers", "mAP on other images")
        for rule, colour in zip(RULES, COLOURS, strict=False):
            steps = averaged(points, rule)
            axes.plot(
                [step.answers for step in steps],
                [100 * step.map for step in steps],
                color=colour,
                marker="o",
                label=rule,
            )
        add_legend(figure, axes)
        return str(inline(figure, "asking"))
