"""Who is asked what: questions image by image, each lent to one window at a time."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tertium.errors import InputError, did_you_mean
from tertium.files import checksum
from tertium.labels import Labels
from tertium.progress import Progress
from tertium.runs import RunFolder
from tertium.web.reviewing.answers import SAID, Answer, Answers, Cell, Question, Round, Said, Standing
from tertium.web.reviewing.results import (
    SIGN,
    agreed,
    answered_labels,
    contradictions,
    disputed,
    given_values,
)
from tertium.web.reviewing.summary import Summary

if TYPE_CHECKING:
    from tertium.data.inputs import Features, Images

LEASE = 180.0  # seconds for which an image that one window shows is not given to another
_CERTAIN = 0.01  # a label is no longer asked about if other answers bring its chance so near to 0 or 1
_EXAMPLES = 6  # images shown for a label, at most


class StaleError(InputError):
    """The page shows questions of another round."""


def find_round(
    answers: Answers,
    run: str | Path,
    labels: Labels,
    images: Images | None,
    features: Features | None,
    *,
    budget: int,
    per_image: int,
    progress: Progress | None = None,
) -> Round:
    """Return the questions to ask: those of last time if model, labels and budget are as then, else new ones.

    New questions leave out what was answered before.
    """
    model = RunFolder(Path(run)).model_file
    if not model.is_file():
        raise InputError(f"{run}: no trained model in it (there is no model.json)")
    about = [checksum(model), labels.fingerprint(), budget, per_image]
    key = hashlib.sha256(json.dumps(about).encode()).hexdigest()
    known = answers.round(key)
    if known is not None:
        return known
    from tertium.labelling.suggesting import suggest  # needs torch; going on with what was asked does not

    standing = Standing.of(answers)
    found = suggest(
        run,
        labels,
        images,
        features=features,
        answers=answered_labels(standing, labels) if agreed(standing) else None,
        settled=disputed(standing),
        budget=budget,
        per_image=per_image,
        progress=progress,
    )
    each = zip(found.images, found.labels, found.probability.tolist(), found.why, strict=True)
    return answers.add_round(key, [Question(*parts) for parts in each], found.notes, found.relations)


class Person(NamedTuple):
    """Who asks, and from which window."""

    who: str
    window: str


@dataclass(frozen=True)
class _Sheet:
    """An image, and the numbers of the questions about it."""

    image: str
    row: int
    numbers: tuple[int, ...]


class Desk:
    """Hands out questions and takes answers; may be called from several threads."""

    def __init__(self, answers: Answers, labels: Labels, round: Round, per_question: int = 1) -> None:
        """Ask each question until ``per_question`` people have answered it."""
        self.answers, self.labels, self.round, self.per_question = answers, labels, round, per_question
        self._lock = threading.RLock()
        self._standing = Standing.of(answers)
        # All that this round asks about is unknown to the label file, so older answers alone can differ.
        self._given = given_values(labels, self._standing.cells())
        self._sheets = _sheets(round.questions, labels)
        # What tells this round of these labels from another; browsers keep images by it.
        self.version = f"{round.id}-{labels.fingerprint()[:12]}"
        self.examples = lru_cache(maxsize=None)(self._examples)

    def question(self, number: int) -> Question:
        """Return a question of this round."""
        if not 0 <= number < len(self.round.questions):
            raise InputError(f"there is no question {number}; there are {len(self.round.questions):,}")
        return self.round.questions[number]

    def row(self, image: str) -> int:
        """Return the row of an image that is asked about."""
        return self._sheets[image].row

    # ---- what is asked -----------------------------------------------------------------------------------

    def next(self, person: Person, only: str | None = None) -> dict[str, Any]:
        """Return the next image for a window with its questions, those of one class if ``only`` is given."""
        with self._lock:
            self._refresh()
            sheets = {
                sheet.image: sheet
                for sheet in self._sheets.values()
                if any(
                    self._wanted(number, only) and self._open(number, person.who) for number in sheet.numbers
                )
            }
            image = self.answers.lease(person.window, sheets.keys(), LEASE)
            ahead = next((sheet.row for sheet in sheets.values() if sheet.image != image), None)
            shown = None if image is None else self._shown(sheets[image], person.who, only)
            return {"sheet": shown, "waiting": len(sheets) if image is None else 0, "ahead": ahead} | (
                self._progress(person.who)
            )

    def _wanted(self, number: int, only: str | None) -> bool:
        return only is None or self.round.questions[number].label == only

    def _open(self, number: int, who: str) -> bool:
        """Return whether to ask a person: too few know the answer, and this person was not asked yet.

        Nor is it asked what other answers about the image have made certain.
        """
        said = self._standing.said(_cell(self.round.questions[number]))
        return who not in said and _known(said) < self.per_question and not self._certain(number)

    def _certain(self, number: int) -> bool:
        """Return whether answers about the same image leave no doubt about a question."""
        question = self.round.questions[number]
        now = self._chances(question.image).get(number, question.probability)
        return now != question.probability and not _CERTAIN < now < 1 - _CERTAIN

    def _chances(self, image: str) -> dict[int, float]:
        """Return how probable the labels of an image are by now; empty where answers do not tell."""
        relation = self.round.relations.get(image)
        before, said = self._told(image)
        if relation is None or not any(said.values()):
            return {}
        numbers = {self.round.questions[number].label: number for number in self._sheets[image].numbers}
        return {numbers[label]: chance for label, chance in relation.chances(before, said).items()}

    def _told(self, image: str) -> tuple[dict[str, float], dict[str, int]]:
        """Return how probable the labels of an image were before anybody answered, and what is decided."""
        about = [self.round.questions[number] for number in self._sheets[image].numbers]
        said = {each.label: _decided(self._standing.said(_cell(each))) for each in about}
        return {each.label: each.probability for each in about}, said

    def _most_telling(self, image: str, who: str) -> int | None:
        """Return which question about an image a person should get next; None if answers do not tell."""
        relation = self.round.relations.get(image)
        before, said = self._told(image)
        if relation is None or not any(said.values()):
            return None
        still = {
            self.round.questions[number].label: number
            for number in self._sheets[image].numbers
            if self._open(number, who)
        }
        label = relation.next(before, said, still)
        return None if label is None else still[label]

    def _shown(self, sheet: _Sheet, who: str, only: str | None) -> dict[str, Any]:
        """Return what a window shows: questions that are open, and those that this person answered."""
        questions, chances = [], self._chances(sheet.image)
        for number in sheet.numbers:
            question = self.round.questions[number]
            said = self._standing.said(_cell(question)).get(who)
            if self._wanted(number, only) and (said is not None or self._open(number, who)):
                about = {"number": number, "label": question.label, "why": question.why, "said": said}
                examples = [{"row": row, "image": self._image(row)} for row in self.examples(question.label)]
                now = chances.get(number, question.probability)
                questions.append(about | {"probability": now, "examples": examples})
        following = self._most_telling(sheet.image, who)
        return {"image": sheet.image, "row": sheet.row, "questions": questions, "next": following}

    def _examples(self, label: str) -> tuple[int, ...]:
        """Return rows of images in which the label file says that the label is present, evenly spread."""
        places = np.flatnonzero(self.labels.entries == self.labels.column(label) + 1)
        chosen = places[np.linspace(0, max(len(places) - 1, 0), min(len(places), _EXAMPLES)).astype(np.int64)]
        return tuple((np.searchsorted(self.labels.offsets, chosen, side="right") - 1).tolist())

    def _image(self, row: int) -> str:
        return str(self.labels.images[row].as_py())

    def _progress(self, who: str) -> dict[str, Any]:
        """Return counts over this round, and how many open questions each class has for this person."""
        counts = dict.fromkeys(SAID, 0) | {"answered": 0, "total": len(self.round.questions)}
        classes: dict[str, int] = {}
        for number, question in enumerate(self.round.questions):
            said = self._standing.said(_cell(question))
            if who in said:
                counts[said[who]] += 1
            counts["answered"] += _known(said) >= self.per_question
            classes.setdefault(question.label, 0)
            classes[question.label] += self._open(number, who)
        found = contradictions(self._standing, self._given)
        among = sum(each.among_people for each in found)
        return {
            "round": self.round.id,
            "version": self.version,
            "counts": counts,
            "wanted": self.per_question,
            "undoable": self.answers.undoable(who=who, round=self.round.id),
            "classes": sorted(classes.items()),
            "contradictions": {"people": among, "labels": sum(each.given != 0 for each in found)},
        }

    # ---- what is answered --------------------------------------------------------------------------------

    def answer(
        self,
        person: Person,
        step: str,
        round: int,
        given: Sequence[tuple[int, Said]],
        heat: bool,
        seconds: float | None = None,
    ) -> dict[str, Any]:
        """Write answers that were given at once; when this returns they are on disk.

        The seconds that they took together are shared out evenly. A page that was open while the server began
        another round still answers what it shows.
        """
        with self._lock:
            rows = []
            for number, said in given:
                question = self.question(number) if round == self.round.id else self._earlier(round, number)
                examples = [self._image(row) for row in self.examples(question.label)]
                seen = {"heat": heat, "examples": examples, "why": question.why}
                rows.append(Answer(question, said, seen, None if seconds is None else seconds / len(given)))
            self.answers.add(rows, who=person.who, window=person.window, step=step, round=round)
            if rows:
                self.answers.seize(person.window, rows[0].question.image, LEASE)
            self._refresh()
            image = rows[0].question.image if rows and round == self.round.id else None
            moved = {} if image is None else self._chances(image)
            certain = [number for number in moved if self._certain(number)]
            following = None if image is None else self._most_telling(image, person.who)
            about = {"chances": moved, "certain": certain, "next": following}
            return about | self._progress(person.who)

    def undo(self, person: Person, step: str, round: int) -> dict[str, Any]:
        """Take back this person's last step; return its image to be shown again, if there was one."""
        if round != self.round.id:
            raise StaleError("the questions have changed since this page was loaded")
        with self._lock:
            cells = self.answers.undo(who=person.who, window=person.window, step=step, round=self.round.id)
            self._refresh()
            sheet = self._sheets.get(cells[0][0]) if cells else None
            shown = None
            if sheet is not None:
                self.answers.seize(person.window, sheet.image, LEASE)
                shown = self._shown(sheet, person.who, None)
            undone = [label for _, label in cells]
            return {"sheet": shown, "undone": undone} | self._progress(person.who)

    def results(self) -> dict[str, Any]:
        """Return what the page of results shows: agreement, what comes next, and where people differ."""
        with self._lock:
            self._refresh()
            found = contradictions(self._standing, given_values(self.labels, self._standing.cells()))
            rows = {image: sheet.row for image, sheet in self._sheets.items()}
            differing = [
                asdict(each) | {"decided": each.decided, "row": rows.get(each.image)}
                for each in found
                if each.among_people
            ]
            counts = self._progress("")["counts"]
            summary = Summary.of(self._standing, self.round)
        about = {"answered": counts["answered"], "total": counts["total"], "wanted": self.per_question}
        return summary.as_json() | about | {"version": self.version, "differing": differing}

    def check_class(self, name: str) -> str:
        """Return the name of a class that is asked about."""
        known = {question.label for question in self.round.questions}
        if name not in known:
            raise InputError(f'no question is about "{name}"; {did_you_mean(name, sorted(known))}')
        return name

    def _earlier(self, round: int, number: int) -> Question:
        question = self.answers.question(round, number)
        if question is None or question.label not in self.labels.classes:
            raise StaleError("the questions have changed since this page was loaded")
        return question

    def _refresh(self) -> None:
        self._standing.update(self.answers.after(self._standing.last))


def _known(said: Mapping[str, str]) -> int:
    """Return how many people know the answer; who skips does not."""
    return sum(word != "skip" for word in said.values())


def _decided(said: Mapping[str, str]) -> int:
    """Return what most people say: ±1, or 0 if as many say the one as the other."""
    return int(np.sign(sum(SIGN.get(word, 0) for word in said.values())))


def _cell(question: Question) -> Cell:
    return question.image, question.label


def _sheets(questions: Sequence[Question], labels: Labels) -> dict[str, _Sheet]:
    """Group questions by image, in the order in which images are first asked about."""
    numbers: dict[str, list[int]] = {}
    for number, question in enumerate(questions):
        numbers.setdefault(question.image, []).append(number)
    rows = labels.rows_of(list(numbers))
    return {
        image: _Sheet(image, int(row), tuple(own))
        for (image, own), row in zip(numbers.items(), rows, strict=True)
    }
