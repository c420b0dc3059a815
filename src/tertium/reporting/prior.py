"""How frequent each class really is, as a table and a figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tertium.annotation.frequencies import Frequencies
from tertium.data.inputs import Features, Images
from tertium.errors import InputError
from tertium.files import keep_inputs, replacing
from tertium.labels import Labels
from tertium.labels.opening import Source, place_of
from tertium.labels.readers import Unlisted
from tertium.prediction.files import check_path, write_columns
from tertium.progress import Progress
from tertium.reporting.svg import Shares, drawing
from tertium.training.train import class_frequencies


@dataclass(frozen=True)
class Prior:
    """The labels of the training images, and how frequent their classes are estimated to be."""

    labels: Labels
    frequencies: Frequencies

    def columns(self) -> dict[str, list[Any]]:
        """Return the table that is written, column by column."""
        found = self.frequencies
        observed = self.labels.class_counts[0] / len(self.labels)
        return {
            "class": list(self.labels.classes),
            "prior": found.rate.tolist(),
            "low": found.low.tolist(),
            "high": found.high.tolist(),
            "observed": observed.tolist(),
            "present_known": found.present.tolist(),
            "absent_known": found.absent.tolist(),
        }


def prior(
    labels: Source,
    images: Images | None = None,
    *,
    features: Features | None = None,
    answers: Source | None = None,
    out: str | Path | None = None,
    plot: str | Path | None = None,
    estimator: Literal["scores", "ignore"] = "scores",
    labels_per_image: float | None = None,
    unlisted: Unlisted = "unknown",
    classes: Sequence[str] | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Prior:
    """Estimate how frequent each class really is, beside how often it is known to be present.

    The table goes to ``out``, .csv or .parquet, and a drawing to ``plot``, .svg, if they are given. See
    `tertium.training.train.class_frequencies` for the estimators, and for ``answers``.
    """
    keep_inputs([out, plot], [features, place_of(labels), place_of(answers)])
    if out is not None:
        check_path(out)
    if plot is not None and Path(plot).suffix != ".svg":
        raise InputError(f"{plot}: the drawing is written as .svg")
    found = Prior(
        *class_frequencies(
            labels,
            images,
            features=features,
            answers=answers,
            unlisted=unlisted,
            classes=classes,
            estimator=estimator,
            labels_per_image=labels_per_image,
            progress=progress,
            **settings,
        )
    )
    if out is not None:
        write_columns(out, found.columns())
    if plot is not None:
        draw_prior(plot, found.columns())
    return found


def draw_prior(path: str | Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Draw what is observed and what is estimated, from the most to the least frequent class."""
    rate = np.array(columns["prior"])
    order = np.argsort(-rate, kind="stable")
    low, high, observed = (np.array(columns[name])[order] for name in ("low", "high", "observed"))
    shares = Shares(observed, (rate[order], low, high))
    names = [str(columns["class"][place]) for place in order]
    with drawing(), replacing(path) as temporary:
        about = "How frequent each class is", names, "class, by estimated frequency"
        shares.drawn(*about, shares.values).savefig(temporary, format="svg")
