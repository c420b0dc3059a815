"""Run folders as a report sees them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tertium import methods
from tertium.annotation.record import Annotation
from tertium.errors import InputError
from tertium.labels.splits import set_of
from tertium.metrics.ranking import Counts, Floats
from tertium.metrics.scored import Scored
from tertium.reporting.quality import Quality, with_keys
from tertium.runs import RunFolder

FULL, NO_SCHEME = "full", "—"
SHOWN = 6  # runs in figures and tables that cannot hold all
_SAME = {"method", "parameters", "seed", "workers", "device"}  # may differ between runs of one series
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, eq=False)
class Run:
    """A run, and what is known of how good it is."""

    name: str
    config: dict[str, Any]
    summary: dict[str, Any]  # empty if the run has not finished
    records: list[dict[str, Any]]
    annotation: Annotation | None
    changed: dict[str, Any]  # parameters that are not the method's defaults, settings that tell runs apart
    test: Quality | None  # on images that the run had not seen
    validation: Quality | None  # on those that chose its epoch and its thresholds

    @property
    def scheme(self) -> str:
        """How labels were hidden, if they were."""
        return str(self.config["data"].get("scheme") or NO_SCHEME)

    @property
    def method(self) -> str:
        """The method, with what sets it apart."""
        values = ", ".join(f"{key}={value}" for key, value in self.changed.items())
        return str(self.config["settings"]["method"]) + (f" ({values})" if values else "")

    @property
    def series(self) -> str:
        """What shares a bar and a colour; without a scheme nothing says that runs had the same labels."""
        return self.method if self.scheme != NO_SCHEME else f"{self.name}: {self.method}"

    @property
    def data(self) -> tuple[Any, ...]:
        """What runs share that were trained on the same labels."""
        data = self.config["data"]
        counts = data.get("training_labels") or json.dumps(self.classes)
        return self.scheme, data.get("labels"), data["training_images"], counts

    @property
    def classes(self) -> dict[str, dict[str, int]]:
        """The known labels of each class among the training images."""
        counts: dict[str, dict[str, int]] = self.config["data"]["classes"]
        return counts

    def counts(self, kind: str) -> Counts | None:
        """Return how many labels of a kind each class has: "present", "absent" or, if told, "true"."""
        every = [count.get(kind) for count in self.classes.values()]
        return None if None in every else np.array(every, dtype=np.int64)

    def share(self, kind: str) -> Floats | None:
        """Return the same as a share of the training images."""
        counts = self.counts(kind)
        return None if counts is None else counts / max(self.config["data"]["training_images"], 1)

    @property
    def quality(self) -> Quality | None:
        """The test figures where there are any, else those of the validation images."""
        return self.test or self.validation

    @property
    def drawn(self) -> Quality | None:
        """Figures whose labels were kept, so that curves can be drawn."""
        return self.test if self.test is not None and self.test.scored is not None else self.validation

    def images(self, quality: Quality | None) -> Hashable:
        """Return what two runs share whose figures are of the same images, and so may stand side by side.

        Everything on a page that compares runs goes by this. A run of an earlier version that does not name
        its validation images is taken to have those of other such runs.
        """
        if quality is not None and quality is self.test:
            return self.test_labels
        names = self.config["data"].get("validation")
        return set_of(names) if names else None

    @property
    def validated(self) -> Hashable:
        """What runs share that validate the same images."""
        return self.images(None)

    @property
    def best(self) -> int | None:
        """The place of the best epoch in the records, counted from the start of the phase that was kept."""
        phases = [record.get("phase") for record in self.records]
        epoch = self.summary.get("best_epoch")
        kept = self.summary.get("phase", phases[-1] if phases else None)
        place = phases.index(kept) + epoch - 1 if kept in phases and epoch else len(phases)
        return place if place < len(phases) else None

    @property
    def test_labels(self) -> frozenset[Any]:
        """What must be equal for two runs to be tested on the same labels."""
        figures = self.test.figures if self.test else {}
        names = ("classes", "positives", "negatives") if figures else ()
        return frozenset(zip(*(figures[key] for key in names), strict=True))

    @property
    def row(self) -> dict[str, Any]:
        """The figures of the table of runs, as they are in the files."""
        settings, summary, test = self.config["settings"], self.summary, self.test
        expected = summary.get("expected_map") or {}
        tested = {name: test.number(name) if test else None for name in ("map_c", "map_o", "mF1")}
        return {
            "run": self.name,
            "scheme": self.config["data"].get("scheme"),
            "method": settings["method"],
            "settings": json.dumps(self.changed, ensure_ascii=False),
            "seed": settings.get("seed"),
            "tested_on": test.on if test else None,
            **tested,
            "ece": test.ece if test else None,
            "scored": test.figures.get("scored") if test else None,
            "test_classes": len(test.classes) if test else None,
            "validation_set": self.validated,
            "expected_map": number(expected.get("value")),
            "expected_low": number(expected.get("low")),
            "expected_high": number(expected.get("high")),
            "expected_settled": expected.get("settled"),
            "validation_score": number(summary.get("validation_score")),
            "validation_known_map": number(summary.get("validation_known_map")),
            "validation_known_scored": summary.get("validation_known_scored"),
            "validation_ece": self.validation.ece if self.validation else None,
            "best_epoch": summary.get("best_epoch"),
            "epochs": len(self.records),
            "seconds": number(summary.get("seconds")),
            "finished": bool(summary),
        }


def read_runs(folders: Sequence[RunFolder], tested: Sequence[Quality | None]) -> list[Run]:
    """Read the runs, each with what it was tested on just now; by scheme, the full labels first."""
    names = [folder.path.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder.path) for folder in folders]
    configs = [with_keys(folder.config_file, folder.config(), "settings", "data") for folder in folders]
    changed = _changed([config["settings"] for config in configs])
    runs = [
        _read(folder, name, config, values, test)
        for folder, name, config, values, test in zip(folders, names, configs, changed, tested, strict=True)
    ]
    groups = grouped(runs, lambda run: (run.scheme, run.validated))
    order = list(dict.fromkeys(scheme for scheme, _ in groups))
    order.sort(key=lambda name: name != FULL)
    return [run for scheme in order for key, group in groups.items() if key[0] == scheme for run in group]


def _read(
    folder: RunFolder, name: str, config: dict[str, Any], changed: dict[str, Any], test: Quality | None
) -> Run:
    file = folder.evaluation_file
    if test is None and file.is_file():
        test = Quality.read(file)
    scored = Scored.of_run(folder.path)
    validation = None
    if scored is not None:
        annotations = folder.data().known_of(scored.classes.tolist())
        validation = Quality.of("the run's validation images", scored, annotations)
    annotation = Annotation.of_run(folder.path)
    return Run(name, config, folder.summary(), folder.records(), annotation, changed, test, validation)


def _changed(settings: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each run what the name of its method does not say."""
    flat = [_flat(each) for each in settings]
    keys = dict.fromkeys(key for each in flat for key in each)
    differ = [key for key in keys if len({repr(each[key]) for each in flat if key in each}) > 1]
    return [
        _not_default(each["method"], each["parameters"])
        | {key: values[key] for key in differ if key in values}
        for each, values in zip(settings, flat, strict=True)
    ]


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that decide an outcome, those of a phase with dotted names.

    >>> _flat({"method": "wan", "protocol": "linear", "seed": 3, "head": {"lr": 0.1}, "whole": {"lr": 0.2}})
    {'protocol': 'linear', 'head.lr': 0.1}
    """
    idle = {"linear": "whole", "finetune": "head"}.get(settings.get("protocol", ""))
    flat: dict[str, Any] = {}
    for key in (key for key in settings if key not in {idle, *_SAME}):
        inner = settings[key]
        flat |= {f"{key}.{name}": inner[name] for name in inner} if isinstance(inner, dict) else {key: inner}
    return flat


def _not_default(method: str, parameters: dict[str, Any]) -> dict[str, Any]:
    try:
        defaults = methods.parameters_of(methods.find(method))
    except InputError:  # somebody's own method, which is not imported here
        defaults = {}
    return {key: value for key, value in parameters.items() if key not in defaults or value != defaults[key]}


def grouped(runs: Sequence[Run], key: Callable[[Run], _Key]) -> dict[_Key, list[Run]]:
    """Return the runs by what they share, in order."""
    groups: dict[_Key, list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups


def some(runs: Sequence[Run]) -> list[Run]:
    """Return a few runs, in order, so that what cannot show all shows the same everywhere.

    They are the first of each scheme and label file, then the second of each, and so on.
    """
    groups = grouped(runs, lambda run: run.data[:2]).values()
    turns = {run: turn for group in groups for turn, run in enumerate(group)}
    chosen = set(sorted(runs, key=lambda run: turns[run])[:SHOWN])
    return [run for run in runs if run in chosen]


def number(value: Any) -> float | None:
    """Return a number, None for what is missing or not finite."""
    return None if value is None or not math.isfinite(value) else float(value)
