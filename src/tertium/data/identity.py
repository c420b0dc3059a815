"""Which inputs are the same: copies of an image under other names, images that a model was trained on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tertium.data.inputs import Inputs
from tertium.data.likeness import Taught
from tertium.data.pictures import ahead
from tertium.errors import InputError
from tertium.files import replacing
from tertium.progress import Progress
from tertium.runs import RunFolder
from tertium.threads import cores

Hashes = npt.NDArray[np.uint64]
_BLOCK = 4096  # rows at a time


def contents(inputs: Inputs, progress: Progress | None = None) -> Hashes:
    """Return a number [N] for each input; inputs of the same content have the same.

    It is half of the SHA-256 of an image file or of pixels, and a hash of a row of features.

    >>> from tertium.data.inputs import open_inputs
    >>> first, second, third = contents(open_inputs(features=np.array([[1.0, 2], [3, 4], [1, 2]])))
    >>> bool(first == third), bool(first == second)
    (True, False)
    """
    if inputs.features is not None:
        return _row_hashes(inputs.features)
    assert inputs.pictures is not None
    progress = progress or Progress()
    progress.start("looking for copies", len(inputs), "images")
    found = np.empty(len(inputs), dtype=np.uint64)
    for row, digest in ahead(inputs.pictures.checksum, inputs.pictures.stored().tolist(), cores()):
        found[row] = int.from_bytes(digest[:8], "little")
        progress.advance()
    return found


def _row_hashes(features: npt.NDArray[Any]) -> Hashes:
    width = -(-features.shape[1] * features.itemsize // 8)  # in words of eight bytes
    factors = np.random.default_rng(0).integers(0, 2**64, size=width, dtype=np.uint64) | np.uint64(1)
    found = np.empty(len(features), dtype=np.uint64)
    for start in range(0, len(features), _BLOCK):
        rows = np.ascontiguousarray(features[start : start + _BLOCK]).view(np.uint8)
        words = np.zeros((len(rows), 8 * width), dtype=np.uint8)
        words[:, : rows.shape[1]] = rows
        mixed = words.view(np.uint64) * factors  # modulo 2⁶⁴
        mixed ^= mixed >> np.uint64(29)
        found[start : start + len(rows)] = mixed.sum(axis=1, dtype=np.uint64)
    return found


def save_contents(path: Path, training: Hashes, validation: Hashes, taught: Taught | None = None) -> None:
    """Keep which inputs a run has seen; the archive's checksum tells a changed byte."""
    seen = np.unique(np.concatenate([training, validation]))
    with replacing(path) as temporary, open(temporary, "wb") as sink:
        run = RunFolder(path.parent).id() or ""
        kept: dict[str, Any] = {"contents": seen, "training": np.unique(training), "run": run}
        if taught is not None:
            kept |= {"names": np.array(taught.names, dtype=np.str_), "looks": taught.looks}
        np.savez_compressed(sink, **kept)


def load_contents(path: Path, kind: Literal["contents", "training"] = "contents") -> Hashes | None:
    """Read which inputs a run has seen, or has trained on; None where an earlier version has kept nothing.

    Versions that did not tell the two apart have kept all that was seen.
    """
    found = _load(path, (kind,))
    return None if found is None else found.get(kind, found["contents"])


def load_taught(path: Path) -> Taught | None:
    """Read how the training images of a run look; None if it had none, or if an earlier version made it."""
    found = _load(path, ("names", "looks")) or {}
    return Taught(tuple(found["names"].tolist()), found["looks"]) if "looks" in found else None


def _load(path: Path, wanted: Sequence[str]) -> dict[str, npt.NDArray[Any]] | None:
    """Read some of what `save_contents` wrote, as far as it is there."""
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as found:
            kept = {"contents": found["contents"]} | {name: found[name] for name in wanted if name in found}
            run = str(found["run"]) or None if "run" in found else None
    except Exception:  # a damaged archive raises many kinds
        raise InputError(f"{path}: was changed after it was written, or is damaged") from None
    RunFolder(path.parent).check_own(path, run)
    return kept
