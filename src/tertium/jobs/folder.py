"""The folder of a job: what it is about, a part and a marker for each shard that is done, and failures.

job.json                    what the parts depend on, and what tells each shard from another
parts/000/000017.parquet    the rows of shard 17
done/000/000017.json        that they are complete, with their checksum; written after them
failed/000/000018.json      why shard 18 failed, until it is done
failures.csv                all failures and all images that were left out
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from tertium.errors import InputError
from tertium.files import sealed, unsealed
from tertium.jobs.output import Output

FORMAT = 1
ANEW = "choose another --out, or --overwrite what is there"
MANIFEST = "job.json"
FAILURES = "failures.csv"
EVALUATION, THRESHOLDS = "evaluation.json", "thresholds.csv"  # what all parts of some jobs give together
_TOGETHER = 1000  # shards whose files share a folder
_OWN = (MANIFEST, FAILURES, "evaluation.", THRESHOLDS, "parts/", "done/", "failed/")
_NAMES = {  # how a message calls what a job depends on
    "what": "work",
    "model": "model",
    "place": "images",
    "images": "number of images in a shard",
    "shards": "number of shards",
    "classes": "set of classes",
    "pixels": "way of decoding images",
    "version": "version of Tertium",
}

_HASHED = ("model", "classes", "calibration")  # of which only a checksum is known


@dataclass(frozen=True)
class Part:
    """What came of a shard: rows, and what is noted about them."""

    table: pa.Table
    images: int
    damaged: Mapping[str, str]  # images that were left out, and why
    notes: Mapping[str, Any]  # what the job's end needs, as JSON


@dataclass(frozen=True)
class Done:
    """That a shard is done."""

    number: int
    identity: str  # of its images, as they were
    images: int
    rows: int
    bytes: int
    checksum: str
    damaged: Mapping[str, str]
    notes: Mapping[str, Any]


@dataclass(frozen=True)
class Failed:
    """Why a shard is not done."""

    number: int
    title: str
    why: str


@dataclass(frozen=True)
class JobFolder:
    """The files of a job, in a folder that all its processes see."""

    output: Output

    # ---- what it is about --------------------------------------------------------------------------------

    def begin(self, about: Mapping[str, Any], *, overwrite: bool = False) -> None:
        """Write what the job is about, or check that it is the job that was begun here."""
        if overwrite:
            self._clear()
        said = {"format": FORMAT, **about}
        if not self.output.has(MANIFEST):
            others = [name for name in self.output.sizes() if not name.startswith(_OWN)]
            if others:
                raise InputError(
                    f"{self.output.place}: has other files in it ({others[0]}); choose a new folder for --out"
                )
            self._write_json(MANIFEST, said)
            return
        before = self._read_json(MANIFEST)
        _check_same(self.output.place, before, json.loads(json.dumps(said)))

    def _clear(self) -> None:
        """Remove the job that is here, the manifest first: without it there is none."""
        if self.output.has(MANIFEST):
            self.output.remove(MANIFEST)
            for name in self.output.sizes():
                if name.startswith(_OWN):
                    self.output.remove(name)

    # ---- parts -------------------------------------------------------------------------------------------

    def keep(self, number: int, identity: str, part: Part) -> Done:
        """Write the rows of a shard, and then that they are complete."""
        sink = pa.BufferOutputStream()
        words = [name for name in part.table.schema.names if name == "label"]  # which repeat, unlike numbers
        pa.parquet.write_table(part.table, sink, use_dictionary=words or False, write_statistics=False)
        content = sink.getvalue().to_pybytes()
        self.output.write(_name("parts", number, ".parquet"), content)
        done = Done(
            number,
            identity,
            part.images,
            len(part.table),
            len(content),
            hashlib.sha256(content).hexdigest(),
            dict(part.damaged),
            dict(part.notes),
        )
        self._write_json(_name("done", number, ".json"), vars(done))
        return done

    def fail(self, failed: Failed) -> None:
        """Note why a shard is not done."""
        self._write_json(_name("failed", failed.number, ".json"), vars(failed))

    def done(self, count: int) -> dict[int, Done]:
        """Return the shards that are done: with a marker that is whole, and a part of the right size."""
        parts = self.output.sizes("parts")
        found = {}
        for each in self._marked("done", count, Done):
            if parts.get(_name("parts", each.number, ".parquet")) == each.bytes:
                found[each.number] = each
        return found

    def failed(self, count: int) -> list[Failed]:
        """Return what is noted of shards that failed, some of which may be done by now."""
        return sorted(self._marked("failed", count, Failed), key=lambda each: each.number)

    def _marked(self, folder: str, count: int, kind: Any) -> Iterator[Any]:
        names = {_name(folder, number, ".json") for number in range(count)}
        names &= self.output.sizes(folder).keys()
        listed = sorted(names)
        for name, content in zip(listed, self.output.read_all(listed), strict=True):
            try:
                yield kind(**unsealed(json.loads(content), name))
            except (InputError, ValueError, TypeError):
                continue  # damaged: the shard is done again

    def table(self, done: Done) -> pa.Table:
        """Read the rows of a shard."""
        name = _name("parts", done.number, ".parquet")
        content = self.output.read(name)
        if hashlib.sha256(content).hexdigest() != done.checksum:
            raise InputError(
                f"{self.output.place}/{name}: was changed after it was written, or is damaged; "
                "remove it, and the same command makes it anew"
            )
        return pa.parquet.read_table(pa.BufferReader(content))

    # ---- failures ----------------------------------------------------------------------------------------

    def list_failures(self, done: Mapping[int, Done], failed: Iterable[Failed]) -> None:
        """Write a table of the shards that failed, and of the images that were left out."""
        rows = [[each.number, "", each.why] for each in failed if each.number not in done]
        for number in sorted(done):
            rows += [[number, image, why] for image, why in done[number].damaged.items()]
        if not rows:
            if self.output.has(FAILURES):  # of an earlier attempt
                self.output.remove(FAILURES)
            return
        text = io.StringIO(newline="")
        lines = csv.writer(text)
        lines.writerow(["shard", "image", "why"])
        lines.writerows(rows)
        self.output.write(FAILURES, text.getvalue().encode())

    def _write_json(self, name: str, value: Mapping[str, Any]) -> None:
        text = json.dumps(sealed(dict(value)), ensure_ascii=False, indent=None if "/" in name else 1)
        self.output.write(name, f"{text}\n".encode())

    def _read_json(self, name: str) -> dict[str, Any]:
        where = f"{self.output.place}/{name}"
        try:
            value = json.loads(self.output.read(name))
        except ValueError as error:
            raise InputError(f"{where}: not valid JSON ({error})") from None
        return unsealed(value, where)


def _name(folder: str, number: int, ending: str) -> str:
    """Return the name of a file about a shard.

    >>> _name("parts", 12345, ".parquet")
    'parts/012/012345.parquet'
    """
    return f"{folder}/{number // _TOGETHER:03d}/{number:06d}{ending}"


def _check_same(place: str, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise `InputError` if a job is not the one that was begun; it names what differs."""
    for key in sorted(now.keys() | before.keys(), key=[*_NAMES, *now, *before].index):
        if before.get(key) != now.get(key):
            shown = "" if key in _HASHED else f" ({before.get(key)}, now {now.get(key)})"
            raise InputError(f"{place}: was begun with another {_NAMES.get(key, key)}{shown}; {ANEW}")
