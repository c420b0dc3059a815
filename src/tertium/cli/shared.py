"""What commands share: their options, and how they print."""

from __future__ import annotations

import enum
import inspect
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from tertium.cli.screen import Screen
from tertium.errors import InputError, some
from tertium.files import keep_files, keep_inputs

if TYPE_CHECKING:
    from tertium.cli.terminal import Bar, Lines
    from tertium.labels import Labels
    from tertium.labels.readers import LabelFile

_WIDTH = 120  # of tables in a file or a pipe
_OUTPUTS = ("out", "plot", "filled", "twins")  # options that name a file to write
OVERWRITE = "overwrite"


class Place(str):
    """An output that is no file but a folder, or at an address: a large job (`tertium.cli.jobs`)."""


def output(text: str) -> Path | Place:
    """Read what --out is: a file by its path; or a folder or an address, for a job.

    >>> type(output("predictions.csv")).__name__, type(output("predictions/")).__name__
    ('PosixPath', 'Place')
    """
    from tertium.data.sources.places import is_address

    if is_address(text) or text.endswith(("/", os.sep)) or os.path.isdir(text):
        return Place(text)
    return Path(text)


class Unlisted(enum.StrEnum):
    """What a label means that the file does not mention."""

    unknown = "unknown"
    absent = "absent"


LABELS_HELP = "Label file: .csv, .tsv, .jsonl, .parquet or .arrow."
if TYPE_CHECKING:
    LabelsFile: TypeAlias = LabelFile  # what `reads_labels` makes of the path
    LabelsArgument: TypeAlias = LabelFile
    LabelsArguments: TypeAlias = list[LabelFile]
else:
    LabelsFile = Annotated[Path, typer.Option("--labels", help=LABELS_HELP)]
    LabelsArgument = Annotated[Path, typer.Argument(metavar="LABELS", help=LABELS_HELP)]
    LabelsArguments = Annotated[
        list[Path], typer.Argument(metavar="LABELS", help="Label files, at least two.")
    ]
UnlistedChoice = Annotated[Unlisted, typer.Option(help="What it means if the file does not list a label.")]
Separator = Annotated[
    str | None,
    typer.Option(
        "--separator", help="What stands between names in the columns present and absent (default: ;)."
    ),
]
MissingWords = Annotated[
    str | None,
    typer.Option(
        "--missing", help="Words that mean that no class is named, such as nan,None; '' if all are classes."
    ),
]
RenameFile = Annotated[
    Path | None,
    typer.Option("--rename", help="New names of classes, as if the file had them: CSV with from,to."),
]


class Preset(enum.StrEnum):
    """Meanings of the values of a wide table that are often used."""

    binary = "binary"
    positives = "positives"
    signed = "signed"
    chexpert = "chexpert"


_WIDE = "Wide tables, one column for each class"
PositiveValues = Annotated[
    list[str] | None,
    typer.Option("--positive", help="A value that means present. Can be repeated.", rich_help_panel=_WIDE),
]
NegativeValues = Annotated[
    list[str] | None,
    typer.Option("--negative", help="A value that means absent. Can be repeated.", rich_help_panel=_WIDE),
]
UnknownValues = Annotated[
    list[str] | None,
    typer.Option(
        "--unknown",
        help="A value that means unknown; '' is an empty cell. Can be repeated.",
        rich_help_panel=_WIDE,
    ),
]
PresetChoice = Annotated[
    Preset | None,
    typer.Option(
        "--preset", help="What values mean, by a name (docs/formats.md has them).", rich_help_panel=_WIDE
    ),
]
ImageColumn = Annotated[
    str | None,
    typer.Option(
        "--image-column", help="The column that names the images (default: image).", rich_help_panel=_WIDE
    ),
]
IgnoredColumns = Annotated[
    list[str] | None,
    typer.Option("--ignore", help="A column that is not a class. Can be repeated.", rich_help_panel=_WIDE),
]
IdSuffix = Annotated[
    str | None,
    typer.Option("--suffix", help="What to add to each image id, such as .jpg.", rich_help_panel=_WIDE),
]
OverwriteFlag = Annotated[bool, typer.Option("--overwrite", help="Replace files that are already there.")]
ClassesFile = Annotated[Path | None, typer.Option("--classes", help="Class names, one a line, in order.")]
IMAGES_HELP = "Where the images are: a folder, .tar, .zip, .parquet, a list, s3:// … (docs/images.md)."
ImagesPlace = Annotated[
    str | None,
    typer.Option("--images", metavar="PLACE", help=f"{IMAGES_HELP} This or --features is needed."),
]
FeaturesFile = Annotated[
    Path | None,
    typer.Option("--features", help="Ready features: .npy, floats [N, D]. This or --images is needed."),
]
SkipDamaged = Annotated[
    bool, typer.Option("--skip-damaged", help="Leave out images that cannot be read, and name them.")
]
RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `tertium train` wrote.")]
ModelArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder that `tertium train` wrote, or an exported .onnx file.")
]
SplitName = Annotated[
    str | None, typer.Option("--split", help="Only the images of this split of the labels.")
]


def console() -> Screen:
    """Return the console for results; a file or a pipe gets wide tables."""
    found = Screen()
    return found if found.is_terminal else Screen(width=_WIDTH)


@contextmanager
def watching() -> Iterator[Bar | Lines]:
    """Show progress while the block runs: a bar in a terminal, lines elsewhere."""
    from tertium.cli.terminal import watcher

    progress = watcher(Screen(stderr=True))
    try:
        yield progress
    finally:
        progress.close()


def say(text: str) -> None:
    """Print a line in which names from a user's files are text, never markup."""
    console().print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)


def say_aside(text: str) -> None:
    """Print such a line where errors go, because results alone shall be printed."""
    Screen(stderr=True).print(text, highlight=False, markup=False, emoji=False, soft_wrap=True)


def command_line() -> str:
    """Return the command that runs, as it would be typed."""
    return shlex.join(["tertium", *sys.argv[1:]])


def summary_of(labels: Labels) -> str:
    """Say how much a set of labels holds."""
    from tertium.cli.terminal import counted

    present, absent = (int(counts.sum()) for counts in labels.class_counts)
    size = f"{counted(len(labels), 'images')}, {counted(len(labels.classes), 'classes')}"
    return f"{size}: {counted(present, 'labels')} present, {absent:,} absent"


def say_predicted(images: int, classes: int, top: int | None, out: Path) -> None:
    """Say what `tertium predict` has written."""
    from tertium.cli.terminal import counted

    every = counted(classes, "classes")
    if top is None:
        say(f"{counted(images, 'images')} × {every} → {out}")
        return
    most = "most probable" if top == 1 else f"{min(top, classes)} most probable"
    say(f"{counted(images, 'images')}, the {most} of {every} each → {out}")


def say_damaged(faults: dict[str, str], read: int) -> None:
    """Say which images were left out because they cannot be read."""
    from tertium.cli.terminal import counted

    if faults:
        every = f"{counted(len(faults), 'images')} of {read + len(faults):,}"
        say(f"Left out: {every} that cannot be read: {some(list(faults.values()))}")


# ---- label files -------------------------------------------------------------------------------------------


WIDE_OPTIONS: dict[str, Any] = {
    "positive": PositiveValues,
    "negative": NegativeValues,
    "unknown": UnknownValues,
    "preset": PresetChoice,
    "image_column": ImageColumn,
    "ignore": IgnoredColumns,
    "suffix": IdSuffix,
}


def reads_labels(command: Callable[..., None]) -> Callable[..., None]:
    """Add what says how a label file is read to a command; its ``labels`` reach it as a `LabelFile`."""
    options = {"separator": Separator, "missing": MissingWords, "rename": RenameFile, **WIDE_OPTIONS}

    def prepare(given: dict[str, Any]) -> None:
        how = {name: value for name in options if (value := given.pop(name)) is not None}
        if given["labels"] is not None:
            given["labels"] = label_file(given["labels"], **how)
        elif how:
            first = next(iter(how)).replace("_", "-")
            raise InputError(f"--{first} says how to read a label file: give --labels too")

    return with_options(command, {name: (kind, None) for name, kind in options.items()}, prepare)


def reads_label_files(command: Callable[..., None]) -> Callable[..., None]:
    """Do the same for a command with several ``files``; those that list labels need no meaning of cells."""
    options = {"separator": Separator, "missing": MissingWords, **WIDE_OPTIONS}

    def prepare(given: dict[str, Any]) -> None:
        how = {name: value for name in options if (value := given.pop(name)) is not None}
        cells = {name: how.pop(name) for name in WIDE_OPTIONS if name in how}
        given["files"] = [
            label_file(file, **(cells if cells and _is_wide(file) else how)) for file in given["files"]
        ]

    return with_options(command, {name: (kind, None) for name, kind in options.items()}, prepare)


def _is_wide(path: Path) -> bool:
    from tertium.labels.readers import lists_labels

    return path.is_file() and not lists_labels(path)


def writes_files(
    *beside: str, also: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add --overwrite to a command: without it no file is replaced, and with it none that is read.

    ``beside`` are the names of files that are written beside --out, such as "{stem}.csv". ``also`` are
    options that name an output of this command, though elsewhere an input.
    """
    options = (*_OUTPUTS, *also)

    def prepare(given: dict[str, Any]) -> None:
        overwrite = given.pop(OVERWRITE)
        outputs = [given[name] for name in options if given.get(name) is not None]
        if not isinstance(given.get("out"), Path | None):  # the folder of a large job, which sees to itself
            outputs.remove(given["out"])
        elif given.get("out") is not None:
            outputs += [given["out"].with_name(name.format(stem=given["out"].stem)) for name in beside]
        read = [each for name in given.keys() - {*options} for each in _paths(given[name])]
        keep_inputs(outputs, [*read, *(file for each in read for file in _inside(each, outputs))])
        keep_files(outputs, overwrite=overwrite)

    return lambda command: with_options(command, {OVERWRITE: (OverwriteFlag, False)}, prepare)


def _paths(given: Any) -> list[Any]:
    """Return the paths of an option: of several, of one, or of a label file with how it is read."""
    return [getattr(each, "path", each) for each in (given if isinstance(given, list) else [given])]


def _inside(given: Any, outputs: Sequence[Path]) -> list[Path]:
    """Return what is read of a folder: the files of a run, or those of the outputs that look like images."""
    if not isinstance(given, str | Path):
        return []
    from tertium.data.sources.places import braces
    from tertium.data.sources.source import is_image
    from tertium.runs import RunFolder

    if not Path(given).is_dir():  # a pattern, perhaps
        patterns = [os.path.abspath(each) for each in braces(str(given))]
        return [path for path in outputs if any(fnmatch(os.path.abspath(path), each) for each in patterns)]
    run = RunFolder(Path(given))
    if run.config_file.is_file():
        return run.made_by_training()
    below = [path for path in outputs if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(given))]
    return [path for path in below if path.exists() and is_image(path.name)]


def with_options(
    command: Callable[..., None],
    options: dict[str, tuple[Any, Any]],
    prepare: Callable[[dict[str, Any]], None],
) -> Callable[..., None]:
    """Add options (name → annotation, default) to a command; ``prepare`` takes them from what was given."""

    @wraps(command)
    def run(**given: Any) -> None:
        prepare(given)
        command(**given)

    signature = inspect.signature(command, eval_str=True)
    extra = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in options.items()
    ]
    every = [*signature.parameters.values(), *extra]
    run.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in every}
    return run


def label_file(path: Path, *, missing: str | None = None, **how: Any) -> LabelFile:
    """Return a label file with what the options of a command say about it."""
    from tertium.labels.readers import LabelFile

    words = None if missing is None else [word for word in map(str.strip, missing.split(",")) if word]
    return LabelFile.with_options(path, missing=words, **how)


def words_of(options: dict[str, Any]) -> list[str]:
    """Return `LabelFile.options` as they are typed."""
    words = {**options, "missing": ",".join(options["missing"])} if "missing" in options else options
    return [
        word
        for name, value in words.items()
        for each in (value if isinstance(value, list) else [value])
        for word in (f"--{name.replace('_', '-')}", each)
    ]


def read(labels: LabelFile, unlisted: Unlisted, classes: Path | None) -> Labels:
    """Read a label file with the options of a command, and say what is odd about it."""
    from tertium.labels.opening import open_labels
    from tertium.labels.readers import read_classes

    names = None if classes is None else read_classes(classes)
    with watching() as progress:
        return open_labels(labels, unlisted=unlisted.value, classes=names, progress=progress)
