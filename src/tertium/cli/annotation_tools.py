"""Labels from and to the tools in which people annotate: more of `tertium convert`, and `tertium publish`."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer

from tertium.cli.convert import Empty, Out, convert, keep
from tertium.cli.shared import (
    LABELS_HELP,
    SplitName,
    Unlisted,
    UnlistedChoice,
    reads_labels,
    say,
    watching,
    writes_files,
)
from tertium.files import keep_inputs


class Votes(enum.StrEnum):
    """What becomes of a label on which people disagree."""

    error = "error"
    majority = "majority"
    absent = "absent"
    present = "present"
    unknown = "unknown"


NotListed = Annotated[
    Unlisted, typer.Option(help="What a class is that nobody listed, in an image with annotations.")
]
NothingListed = Annotated[
    Empty, typer.Option(help="What every class is in an image whose annotation lists none.")
]
AllClasses = Annotated[
    Path | None, typer.Option("--classes", help="All classes, one a line, also those that nobody listed.")
]


@convert.command("label-studio")
@writes_files("{stem}.tree.csv")
def label_studio(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Export in the form JSON, also gzipped.")],
    out: Out,
    unlisted: NotListed = Unlisted.unknown,
    empty: NothingListed = Empty.unknown,
    contradictions: Annotated[
        Votes, typer.Option(help="For labels on which annotators of a task disagree.")
    ] = Votes.error,
    reviewed: Annotated[
        bool, typer.Option("--reviewed", help="Only annotations that a reviewer accepted.")
    ] = False,
    classes: AllClasses = None,
    from_name: Annotated[
        str | None, typer.Option(help="The control that holds the labels, if there are several.")
    ] = None,
    image_key: Annotated[str, typer.Option(help="The key of a task's data that holds the image.")] = "image",
    prefix: Annotated[
        str, typer.Option(help="What stands before the image's name in its address, if that is not plain.")
    ] = "",
) -> None:
    """Label Studio: choices, single or multiple, that people made for images.

    A choice is **present**. What people looked for is not in the file: every other class is **unknown**,
    unless --unlisted absent says that they looked for all. Skipped tasks, those without an annotation, and
    annotations that a reviewer rejected say nothing. If annotators disagree, --contradictions majority lets
    most of them decide; a tie is unknown. Predictions are no labels.

    **Example**

      tertium convert label-studio project.json --unlisted absent --contradictions majority --out labels.csv
    """
    from tertium.labels.formats.labelstudio import read
    from tertium.labels.readers import read_classes

    with watching() as progress:
        reading = read(
            file,
            from_name=from_name,
            image_key=image_key,
            prefix=prefix,
            classes=None if classes is None else read_classes(classes),
            unlisted=unlisted.value,
            empty=empty.value,
            votes=contradictions.value,
            reviewed=reviewed,
            progress=progress,
        )
    keep(reading, out)


class Numbers(enum.StrEnum):
    """What plain numbers in a list are."""

    classes = "classes"
    multi_hot = "multi-hot"


@convert.command("huggingface")
@writes_files("{stem}.tree.csv")
def huggingface(
    place: Annotated[
        str,
        typer.Argument(metavar="PLACE", help="Folder or file of a data set, or its name on the hub."),
    ],
    out: Out,
    column: Annotated[str, typer.Option(help="The column with the classes of each image.")],
    image: Annotated[str, typer.Option(help="The column with the images, or with their names.")] = "image",
    unlisted: NotListed = Unlisted.unknown,
    empty: NothingListed = Empty.unknown,
    classes: AllClasses = None,
    numbers: Annotated[
        Numbers | None,
        typer.Option(help="What numbers without names are: of classes from 0, or a 1 or 0 for each."),
    ] = None,
) -> None:
    """Hugging Face `datasets`: a column of ClassLabel lists, lists of names, or multi-hot lists.

    PLACE is a folder that save_to_disk wrote, a folder of Parquet files, one file, or a name on the hub:
    owner/name, owner/name@revision, or hf://datasets/owner/name/data/train*. Its Parquet files are kept in
    Hugging Face's cache; HF_HUB_OFFLINE=1 uses that alone.

    What is listed is **present**. Every other class is **unknown**, unless --unlisted absent says that all
    were looked for; then a 0 of a multi-hot list is **absent** too. A missing list says nothing. Tables with
    a column for each class are wide tables (docs/formats.md).

    **Examples**

      tertium convert huggingface saved/ --column labels --unlisted absent --out labels.parquet

      tertium convert huggingface owner/name --column labels --out labels.parquet
    """
    from tertium.labels.formats.huggingface import parts_of, read
    from tertium.labels.readers import read_classes

    if Path(place).exists():
        keep_inputs([out], [part.file for part in parts_of(place)[0]])
    with watching() as progress:
        reading = read(
            place,
            column=column,
            image=image,
            classes=None if classes is None else read_classes(classes),
            numbers=None if numbers is None else numbers.value,
            unlisted=unlisted.value,
            empty=empty.value,
            progress=progress,
        )
    keep(reading, out)


@convert.command("cvat")
@writes_files("{stem}.tree.csv")
def cvat(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="annotations.xml, also gzipped.")],
    out: Out,
    unlisted: NotListed = Unlisted.unknown,
    empty: NothingListed = Empty.unknown,
    classes: AllClasses = None,
) -> None:
    """CVAT for images, XML 1.1: the tags of whole images.

    A tag is **present**. What people looked for is not in the file: every other class is **unknown**, unless
    --unlisted absent says that they looked for all. In an image without a tag everything is unknown, or
    **absent** with --empty absent. Boxes and other shapes are left out. Subsets are the splits.

    **Example**

      tertium convert cvat annotations.xml --unlisted absent --out labels.csv
    """
    from tertium.labels.formats.cvat import read
    from tertium.labels.readers import read_classes

    names = None if classes is None else read_classes(classes)
    keep(read(file, classes=names, unlisted=unlisted.value, empty=empty.value), out)


@convert.command("fiftyone")
@writes_files("{stem}.tree.csv")
def fiftyone(
    folder: Annotated[
        Path, typer.Argument(metavar="PLACE", help="Exported folder, or its samples.json or labels.json.")
    ],
    out: Out,
    field: Annotated[str, typer.Option(help="In samples.json: the field with the labels.")] = "ground_truth",
    suffix: Annotated[
        str | None, typer.Option(help="For labels.json: the ending of image files, such as .jpg.")
    ] = None,
    unlisted: NotListed = Unlisted.unknown,
    empty: NothingListed = Empty.unknown,
    classes: AllClasses = None,
) -> None:
    """FiftyOne: the classifications of an exported FiftyOneDataset or FiftyOneImageClassificationDataset.

    A classification is **present**. Every other class is **unknown**, unless --unlisted absent says that all
    were looked for; an empty list then is **absent** throughout with --empty absent. A sample that is not
    labelled says nothing.

    **Example**

      tertium convert fiftyone exported/ --field ground_truth --unlisted absent --out labels.csv
    """
    from tertium.labels.formats.fiftyone import read
    from tertium.labels.readers import read_classes

    with watching() as progress:
        reading = read(
            folder,
            field=field,
            suffix=suffix,
            classes=None if classes is None else read_classes(classes),
            unlisted=unlisted.value,
            empty=empty.value,
            progress=progress,
        )
    keep(reading, out)


class Target(enum.StrEnum):
    """Formats that are written."""

    label_studio = "label-studio"
    cvat = "cvat"
    fiftyone = "fiftyone"
    coco = "coco"
    wide = "wide"


@reads_labels
@writes_files()
def publish(
    to: Annotated[Target, typer.Option(help="The format.")],
    out: Annotated[
        Path, typer.Option(help="Where it goes: .json; .xml of CVAT; .csv, .tsv or .parquet if wide.")
    ],
    labels: Annotated[
        Path | None, typer.Option(help=f"This or --probabilities is needed. {LABELS_HELP}")
    ] = None,
    probabilities: Annotated[
        Path | None, typer.Option(help="Table that `tertium predict` or `tertium complete` wrote.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="With --probabilities: list classes from this probability on.")
    ] = None,
    split: SplitName = None,
    unlisted: UnlistedChoice = Unlisted.unknown,
    prefix: Annotated[
        str | None, typer.Option(help="Label Studio: what makes an address of an image's name.")
    ] = None,
    from_name: Annotated[
        str | None, typer.Option(help="Label Studio: the name of the control (default: choice).")
    ] = None,
    to_name: Annotated[
        str | None, typer.Option(help="Label Studio: the name of the image (default: image).")
    ] = None,
    model_version: Annotated[
        str | None, typer.Option(help="Label Studio: where predictions are from (default: tertium).")
    ] = None,
) -> None:
    """Write labels, completed labels or predictions as a file that another tool reads.

    **Examples**

      tertium publish --probabilities completed.parquet --to label-studio --threshold 0.5
      --prefix "/data/local-files/?d=photos/" --out tasks.json

      tertium publish --labels labels.parquet --to wide --out table.csv

    - label-studio: tasks; probabilities become predictions with a score to start from, labels annotations

    - cvat: XML 1.1 with tags of whole images

    - fiftyone: labels.json of a FiftyOneImageClassificationDataset, with confidences

    - coco: labels of whole images, without boxes; what is absent is in neg_category_ids, as in LVIS

    - wide: one column for each class: 1 is present, 0 absent, an empty cell unknown; or the probabilities

    A note says what a format cannot express.
    """
    from tertium.cli.terminal import counted
    from tertium.labels.publishing import publish as publish_labels

    with watching() as progress:
        done = publish_labels(
            labels,
            probabilities=probabilities,
            to=to.value,
            out=out,
            threshold=threshold,
            split=split,
            unlisted=unlisted.value,
            prefix=prefix,
            from_name=from_name,
            to_name=to_name,
            model_version=model_version,
            progress=progress,
        )
    what = "values" if probabilities is not None and to is Target.wide else "labels"
    say(f"{counted(done.images, 'images')}, {counted(done.listed, what)} → {out}")
    for note in done.notes:
        say(f"Note: {note}.")
