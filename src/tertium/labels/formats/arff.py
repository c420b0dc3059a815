"""ARFF files of multi-label data: MULAN's with an XML list of the labels, MEKA's with -C in the header."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

from tertium.errors import InputError, did_you_mean, some
from tertium.files import replacing
from tertium.labels.formats.text import read_bytes, read_lines
from tertium.labels.reading import Reading, settle
from tertium.labels.tree import LabelTree
from tertium.progress import Progress

_QUOTED = r"""'((?:\\.|[^'\\])*)'|"((?:\\.|[^"\\])*)\""""
_ATTRIBUTE = re.compile(rf"@attribute\s+(?:{_QUOTED}|([^\s'\"{{]\S*))\s+(.+)", re.IGNORECASE)
_CELL = re.compile(rf"""\s*(?:{_QUOTED}|([^,'"]*))\s*(?:(,)|$)""")
_MEKA = re.compile(r"(?:^|\s)-C\s+([+-]?\d+)(?=$|['\"\s])")
_NUMBERS = ("numeric", "real", "integer")
_MISSING = "?"
_STEP = 1000  # rows between two words to whoever watches


def read(
    path: str | Path,
    *,
    xml: str | Path | None = None,
    features: str | Path | None = None,
    progress: Progress | None = None,
) -> Reading:
    """Read a dense or sparse ARFF file; its label attributes have the values 0 and 1.

    1 is **present**, 0 **absent** and the missing value ``?`` **unknown**. In a sparse row a label that is
    not listed has its attribute's first value, as the format says: 0 for ``{0,1}``, but 1 for ``{1,0}``.

    ``xml`` is MULAN's list of the labels; labels inside labels become a tree. Without it the header must be
    MEKA's: ``-C 6`` in @relation says that the first six attributes are the labels, ``-C -6`` the last six.

    Rows have no names: image ids are the row numbers from 0. ``features`` names a .npy file for the other
    attributes, float32 with one row for each image: a number or a nominal {0,1} is one column, any other
    nominal attribute one column for each of its values; text and dates are left out.
    """
    path, progress = Path(path), progress or Progress()
    lines = read_lines(path)
    header = _read_header(lines, path)
    labels, tree = _choose_labels(header, xml, path)
    encoder = None if features is None else _Encoder(header.attributes, labels, Path(features), path)
    rows = [at for at in range(header.end, len(lines)) if lines[at].strip()[:1] not in ("", "%")]
    if not rows:
        raise InputError(f"{path}: there are no rows below @data")
    progress.start(f"Reading {path.name}", len(rows), "rows")
    values, matrix = _read_rows(lines, rows, header.attributes, labels, encoder, path, progress)
    where, columns = np.nonzero(values)
    reading = settle(
        where,
        columns,
        values[where, columns],
        classes=[header.attributes[number].name for number in labels],
        images=[str(row) for row in range(len(rows))],
        source=str(path),
        notes=[] if encoder is None else encoder.notes(),
        tree=tree,
    )
    if encoder is not None:
        encoder.write(matrix, rows)
    return reading


# ---- the header ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Attribute:
    name: str
    kind: Literal["number", "nominal", "other"]
    values: tuple[str, ...] = ()  # of a nominal one, in the order of the file

    @property
    def default(self) -> str:
        """The value in a sparse row that does not list the attribute."""
        return self.values[0] if self.kind == "nominal" else "0"


@dataclass(frozen=True)
class _Header:
    relation: str
    attributes: list[_Attribute]
    end: int  # the line below @data, counted from 0


def _read_header(lines: list[str], path: Path) -> _Header:
    relation, attributes = "", list[_Attribute]()
    for at, whole in enumerate(lines):
        line = whole.strip()
        word = line.split(maxsplit=1)[0].lower() if line else "%"
        if word.startswith("%"):
            continue
        if word == "@relation":
            relation = line[len(word) :].strip()
        elif word == "@attribute":
            attributes.append(_read_attribute(line, f"{path}: line {at + 1}"))
        elif line.lower() == "@data":
            names = [attribute.name for attribute in attributes]
            twice = (
                sorted({name for name in names if names.count(name) > 1})
                if len(set(names)) < len(names)
                else []
            )
            if twice:
                raise InputError(f"{path}: attributes that are there twice: {some(twice, 10)}")
            return _Header(relation, attributes, at + 1)
        else:
            raise InputError(
                f'{path}: line {at + 1}: the header has @relation, @attribute, @data, not "{line[:60]}"'
            )
    raise InputError(f"{path}: there is no @data, so it is not an ARFF file or is cut short")


def _read_attribute(line: str, where: str) -> _Attribute:
    found = _ATTRIBUTE.fullmatch(line)
    if found is None:
        raise InputError(f'{where}: needs @attribute, a name and a type, not "{line[:60]}"')
    name = _unquoted(found.groups()[:3])
    kind = found[4].strip()
    if kind.startswith("{") and kind.endswith("}"):
        try:
            return _Attribute(name, "nominal", tuple(_split(kind[1:-1])))
        except ValueError as error:
            raise InputError(f'{where}: "{name}": {error}') from None
    word = kind.split(maxsplit=1)[0].lower()
    if word in _NUMBERS:
        return _Attribute(name, "number")
    if word in ("string", "date"):
        return _Attribute(name, "other")
    choices = (*_NUMBERS, "string", "date", "{0,1}")
    raise InputError(
        f'{where}: "{name}" has the unknown type "{kind[:60]}"; {did_you_mean(kind[:60], choices)}'
    )


def _unquoted(groups: Sequence[str | None]) -> str:
    single, double, plain = groups
    return plain.strip() if plain is not None else re.sub(r"\\(.)", r"\1", single or double or "")


def _split(text: str) -> list[str]:
    """Split at commas that are not inside quotes."""
    if "'" not in text and '"' not in text:
        return [cell.strip() for cell in text.split(",")]
    cells, at, more = [], 0, True
    while more:
        found = _CELL.match(text, at)
        if found is None:
            raise ValueError(f'a quote is not closed, or a comma is missing, at "{text[at : at + 30]}"')
        cells.append(_unquoted(found.groups()[:3]))
        at, more = found.end(), found[4] is not None
    return cells


# ---- which attributes are labels -------------------------------------------------------------------------


def _choose_labels(header: _Header, xml: str | Path | None, path: Path) -> tuple[list[int], LabelTree | None]:
    count = len(header.attributes)
    if xml is None:
        found = _MEKA.search(header.relation)
        if found is None:
            raise InputError(f"{path}: @relation has no -C, so name the list of labels with --xml")
        number = int(found[1])
        if not 0 < abs(number) < count + 1:
            raise InputError(f"{path}: @relation says -C {number} and there are {count} attributes")
        return list(range(number) if number > 0 else range(count + number, count)), None
    names, parents = _read_xml(Path(xml))
    place = {attribute.name: number for number, attribute in enumerate(header.attributes)}
    missing = [name for name in names if name not in place]
    if missing:
        hint = did_you_mean(missing[0], place)
        raise InputError(f"{xml}: labels that {path} does not have: {some(missing, 10)}; {hint}")
    return sorted(place[name] for name in names), LabelTree(parents) if parents else None


def _read_xml(path: Path) -> tuple[list[str], dict[str, str]]:
    """Read <labels><label name="…"> with labels inside labels: the names, and child → parent."""
    data = read_bytes(path)
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise InputError(f"{path}: has a document type or entities, which a list of labels does not need")
    try:
        root = ElementTree.fromstring(data)
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        raise InputError(f"{path}: not valid XML ({error})") from None
    if root.tag.rpartition("}")[2] != "labels":
        raise InputError(f"{path}: the outermost element is <{root.tag}>, not <labels>")
    names: dict[str, None] = {}
    parents: dict[str, str] = {}
    open_elements: list[tuple[ElementTree.Element, str | None]] = [(root, None)]
    while open_elements:
        element, parent = open_elements.pop()
        for child in reversed(element):
            open_elements.append((child, element.get("name")))
        if element is root:
            continue
        name = element.get("name")
        if element.tag.rpartition("}")[2] != "label" or not name:
            raise InputError(f"{path}: needs <label name=…>, not <{element.tag}> {element.attrib}")
        if name in names:
            raise InputError(f'{path}: the label "{name}" is there twice')
        names[name] = None
        if parent is not None:
            parents[name] = parent
    if not names:
        raise InputError(f"{path}: there are no labels in it")
    return list(names), parents


def _label_codes(attribute: _Attribute, path: Path) -> dict[str, int]:
    """Return what the texts of a label mean."""
    if attribute.kind == "nominal" and sorted(attribute.values) == ["0", "1"]:
        return {_MISSING: 0, "0": -1, "1": 1}
    if attribute.kind == "number":
        return {_MISSING: 0, "0": -1, "0.0": -1, "1": 1, "1.0": 1}
    shown = f"{{{','.join(attribute.values)}}}" if attribute.kind == "nominal" else "text"
    raise InputError(f'{path}: the label "{attribute.name}" is {shown[:60]}; a label is {{0,1}}')


# ---- the rows --------------------------------------------------------------------------------------------


def _read_rows(
    lines: list[str],
    rows: list[int],
    attributes: list[_Attribute],
    labels: list[int],
    encoder: _Encoder | None,
    path: Path,
    progress: Progress,
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Return the labels [N, C] as +1, −1, 0, and the features [N, D] if an encoder is given."""
    codes = [_label_codes(attributes[number], path) for number in labels]
    defaults = [attribute.default for attribute in attributes]
    values = np.empty((len(rows), len(labels)), dtype=np.int8)
    matrix = np.zeros((len(rows), 0 if encoder is None else len(encoder.names)), dtype=np.float32)
    for row, at in enumerate(rows):
        try:
            cells = _read_row(lines[at].strip(), defaults)
            for column, number in enumerate(labels):
                if cells[number] not in codes[column]:
                    name = attributes[number].name
                    raise ValueError(f'the label "{name}" is "{cells[number][:60]}", not 0, 1 or {_MISSING}')
                values[row, column] = codes[column][cells[number]]
            if encoder is not None:
                encoder.encode(cells, matrix[row])
        except ValueError as error:
            raise InputError(f"{path}: line {at + 1}: {error}") from None
        if row % _STEP == _STEP - 1:
            progress.advance(_STEP)
    return values, matrix


def _read_row(line: str, defaults: list[str]) -> list[str]:
    """Return a cell for each attribute; a `ValueError` says what is wrong with the row."""
    if not line.startswith("{"):
        cells = _split(line)
        if len(cells) != len(defaults):
            raise ValueError(f"{len(cells):,} values for {len(defaults):,} attributes")
        return cells
    if not line.endswith("}"):
        raise ValueError("a sparse row that does not end with }")
    cells = defaults.copy()
    listed = set[int]()
    inside = line[1:-1].strip()
    for item in _split_sparse(inside) if inside else ():
        parts = item.split(maxsplit=1)
        if len(parts) < 2 or not (parts[0].isascii() and parts[0].isdecimal()):
            raise ValueError(f'needs a number and a value, not "{item[:60]}"')
        value = parts[1].rstrip()
        number = int(parts[0][:9])  # a longer one is out of range too
        if number >= len(cells):
            raise ValueError(f"attribute {number} is not one of 0 to {len(cells) - 1}")
        if number in listed:
            raise ValueError(f"attribute {number} is listed twice")
        listed.add(number)
        quoted = value[-1] in "'\""
        if not quoted and len(value.split()) > 1:
            raise ValueError(f'needs a comma inside "{item.strip()[:60]}"')
        cells[number] = _split(value)[0] if quoted else value
    return cells


def _split_sparse(text: str) -> list[str]:
    """Split "i v, i v" at commas outside quotes and keep the quotes."""
    if "'" not in text and '"' not in text:
        return text.split(",")
    return re.findall(r"""(?:'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^,])+""", text)


class _Encoder:
    """Turns the attributes that are no labels into columns of numbers."""

    def __init__(self, attributes: list[_Attribute], labels: list[int], out: Path, path: Path) -> None:
        if out.suffix != ".npy":
            raise InputError(f"{out}: features are written as .npy")
        self._out, self._path, self._attributes = out, path, attributes
        self.names: list[str] = []  # of the columns
        self._left_out: list[str] = []
        self._numbers: list[int] = []  # attributes of one column, …
        self._places: list[int] = []  # … and which
        self._nominal: dict[int, int] = {}  # attribute → the first of its columns, one for each value
        for number in sorted(set(range(len(attributes))) - set(labels)):
            attribute = attributes[number]
            if attribute.kind == "other":
                self._left_out.append(attribute.name)
            elif attribute.kind == "number" or set(attribute.values) <= {"0", "1"}:
                self._numbers.append(number)
                self._places.append(len(self.names))
                self.names.append(attribute.name)
            else:
                self._nominal[number] = len(self.names)
                self.names += [f"{attribute.name}={value}" for value in attribute.values]
        if not self.names:
            raise InputError(f"{path}: there are no features beside the labels")

    def notes(self) -> list[str]:
        if not self._left_out:
            return []
        return [f"text and dates are no features: {some(self._left_out, 10)} left out"]

    def encode(self, cells: list[str], row: npt.NDArray[np.float32]) -> None:
        """Fill a row of zeros; a `ValueError` names the attribute that has no number."""
        texts = [cells[number] for number in self._numbers]
        try:
            with np.errstate(over="ignore"):  # what is too large is named when all rows are read
                row[self._places] = list(map(float, texts))
        except ValueError:
            texts.append("_")
        if "_" in ",".join(texts):  # which Python allows inside a number
            wrong = next(number for number in self._numbers if not _is_number(cells[number]))
            raise ValueError(self._complaint(wrong, cells[wrong]))
        for number, start in self._nominal.items():
            values = self._attributes[number].values
            if cells[number] not in values:
                raise ValueError(self._complaint(number, cells[number]))
            row[start + values.index(cells[number])] = 1

    def write(self, matrix: npt.NDArray[np.float32], lines: list[int]) -> None:
        strange = np.argwhere(~np.isfinite(matrix))
        if strange.size:
            row, column = strange[0]
            reason = f'"{self.names[column]}" is {matrix[row, column]}, not a number'
            raise InputError(f"{self._path}: line {lines[row] + 1}: {reason}")
        with replacing(self._out) as temporary:
            np.save(temporary, matrix)

    def _complaint(self, number: int, cell: str) -> str:
        attribute = self._attributes[number]
        wanted = f"one of {some(attribute.values, 10)}" if attribute.kind == "nominal" else "a number"
        return f'the feature "{attribute.name}" is "{cell[:60]}", not {wanted}'


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell
