"""What people answered: an append-only log on disk, and the state it implies.

An answer is a row, and so is an undo. Every row is on disk (SQLite, WAL, synchronous=FULL) before the
call that wrote it returns, so a process that is killed loses no answer. Several processes and
people may write to one file.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tertium.errors import InputError
from tertium.labelling.collective import Relation

Said = Literal["present", "absent", "skip"]
SAID: tuple[Said, ...] = ("present", "absent", "skip")
Cell = tuple[str, str]  # image, label
_KIND = 0x54657274  # "Tert", in the header of the file
_WAIT = 20.0  # seconds for another process to finish writing
_SCHEMA = f"""
PRAGMA application_id = {_KIND};
CREATE TABLE rounds (
  id INTEGER PRIMARY KEY, time TEXT NOT NULL, key TEXT NOT NULL, notes TEXT NOT NULL
);
CREATE TABLE questions (
  round INTEGER NOT NULL REFERENCES rounds (id), number INTEGER NOT NULL,
  image TEXT NOT NULL, label TEXT NOT NULL, probability REAL NOT NULL, why TEXT NOT NULL,
  PRIMARY KEY (round, number)
) WITHOUT ROWID;
CREATE TABLE answers (
  id INTEGER PRIMARY KEY AUTOINCREMENT, time TEXT NOT NULL, who TEXT NOT NULL, window TEXT NOT NULL,
  step TEXT NOT NULL, round INTEGER NOT NULL REFERENCES rounds (id),
  image TEXT NOT NULL, label TEXT NOT NULL, probability REAL NOT NULL,
  answer TEXT NOT NULL CHECK (answer IN ('present', 'absent', 'skip', 'undo')),
  shown TEXT NOT NULL, undoes INTEGER REFERENCES answers (id),
  seconds REAL, CHECK ((answer = 'undo') = (undoes IS NOT NULL))
);
CREATE INDEX answers_by_step ON answers (step);
CREATE UNIQUE INDEX answers_undone_once ON answers (undoes) WHERE undoes IS NOT NULL;
CREATE TRIGGER answers_are_not_changed BEFORE UPDATE ON answers
  BEGIN SELECT raise(ABORT, 'answers are only added'); END;
CREATE TRIGGER answers_are_not_deleted BEFORE DELETE ON answers
  BEGIN SELECT raise(ABORT, 'answers are only added'); END;
CREATE TABLE leases (image TEXT PRIMARY KEY, window TEXT NOT NULL, until REAL NOT NULL) WITHOUT ROWID;
"""
_RELATIONS = """CREATE TABLE IF NOT EXISTS relations (
  round INTEGER NOT NULL REFERENCES rounds (id), image TEXT NOT NULL, relation TEXT NOT NULL,
  PRIMARY KEY (round, image)
) WITHOUT ROWID"""


class Question(NamedTuple):
    """Whether a label is present in an image."""

    image: str
    label: str
    probability: float
    why: str


@dataclass(frozen=True)
class Round:
    """Questions that were chosen together, the most telling first."""

    id: int
    questions: Sequence[Question]
    notes: Sequence[str]
    relations: Mapping[str, Relation] = field(default_factory=dict)  # of images with several questions


class Row(NamedTuple):
    """What the log says of one answer, or of one that is taken back."""

    id: int
    who: str
    window: str
    round: int
    image: str
    label: str
    answer: str
    undoes: int | None
    time: str
    seconds: float | None


class Answer(NamedTuple):
    """One answer to be written, and what was on the screen when it was given."""

    question: Question
    said: Said
    shown: Mapping[str, Any]
    seconds: float | None = None  # that the person took; None if it is not known


class Answers:
    """The file of answers. Calls from several threads wait for each other."""

    def __init__(self, path: str | Path, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """Open the file, or make an empty one."""
        self.path, self._now, self._lock = Path(path), now, threading.RLock()
        if not self.path.parent.is_dir():
            raise InputError(f"{path}: the folder {self.path.parent} does not exist")
        try:
            # The lock above lets one thread in at a time; transactions are begun by hand.
            self._db = sqlite3.connect(path, _WAIT, isolation_level=None, check_same_thread=False)
            self._prepare()
        except sqlite3.Error as error:
            raise InputError(f"{path}: answers cannot be kept in this file ({error})") from None

    @classmethod
    def existing(cls, path: str | Path) -> Answers:
        """Open a file that must be there."""
        if not Path(path).is_file():
            raise InputError(f"{path}: no such file of answers; `tertium review` writes it when it asks")
        return cls(path)

    def _prepare(self) -> None:
        self._db.execute("PRAGMA trusted_schema = OFF")
        (mode,) = self._db.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":  # some network drives: then a reader would stand in a writer's way
            raise sqlite3.OperationalError("the drive allows no write-ahead log")
        self._db.execute("PRAGMA synchronous = FULL")
        with self._writing():
            (kind,) = self._db.execute("PRAGMA application_id").fetchone()
            (tables,) = self._db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if kind != _KIND and tables:
                raise sqlite3.DatabaseError("it holds other tables")
            if not tables:
                for statement in _statements(_SCHEMA):
                    self._db.execute(statement)
            elif "seconds" not in [
                column for _, column, *_ in self._db.execute("PRAGMA table_info(answers)")
            ]:
                self._db.execute("ALTER TABLE answers ADD COLUMN seconds REAL")  # a file from before
            self._db.execute(_RELATIONS)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._lock:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:  # some errors, such as a full disk, have ended it already
                    self._db.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the file; what was written stays whether or not this is called."""
        with self._lock:
            self._db.close()

    # ---- questions ---------------------------------------------------------------------------------------

    def round(self, key: str) -> Round | None:
        """Return the last round of questions if it was asked for by this key."""
        with self._lock:
            last = self._db.execute("SELECT key FROM rounds ORDER BY id DESC LIMIT 1").fetchone()
            return None if last is None or last[0] != key else self.last_round()

    def last_round(self) -> Round | None:
        """Return the questions that were chosen last."""
        with self._lock:
            last = self._db.execute("SELECT id, notes FROM rounds ORDER BY id DESC LIMIT 1").fetchone()
            if last is None:
                return None
            found = self._db.execute(
                "SELECT image, label, probability, why FROM questions WHERE round = ? ORDER BY number",
                (last[0],),
            )
            questions = [Question(*row) for row in found]
            related = self._db.execute("SELECT image, relation FROM relations WHERE round = ?", (last[0],))
            relations = {image: Relation.from_json(text) for image, text in related}
            return Round(last[0], questions, json.loads(last[1]), relations)

    def question(self, round: int, number: int) -> Question | None:
        """Return a question of any round."""
        with self._lock:
            found = self._db.execute(
                "SELECT image, label, probability, why FROM questions WHERE round = ? AND number = ?",
                (round, number),
            ).fetchone()
            return None if found is None else Question(*found)

    def add_round(
        self,
        key: str,
        questions: Sequence[Question],
        notes: Sequence[str],
        relations: Mapping[str, Relation] | None = None,
    ) -> Round:
        """Keep the questions of a new round."""
        with self._writing():
            number = self._db.execute(
                "INSERT INTO rounds (time, key, notes) VALUES (?, ?, ?)",
                (self._time(), key, json.dumps(list(notes), ensure_ascii=False)),
            ).lastrowid
            self._db.executemany(
                "INSERT INTO questions VALUES (?, ?, ?, ?, ?, ?)",
                [(number, place, *question) for place, question in enumerate(questions)],
            )
            self._db.executemany(
                "INSERT INTO relations VALUES (?, ?, ?)",
                [(number, image, each.as_json()) for image, each in (relations or {}).items()],
            )
        assert number is not None
        return Round(number, list(questions), list(notes), relations or {})

    # ---- answers -----------------------------------------------------------------------------------------

    def add(self, answers: Sequence[Answer], *, who: str, window: str, step: str, round: int) -> None:
        """Write answers that were given at once; those of a step that is written already are left out.

        A browser that heard no reply sends the same step again.
        """
        with self._writing():
            if self._known(step):
                return
            for (image, label, probability, _), said, shown, seconds in answers:
                about = (image, label, probability, said, shown)
                self._insert(who, window, step, round, *about, seconds=seconds)

    def undo(self, *, who: str, window: str, step: str, round: int) -> list[Cell]:
        """Take back the last step of this person in a round; return what it was about.

        The person's own window comes first: with two open, each takes back its own answers.
        """
        with self._writing():
            if not self._known(step):
                for row in self._last_step(who, window, round):
                    self._insert(who, window, step, round, *row[1:], "undo", {}, undoes=row[0])
            found = self._db.execute("SELECT image, label FROM answers WHERE step = ? ORDER BY id", (step,))
            return [(image, label) for image, label in found]

    def undoable(self, *, who: str, round: int) -> bool:
        """Whether there is a step of this person to take back."""
        with self._lock:
            return bool(self._last_step(who, "", round))

    def _last_step(self, who: str, window: str, round: int) -> list[tuple[int, str, str, float]]:
        standing = (
            "who = :who AND round = :round AND answer <> 'undo' "
            "AND NOT EXISTS (SELECT 1 FROM answers AS back WHERE back.undoes = answers.id)"
        )
        return self._db.execute(
            f"SELECT id, image, label, probability FROM answers WHERE {standing} AND step = (SELECT step "
            f"FROM answers WHERE {standing} ORDER BY window = :window DESC, id DESC LIMIT 1) ORDER BY id",
            {"who": who, "window": window, "round": round},
        ).fetchall()

    def _known(self, step: str) -> bool:
        return (
            self._db.execute("SELECT 1 FROM answers WHERE step = ? LIMIT 1", (step,)).fetchone() is not None
        )

    def _insert(
        self,
        who: str,
        window: str,
        step: str,
        round: int,
        image: str,
        label: str,
        probability: float,
        answer: str,
        shown: Mapping[str, Any],
        *,
        undoes: int | None = None,
        seconds: float | None = None,
    ) -> None:
        seen = json.dumps(shown, ensure_ascii=False)
        row = (self._time(), who, window, step, round, image, label, probability, answer, seen, undoes)
        self._db.execute(
            "INSERT INTO answers (time, who, window, step, round, image, label, probability, answer, shown, "
            "undoes, seconds) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (*row, seconds),
        )

    def _time(self) -> str:
        return self._now().isoformat(timespec="milliseconds")

    def after(self, last: int) -> list[Row]:
        """Return the rows of the log behind number ``last``, those of other processes too."""
        with self._lock:
            found = self._db.execute(
                "SELECT id, who, window, round, image, label, answer, undoes, time, seconds FROM answers "
                "WHERE id > ? ORDER BY id",
                (last,),
            )
            return [Row(*row) for row in found]

    # ---- leases ------------------------------------------------------------------------------------------

    def lease(self, window: str, images: Collection[str], seconds: float) -> str | None:
        """Give a window the first of these images that no other window has; one that it has stays its own.

        A window has one image at a time, for so many seconds.
        """
        now = self._now().timestamp()
        latest = now + 2 * seconds  # what lasts longer was written before the clock was put back
        with self._writing():
            mine = self._db.execute("SELECT image FROM leases WHERE window = ?", (window,)).fetchone()
            self._db.execute(
                "DELETE FROM leases WHERE until <= ? OR until > ? OR window = ?", (now, latest, window)
            )
            taken = {image for (image,) in self._db.execute("SELECT image FROM leases")}
            free = (image for image in images if image not in taken)
            image = mine[0] if mine and mine[0] in images and mine[0] not in taken else next(free, None)
            if image is not None:
                self._db.execute("INSERT INTO leases VALUES (?, ?, ?)", (image, window, now + seconds))
        return image

    def seize(self, window: str, image: str, seconds: float) -> None:
        """Give a window an image whoever has it: it goes on, or back to what it took back."""
        until = self._now().timestamp() + seconds
        with self._writing():
            self._db.execute("DELETE FROM leases WHERE window = ?", (window,))
            self._db.execute("REPLACE INTO leases VALUES (?, ?, ?)", (image, window, until))


def _statements(text: str) -> Iterator[str]:
    """Divide a script into statements; sqlite3's own way would end the transaction around it."""
    begun = ""
    for line in text.splitlines():
        begun += line + "\n"
        if sqlite3.complete_statement(begun):
            yield begun
            begun = ""


# ---- what holds --------------------------------------------------------------------------------------------


@dataclass
class Standing:
    """What everyone says now, as told by the log up to a row: each person's last answer not taken back."""

    last: int = 0
    _said: dict[Cell, dict[str, list[Row]]] = field(default_factory=dict)

    def update(self, rows: Sequence[Row]) -> None:
        """Take further rows of the log, in order."""
        for row in rows:
            mine = self._said.setdefault((row.image, row.label), {}).setdefault(row.who, [])
            if row.undoes is None:
                mine.append(row)
            else:
                mine[:] = [kept for kept in mine if kept.id != row.undoes]
            self.last = row.id

    @classmethod
    def of(cls, answers: Answers) -> Standing:
        """Read a whole log."""
        found = cls()
        found.update(answers.after(0))
        return found

    def given(self, cell: Cell) -> dict[str, Row]:
        """Return the answer about a label that holds for each person."""
        return {who: stack[-1] for who, stack in self._said.get(cell, {}).items() if stack}

    def said(self, cell: Cell) -> dict[str, str]:
        """Return who says what of a label: present, absent or skip."""
        return {who: row.answer for who, row in self.given(cell).items()}

    def cells(self) -> list[Cell]:
        """Return the labels of which someone says something."""
        return [cell for cell in self._said if self.said(cell)]
