"""Which labels go together, as a figure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from tertium.annotation.together import Together
from tertium.files import replacing
from tertium.reporting.svg import drawing, panel, short

_SHOWN = 24  # classes, at most: those of the strongest relations


def draw_relations(path: str | Path, together: Together) -> None:
    """Draw the correlations between the classes that are related most; those alike stand side by side."""
    names, values = related(together)
    with drawing(), replacing(path) as temporary:
        side = 1.9 + 0.2 * len(names)
        figure, axes = panel("Labels that go together, or exclude each other", "", "", side)
        figure.set_figwidth(side + 0.8)
        np.fill_diagonal(values, np.nan)  # that a class goes with itself says nothing
        most = max(float(np.nanmax(np.abs(values))), 0.1)
        drawn = axes.imshow(values, cmap="RdBu", vmin=-most, vmax=most)
        axes.set_xticks(range(len(names)), [short(name) for name in names], rotation=90, size=8)
        axes.set_yticks(range(len(names)), [short(name) for name in names], size=8)
        axes.grid(visible=False)
        figure.subplots_adjust(left=0.28, bottom=0.26, right=0.9, top=0.94)
        figure.colorbar(drawn, ax=axes, fraction=0.04, label="correlation")
        figure.savefig(temporary, format="svg")


def related(together: Together) -> tuple[list[str], npt.NDArray[np.float64]]:
    """Return the classes of the strongest relations, neighbours alike, and their correlations [K, K]."""
    place = {name: number for number, name in enumerate(together.classes)}
    chosen: dict[int, None] = {}
    for pair in together.strongest(10 * _SHOWN):
        more = dict.fromkeys((place[pair.first], place[pair.second]))
        if len(chosen | more) <= _SHOWN:
            chosen |= more
    values = together.correlations(np.array(list(chosen), dtype=np.int64))
    order = [int(np.abs(values).sum(axis=1).argmax())]
    while len(order) < len(values):  # next comes the one that is most like the last
        left = [number for number in range(len(values)) if number not in order]
        order.append(max(left, key=lambda number: values[order[-1], number]))
    names = [together.classes[list(chosen)[number]] for number in order]
    return names, values[np.ix_(order, order)]
