"""Checkpoints: folders that hold all that a training run needs to continue as if it had not been stopped.

A checkpoint appears under its name only when every byte of it is on disk. The last two are kept; one that is
damaged is recognised by its checksums, and the one before is used.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from tertium.errors import InputError
from tertium.files import checksum, read_sealed, write_sealed
from tertium.methods.state import SampleState
from tertium.processes import barrier, from_first, rank, world

_KEPT = 2
_ABOUT, _SHARED = "checkpoint.json", "training.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files are all as they were written."""

    folder: Path
    figures: dict[str, Any]

    def shared(self) -> dict[str, Tensor]:
        """Return the tensors that are the same in all processes."""
        return dict(load_file(self.folder / _SHARED))

    def own(self) -> dict[str, Tensor]:
        """Return this process's tensors; none if there were other processes then."""
        path = self.folder / _own_name()
        return dict(load_file(path)) if path.is_file() else {}


class Checkpoints:
    """The checkpoints of one run, below a folder that all processes see."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(
        self,
        figures: dict[str, Any],
        shared: dict[str, Tensor],
        own: dict[str, Tensor],
        state: SampleState,
    ) -> None:
        """Write one checkpoint; every process calls this at the same step."""
        number = from_first(1 + max((int(path.name) for path in self._there()), default=0))
        temporary, place = self.folder / f".{number:06d}", self.folder / f"{number:06d}"
        try:
            if rank() == 0:
                shutil.rmtree(temporary, ignore_errors=True)
                temporary.mkdir(parents=True)
            barrier()
            state.save(temporary)
            _save_tensors(own, temporary / _own_name())
            barrier()
            if rank() == 0:
                _save_tensors(shared, temporary / _SHARED)
                _seal(temporary, figures)
                temporary.rename(place)
                _sync(self.folder)
                for old in self._there()[:-_KEPT]:
                    shutil.rmtree(old)
            barrier()
        except (OSError, InputError) as error:  # tables are written by `replacing`, which says it in words
            shutil.rmtree(temporary, ignore_errors=True)
            reason = getattr(error, "strerror", None) or error
            raise InputError(
                f"{place}: the checkpoint could not be written ({reason}); those before it are untouched: "
                "mend that and go on with --resume"
            ) from None

    def latest(self, note: Callable[[str], None]) -> Checkpoint | None:
        """Return the last checkpoint that is whole; ``note`` is told of damaged ones."""
        name = None
        if rank() == 0:
            for folder in reversed(self._there()):
                reason = _damage(folder)
                if reason is None:
                    name = folder.name
                    break
                note(f"{folder}: damaged ({reason}); the checkpoint before it is used, if there is one")
        name = from_first(name)
        if name is None:
            return None
        folder = self.folder / name
        return Checkpoint(folder, read_sealed(folder / _ABOUT)["figures"])

    def clear(self) -> None:
        """Remove all: the run has ended."""
        barrier()
        if rank() == 0:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _there(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return sorted(path for path in self.folder.iterdir() if path.is_dir() and path.name.isdigit())


def _own_name() -> str:
    return f"process-{rank()}-of-{world()}.safetensors"


def _save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    try:
        save_file({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, path)
    except SafetensorError as error:  # a full disk is told this way
        raise OSError(str(error)) from None
    _sync(path)


def _seal(folder: Path, figures: dict[str, Any]) -> None:
    """Write what the checkpoint is, with the size and checksum of each file, as its last file."""
    files = {
        path.name: {"bytes": path.stat().st_size, "sha256": checksum(path)}
        for path in sorted(folder.iterdir())
    }
    write_sealed(folder / _ABOUT, {"figures": figures, "files": files, "torch": torch.__version__})
    _sync(folder)


def _damage(folder: Path) -> str | None:
    """Say what is wrong with a checkpoint; None if nothing is."""
    try:
        about = read_sealed(folder / _ABOUT)
        for name, wanted in about["files"].items():
            path = folder / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != wanted["bytes"]:
                return f"{name} has {path.stat().st_size:,} bytes, not {wanted['bytes']:,}"
            if checksum(path) != wanted["sha256"]:
                return f"{name} was changed"
    except (InputError, KeyError, TypeError, AttributeError, OSError) as error:
        return str(error)
    return None


def _sync(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
