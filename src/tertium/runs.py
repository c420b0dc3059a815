"""The folder of a training run."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tertium.errors import InputError, some
from tertium.files import is_left_of, locked, make_folder, read_sealed, replacing, write_sealed

# What is in the folders of checkpoints and of tables; what a killed process left begins with a dot.
_CHECKPOINT = re.compile(r"\.?\d{6}")
_STATE = re.compile(
    r"(checkpoint\.json|training\.safetensors|process-\d+-of-\d+\.safetensors|state\.(json|safetensors)"
    r"|(table|work)\..*\.\d+-of-\d+\.npy|\.(checkpoint|state|table\..*)-\w*\.(json|safetensors|npy))"
)
# How the names of the tables of a report end.
REPORT = ("", "-classes", "-epochs", "-groups", "-curves", "-calibration", "-missing", "-better")
_VERSIONS = ("tertium", "torch", "timm", "lightning", "numpy")


def report_tables(page: Path) -> list[Path]:
    """Return where the numbers of a report go, each table beside its page."""
    return [page.with_name(f"{page.stem}{kind}.csv") for kind in REPORT]


@dataclass(frozen=True)
class RunData:
    """What a run was trained on and how it was read: "data" in ``config.json``.

    What was given as an array has no path. Labels and inputs are told from others by their checksums.
    """

    labels: str | None = None  # the label file
    unlisted: Literal["unknown", "absent"] = "unknown"  # what a label means that it does not list
    reading: dict[str, Any] = field(default_factory=dict)  # what else was said about reading it
    names: list[str] | None = None  # the classes and their order, if they were given
    left_out: list[str] = field(default_factory=list)  # images that could not be read
    images: str | None = None
    features: str | None = None
    truth: str | None = None
    scheme: str | None = None  # that hid labels
    setting: dict[str, Any] = field(default_factory=dict)  # which annotation setting they resemble
    answers: str | None = None  # the checksum of the answers that it was given, if any
    training_images: int = 0
    validation_images: int = 0
    validation: list[str] = field(default_factory=list)  # the names of these
    training_labels: str = ""  # checksums
    training_inputs: str = ""
    validation_labels: str = ""
    validation_inputs: str = ""
    classes: dict[str, dict[str, int]] = field(default_factory=dict)  # training labels known of each

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunData:
        """Take what `to_dict` gave; what another version may have added is left out."""
        names = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in names})

    def to_dict(self) -> dict[str, Any]:
        """Return plain values; what was not given is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def known_of(self, classes: Sequence[str]) -> npt.NDArray[np.int64] | None:
        """Return how many labels of each class training knew, if the run says so for every class."""
        if not all(name in self.classes for name in classes):
            return None
        counts = (self.classes[name] for name in classes)
        return np.array([count["present"] + count["absent"] for count in counts], dtype=np.int64)


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run. What its files are called is known here and nowhere else."""

    path: Path

    @property
    def config_file(self) -> Path:
        """Settings, data and versions."""
        return self.path / "config.json"

    @property
    def epochs_file(self) -> Path:
        """The figures of each epoch, a line each."""
        return self.path / "metrics.jsonl"

    @property
    def log_file(self) -> Path:
        """What was said while it ran."""
        return self.path / "log.txt"

    @property
    def summary_file(self) -> Path:
        """The final figures: its presence says that the run is complete."""
        return self.path / "summary.json"

    @property
    def model_file(self) -> Path:
        """What the model is: its classes, thresholds and network."""
        return self.path / "model.json"

    @property
    def weights_file(self) -> Path:
        """The weights of the model."""
        return self.path / "model.safetensors"

    @property
    def annotation_file(self) -> Path:
        """How labels were annotated, where the method has found out."""
        return self.path / "annotation.json"

    @property
    def together_file(self) -> Path:
        """How labels go together, where the method has found that they do."""
        return self.path / "together.json"

    @property
    def factors_file(self) -> Path:
        """The numbers of that."""
        return self.path / "together.safetensors"

    @property
    def validation_file(self) -> Path:
        """Scores of the known labels of the validation images."""
        return self.path / "validation.npz"

    @property
    def seen_file(self) -> Path:
        """Which images it was trained and validated on, by their content."""
        return self.path / "images.npz"

    @property
    def evaluation_file(self) -> Path:
        """The figures of `tertium evaluate`."""
        return self.path / "evaluation.json"

    @property
    def learned_file(self) -> Path:
        """The answers that it was given to learn from: a label file."""
        return self.path / "learned-answers.arrow"

    @property
    def answers_file(self) -> Path:
        """What people said of its questions: nothing that training could make again."""
        return self.path / "review.sqlite"

    @property
    def report_file(self) -> Path:
        """The page about the run."""
        return self.path / "report.html"

    @property
    def onnx_file(self) -> Path:
        """The model as `tertium export --to onnx` writes it."""
        return self.path / "model.onnx"

    @property
    def timm_file(self) -> Path:
        """The weights as `tertium export --to safetensors` writes them."""
        return self.path / "timm.safetensors"

    @property
    def explained(self) -> Path:
        """The pictures of `tertium explain`."""
        return self.path / "explained"

    @property
    def checkpoints(self) -> Path:
        """What a run that was stopped goes on from."""
        return self.path / "checkpoints"

    @property
    def tables(self) -> Path:
        """What a method keeps for each image, where that is large."""
        return self.path / "tables"

    @property
    def tracking(self) -> Path:
        """What trackers of experiments keep of the run; they choose the names in it."""
        return self.path / "tracking"

    @property
    def replaced(self) -> Path:
        """An earlier run, until the one that replaces it has begun well."""
        return self.path / ".replaced"

    def made_by_training(self) -> list[Path]:
        """Return the files that training writes, and that whatever uses the run reads."""
        named = [self.config_file, self.epochs_file, self.log_file, self.summary_file, self.model_file]
        named += [self.weights_file, self.annotation_file, self.together_file, self.factors_file]
        return [*named, self.validation_file, self.seen_file, self.learned_file]

    def _is_own(self, path: Path) -> bool:
        """Return whether training, evaluating, exporting or reporting writes a file of this name here."""
        used = [self.evaluation_file, self.evaluation_file.with_suffix(".csv"), self.report_file]
        used += [self.onnx_file, self.timm_file, *report_tables(self.report_file)]
        every = self.made_by_training() + used
        return path in every or any(is_left_of(path, each) for each in every)

    def _strange(self) -> Iterator[Path]:
        """Yield what no run writes: other names, links, and folders where files should be."""
        for each in sorted(self.path.iterdir()):
            if each.is_symlink():
                yield each
            elif each == self.tracking and each.is_dir():
                continue
            elif each == self.replaced and each.is_dir():
                yield from RunFolder(each)._strange()
            elif each in (self.checkpoints, self.tables) and each.is_dir():
                parts = (part for part in sorted(each.rglob("*")) if not _STATE.fullmatch(part.name))
                yield from (part for part in parts if part.is_file() or not _CHECKPOINT.fullmatch(part.name))
            elif not self._is_own(each) or not each.is_file():
                yield each

    # ---- beginning -----------------------------------------------------------------------------------------

    @staticmethod
    def check_free(path: Path, *, overwrite: bool) -> None:
        """Raise `InputError` if a run cannot be written here; called before any long work begins.

        A run is overwritten only if the folder proves to hold one, and nothing that a run does not write.
        """
        if path.is_file():
            raise InputError(f"{path}: is a file, not a folder")
        if path.is_symlink() and not path.exists():
            raise InputError(f"{path}: is a link to a folder that does not exist")
        folder = RunFolder(path)
        if not path.is_dir() or all(is_left_of(each, folder.config_file) for each in path.iterdir()):
            return
        if not overwrite and (folder.config_file.is_file() or folder.replaced.is_dir()):
            raise InputError(f"{path}: already holds a run; choose another --out, or add --overwrite")
        folder._prove()
        if folder.answers_file.exists():
            raise InputError(
                f"{path}: holds people's answers ({folder.answers_file.name}); "
                "move them, or choose another --out"
            )
        strange = [str(each.relative_to(path)) for each in folder._strange()]
        if strange:
            raise InputError(
                f"{path}: also holds what no run writes ({some(strange)}), so it is not overwritten; "
                "move that, or choose another --out"
            )

    def _prove(self) -> None:
        """Raise `InputError` unless a file that only a run has is here, or in the run that is set aside."""
        held = [folder for folder in (self, RunFolder(self.replaced)) if folder.config_file.is_file()]
        for folder in held:
            if not {"settings", "data"} <= folder.config().keys():
                raise InputError(f"{folder.config_file}: is not of a run; choose another --out")
        if not held:
            raise InputError(f"{self.path}: the folder is not empty and holds no run; choose another --out")

    @classmethod
    def create(cls, path: str | Path, *, overwrite: bool = False) -> RunFolder:
        """Make a run folder; one that is overwritten is set aside until `settle` or `restore` is called.

        Its settings go last and come back first: where they are, there the rest belongs, whenever the process
        is killed.
        """
        path = Path(path)
        cls.check_free(path, overwrite=overwrite)
        make_folder(path)
        folder = cls(path)
        aside = cls(folder.replaced)
        if aside.config_file.is_file():  # the run that should have replaced it never began well
            folder._clear()
        elif folder.config_file.is_file():
            aside.path.mkdir(exist_ok=True)
            folder._move_to(aside, first=False)
        return folder

    def settle(self) -> None:
        """Remove the run that this one replaces."""
        shutil.rmtree(self.replaced, ignore_errors=True)

    def restore(self) -> None:
        """Put the run back that this one should have replaced, if there was one."""
        aside = RunFolder(self.replaced)
        if aside.config_file.is_file():
            self._clear()
            aside._move_to(self, first=True)
            aside.path.rmdir()

    def _move_to(self, other: RunFolder, *, first: bool) -> None:
        """Move all but a run that is set aside; the settings ``first``, or last."""
        moved = [each for each in sorted(self.path.iterdir()) if each != self.replaced]
        for each in sorted(moved, key=lambda each: (each == self.config_file) != first):
            each.rename(other.path / each.name)

    def _clear(self) -> None:
        """Remove what a run has written, but for the one that it replaces."""
        for each in self.path.iterdir():
            if each in (self.checkpoints, self.tables, self.tracking):
                shutil.rmtree(each)
            elif each != self.replaced:
                each.unlink()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training here; one that is killed leaves no lock behind."""
        try:
            with locked(self.path):
                yield
        except BlockingIOError:
            raise InputError(
                f"{self.path}: another process is training in this folder; wait until it has ended"
            ) from None

    def write_config(self, settings: dict[str, Any], data: RunData) -> None:
        """Write what decides the outcome: the resolved settings, the data, the versions."""
        versions = _versions()
        config: dict[str, Any] = {"settings": settings, "data": data.to_dict(), "versions": versions}
        # The same settings and data give the same run, so they can tell one run from another.
        told = json.dumps([settings, data.to_dict()], sort_keys=True)
        config["run"] = hashlib.sha256(told.encode()).hexdigest()[:16]
        write_sealed(self.config_file, config)

    def append(self, record: dict[str, Any]) -> None:
        """Add one epoch to ``metrics.jsonl``."""
        with open(self.epochs_file, "a", encoding="utf-8") as lines:
            lines.write(_line(record | {"run": self.id()}))

    def rewrite(self, records: list[dict[str, Any]]) -> None:
        """Set ``metrics.jsonl`` back to these epochs."""
        with replacing(self.epochs_file) as temporary:
            temporary.write_text(
                "".join(_line(record | {"run": self.id()}) for record in records), encoding="utf-8"
            )

    def log(self, text: str) -> None:
        """Add a line to ``log.txt``."""
        with open(self.log_file, "a", encoding="utf-8") as lines:
            lines.write(f"{datetime.now().isoformat(timespec='seconds')} {text}\n")

    def finish(self, summary: dict[str, Any]) -> None:
        """Write ``summary.json``: its presence says that the run is complete."""
        write_sealed(self.summary_file, {**summary, "run": self.id()})

    # ---- reading -----------------------------------------------------------------------------------------

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Return a folder that holds a run."""
        folder = cls(Path(path))
        if not folder.config_file.is_file():
            raise InputError(f"{path}: {'holds no run' if folder.path.is_dir() else 'no such run folder'}")
        return folder

    def config(self) -> dict[str, Any]:
        """Return the resolved settings, the data and the versions."""
        return read_sealed(self.config_file)

    def id(self) -> str | None:
        """Return what tells this run from others; earlier versions and other folders have nothing."""
        return self._id

    @cached_property
    def _id(self) -> str | None:
        found: str | None = self.config().get("run") if self.config_file.is_file() else None
        return found

    def check_own(self, path: Path, run: str | None) -> None:
        """Raise `InputError` if a file says that it is of another run; earlier versions say nothing."""
        if run is not None and self.id() is not None and run != self.id():
            raise InputError(f"{path}: is of another run")

    def data(self) -> RunData:
        """Return what the run was trained on."""
        return RunData.from_dict(self.config()["data"])

    def other_versions(self) -> str:
        """Return which packages were of other versions when the run began; empty if none."""
        then, now = self.config().get("versions", {}), _versions()
        return ", ".join(
            f"{name} {then.get(name, '?')} (now {own})" for name, own in now.items() if then.get(name) != own
        )

    def summary(self) -> dict[str, Any]:
        """Return the final figures; empty if the run has not finished."""
        return read_sealed(self.summary_file) if self.summary_file.is_file() else {}

    def records(self) -> list[dict[str, Any]]:
        """Return the figures of each epoch."""
        path = self.epochs_file
        if not path.is_file():
            return []
        # A run that was killed may have left half a line behind the last whole one.
        whole, _, _ = path.read_text(encoding="utf-8", errors="replace").rpartition("\n")
        records = [_record(line, f"{path}: line {n}") for n, line in enumerate(whole.splitlines(), start=1)]
        for record in records:
            self.check_own(path, record.pop("run", None))
        return records


def _versions() -> dict[str, str]:
    return {name: version(name) for name in _VERSIONS} | {"python": platform.python_version()}


def _line(record: dict[str, Any]) -> str:
    """Return a line of ``metrics.jsonl``, with a checksum that tells a changed byte."""
    text = json.dumps(record, allow_nan=False)
    return json.dumps(record | {"crc32": zlib.crc32(text.encode())}, allow_nan=False) + "\n"


def _record(line: str, where: str) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(line)
        wanted = record.pop("crc32", None)
    except (json.JSONDecodeError, AttributeError):
        raise InputError(f"{where}: not a record of an epoch; the file is damaged") from None
    if wanted != zlib.crc32(json.dumps(record, allow_nan=False).encode()):
        raise InputError(f"{where}: was changed after it was written, or is damaged")
    return record
