"""Which cells a comparison has, in which order they are trained, and which of them count."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from tertium.comparing.cells import Cell, Data, Task, Work, is_done, opened, train_cell
from tertium.comparing.rows import Column, Row, apart, described, resolved
from tertium.comparing.search import trial_settings
from tertium.errors import InputError
from tertium.files import make_folder, read_sealed
from tertium.progress import Progress
from tertium.training.recipes import grid

Figures = dict[str, Any]
CELLS = "cells"  # the folder of what was trained
_CEILING = Row("bce", "bce"), Column("full")


@dataclass(frozen=True)
class Comparison:
    """What was found: the figures of each cell, with the row and the column that it belongs to."""

    classes: tuple[str, ...]
    cells: list[Figures]  # hyper-parameters and epochs chosen on known validation labels
    clean: list[Figures]  # chosen on full validation labels instead; empty if not asked for
    trials: list[Figures]  # of a search
    images: tuple[int, int] | None = None  # for training, validation among them, and for the test


@dataclass(frozen=True, eq=False)
class _Line:
    """A row under a column: what its trials and seeds share."""

    row: Row
    column: Column
    values: Mapping[str, Any]  # the settings of all cells, of the method, and of the row

    def drawn(self, trial: int) -> dict[str, Any]:
        """Return what a trial tries; what somebody has set is not sought.

        A recipe whose authors have told what they tried is searched there.
        """
        fixed = {key.removeprefix("head.") for key in self.values}
        recipe = self.values.get("recipe")
        tried = grid(recipe, self.row.method, fixed) if recipe is not None else []
        if tried:
            return {} if trial == 1 else tried[(trial - 2) % len(tried)]
        return trial_settings(self.row.method, trial, fixed)

    def cell(self, seed: int, trial: int) -> Cell:
        """Return the cell of a seed with the hyper-parameters of a trial."""
        settings = resolved(self.row.method, {**self.values, **self.drawn(trial)}, seed)
        return Cell(self.row.method, self.column.name, seed, settings, self.column.file)


def compare(
    work: Work,
    out: Path,
    *,
    rows: Sequence[Row],
    columns: Sequence[Column],
    settings: Mapping[str, Any] | None = None,
    seeds: int = 5,
    search: int = 1,
    clean: bool = False,
    every_epoch: bool = False,
    pool: AbstractContextManager[Pool] | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Train every cell that is not done yet, and return the figures of all.

    Each seed hides other labels, and draws another validation part; plain BCE on all labels is the ceiling.
    ``search`` is how many settings each row tries under each column, the given ones being the first: on the
    labels of seed 0, the highest score on known validation labels wins, and the other seeds take it over.
    ``clean`` chooses epochs and trials once more, on full validation labels. ``every_epoch`` keeps the test
    score of each epoch. A cell's training sees no test label. What is done is in ``out``/cells, so a
    comparison that was stopped goes on. ``pool`` says where cells are trained: `on_this_machine`, `on_ray`.
    """
    progress = progress or Progress()
    lines = _lines(rows, columns, settings or {})
    if (search > 1 or clean) and not lines[0].cell(0, 1).settings["validation"]:
        raise InputError("nothing can be chosen without a validation part: validation must be above 0")
    fingerprint = work.fingerprint()
    data = opened(work, fingerprint)
    _check_files(data, columns, progress)
    place = out / CELLS / fingerprint[:12]
    make_folder(place)
    run = _Run(place, progress, watched=clean or every_epoch)
    with _trainer(work, fingerprint, pool or on_this_machine(), progress) as train_all:
        trials = [(line, trial) for line in lines for trial in range(1, search + 1) if search > 1]
        if trials:
            more = len(lines) * (seeds - 1) * (1 + clean)
            progress.note(
                f"{search} trials for each row of each column are {len(trials):,} cells; "
                f"then come at most {more:,} for the other seeds"
            )
            train_all("searching", run.waiting([(line, 0, trial) for line, trial in trials]))
        chosen = {line: _best(run, line, search, _known) if search > 1 else 1 for line in lines}
        cleanly = {line: _best(run, line, search, _clean) for line in lines if clean and search > 1}
        wanted = [(line, seed, chosen[line]) for seed in range(seeds) for line in lines]
        also = [(line, seed, cleanly.get(line, 1)) for seed in range(seeds) for line in lines if clean]
        train_all("comparing", run.waiting(list(dict.fromkeys(wanted + also))))
    return Comparison(
        data.training.classes,
        [run.figures(*item) for item in wanted],
        [_chosen_cleanly(run.figures(*item)) for item in also],
        [_tried(run.figures(line, 0, trial), chosen[line], cleanly.get(line)) for line, trial in trials],
        (work.images or len(data.training), len(data.test)),
    )


def _lines(rows: Sequence[Row], columns: Sequence[Column], settings: Mapping[str, Any]) -> list[_Line]:
    """Return the ceiling and every row under every column; a mistake in any setting is found here."""
    shared, own = apart(settings)
    pairs = [_CEILING, *((row, column) for column in columns for row in rows)]
    lines = [_Line(row, column, {**shared, **own.get(row.method, {}), **row.given}) for row, column in pairs]
    for line in lines:
        line.cell(0, 1)
    return lines


def _check_files(data: Data, columns: Sequence[Column], progress: Progress) -> None:
    """Read the files of partial labels, so that a mistake in them is found before the work begins."""
    for column in columns:
        if column.file is None:
            continue
        labels = data.partial(column.file)
        blank = int(np.count_nonzero(np.diff(labels.offsets) == 0))
        if blank:
            progress.note(f"{column.file}: knows nothing of {blank:,} of the {len(labels):,} training images")


class _Run:
    """The cells of a comparison on disk."""

    def __init__(self, place: Path, progress: Progress, *, watched: bool) -> None:
        self._place, self._progress, self._watched = place, progress, watched
        self._cells: dict[tuple[_Line, int, int], Cell] = {}

    def waiting(self, wanted: Sequence[tuple[_Line, int, int]]) -> list[Task]:
        """Return those of the wanted (line, seed, trial) that have not been trained yet."""
        tasks: dict[Path, Task] = {}  # two rows may mean the same cell
        for item in wanted:
            path = self._path(*item)
            task = Task(self._cells[item], path, self._watched, may_fail=item[2] > 1)
            if not self._done(task):
                tasks[path] = task
        return list(tasks.values())

    def figures(self, line: _Line, seed: int, trial: int) -> Figures:
        """Return what a cell gave, under the names of its row and column."""
        found: Figures = read_sealed(self._path(line, seed, trial))
        if not self._watched:
            found.pop("epochs", None)  # left by another comparison, and of some cells only
        return found | {
            "method": line.row.name,
            "scheme": line.column.name,
            "trial": trial,
            "tried": described(line.drawn(trial)),
        }

    def _path(self, *item: Any) -> Path:
        if item not in self._cells:
            line, seed, trial = item
            self._cells[item] = line.cell(seed, trial)
        return self._place / self._cells[item].name

    def _done(self, task: Task) -> bool:
        """Return whether a cell has been trained, and its file is as it was written."""
        try:
            return is_done(task)
        except InputError as error:
            self._progress.note(f"{error}; the cell is trained again")
            return False


def _best(run: _Run, line: _Line, search: int, judge: Callable[[Figures], float | None]) -> int:
    """Return the trial with the highest score on validation labels, the first if there is none."""
    judged = {trial: judge(run.figures(line, 0, trial)) for trial in range(1, search + 1)}
    scored = {trial: score for trial, score in judged.items() if score is not None}
    return max(scored, key=scored.__getitem__, default=1)


def _known(figures: Figures) -> float | None:
    found: float | None = figures.get("validation")
    return found


def _clean(figures: Figures) -> float | None:
    found: float | None = _clean_epoch(figures).get("clean")
    return found


def _clean_epoch(figures: Figures) -> Figures:
    scored = [epoch for epoch in figures.get("epochs", []) if epoch["clean"] is not None]
    return max(scored, key=lambda epoch: float(epoch["clean"]), default={})


def _chosen_cleanly(figures: Figures) -> Figures:
    """Return the figures of the epoch that full validation labels would choose."""
    best = _clean_epoch(figures)
    if not best:
        return figures
    kept = {key: figures[key] for key in ("method", "scheme", "seed", "seconds", "trial", "tried")}
    return kept | {"score": best["test"], "validation": best["clean"], "best_epoch": best["epoch"]}


def _tried(figures: Figures, chosen: int, cleanly: int | None) -> Figures:
    """Return the figures of a trial, with its best score on full labels and whether it was chosen."""
    trial = figures["trial"]
    return figures | {
        "clean": _clean(figures),
        "chosen": trial == chosen,
        "chosen_cleanly": trial == cleanly,
    }


Pool = Callable[[Callable[[Task], None], list[Task]], Iterator[None]]  # calls a function with every task


@contextmanager
def _trainer(
    work: Work, fingerprint: str, pool: AbstractContextManager[Pool], progress: Progress
) -> Iterator[Callable[[str, list[Task]], None]]:
    """Give what trains cells, several at once; processes keep their data from cell to cell."""
    with pool as run:

        def train_all(what: str, tasks: list[Task]) -> None:
            progress.start(what, len(tasks), "cells")
            for _ in run(partial(train_cell, work, fingerprint), tasks):
                progress.advance()

        try:
            yield train_all
        finally:
            opened.cache_clear()


@contextmanager
def on_this_machine(jobs: int | None = None) -> Iterator[Pool]:
    """Train so many cells at once in processes of this machine: one a core, if nothing is said."""
    jobs = jobs or os.cpu_count() or 1
    pool = ProcessPoolExecutor(jobs, get_context("spawn")) if jobs > 1 else None

    def run(train: Callable[[Task], None], tasks: list[Task]) -> Iterator[None]:
        if pool is None or len(tasks) == 1:
            yield from map(train, tasks)
            return
        for done in as_completed([pool.submit(train, task) for task in tasks]):
            yield done.result()

    try:
        yield run
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)  # after a mistake nobody waits for the rest


@contextmanager
def on_ray(address: str | None = None, actors: int | None = None) -> Iterator[Pool]:
    """Train cells in so many actors of a Ray cluster: one for each of its cores, if nothing is said.

    All its machines must see the data and the folder of the results at the same paths.
    """
    from tertium.jobs.cluster import Failure, joined

    with ExitStack() as held:
        cluster = cache(lambda: held.enter_context(joined(address)))  # which takes a while: not for nothing

        def run(train: Callable[[Task], None], tasks: list[Task]) -> Iterator[None]:
            if not tasks:
                return
            workers = actors or cluster().cores()
            for task, found in cluster().run(lambda: train, tasks, workers=workers):
                if isinstance(found, Failure):
                    raise RuntimeError(found.trace) if found.trace else InputError(found.reason)
                if not task.place.is_file():
                    raise InputError(
                        f"{task.place}: was written on another machine, and is not seen here; "
                        "choose an --out that all machines of the cluster share"
                    )
                yield None

        yield run
