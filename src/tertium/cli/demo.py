"""The demonstration: scenes with known truth, hidden labels, several methods side by side."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from tertium.config import Settings
from tertium.data.pictures import ArrayPictures
from tertium.data.scenes import render
from tertium.errors import InputError, some
from tertium.files import make_folder
from tertium.models.encoders import pretrained
from tertium.models.features import extract
from tertium.prediction.files import write_evaluation
from tertium.progress import Progress
from tertium.reporting import write_report
from tertium.runs import RunFolder, report_tables
from tertium.schemes import parse
from tertium.training.fit import make_fabric
from tertium.training.train import train

_TRAINING, _TEST = 3000, 1500
_IMAGE_SIZE = 96  # small enough for a laptop: the scenes are simple
_CEILING = ("full", ("bce",))
_PLAN = (
    _CEILING,
    ("single_positive", ("auto", "negative", "wan", "role", "ll_r", "hill")),
    ("random:0.1", ("auto", "negative", "ignore", "epr", "selective")),
    ("per_class:50", ("auto", "negative", "ignore", "wan", "selective")),
)


@dataclass(frozen=True)
class Row:
    """One line of the demo's table."""

    scheme: str
    method: str
    map_c: float
    scored: int
    map_o: float
    mf1: float
    seconds: float


def run_demo(
    out: str | Path,
    *,
    seed: int = 0,
    training: int = _TRAINING,
    test: int = _TEST,
    progress: Progress | None = None,
) -> tuple[list[Row], Path]:
    """Train every method of the plan on the same scenes; return the table and the path of the report."""
    progress = progress or Progress()
    out = Path(out)
    _clear(out)
    progress.note(f"rendering {training + test:,} scenes")
    scenes = render(training + test, seed=seed)
    features = extract(
        pretrained(size=_IMAGE_SIZE),
        ArrayPictures(scenes.images),
        device=make_fabric(Settings()).device,
        progress=progress,
    )
    truth, hidden = scenes.labels[:training], scenes.labels[training:]
    rows, folders = [], []
    for scheme, names in _PLAN:
        partial = parse(scheme).apply(truth, seed)
        for name in names:
            folder = out / _name(scheme, name)
            outcome = train(
                partial,
                features=features[:training],
                out=folder,
                method=name,
                seed=seed,
                truth=truth,
                scheme=scheme,
            )
            found = outcome.trained.evaluate(hidden, features=features[training:])
            folders.append(RunFolder.open(folder))
            on = f"{test:,} other scenes, with full labels"
            write_evaluation(folders[-1].evaluation_file, found, on)
            seconds = outcome.summary["seconds"]
            rows.append(Row(scheme, name, found.map_c, found.scored, found.map_o, found.mF1, seconds))
            progress.note(f"{scheme} {name}: mAP {100 * found.map_c:.1f} in {seconds:.1f} s")
    page = write_report(out / "report.html", folders, title="Tertium demo", command="tertium demo")
    return rows, page


def _clear(out: Path) -> None:
    """Make room for the demo; only an earlier demo is removed, and only if nothing else is there."""
    make_folder(out)
    page = out / "report.html"
    runs = [out / _name(scheme, method) for scheme, names in _PLAN for method in names]
    if any(out.iterdir()) and not any(RunFolder(run).config_file.is_file() for run in runs):
        raise InputError(f"{out}: the folder is not empty and holds no demo; choose another --out")
    strange = sorted(each.name for each in out.iterdir() if each not in (page, *report_tables(page), *runs))
    if strange:
        raise InputError(f"{out}: also holds what no demo writes ({some(strange)}); choose another --out")
    for run in runs:
        RunFolder.check_free(run, overwrite=True)
    for each in sorted(out.iterdir()):
        shutil.rmtree(each) if each.is_dir() else each.unlink()


def _name(scheme: str, method: str) -> str:
    return f"{scheme.replace(':', '-')}-{method}"
