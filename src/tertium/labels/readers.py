"""Label files: the forms that Tertium reads, and writes back."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from tertium.errors import InputError, did_you_mean, some
from tertium.files import replacing
from tertium.hub import data_file, is_address, pinned
from tertium.labels.formats.wide import WideTable, open_table, read_table
from tertium.labels.gathering import Gathering, SplitError
from tertium.labels.ids import look_alike_ids, normal_ids
from tertium.labels.labels import ContradictionError, Labels, Rule, check_rule, listed
from tertium.labels.names import SEPARATOR, joined, lists_of_classes, means_nothing, tidy
from tertium.labels.reading import DisagreementError, Reading
from tertium.labels.renaming import read_renaming, twins
from tertium.labels.rows import DAMAGE, Block, Rows, is_list, open_rows
from tertium.labels.split_names import TEST, TRAIN, VALIDATION, unused_splits
from tertium.labels.tables import Vocabulary, as_text, blank_id, delimiter
from tertium.progress import Progress

Unlisted = Literal["unknown", "absent"]
UNLISTED: tuple[Unlisted, ...] = ("unknown", "absent")
_SUFFIXES = (".csv", ".tsv", ".parquet", ".arrow")
_CELLS = {"0", "1", "-1", "0.0", "1.0", "true", "false", "yes", "no"}  # values that are no names
_SHOWN = 5  # groups of names in a note
_WRITTEN = 2**18  # images that are made text at once
_COMPARED = 2**24  # images whose names are compared; more would take gigabytes


@dataclass(frozen=True)
class LabelFile:
    """A label file, and how its names are to be read where the file does not say it plainly.

    Left at None, ``separator`` is ";" and ``missing`` no word, and a file that evidently means something else
    is refused; given, they are what the user says.
    """

    path: Path
    separator: str | None = None  # between the names of the compact form
    missing: tuple[str, ...] | None = None  # words that stand where no class is named
    rename: Mapping[str, str] | Path | None = None  # old name → new name, or a CSV file with from,to
    wide: WideTable | None = None  # one column for each class, and what the cells mean

    def __post_init__(self) -> None:
        if self.separator == "":
            raise InputError("the separator between names cannot be empty")
        if self.wide is not None and (self.separator is not None or self.missing is not None):
            raise InputError(
                f"{self.path}: the cells of a wide table name no classes, so --separator and --missing do "
                "not go with --positive, --negative, --unknown and --preset"
            )

    def __str__(self) -> str:
        return str(self.path)

    def __hash__(self) -> int:  # new names may be a dictionary, which has none
        return hash((self.path, self.separator, self.missing, self.wide))

    def read(
        self,
        *,
        unlisted: Unlisted = "unknown",
        classes: Sequence[str] | None = None,
        contradictions: Rule = "error",
    ) -> Reading:
        """Return the labels, and what a person should know about them; see `read_labels`."""
        if is_address(self.path):
            here = replace(self, path=data_file(self.path))
            return here.read(unlisted=unlisted, classes=classes, contradictions=contradictions)
        path, classes = self.path, None if classes is None else [tidy(name) for name in listed(classes)]
        check_unlisted(unlisted)
        check_rule(contradictions)
        if not path.is_file():
            reason = "is a folder, not a label file" if path.is_dir() else "no such file"
            raise InputError(f"{path}: {reason}")
        if self.wide is not None:
            found = _read_wide(self, self.wide, unlisted, classes, contradictions)
        elif (written := _written(path)) is not None:
            found = _reread(written, self, classes, contradictions)
        else:
            rows = open_rows(path, self.separator or SEPARATOR)
            found = _gathered(rows, self, classes, contradictions)
        labels, notes = found.labels, [*found.notes, *_split_notes(found.labels)]
        if classes is None:  # names that the user lists are meant as they are
            notes += _class_notes(labels)
        labels = labels.unlisted_absent() if unlisted == "absent" else labels
        return Reading(labels, tuple(notes), seen=found.seen)

    def options(self) -> dict[str, Any]:
        """Return what was said about reading the file, as plain values; `with_options` takes them back."""
        given = {
            "separator": self.separator,
            "missing": None if self.missing is None else list(self.missing),
            "rename": str(self.rename) if isinstance(self.rename, Path) else self.rename,
            **({} if self.wide is None else self.wide.options()),
        }
        return {name: value for name, value in given.items() if value is not None}

    @classmethod
    def with_options(
        cls,
        path: str | Path,
        *,
        separator: str | None = None,
        missing: str | Sequence[str] | None = None,
        rename: Mapping[str, str] | str | Path | None = None,
        **wide: Any,
    ) -> LabelFile:
        """Make one of plain values; those of a wide table are named as `WideTable.stated` has them."""
        given: object = path
        if isinstance(given, Labels):
            raise InputError(
                "a label file is a path, and these are Labels already; what says how a file is read, such as "
                "separator, missing, rename and positive, does not apply to them"
            )
        if isinstance(missing, str):
            missing = [missing] if missing else []  # no word, as with --missing ''
        words = None if missing is None else tuple(missing)
        names = Path(rename) if isinstance(rename, str) else rename
        return cls(Path(path), separator, words, names, WideTable.stated(**wide))

    def pinned(self) -> LabelFile:
        """Return the same file of the hub at the commit that it has now; any other file as it is."""
        return replace(self, path=Path(pinned(str(self.path)))) if is_address(self.path) else self

    def new_names(self) -> dict[str, str]:
        """Return old name → new name."""
        if isinstance(self.rename, Path):
            return read_renaming(self.rename).of(self.path)
        return {tidy(old): tidy(new) for old, new in (self.rename or {}).items()}


def read_labels(
    path: str | Path,
    *,
    unlisted: Unlisted = "unknown",
    classes: Sequence[str] | None = None,
    contradictions: Rule = "error",
    separator: str | None = None,
    missing: str | Sequence[str] | None = None,
    rename: Mapping[str, str] | str | Path | None = None,
    **wide: Any,
) -> Labels:
    """Read a label file: long form, compact form, one that Tertium wrote, or a wide table.

    Long form has the columns ``image,label,value`` with value present/absent or 1/-1; compact form has
    ``image,present[,absent]`` with names separated by ``;``. Both may have a column ``split``. The form is
    recognised by the columns; CSV, TSV and JSON lines (also gzipped) and Parquet are read. An ``.arrow`` file
    is mapped.

    ``unlisted`` says what it means if the file does not mention a label. ``classes`` fixes the classes and
    their order; otherwise they are the names in the file, sorted. ``contradictions`` says what becomes of a
    label that the file lists both as present and as absent. ``separator`` stands between names in the compact
    form. ``missing`` is a word, or words, for nothing being listed, such as nan. ``rename`` gives classes new
    names, as if they stood in the file: a mapping, or a CSV file with the columns ``from,to``. `LabelFile`
    also gives notes on names that look wrong.

    A wide table has one column for each class. What its cells mean is yours to say: ``positive``,
    ``negative`` and ``unknown`` are values, or lists of them, or ``preset`` names a usual meaning.
    ``image_column`` names the images (by default ``image``), ``ignore`` lists columns that are no classes,
    and ``suffix`` is put after every image id.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "labels.csv"
    >>> _ = path.write_text("image,present,absent\\na.jpg,cat;dog,\\nb.jpg,,cat\\n")
    >>> read_labels(path)
    Labels(2 images, 2 classes, 2 present, 1 absent)
    >>> read_labels(path, unlisted="absent")
    Labels(2 images, 2 classes, 2 present, 2 absent)
    >>> _ = path.write_text("image,cat,dog\\na.jpg,1,0\\nb.jpg,-1,1\\n")
    >>> read_labels(path, positive=1, negative=0, unknown=-1)
    Labels(2 images, 2 classes, 2 present, 1 absent)
    """
    file = LabelFile.with_options(path, separator=separator, missing=missing, rename=rename, **wide)
    return file.read(unlisted=unlisted, classes=classes, contradictions=contradictions).labels


def check_unlisted(word: str) -> None:
    """Raise `InputError` if labels that are not listed cannot be this."""
    if word not in UNLISTED:
        raise InputError(f'unlisted labels cannot be "{word}"; {did_you_mean(word, UNLISTED)}')


def lists_labels(path: Path) -> bool:
    """Whether a file lists the labels of each image, rather than having a column for each class."""
    if path.suffix == ".parquet":
        schema = _schema(path)
        return b"format" in (schema.metadata or {}) or is_list(schema.names)
    return path.suffix == ".arrow" or is_list(open_table(path).columns)


def read_classes(path: str | Path) -> list[str]:
    """Read class names, one a line."""
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: {_where_not_utf8(Path(path))}") from None
    names = [name for line in lines if (name := tidy(line))]
    if not names:
        raise InputError(f"{path}: there are no class names in it, one a line")
    return names


def _where_not_utf8(path: Path) -> str:
    """Say which line is not UTF-8; read again only because there is an error to explain."""
    with open(path, "rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                return f"line {number} is not UTF-8 (byte 0x{line[error.start]:02x}); save the file as UTF-8"
    return "the file is not UTF-8"


def write_labels(labels: Labels, path: str | Path, *, progress: Progress | None = None) -> None:
    """Write ``.csv`` or ``.tsv`` (compact form), ``.parquet`` or ``.arrow``, by the ending of ``path``.

    A text file lists what is known, so a class without a known label is not in it; ``progress`` is told.
    """
    path = Path(path)
    if path.suffix == ".arrow":
        labels.save(path)
    elif path.suffix == ".parquet":
        with replacing(path) as temporary:
            pa.parquet.write_table(labels.to_arrow(), temporary)
    elif path.suffix in (".csv", ".tsv"):
        options = pa.csv.WriteOptions(delimiter=delimiter(path))
        schema = _compact_table(labels[:0]).schema
        with replacing(path) as temporary, pa.csv.CSVWriter(temporary, schema, write_options=options) as text:
            for start in range(0, len(labels), _WRITTEN):
                text.write_table(_compact_table(labels[start : start + _WRITTEN]))
    else:
        raise InputError(f"{path}: labels are written as {', '.join(_SUFFIXES)}")
    for note in unwritten(labels, path):
        (progress or Progress()).note(f"Note: {note}.")


def unwritten(labels: Labels, path: str | Path) -> list[str]:
    """Return a note on classes that a label file cannot have: text names a class where a label is known.

    >>> unwritten(Labels.from_dense([[1, 0]], classes=["cat", "dog"]), "x.csv")
    ['classes without a known label are not in x.csv: dog; .parquet and .arrow keep them']
    """
    if Path(path).suffix not in (".csv", ".tsv"):
        return []
    known = np.add(*labels.class_counts)
    lost = [name for name, count in zip(labels.classes, known, strict=True) if not count]
    if not lost:
        return []
    return [f"classes without a known label are not in {path}: {some(lost)}; .parquet and .arrow keep them"]


# ---- files that Tertium wrote ------------------------------------------------------------------------------


def _written(path: Path) -> Labels | None:
    """Return the labels of a file that Tertium wrote, None if it is another."""
    if path.suffix == ".arrow":
        return Labels.load(path)
    if path.suffix == ".parquet":
        if b"format" not in (_schema(path).metadata or {}):
            return None
        try:
            return Labels.from_arrow(pa.parquet.read_table(path))
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        except DAMAGE as error:
            raise InputError(f"{path}: not a Parquet file, or a damaged one ({error})") from None
    return None


def _schema(path: Path) -> pa.Schema:
    try:
        return pa.parquet.read_schema(path)
    except DAMAGE as error:
        raise InputError(f"{path}: not a Parquet file, or a damaged one ({error})") from None


def _reread(labels: Labels, file: LabelFile, classes: Sequence[str] | None, contradictions: Rule) -> Reading:
    """Return labels that Tertium wrote under the names that hold now."""
    naming = _Naming.of(labels.classes, file)
    if naming.names != list(labels.classes):
        kept = list(dict.fromkeys(name for name in naming.names if name))
        place = {name: number for number, name in enumerate(kept)}
        moved = np.array([place.get(name, -1) for name in naming.names], dtype=np.int64)
        rows, columns, values = labels.coo()
        named = moved[columns] >= 0
        try:
            labels = Labels.merged(
                rows[named],
                moved[columns[named]],
                values[named],
                classes=kept,
                images=labels.images,
                splits=labels.splits,
                contradictions=contradictions,
            )[0]
        except ContradictionError as error:
            raise InputError(f"{file}: {error}") from None
    if classes is not None:
        labels = with_all_classes(labels, classes, str(file))
    return Reading(labels, tuple(naming.notes))


def with_all_classes(labels: Labels, classes: Sequence[str], source: str) -> Labels:
    """Return the labels with these classes, of which their own must be; ``source`` names them in an error."""
    extra = sorted(set(labels.classes) - set(classes))
    if extra:
        raise InputError(f'{source}: there is no class "{extra[0]}"; {did_you_mean(extra[0], classes)}')
    return labels.with_classes(classes)


# ---- wide tables -------------------------------------------------------------------------------------------


def _read_wide(
    file: LabelFile,
    wide: WideTable,
    unlisted: Unlisted,
    classes: Sequence[str] | None,
    contradictions: Rule,
) -> Reading:
    if lists_labels(file.path):
        raise InputError(
            f"{file}: it lists the labels of each image, so --positive, --negative, --unknown and --preset, "
            "which are for tables with one column for each class, do not fit"
        )
    if unlisted == "absent":
        raise InputError(
            f"{file}: a wide table has a cell for every label, so nothing is unlisted: name the values that "
            "mean absent with --negative"
        )
    layout, table = wide.layout(), open_table(file.path)
    chosen = None if classes is None else _columns_of_classes(file, table.columns, classes)
    try:
        found = read_table(
            table,
            layout,
            classes=chosen,
            ignore=wide.ignore,
            suffix=wide.suffix,
            contradictions=contradictions,
        )
    except DisagreementError as error:
        raise InputError(
            f"{error.what}; say which holds with tertium convert wide --contradictions absent, present "
            "or unknown"
        ) from None
    named = _reread(found.labels, file, classes, contradictions)
    return replace(named, notes=(*found.notes, *named.notes, *_image_notes(named.labels)), seen=found.seen)


def _columns_of_classes(file: LabelFile, columns: Sequence[str], classes: Sequence[str]) -> list[str]:
    """Return the columns that hold these classes, whose names may be new."""
    new = file.new_names()
    held = {column: new.get(tidy(column), tidy(column)) for column in columns}
    missing = [name for name in classes if name not in held.values()]
    if missing:
        hint = did_you_mean(missing[0], list(held.values()))
        raise InputError(f'{file}: there is no column of the class "{missing[0]}"; {hint}')
    return [column for column, name in held.items() if name in set(classes)]


# ---- rows to labels ----------------------------------------------------------------------------------------


@dataclass
class _Said:
    """What a file says, as numbers."""

    rows: Gathering = field(default_factory=Gathering)
    vocabulary: Vocabulary = field(default_factory=Vocabulary)  # of labels
    mentions: list[int] = field(default_factory=list)  # [labels] how often each is named
    first: list[int] = field(default_factory=list)  # [labels] the first row that names it
    present: int = 0
    absent: int = 0
    splits: Vocabulary = field(default_factory=Vocabulary)
    separated: bool | None = None  # compact form: whether a separator stands in a cell
    values: Counter[str] = field(default_factory=Counter)  # long form: what stands in the column value

    @property
    def labels(self) -> list[str]:
        return list(self.vocabulary.numbers)

    def add(self, block: Block) -> None:
        """Add the next rows."""
        known, before = len(self.mentions), self.rows.rows
        label = self.vocabulary.take(block.label)
        times = np.bincount(label, minlength=len(self.vocabulary.numbers))
        self.mentions = (times + np.pad(self.mentions, (0, len(times) - known))).astype(np.int64).tolist()
        if len(times) > known:
            fresh = np.flatnonzero(label >= known)
            at = fresh[np.unique(label[fresh], return_index=True)[1]]
            self.first += ((at if block.row is None else block.row[at]) + before).tolist()
        positive = block.value > 0
        self.present += int(positive.sum())
        self.absent += len(positive) - int(positive.sum())
        split = None if block.split is None else self.splits.take(block.split)
        self.rows.add(block.image, (label << 1) | positive, row=block.row, split=split)
        if block.separated is not None:
            self.separated = block.separated or bool(self.separated)
        self.values.update(block.values)

    def seen(self, separator: str) -> str:
        """Say which values stand in the file."""
        if self.values:
            times = (f'"{value}" {count:,} times' for value, count in self.values.most_common() if value)
            return f"value {some(times, 10)}"
        told = f"{self.present:,} names under present, {self.absent:,} under absent"
        return told if self.separated is None else f'{told}, separated by "{separator}"'

    def times(self, names: Sequence[str], name: str) -> int:
        """Return how often a name is mentioned, given the name of each label."""
        return sum(self.mentions[number] for number, own in enumerate(names) if own == name)


def _gathered(source: Rows, file: LabelFile, classes: Sequence[str] | None, contradictions: Rule) -> Reading:
    said = _gather(source)
    naming = _Naming.of(said.labels, file)
    declared = set(classes or ())
    suspects = [name for name in dict.fromkeys(naming.names) if name and name not in declared]
    notes = [
        *naming.notes,
        *_check_lists(suspects, said, file),
        *_check_missing(suspects, naming, said, file),
    ]
    names = list(classes) if classes is not None else sorted({name for name in naming.names if name})
    if not names:
        raise InputError(
            f"{file}: it names no label, so there are no classes (tertium train --classes FILE gives them)"
        )
    labels = _merged(said, naming, names, file, source, contradictions)
    return Reading(labels, (*notes, *_image_notes(labels)), seen=said.seen(file.separator or SEPARATOR))


def _merged(
    said: _Said,
    naming: _Naming,
    classes: Sequence[str],
    file: LabelFile,
    source: Rows,
    contradictions: Rule,
) -> Labels:
    """Return what was said as labels; a class that is not there, and a contradiction, name the line."""
    path, at = source.path, source.at
    place = {name: number for number, name in enumerate(classes)}
    columns = np.array([place.get(name, -1) for name in naming.names], dtype=np.int64)
    strange = [number for number, name in enumerate(naming.names) if name and name not in place]
    if strange:
        first = min(strange, key=said.first.__getitem__)
        name = naming.names[first]
        raise InputError(
            f'{path}: {at(said.first[first])}: there is no class "{name}"; {did_you_mean(name, classes)}'
        )
    try:
        return said.rows.settled(
            columns, classes=classes, splits=list(said.splits.numbers), contradictions=contradictions
        ).labels
    except SplitError as error:
        raise InputError(f"{path}: {at(error.row)}: {error}") from None
    except ContradictionError as error:
        names = dict(zip(said.labels, naming.names, strict=True))
        where = " and ".join(at(row) for row in sorted(_rows_of(error, names, file)))
        raise InputError(f"{path}: {error} ({where})") from None


def _rows_of(error: ContradictionError, names: Mapping[str, str], file: LabelFile) -> list[int]:
    """Return the first row with a label and the first without; read again because there is an error."""
    found: dict[int, int] = {}
    before = 0
    for block in open_rows(file.path, file.separator or SEPARATOR).blocks:
        ids = as_text(block.image.ids) if isinstance(block.image.ids, np.ndarray) else block.image.ids
        own = np.asarray(pc.equal(normal_ids(ids), error.image).cast(pa.uint8())).view(bool)
        row = np.arange(block.rows) if block.row is None else block.row
        named = np.array([names[name] == error.label for name in block.label.names], dtype=bool)
        about = np.repeat(own, block.image.lengths)[row] & named[block.label.codes]
        for value in (1, -1):
            rows = row[about & (block.value == value)]
            if rows.size:
                found.setdefault(value, before + int(rows.min()))
        before += block.rows
    return list(found.values())


def _gather(source: Rows) -> _Said:
    said = _Said()
    for block in source.blocks:
        _check(block, said.rows.rows, source)
        said.add(block)
    if not said.rows.rows:
        raise InputError(f"{source.path}: there are no rows below the header")
    return said


def _check(block: Block, before: int, source: Rows) -> None:
    blank = blank_id(block.image)
    if blank is not None:
        raise InputError(f"{source.path}: {source.at(before + blank)}: the image is empty")
    if block.fault is not None:
        row, reason = block.fault
        raise InputError(f"{source.path}: {source.at(before + row)}: {reason}")


# ---- names -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Naming:
    """What the names of a file are called from now on."""

    names: list[str]  # of each name of the file; "" where it stands for nothing
    notes: list[str]

    @classmethod
    def of(cls, raw: Sequence[str], file: LabelFile) -> _Naming:
        tidied, missing, new = [tidy(name) for name in raw], set(file.missing or ()), file.new_names()
        notes = []
        known = set(tidied)
        strangers = [name for name in new if name not in known]
        if strangers:
            hint = did_you_mean(strangers[0], tidied)
            notes.append(f"--rename names classes that {file} does not have: {some(strangers)}; {hint}")
        names = ["" if name in missing else new.get(name, name) for name in tidied]
        spelt: dict[str, list[str]] = {}
        for name, old in zip(names, tidied, strict=True):
            spelt.setdefault(name, []).append(old)
        same = [name for name, olds in spelt.items() if name and len(olds) > len(set(olds))]
        if same:
            notes.append(f"spelt in several ways that look the same, and read as one class: {some(same)}")
        return cls(names, notes)


def _check_lists(names: Sequence[str], said: _Said, file: LabelFile) -> list[str]:
    """Refuse names that are lists of names; return a note on those that might be."""
    if said.separated is None or file.separator is not None:
        return []
    python = [name for name in names if name[:2] in ("['", '["') or name == "[]"]
    if python:
        raise InputError(
            f"{file}: {python[0][:60]} is a list in Python's notation; put {SEPARATOR} between names instead"
        )
    if said.separated:
        lists = lists_of_classes(names)
        shown = some((f'"{name}"' for name in lists), 3)
        return [f"read as one class, though its parts are classes too: {shown}"] if lists else []
    found = joined(names)
    if found is None:
        return []
    option, others = f"--separator '{found.separator}'", f"--separator '{SEPARATOR}'"
    shown = some((f'"{name}"' for name in found.names), 2)
    if found.evident:
        raise InputError(
            f'{file}: names seem to be separated by "{found.separator}", not by "{SEPARATOR}": {shown} '
            f"({len(names):,} names become {found.classes:,} if they are split there); say {option}, or "
            f"{others} if these are single names"
        )
    return [f'names of classes hold "{found.separator}": {shown}; if it separates names, say {option}']


def _check_missing(names: Sequence[str], naming: _Naming, said: _Said, file: LabelFile) -> list[str]:
    """Refuse words that programs write for missing values, if they recur; return a note on others."""
    found = [name for name in names if means_nothing(name)]
    if not found or file.missing == ():
        return []
    times = {name: said.times(naming.names, name) for name in found}
    shown = some((f'"{name}" ({count:,} times)' for name, count in times.items()), 10)
    option = shlex.join(["--missing", ",".join([*(file.missing or ()), *found])])
    choice = f"say {option} where nothing is meant, or --missing '' if these are names of classes"
    if file.missing is None and max(times.values()) > 1:
        raise InputError(f"{file}: words for missing values stand where classes are named: {shown}; {choice}")
    return [f"words for missing values are read as names of classes: {shown}; {choice}"]


def _class_notes(labels: Labels) -> list[str]:
    """Return notes on classes that are probably one, or no classes."""
    notes = []
    if {name.casefold() for name in labels.classes} <= _CELLS:
        shown = " and ".join(labels.classes)
        notes.append(f"the classes are called {shown}; the file should list names of classes, not values")
    groups = twins(labels)
    if groups:
        shown = some((" / ".join(group) for group in groups), _SHOWN)
        notes.append(
            f"classes with nearly the same name: {shown}; make them one with --rename FILE, a CSV file with "
            "from,to that tertium describe --twins FILE writes"
        )
    return notes


def _image_notes(labels: Labels) -> list[str]:
    """Return a note on images that are perhaps one."""
    alike = look_alike_ids(labels.images) if len(labels) <= _COMPARED else []
    if not alike:
        return []
    shown = some((f"{one} and {other}" for one, other in alike), 3)
    return [f"images whose names differ only in case or ending count as different ones: {shown}"]


def _split_notes(labels: Labels) -> list[str]:
    """Return a note on images that belong to no part."""
    unused = unused_splits(labels.split_names())
    if not unused:
        return []
    told = [f"{name or 'images without a split'} ({len(labels.rows_in(name)):,})" for name in unused]
    return [
        f"splits other than {TRAIN}, {VALIDATION} and {TEST} are left out of training (images in brackets): "
        f"{', '.join(told)}"
    ]


# ---- writing -----------------------------------------------------------------------------------------------


def _compact_table(labels: Labels) -> pa.Table:
    unwritable = [name for name in labels.classes if SEPARATOR in name]
    if unwritable:
        raise InputError(f'class names with "{SEPARATOR}" need .parquet or .arrow: {some(unwritable)}')
    columns = {"image": labels.images}
    for name, sign in (("present", 1), ("absent", -1)):
        part = labels.with_entries(np.sign(labels.entries) == sign)
        names = pa.array(labels.classes, pa.string()).take(pa.array(np.abs(part.entries) - 1))
        columns[name] = pc.binary_join(pa.ListArray.from_arrays(part.offsets, names), SEPARATOR)
    if labels.splits is not None:
        columns["split"] = labels.splits.cast(pa.string())
    return pa.table(columns)
