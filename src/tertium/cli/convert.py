"""`tertium convert`: published annotation files to label files, one command for each format."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tertium.cli.shared import (
    IdSuffix,
    IgnoredColumns,
    NegativeValues,
    PositiveValues,
    PresetChoice,
    UnknownValues,
    say,
    summary_of,
    watching,
    writes_files,
)
from tertium.cli.usage import Commands

if TYPE_CHECKING:
    from tertium.labels.reading import Reading

convert = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    help="Turn published annotation files into a label file: tertium convert FORMAT … --out labels.parquet.",
)


class Contradictions(enum.StrEnum):
    """What becomes of a label that is given as both present and absent."""

    error = "error"
    absent = "absent"
    present = "present"
    unknown = "unknown"


Out = Annotated[Path, typer.Option(help="Where the labels go: .parquet, .arrow, .csv or .tsv.")]
Rule = Annotated[Contradictions, typer.Option(help="For labels given as both present and absent.")]


def keep(reading: Reading, out: Path) -> None:
    """Write the labels, and their tree beside them; say what was found."""
    from tertium.labels.readers import write_labels

    write_labels(reading.labels, out)
    say(f"{summary_of(reading.labels)} → {out}")
    if reading.tree is not None:
        place = out.with_suffix(".tree.csv")
        reading.tree.to_csv(place)
        say(f"Label tree → {place}")
    for note in reading.notes:
        say(f"Note: {note}.")


# ---- tables: Open Images, wide tables ----------------------------------------------------------------------


class Machine(enum.StrEnum):
    """What becomes of rows that no person verified."""

    refuse = "refuse"
    drop = "drop"


@convert.command("openimages")
@writes_files("{stem}.tree.csv")
def openimages(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE", help="Image-label and box CSV files, also gzipped.")
    ],
    out: Out,
    split: Annotated[
        list[str] | None, typer.Option(help="The split of each file in turn; by default its name says it.")
    ] = None,
    descriptions: Annotated[
        Path | None, typer.Option(help="Class descriptions (MID,name): classes get names.")
    ] = None,
    classes: Annotated[
        Path | None, typer.Option(help="Only these classes: one MID a line, as in classes-trainable.txt.")
    ] = None,
    hierarchy: Annotated[
        Path | None, typer.Option(help="bbox_labels_600_hierarchy.json or the like.")
    ] = None,
    propagate: Annotated[
        bool, typer.Option("--propagate", help="Present goes up the hierarchy, absent goes down.")
    ] = False,
    parts: Annotated[
        bool, typer.Option("--parts", help="Treat the hierarchy's parts like subcategories.")
    ] = False,
    groups: Annotated[bool, typer.Option(help="Boxes around groups make their class present.")] = True,
    depictions: Annotated[
        bool, typer.Option(help="Boxes around depictions make their class present.")
    ] = True,
    machine: Annotated[Machine, typer.Option(help="Rows that no person verified.")] = Machine.refuse,
    suffix: Annotated[str, typer.Option(help="Ending of the image files: ids become file names.")] = ".jpg",
    contradictions: Rule = Contradictions.error,
) -> None:
    """Open Images, V3 to V7: image labels that people verified, and boxes.

    Confidence 1 is **present**, confidence 0 is **absent**, a box makes its class **present**; a class that
    no row mentions for an image is **unknown**, because nobody was asked about it.

    **Example**

      tertium convert openimages train-annotations-human-imagelabels.csv
      --descriptions class-descriptions.csv --classes classes-trainable.txt --out labels.arrow
    """
    from tertium.labels.formats.openimages import read

    with watching() as progress:
        reading = read(
            files,
            splits=split or (),
            descriptions=descriptions,
            classes=classes,
            hierarchy=hierarchy,
            propagate=propagate,
            parts=parts,
            groups=groups,
            depictions=depictions,
            machine=machine.value,
            suffix=suffix,
            contradictions=contradictions.value,
            progress=progress,
        )
    keep(reading, out)


@convert.command("wide")
@writes_files("{stem}.tree.csv")
def wide(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Table: .csv, .tsv, .jsonl or .parquet.")],
    out: Out,
    positive: PositiveValues = None,
    negative: NegativeValues = None,
    unknown: UnknownValues = None,
    preset: PresetChoice = None,
    image_column: Annotated[
        str | None,
        typer.Option(
            "--image-column", "--image", help="The column with the names of the images (default: image)."
        ),
    ] = None,
    ignore: IgnoredColumns = None,
    classes: Annotated[
        Path | None, typer.Option(help="The columns that are classes, one name a line.")
    ] = None,
    suffix: IdSuffix = None,
    contradictions: Rule = Contradictions.error,
) -> None:
    """A wide table: one row for each image, one column for each class.

    You say which values mean **present**, **absent** and **unknown**; a value that you do not name is an
    error that lists it. 1 and 1.0 are the same. A column split gives the splits. Presets:

    - binary: 1 is present, 0 absent
    - positives: 1 is present, 0 and empty cells unknown
    - signed: 1 is present, -1 absent, 0 and empty cells unknown
    - chexpert: 1 is present, 0 absent, -1 and empty cells unknown; images are in the column Path

    **Examples**

      tertium convert wide table.csv --positive 1 --negative 0 --unknown '' --out labels.csv

      tertium convert wide train.csv --preset positives --image-column id --suffix .jpg --out labels.parquet
    """
    from tertium.labels.formats.wide import chosen_layout, read
    from tertium.labels.readers import read_classes

    layout = chosen_layout(
        None if preset is None else preset.value,
        positive=positive or (),
        negative=negative or (),
        unknown=unknown or (),
        image=image_column,
    )
    with watching() as progress:
        reading = read(
            file,
            layout,
            classes=None if classes is None else read_classes(classes),
            ignore=ignore or (),
            suffix=suffix or "",
            contradictions=contradictions.value,
            progress=progress,
        )
    keep(reading, out)


# ---- JSON and XML: COCO, LVIS, Pascal VOC ------------------------------------------------------------------


class Crowd(enum.StrEnum):
    """What a crowd makes of its category in COCO."""

    present = "present"
    unknown = "unknown"


class Empty(enum.StrEnum):
    """What a category is in an image of COCO without annotations."""

    unknown = "unknown"
    absent = "absent"


class ImageId(enum.StrEnum):
    """What names an image of COCO."""

    file_name = "file_name"
    number = "id"


class Source(enum.StrEnum):
    """Where the labels of Pascal VOC are read from."""

    annotations = "annotations"
    lists = "lists"


class Difficult(enum.StrEnum):
    """What a label of Pascal VOC is if all objects of the class are difficult."""

    unknown = "unknown"
    present = "present"
    absent = "absent"


CrowdChoice = Annotated[Crowd, typer.Option(help="What a category that only has crowds is.")]
ImageIdChoice = Annotated[ImageId, typer.Option(help="What names an image.")]


@convert.command("coco")
@writes_files("{stem}.tree.csv")
def coco(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="instances_*.json, also gzipped.")],
    out: Out,
    crowd: CrowdChoice = Crowd.present,
    empty: Annotated[
        Empty, typer.Option(help="What every category is in an image without annotations.")
    ] = Empty.unknown,
    image_id: ImageIdChoice = ImageId.file_name,
) -> None:
    """MS-COCO, instances: every category is annotated in every image that has annotations.

    A category with an annotation is **present**, every other is **absent**. In an image without annotations
    everything is **unknown**, because nothing tells whether somebody looked; --empty absent says that they
    did. With --crowd unknown, a category that is only there as a crowd is unknown. Image ids are file names.

    **Example**

      tertium convert coco instances_train2014.json --out labels.parquet
    """
    from tertium.labels.formats.coco import read

    with watching() as progress:
        reading = read(file, crowd=crowd.value, empty=empty.value, image_id=image_id.value, progress=progress)
    keep(reading, out)


@convert.command("coco-panoptic")
@writes_files("{stem}.tree.csv")
def coco_panoptic(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="panoptic_*.json, also gzipped.")],
    out: Out,
    crowd: CrowdChoice = Crowd.present,
    image_id: ImageIdChoice = ImageId.file_name,
    groups: Annotated[
        bool, typer.Option("--groups", help="Add supercategories, things and stuff as classes.")
    ] = False,
) -> None:
    """MS-COCO, panoptic: things and stuff, with their tree.

    A category with a segment is **present**, every other is **absent**: images are segmented as a whole. An
    image without an annotation record is **unknown** throughout; with --crowd unknown, so is a category that
    is only there as a crowd. Image ids are file names. The tree is written beside the labels.

    **Example**

      tertium convert coco-panoptic panoptic_train2017.json --groups --out labels.parquet
    """
    from tertium.labels.formats.coco import read_panoptic

    with watching() as progress:
        reading = read_panoptic(
            file, crowd=crowd.value, image_id=image_id.value, groups=groups, progress=progress
        )
    keep(reading, out)


@convert.command("lvis")
@writes_files("{stem}.tree.csv")
def lvis(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="lvis_v1_*.json, also gzipped.")],
    out: Out,
    contradictions: Rule = Contradictions.error,
) -> None:
    """LVIS: federated labels, a few categories looked at in each image.

    A category with an annotation is **present**, those in neg_category_ids are **absent**, and every other is
    **unknown**: nobody looked for it. Image ids keep the folder, as in val2017/000000397133.jpg.

    **Example**

      tertium convert lvis lvis_v1_train.json --out labels.parquet
    """
    from tertium.labels.formats.lvis import read

    with watching() as progress:
        reading = read(file, contradictions=contradictions.value, progress=progress)
    keep(reading, out)


@convert.command("voc")
@writes_files("{stem}.tree.csv")
def voc(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A year, such as VOCdevkit/VOC2007.")],
    out: Out,
    source: Annotated[
        Source, typer.Option(help="Objects in Annotations, or class lists in ImageSets/Main.")
    ] = (Source.annotations),
    difficult: Annotated[
        Difficult, typer.Option(help="What a label is if all objects of the class are difficult.")
    ] = Difficult.unknown,
    contradictions: Annotated[
        Contradictions, typer.Option(help="For labels on which the lists disagree.")
    ] = Contradictions.error,
) -> None:
    """Pascal VOC: 20 classes, annotated in every image, with the splits train, val and test.

    A class with an object is **present**, every other is **absent**; a class of which all objects are marked
    difficult is **unknown**, because they are hard to recognise. Image ids are file names in JPEGImages.

    **Example**

      tertium convert voc VOCdevkit/VOC2007 --out labels.parquet
    """
    from tertium.labels.formats.voc import read

    with watching() as progress:
        reading = read(
            folder,
            source=source.value,
            difficult=difficult.value,
            contradictions=contradictions.value,
            progress=progress,
        )
    keep(reading, out)


# ---- small data sets: CUB, NUS-WIDE, CIFAR-100, CheXpert, Cole's arrays, ARFF ------------------------------


class Certainty(enum.StrEnum):
    """How certain CUB's annotators were."""

    not_visible = "not-visible"
    guessing = "guessing"
    probably = "probably"
    definitely = "definitely"


class Part(enum.StrEnum):
    """Which of NUS-WIDE's label files are read."""

    whole = "all"
    halves = "split"


class Which(enum.StrEnum):
    """Which of Cole's training labels are read."""

    observed = "observed"
    full = "full"


class Blank(enum.StrEnum):
    """What a blank cell of CheXpert means."""

    unknown = "unknown"
    absent = "absent"


class Uncertain(enum.StrEnum):
    """What an uncertain cell of CheXpert means."""

    unknown = "unknown"
    present = "present"
    absent = "absent"


@convert.command("cub")
@writes_files("{stem}.tree.csv")
def cub(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder CUB_200_2011.")],
    out: Out,
    certainty: Annotated[
        Certainty, typer.Option(help="Labels that are less certain than this are unknown.")
    ] = Certainty.guessing,
    species: Annotated[bool, typer.Option("--species", help="Add the 200 species as classes.")] = False,
    contradictions: Rule = Contradictions.error,
) -> None:
    """CUB-200-2011: 312 attributes of birds, with how certain the annotator was.

    is_present 1 is **present** and 0 **absent**, unless the part was “not visible”: then the annotator could
    not know, and the label is **unknown**. Image ids are paths below CUB_200_2011/images.

    **Example**

      tertium convert cub CUB_200_2011 --certainty probably --out cub.parquet
    """
    from tertium.labels.formats.cub import read

    keep(read(folder, certainty=certainty.value, species=species, contradictions=contradictions.value), out)


@convert.command("nuswide")
@writes_files("{stem}.tree.csv")
def nuswide(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder with ImageList and Groundtruth.")
    ],
    out: Out,
    part: Annotated[
        Part, typer.Option(help="AllLabels for Imagelist.txt, or TrainTestLabels for its two parts.")
    ] = Part.whole,
    contradictions: Rule = Contradictions.error,
) -> None:
    """NUS-WIDE: 81 concepts in Flickr images.

    1 is **present** and 0 **absent**; each image was looked at for each concept, so nothing is **unknown**.
    Image ids are the paths of Imagelist.txt, with “/”, below the folder of the images.

    **Example**

      tertium convert nuswide NUS-WIDE --out nuswide.parquet
    """
    from tertium.labels.formats.nuswide import read

    with watching() as progress:
        found = read(folder, part=part.value, contradictions=contradictions.value, progress=progress)
    keep(found, out)


@convert.command("cifar100")
@writes_files("{stem}.tree.csv", also=["images"])
def cifar100(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder with train.bin, or with train and meta.")
    ],
    out: Out,
    images: Annotated[
        Path | None, typer.Option(help="New folder for the images as PNG files, for `train --images`.")
    ] = None,
) -> None:
    """CIFAR-100: one of 100 fine classes, and the coarse class above it, for each image.

    These two are **present**, every other class is **absent** (an image has one class) and nothing is
    **unknown**; the two levels are written as a label tree. The Python version is read without unpickling.

    **Example**

      tertium convert cifar100 cifar-100-binary --images pictures --out cifar.parquet
    """
    from tertium.labels.formats.cifar import read

    with watching() as progress:
        found = read(folder, images=images, progress=progress)
    keep(found, out)


@convert.command("chexpert")
@writes_files("{stem}.tree.csv")
def chexpert(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="CSV file with Path and one column a finding.")
    ],
    out: Out,
    blank: Annotated[Blank, typer.Option(help="What a blank cell means.")] = Blank.unknown,
    uncertain: Annotated[Uncertain, typer.Option(help="What -1.0 means.")] = Uncertain.unknown,
    classes: Annotated[
        Path | None, typer.Option(help="The columns that are findings, one name a line.")
    ] = None,
    contradictions: Rule = Contradictions.error,
) -> None:
    """CheXpert: findings in chest radiographs, taken from reports.

    1.0 is **present** and 0.0 **absent**; -1.0 (the report is uncertain) and blank cells (it does not mention
    the finding) are **unknown**, unless you say otherwise. Image ids are the paths in the column Path.

    **Example**

      tertium convert chexpert train.csv --uncertain present --out chexpert.parquet
    """
    from tertium.labels.formats.chexpert import read
    from tertium.labels.readers import read_classes

    found = read(
        file,
        blank=blank.value,
        uncertain=uncertain.value,
        classes=None if classes is None else read_classes(classes),
        contradictions=contradictions.value,
    )
    keep(found, out)


@convert.command("cole")
@writes_files("{stem}.tree.csv")
def cole(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder with formatted_train_labels.npy and so on.")
    ],
    out: Out,
    which: Annotated[
        Which, typer.Option(help="Training labels from _labels_obs.npy, or from _labels.npy.")
    ] = Which.observed,
    classes: Annotated[
        Path | None, typer.Option(help="Class names, one a line, in the order of the columns.")
    ] = None,
) -> None:
    """Arrays of Cole et al. 2021: full labels, and the single positives that were observed.

    Observed, 1 is **present**, -1 **absent** and 0 **unknown**; full, 1 is present and 0 absent. Their part
    “val” becomes the split test, always with full labels: the authors score on it.

    **Example**

      tertium convert cole data/coco --classes coco.txt --out coco.parquet
    """
    from tertium.labels.formats.cole import read
    from tertium.labels.readers import read_classes

    keep(read(folder, which=which.value, classes=None if classes is None else read_classes(classes)), out)


@convert.command("arff")
@writes_files("{stem}.tree.csv", also=["features"])
def arff(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Dense or sparse ARFF file, also gzipped.")],
    out: Out,
    xml: Annotated[
        Path | None, typer.Option(help="MULAN's list of the labels; without it @relation needs MEKA's -C.")
    ] = None,
    features: Annotated[
        Path | None, typer.Option(help="Where the other attributes go, as numbers: .npy, for `train`.")
    ] = None,
) -> None:
    """ARFF: the multi-label data sets of MULAN and MEKA.

    A label 1 is **present**, 0 **absent** and a missing value ? **unknown**. Image ids are row numbers.

    **Example**

      tertium convert arff scene.arff --xml scene.xml --features scene.npy --out scene.parquet
    """
    from tertium.labels.formats.arff import read

    with watching() as progress:
        found = read(file, xml=xml, features=features, progress=progress)
    keep(found, out)
