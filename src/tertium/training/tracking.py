"""Trackers of experiments: TensorBoard, MLflow and Weights & Biases, through Lightning's loggers.

They get the settings, the figures of each epoch, the summary and the report. They are guests: of one that
fails that is said, once, and training goes on without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tertium.errors import InputError

_PROJECT = "tertium"


def check_installed(names: Sequence[str]) -> None:
    """Raise `InputError` if a tracker is not there: better now than after training."""
    for name in names:
        if find_spec(name) is None:
            raise InputError(f"log={name} needs a package that is not installed: pip install {name}")


class Trackers:
    """The trackers of a run; without names, none. What they keep here is below ``folder``."""

    def __init__(
        self, names: Sequence[str] = (), folder: Path | None = None, say: Callable[[str], None] = print
    ) -> None:
        self._say = say
        self._loggers: dict[str, Any] = {}
        for name in names:
            assert folder is not None
            self._try(name, partial(self._open, name, folder))

    def _open(self, name: str, folder: Path) -> None:
        self._loggers[name] = _opened(name, folder)

    def begin(self, settings: Mapping[str, Any]) -> None:
        """Tell the settings."""
        flat = _flat(settings)
        self._each(lambda logger: logger.log_hyperparams(flat))

    def epoch(self, phase: str, figures: Mapping[str, Any]) -> None:
        """Tell the figures of an epoch: those that are numbers."""
        found = {f"{phase}/{key}": value for key, value in _flat(figures).items() if _is_number(value)}
        step = int(figures["epoch"])
        self._each(lambda logger: logger.log_metrics(found, step=step))

    def end(self, summary: Mapping[str, Any]) -> None:
        """Tell what came of it."""
        found = {f"summary/{key}": value for key, value in _flat(summary).items() if _is_number(value)}
        self._each(lambda logger: logger.log_metrics(found))
        self._each(lambda logger: logger.finalize("success"))

    def attach(self, page: Path) -> None:
        """Hand over the report. TensorBoard keeps no files."""
        if "mlflow" in self._loggers:
            logger = self._loggers["mlflow"]
            self._try("mlflow", lambda: logger.experiment.log_artifact(logger.run_id, str(page)))
        if "wandb" in self._loggers:
            run = self._loggers["wandb"].experiment
            self._try("wandb", lambda: run.save(str(page), base_path=str(page.parent), policy="now"))

    def _each(self, tell: Callable[[Any], object]) -> None:
        for name, logger in list(self._loggers.items()):
            self._try(name, partial(tell, logger))

    def _try(self, name: str, call: Callable[[], object]) -> None:
        """Let a tracker do something; if it fails, go on without it."""
        try:
            call()
        except Exception as error:  # other people's code, their servers and their disks
            self._loggers.pop(name, None)
            reason = str(error).partition("\n")[0] or type(error).__name__
            self._say(f"Note: {name} failed and gets nothing more ({reason}).")


def _opened(name: str, folder: Path) -> Any:
    run = folder.parent.name
    if name == "tensorboard":
        from lightning.fabric.loggers.tensorboard import TensorBoardLogger

        return TensorBoardLogger(root_dir=folder, name=name, version="")
    if name == "mlflow":
        from lightning.pytorch.loggers import MLFlowLogger

        place, files = os.environ.get("MLFLOW_TRACKING_URI"), None
        if not place:  # a database of its own, with its files beside it
            folder.mkdir(parents=True, exist_ok=True)
            place, files = f"sqlite:///{folder.absolute()}/mlflow.db", (folder / name).absolute().as_uri()
        return MLFlowLogger(_PROJECT, run_name=run, tracking_uri=place, artifact_location=files)
    from lightning.pytorch.loggers import WandbLogger

    offline = os.environ.get("WANDB_MODE", "offline") == "offline"
    (folder / name).mkdir(parents=True, exist_ok=True)
    return WandbLogger(project=_PROJECT, name=run, save_dir=folder / name, offline=offline)


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return nested values by dotted names.

    >>> _flat({"seed": 0, "head": {"lr": 0.1}})
    {'seed': 0, 'head.lr': 0.1}
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{before}{key}.")
        else:
            found[f"{before}{key}"] = value
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
