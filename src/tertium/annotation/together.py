"""How labels go together: what the known labels of an image say about the others.

A few factors stand behind all labels of an image. The image shows them more or less, by a linear map of its
features; its known labels show them too; and each label goes by a weighted sum of them. So classes learn from
one another what to look for, and a known label speaks for the others of its image. One small linear system
for each image says how strong its factors are.

Labels are taken as numbers with noise, as least squares do, so that all steps have closed forms: first the
factors of each image, given the weights; then the weights of each class and the map of the features, given
the factors; and again, a few times (EM). A factor that explains little is drawn towards nothing. The map that
judges an image is fitted to other images (`folds_of`), so its labels are never counted twice. That nobody
annotated a label is evidence too where present ones were sought out.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from tertium.annotation.calibration import calibrate, posterior
from tertium.annotation.record import Annotation
from tertium.errors import InputError
from tertium.files import checksum, read_sealed, replacing, write_sealed
from tertium.labels import Labels
from tertium.runs import RunFolder

Floats = npt.NDArray[np.float64]
Block = npt.NDArray[np.float32]
Signs = npt.NDArray[np.int8]
Whole = npt.NDArray[np.int64]
Read = Callable[[Whole], Block]  # standardised features [B, D] of rows

RANK = 32  # factors, at most
FOLDS = 3
_ROUNDS = 6  # of fitting factors, weights and map in turn
_RIDGE = 2.0  # of the mean variance of a feature, for as many images as features; less for more images
_ENOUGH, _MORE = 4000, 8  # images that are read: so many, or so many for each class if that is more
_HELD = 2**24  # numbers of features that are kept in memory
_WORK = 2e11  # products of labels and pairs of factors in a round, at most: with more, fewer images are read
_IMAGES, _BLOCK = 4096, 2**20  # images and labels at a time, at most
_CURVES = 2**20  # labels by which scores become probabilities
_EVEN = 0.5  # of the variance of known positives in an image, below which they were counted out
_HIDDEN = 0.25  # of the factors, at the start, that features do not show
_PAIRED = 2048  # classes whose labels are compared in pairs for these, at most
_FEW = 30.0  # pairs of labels, below which agreement is taken for chance
_SURE = 1e-3  # a score stands for a probability that stays so far from 0 and 1
_NOISE = 0.5  # of a label's variance that factors leave, at least
_LEAST = 3.0  # images that a class's own height counts against
LITTLE = 0.03  # of the variance of labels: if others explain less of it (`agreement`), `find` finds nothing
_SHOWN = 5.0  # known present labels of a class, on average, below which there is nothing to learn from
_FEWER = 2**16  # labels by which scores are calibrated before that is looked at


def folds_of(images: pa.Array) -> npt.NDArray[np.int8]:
    """Return the fold of each image, by its name: the same whatever other images there are.

    >>> folds_of(pa.array(["a.jpg", "b.jpg", "c.jpg", "d.jpg"])).tolist()
    [2, 1, 2, 2]
    """
    names = images.to_pylist()
    return np.fromiter((zlib.crc32(name.encode()) % FOLDS for name in names), dtype=np.int8, count=len(names))


class Pair(NamedTuple):
    """Two classes, and how much their labels go together, or exclude each other."""

    first: str
    second: str
    correlation: float


class Among(NamedTuple):
    """What some unknown labels of an image say about one another, in their standard deviations."""

    covariance: Floats  # [K, K] of what factors explain
    noise: Floats  # [K] the variance of the rest
    expected: Floats  # [K]
    ends: Floats  # [2, K] the values of absent and present
    slope: Floats  # [K] by which a change moves the logit

    def moved(self, said: npt.NDArray[np.int8]) -> Floats:
        """Return by how much answers [K], ±1 or 0 for none, move the logits of all [K]."""
        known = np.flatnonzero(said)
        gap = self.ends[(said[known] > 0).astype(int), known] - self.expected[known]
        own = self.covariance[np.ix_(known, known)] + np.diag(self.noise[known])
        return np.asarray(self.slope * (self.covariance[:, known] @ np.linalg.solve(own, gap)))

    def taken(self, said: npt.NDArray[np.int8], doubt: Floats) -> Floats:
        """Return how much of each label's variance an answer takes away on average: [K asked, K].

        ``doubt`` [K] are the variances given what was said; an answer takes all of its own label's.
        """
        known = np.flatnonzero(said)
        told = self.covariance[:, known]
        own = told[known] + np.diag(self.noise[known])
        left = self.covariance - told @ np.linalg.solve(own, told.T)
        unit = (self.ends[1] - self.ends[0]) / (np.diag(left) + self.noise)
        found = (doubt * self.slope * left * unit[:, None]) ** 2 * doubt[:, None]
        np.fill_diagonal(found, doubt)
        return np.asarray(np.minimum(found, doubt))


@dataclass(frozen=True, eq=False)
class Together:
    """Factors behind the labels."""

    classes: tuple[str, ...]
    weights: Block  # [C, R] of the factors in each label, as a share of its standard deviation
    height: Block  # [C] of each label, likewise
    noise: Block  # [C] the variance that factors leave of each label
    rate: Floats  # [C] how frequent each class is
    present: Floats  # [C] e⁺: the probability that a present label is known
    absent: Floats  # [C] e⁻: the probability that an absent label is known
    curve: Floats  # [2, C] offset and slope of the logits of the scores
    maps: Block  # [F, D, R] from standardised features to factors, each fitted to the other folds

    @cached_property
    def _label(self) -> _Label:
        return _Label(self.rate, self.present, self.absent)

    @cached_property
    def _pairs(self) -> Block:
        return _outer(self.weights)

    @property
    def units(self) -> Block:
        """The maps as more units of a linear head [F · R, D]."""
        return np.asarray(self.maps.transpose(0, 2, 1).reshape(-1, self.maps.shape[1]))

    def shown(self, units: Block, folds: npt.NDArray[np.int8]) -> Block:
        """Return the factors [B, R] that images show, from what the `units` say [B, F · R]."""
        rank = self.weights.shape[1]
        return units.reshape(len(units), FOLDS, rank)[np.arange(len(units)), folds]

    def given_others(self, shown: Block, labels: Signs) -> Block:
        """Return the logits [B, C] of all labels given the factors shown and the *other* known labels.

        A label never speaks for itself.
        """
        fit = shown @ self.weights.T
        gap, share = self._label.told(fit + self.height, labels)
        weight, pull = share / self.noise, (gap + share * fit) / self.noise
        factors, covariance = _solve(shown, weight, pull, self.weights, self._pairs)
        centre = factors @ self.weights.T
        spread = _product(covariance.reshape(len(labels), -1), self._pairs.T)
        # Without the label's own contribution, by the formula for a change of rank one.
        others = (centre - pull * spread) / np.maximum(1 - weight * spread, 1e-3)
        return np.asarray(self.curve[0] + self.curve[1] * others, dtype=np.float32)

    def among(self, shown: Block, labels: Signs, columns: Whole) -> Among:
        """Return what some labels [K] of one image, all of them unknown, say about one another."""
        fit = shown[None] @ self.weights.T
        gap, share = self._label.told(fit + self.height, labels[None])
        weight, pull = share / self.noise, (gap + share * fit) / self.noise
        factors, covariance = _solve(shown[None], weight, pull, self.weights, self._pairs)
        mine, about = self.weights[columns], self._label
        ends = [(value - about.centre[columns]) / about.deviation[columns] for value in (0, 1)]
        return Among(
            (mine @ covariance[0] @ mine.T).astype(np.float64),
            self.noise[columns].astype(np.float64),
            (mine @ factors[0] + self.height[columns]).astype(np.float64),
            np.stack(ends).astype(np.float64),
            self.curve[1, columns],
        )

    @cached_property
    def _units(self) -> Block:
        """The weights of labels with a variance of one, their noise included."""
        return np.asarray(self.weights / np.sqrt((self.weights**2).sum(axis=1) + self.noise)[:, None])

    def correlations(self, columns: Whole) -> Floats:
        """Return how much some classes go together [K, K]; 1 on the diagonal."""
        found = (self._units[columns] @ self._units[columns].T).astype(np.float64)
        np.fill_diagonal(found, 1.0)
        return found

    def strongest(self, most: int = 100) -> list[Pair]:
        """Return the pairs of classes that go together, or exclude each other, most; the strongest first."""
        part = self._units
        found: list[tuple[float, int, int]] = []
        for row in range(len(part)):
            with_later = part[row + 1 :] @ part[row]
            best = np.argsort(-np.abs(with_later), kind="stable")[:most]
            found += [(float(with_later[place]), row, row + 1 + int(place)) for place in best]
            if len(found) > 100 * most:
                found = sorted(found, key=lambda pair: -abs(pair[0]))[:most]
        found = sorted(found, key=lambda pair: -abs(pair[0]))[:most]
        return [Pair(self.classes[a], self.classes[b], value) for value, a, b in found]

    # ---- keeping it --------------------------------------------------------------------------------------

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """Return all numbers by name."""
        return {name: np.ascontiguousarray(getattr(self, name)) for name in _NUMBERS}

    @classmethod
    def from_tensors(cls, classes: Sequence[str], found: dict[str, npt.NDArray[Any]]) -> Together:
        """Take what `tensors` gave."""
        together = cls(tuple(classes), **{name: found[name] for name in _NUMBERS})
        count, rank = together.weights.shape
        shapes = [together.curve.shape, together.maps.shape[::2]]
        shapes += [getattr(together, name).shape for name in _NUMBERS[1:6]]
        if count != len(classes) or shapes != [(2, count), (FOLDS, rank)] + 5 * [(count,)]:
            raise ValueError("the numbers are of other classes")
        if not all(np.isfinite(found[name]).all() for name in _NUMBERS):
            raise ValueError("it holds a value that is not a finite number")
        return together

    def save(self, folder: RunFolder) -> None:
        """Write the numbers as safetensors, and JSON with their checksum, the classes and what stands out."""
        with replacing(folder.factors_file) as temporary:
            save_file(self.tensors(), temporary)
        about = {"numbers": checksum(folder.factors_file), "classes": list(self.classes)}
        write_sealed(folder.together_file, about | {"strongest": [p._asdict() for p in self.strongest()]})

    @classmethod
    def of_run(cls, run: str | Path) -> Together | None:
        """Read what a run found; None if nobody looked, or there was nothing to learn it from."""
        folder = RunFolder(Path(run))
        if not folder.together_file.is_file():
            return None
        about = read_sealed(folder.together_file)
        path = folder.factors_file
        if not path.is_file() or about.get("numbers") != checksum(path):
            raise InputError(f"{path}: is missing, was changed after it was written, or is damaged")
        try:
            return cls.from_tensors(about["classes"], load_file(path))
        except (KeyError, TypeError, ValueError, SafetensorError) as error:
            raise InputError(f"{path}: is damaged ({error})") from None

    # ---- what is open ------------------------------------------------------------------------------------

    @property
    def deviation(self) -> Block:
        """The standard deviation of each class's labels [C]."""
        return self._label.deviation

    def covariance(self, shown: Block, labels: Signs) -> Block:
        """Return the covariance [B, R, R] of images' factors given those shown and the known labels."""
        _, share = self._label.told(shown @ self.weights.T + self.height, labels)
        rank = self.weights.shape[1]
        precision = self.summed(share / self.noise) + np.eye(rank, dtype=np.float32)
        return np.asarray(np.linalg.inv(precision))

    def summed(self, counts: Block) -> Block:
        """Return the sum of all classes' weights times themselves [B, R, R], each counted so often [B, C]."""
        rank = self.weights.shape[1]
        if len(counts) <= rank:  # for a few images, all pairs of factors of all classes are too much to read
            return np.asarray((counts[:, :, None] * self.weights).swapaxes(1, 2) @ self.weights)
        return np.asarray((counts @ self._pairs).reshape(-1, rank, rank))

    def squared(self, matrices: Block) -> Block:
        """Return the quadratic form of each class's weights [B, C] in matrices [B, R, R]."""
        if len(matrices) <= self.weights.shape[1]:
            return np.asarray(((self.weights @ matrices) * self.weights).sum(axis=2))
        return np.asarray(matrices.reshape(len(matrices), -1) @ self._pairs.T)


_NUMBERS = ("weights", "height", "noise", "rate", "present", "absent", "curve", "maps")


# ---- finding it --------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """What was found, and a linear head in which classes have learned from one another."""

    together: Together
    head: Block  # [C, D]
    covariance: Block  # [D, D] of the features


def agreement(scores: Block, labels: Labels, annotation: Annotation) -> float:
    """Return which share of the labels' variance the others of their image may explain, at most.

    ``scores`` [N, C] are of models that have not seen their image. Where two labels of the same image are off
    in the same direction more often than by chance, one speaks for the other. This takes one product of the
    labels with themselves, where `find` takes many: it tells early that there is nothing to find.
    """
    columns = _spread_over(len(labels.classes), _PAIRED)
    rows, few = (_spread_over(len(labels), most // len(columns)) for most in (_CURVES, _FEWER))
    known = annotation.present[columns], annotation.absent[columns]
    about = _Label(annotation.rate[columns], *known)
    curve = calibrate(scores[np.ix_(few, columns)], labels.dense(few)[:, columns], *known)
    likely = curve.calibrated(scores[np.ix_(rows, columns)])
    fit = ((likely - about.centre) / about.deviation).astype(np.float32)
    gap, share = about.told(fit, labels.dense(rows)[:, columns])
    told = np.maximum(share.sum(axis=0), 1e-6)
    gap -= share * (gap.sum(axis=0) / told)
    squares = gap**2
    own = np.maximum(squares.sum(axis=0) / told, 1e-6)  # the variance that scores leave
    pairs = _product(share.T, share) + 1
    unit = pairs * np.sqrt(own[:, None] * own)
    together, chance = (_product(gap.T, gap) / unit) ** 2, _product(squares.T, squares) / unit**2
    weight = about.deviation[:, None] ** 2 * (told / len(rows))  # of what one label [row] learns from another
    np.fill_diagonal(weight, 0.0)
    weight = (weight + weight.T) / (2 * (about.deviation**2).sum())
    # Labels that are hardly ever known together show nothing. Each pair stands there twice.
    error = 2 * np.sqrt(((weight * (chance + pairs**-2.0)) ** 2).sum())
    return float((weight * (together - chance)).sum() + 2 * error)


def _spread_over(count: int, most: int) -> Whole:
    """Return so many places, at most, evenly spread."""
    return np.unique(np.linspace(0, count - 1, max(1, min(count, most))).round().astype(np.int64))


def find(
    read: Read, labels: Labels, annotation: Annotation, rows: Whole, unasked: Labels | None = None
) -> Found | None:
    """Find out how labels go together, by these rows; None where labels cannot tell.

    Answers of people are labels like others here. But how many labels of an image are known shows how it was
    annotated only as long as nobody was asked: ``unasked`` are the labels without answers.
    """
    classes = len(labels.classes)
    rank = min(RANK, classes - 1)
    if rank < 1 or len(rows) < FOLDS or labels.class_counts[0].mean() < _SHOWN:
        return None
    if _counted_out(labels if unasked is None else unasked, annotation):
        return None
    most = max(FOLDS, min(int(_WORK / (classes * RANK**2)), max(_ENOUGH, _MORE * classes)))
    rows = rows[:: -(-len(rows) // most)]
    fit = _Fit(read, labels, rows, _Label(annotation.rate, annotation.present, annotation.absent), rank)
    for _ in range(_ROUNDS):
        fit.round()
    return Found(fit.together(labels.classes), fit.head(), fit.covariance)


def _counted_out(labels: Labels, annotation: Annotation) -> bool:
    """Return whether annotators noted so many present labels of each image, for example one.

    Then one that is noted excludes the others from being noted, which says nothing about the labels
    themselves: how many are known varies far less than if each were noted by chance.
    """
    seen = annotation.rate * annotation.present
    return float(labels.image_counts[0].var()) < _EVEN * float((seen * (1 - seen)).sum())


@dataclass(frozen=True, eq=False)
class _Label:
    """What a label tells: how frequent its class is, and how often its labels are known; each [C]."""

    rate: Floats
    present: Floats
    absent: Floats

    @cached_property
    def at_random(self) -> bool:
        """Whether unknown labels carry no information."""
        return bool(np.abs(self.present - self.absent).max() < 1e-6)

    @cached_property
    def centre(self) -> Block:
        return np.clip(self.rate, _SURE, 1 - _SURE).astype(np.float32)

    @cached_property
    def deviation(self) -> Block:
        """The standard deviation of the labels."""
        return np.asarray(np.sqrt(self.centre * (1 - self.centre)))

    def told(self, fit: Block, labels: Signs) -> tuple[Block, Block]:
        """Return for each label [B, C] what was observed less what was expected, and how much that tells.

        Both in standard deviations. An unknown label tells the share of the variance that it takes away.
        """
        known = labels != 0
        gap = (labels > 0).astype(np.float32) - self.centre - self.deviation * fit
        if self.at_random:
            return gap / self.deviation * known, known.astype(np.float32)
        p = np.clip(self.centre + self.deviation * fit, _SURE, 1 - _SURE)
        q = posterior(p, self.present, self.absent)
        share = np.where(known, 1.0, np.clip(1 - q * (1 - q) / (p * (1 - p)), 0, 1))
        return (np.where(known, gap, q - p) / self.deviation).astype(np.float32), share.astype(np.float32)


class _Fit:
    """Factors of images, weights of classes and maps of features, fitted in turn."""

    def __init__(self, read: Read, labels: Labels, rows: Whole, label: _Label, rank: int) -> None:
        self.read, self.labels, self.rows, self.label, self.rank = read, labels, rows, label, rank
        if len(rows) * read(rows[:1]).shape[1] <= _HELD:  # then they are read once, not in each round
            held = read(rows)
            self.read = lambda some: held[np.searchsorted(rows, some)]
        self.folds = folds_of(labels.images.take(pa.array(rows)))
        classes = len(labels.classes)
        self.height, self.noise = (np.full(classes, value, dtype=np.float32) for value in (0, 1))
        self._start()

    def blocks(self) -> Iterator[tuple[int, Whole]]:
        """Yield places among the rows, block by block, each of one fold."""
        size = max(1, min(_IMAGES, _BLOCK // len(self.labels.classes)))
        for fold in range(FOLDS):
            mine = np.flatnonzero(self.folds == fold)
            for start in range(0, len(mine), size):
                yield fold, mine[start : start + size]

    def _start(self) -> None:
        """Begin with directions that least squares find in the features, and some that labels have left."""
        classes, width, count = len(self.labels.classes), self.read(self.rows[:1]).shape[1], len(self.rows)
        squares, products = np.zeros((FOLDS, width, width)), np.zeros((width, classes))
        told, left = np.zeros(classes), _Left(classes)
        for fold, places in self.blocks():
            inputs, known = self.read(self.rows[places]), self.labels.dense(self.rows[places])
            gap, share = self.label.told(np.zeros((len(places), classes), dtype=np.float32), known)
            squares[fold] += _product(inputs.T, inputs)
            products += _product(inputs.T, gap)
            told += share.sum(axis=0)
            left.add(gap, share)
        whole: Floats = squares.sum(axis=0)
        self.covariance = (whole / count).astype(np.float32)
        ridge = _RIDGE * width / count * max(float(np.trace(whole)) / width, 1e-6) * np.eye(width)
        self.roots = [_root(whole - part + ridge) for part in (*squares, np.zeros(()))]
        guess = _solved(self.roots[-1], products / np.maximum(told / count, 1e-3))  # [D, C]
        _, sizes, directions = np.linalg.svd(self.roots[-1].T @ guess, full_matrices=False)
        seen = min(self.rank - int(_HIDDEN * self.rank), len(sizes))
        strength = np.maximum(sizes[:seen], 1e-6) / np.sqrt(count)
        shown = directions[:seen].T * strength  # [C, R]
        self.weights = np.concatenate([shown, left.directions(shown, self.rank - seen)], axis=1)
        self.weights = self.weights.astype(np.float32)
        start = np.zeros((width, self.weights.shape[1]), dtype=np.float32)
        start[:, :seen] = guess @ directions[:seen].T / strength
        self.rank, self.firmness = start.shape[1], np.ones(start.shape[1])
        self.maps = np.repeat(start[None], FOLDS + 1, axis=0)
        self.factors = np.empty((count, self.rank), dtype=np.float32)
        for _, places in self.blocks():
            self.factors[places] = self.read(self.rows[places]) @ start

    def round(self) -> None:
        """Fit the factors of all images once more, then weights and maps."""
        classes, rank, count = len(self.labels.classes), self.rank, len(self.rows)
        pairs, sums = _outer(self.weights), _Sums(classes, rank, self.maps.shape[1])
        for fold, places in self.blocks():
            inputs, known = self.read(self.rows[places]), self.labels.dense(self.rows[places])
            shown = _product(inputs, self.maps[fold])
            _, weight, pull = self._told(self.factors[places], known)
            found, covariance = _solve(shown, weight, pull, self.weights, pairs)
            self.factors[places] = found
            gap, weight, pull = self._told(found, known)
            sums.add(fold, inputs, found, covariance, found - shown, gap, weight, pull)
        self._step(sums, count)

    def _told(self, factors: Block, known: Signs) -> tuple[Block, Block, Block]:
        fit = factors @ self.weights.T
        gap, share = self.label.told(fit + self.height, known)
        return gap, share / self.noise, (gap + share * fit) / self.noise

    def _step(self, sums: _Sums, count: int) -> None:
        rank = self.rank
        precision = sums.pairs.reshape(-1, rank, rank) + np.diag(self.firmness)
        weights = np.linalg.solve(precision, sums.pulls[:, :, None])[:, :, 0]
        self.height = self.height + (sums.gap / (sums.told * self.noise + _LEAST)).astype(np.float32)
        explained = ((weights @ (sums.factors / count)) * weights).sum(axis=1)
        self.noise = np.clip(1 - explained, _NOISE, 1).astype(np.float32)
        # What the image does not show of the factors has a variance of one, by choice of their unit.
        unit = np.linalg.cholesky(sums.left / count + 1e-6 * np.eye(rank))
        back = np.linalg.inv(unit).T
        totals = [sums.products.sum(axis=0) - part for part in (*sums.products, np.zeros(()))]
        self.maps = np.stack(
            [_solved(root, part @ back) for root, part in zip(self.roots, totals, strict=True)]
        )
        self.factors = (self.factors @ back).astype(np.float32)
        weights = weights @ unit
        spread = np.einsum("sr,cst,tr->r", unit, np.linalg.inv(precision), unit, optimize=True)
        self.firmness = len(weights) / ((weights**2).sum(axis=0) + spread + 1e-9)
        self.weights = weights.astype(np.float32)

    def head(self) -> Block:
        """Return the linear head [C, D] of all images."""
        return np.asarray((self.weights * self.label.deviation[:, None]) @ self.maps[-1].T)

    def together(self, classes: tuple[str, ...]) -> Together:
        """Return what was found, with curves from scores to probabilities by the likelihood of all labels."""
        about = self.label
        slope = 1 / (about.deviation * self.noise).astype(np.float64)
        offset = np.log(about.centre / (1 - about.centre)).astype(np.float64)
        numbers = (self.weights, self.height, self.noise, about.rate, about.present, about.absent)
        plain = Together(classes, *numbers, np.stack([offset, slope]), self.maps[:FOLDS])
        places = np.arange(0, len(self.rows), -(-len(self.rows) * len(classes) // _CURVES))
        inputs, folds = self.read(self.rows[places]), self.folds[places]
        known = self.labels.dense(self.rows[places])
        shown = plain.shown(inputs @ plain.units.T, folds)
        logits = np.clip(plain.given_others(shown, known), -16, 16).astype(np.float64)
        fit = calibrate(1 / (1 + np.exp(-logits)), known, about.present, about.absent)
        curve = np.stack([fit.scale * offset + fit.shift, fit.scale * slope])
        return Together(classes, *numbers, curve, self.maps[:FOLDS])


class _Left:
    """How labels of the same image agree beyond what is shown: a start for factors that features miss."""

    def __init__(self, classes: int) -> None:
        self.columns = _spread_over(classes, _PAIRED)
        self.classes, size = classes, len(self.columns)
        self.products, self.pairs = (np.zeros((size, size), dtype=np.float32) for _ in range(2))

    def add(self, gap: Block, share: Block) -> None:
        gap, share = gap[:, self.columns], share[:, self.columns]
        self.products += gap.T @ gap
        self.pairs += share.T @ share

    def directions(self, shown: Floats, count: int) -> Floats:
        """Return so many directions [C, R] of classes that agree most, each as strong as they do."""
        found = np.zeros((self.classes, count))
        mine = shown[self.columns]
        left = self.products / (self.pairs + _FEW) - mine @ mine.T
        np.fill_diagonal(left, 0.0)  # a label agrees with itself whatever is behind it
        values, vectors = np.linalg.eigh(left)
        kept = min(count, len(values))
        strength = np.sqrt(np.clip(values[len(values) - kept :], 0, None))
        found[self.columns, :kept] = vectors[:, len(values) - kept :] * strength
        return found


class _Sums:
    """Sums over images, by which weights and maps are fitted."""

    def __init__(self, classes: int, rank: int, width: int) -> None:
        self.pairs, self.pulls = np.zeros((classes, rank * rank)), np.zeros((classes, rank))
        self.gap, self.told = np.zeros(classes), np.zeros(classes)
        self.factors, self.left = np.zeros((rank, rank)), np.zeros((rank, rank))
        self.products = np.zeros((FOLDS, width, rank))

    def add(
        self,
        fold: int,
        inputs: Block,
        factors: Block,
        covariance: Block,
        left: Block,
        gap: Block,
        weight: Block,
        pull: Block,
    ) -> None:
        squares = _outer(factors) + covariance.reshape(len(factors), -1)
        self.pairs += _product(weight.T, squares)
        self.pulls += pull.T @ factors
        self.gap += gap.sum(axis=0)
        self.told += weight.sum(axis=0)
        self.factors += squares.sum(axis=0).reshape(self.factors.shape)
        self.left += left.T @ left + covariance.sum(axis=0)
        self.products[fold] += _product(inputs.T, factors)


def _solve(shown: Block, weight: Block, pull: Block, weights: Block, pairs: Block) -> tuple[Block, Block]:
    """Return the factors [B, R] given those shown and what labels tell, and their covariance [B, R, R]."""
    rank = weights.shape[1]
    precision = _product(weight, pairs).reshape(-1, rank, rank) + np.eye(rank, dtype=np.float32)
    covariance = _inverse(precision)
    return np.einsum("brs,bs->br", covariance, shown + pull @ weights), covariance


# Large products are torch's: it takes as many threads as it was told, and those that wait sleep. It also has
# routines for positive definite matrices, which take half the time of numpy's for any.


def _product(first: Block, second: Block) -> Block:
    """Return it in single precision, whatever the network is trained in."""
    import torch

    with torch.autocast("cpu", enabled=False):
        return np.asarray((torch.from_numpy(first) @ torch.from_numpy(second)).numpy())


def _root(matrix: npt.NDArray[Any]) -> Block:
    """Return the lower triangle L of L·Lᵀ, the matrix."""
    import torch

    return np.asarray(torch.linalg.cholesky(torch.from_numpy(matrix.astype(np.float32))).numpy())


def _solved(root: Block, right: npt.NDArray[Any]) -> Block:
    """Return the solution X of L·Lᵀ·X, which is ``right``."""
    import torch

    found = torch.cholesky_solve(torch.from_numpy(right.astype(np.float32)), torch.from_numpy(root))
    return np.asarray(found.numpy())


def _inverse(matrices: Block) -> Block:
    """Return the inverses of matrices [B, R, R]."""
    import torch

    return np.asarray(torch.cholesky_inverse(torch.linalg.cholesky(torch.from_numpy(matrices))).numpy())


def _outer(rows: Block) -> Block:
    """Return the outer product of each row with itself [B, R · R]."""
    return np.asarray((rows[:, :, None] * rows[:, None, :]).reshape(len(rows), -1))
