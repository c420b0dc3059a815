"""How labels were annotated, as estimated by a run: class frequencies and propensities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tertium.errors import InputError, did_you_mean
from tertium.files import read_sealed, write_sealed
from tertium.runs import RunFolder

Floats = npt.NDArray[np.float64]
_FIGURES = ("rate", "low", "high", "present", "absent")
_SETTLED = 0.3  # how much present labels may have been sought for known ones still to be a sample


@dataclass(frozen=True, eq=False)
class Annotation:
    """For each class how frequent it is, and how likely its labels were to be annotated.

    >>> both = Annotation(("cat", "dog"), *np.array([[0.1, 0.2], [0, 0], [1, 1], [0.5, 0.6], [0, 0.1]]))
    >>> both.for_classes(["dog"]).present
    array([0.6])
    """

    classes: tuple[str, ...]
    rate: Floats  # [C] the share of images that show the class, …
    low: Floats  # [C] … and its 95 % interval
    high: Floats  # [C]
    present: Floats  # [C] e⁺: the probability that a present label is known
    absent: Floats  # [C] e⁻: the probability that an absent label is known

    @property
    def sought(self) -> float:
        """How much likelier present labels are to be known: 0 as likely as absent ones, 1 they alone.

        >>> both = Annotation(("cat", "dog"), *np.array([[0.5, 0.5], [0, 0], [1, 1], [0.4, 0.4], [0.2, 0]]))
        >>> both.sought
        0.75
        """
        known = (self.rate * self.present).sum() / max(self.rate.sum(), 1e-12)
        dismissed = ((1 - self.rate) * self.absent).sum() / max((1 - self.rate).sum(), 1e-12)
        return float(1 - min(dismissed / max(known, 1e-12), 1.0))

    @property
    def settled(self) -> bool:
        """Whether known labels tell what is unknown: present and absent ones were noted about as often.

        Else annotators may have chosen what they noted, and labels do not tell how.
        """
        return self.sought < _SETTLED

    @classmethod
    def of_run(cls, folder: str | Path) -> Annotation | None:
        """Read what a run has estimated; None if its method does not model annotation."""
        path = RunFolder(Path(folder)).annotation_file
        return cls.load(path) if path.is_file() else None

    @classmethod
    def load(cls, path: str | Path) -> Annotation:
        """Read a file that `save` or a run wrote."""
        found = read_sealed(path)
        RunFolder(Path(path).parent).check_own(Path(path), found.get("run"))
        if not isinstance(found.get("classes"), list):
            raise InputError(f'{path}: there is no list "classes" in it')
        classes = tuple(map(str, found["classes"]))
        return cls(classes, *(_column(path, found, name, len(classes)) for name in _FIGURES))

    def save(self, path: str | Path) -> None:
        """Write JSON."""
        figures = {name: getattr(self, name).tolist() for name in _FIGURES}
        run = RunFolder(Path(path).parent).id()
        write_sealed(path, {"run": run, "classes": list(self.classes), **figures})

    def for_classes(self, classes: Sequence[str]) -> Annotation:
        """Return these classes in this order; one that is not known here is an `InputError`."""
        place = {name: number for number, name in enumerate(self.classes)}
        for name in classes:
            if name not in place:
                hint = did_you_mean(name, self.classes)
                raise InputError(f'nothing is known of how "{name}" was annotated; {hint}')
        order = np.array([place[name] for name in classes], dtype=np.int64)
        return Annotation(tuple(classes), *(getattr(self, name)[order] for name in _FIGURES))


def _column(path: str | Path, found: dict[str, object], name: str, size: int) -> Floats:
    """Return one figure of each class, after checking that all are there and are shares."""
    values = found.get(name)
    if not isinstance(values, list) or len(values) != size:
        raise InputError(f'{path}: "{name}" must be a list of {size} numbers, one for each class')
    try:
        column = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f'{path}: "{name}" holds something that is not a number') from None
    if not ((column >= 0) & (column <= 1)).all():  # also where it is NaN
        wrong = values[int(np.argmin((column >= 0) & (column <= 1)))]
        raise InputError(f'{path}: "{name}" holds {wrong}, which is not a share from 0 to 1')
    return column
