"""Commands that show where a model sees a class, and test it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tertium.cli.shared import IMAGES_HELP, OverwriteFlag, RunArgument, console, say, watching
from tertium.errors import InputError
from tertium.files import filling, keep_files, keep_inputs

if TYPE_CHECKING:
    from tertium.labels.formats.coco import Boxes
    from tertium.prediction.trained import Trained
    from tertium.progress import Progress

ExplainedFolder = Annotated[
    Path | None, typer.Option("--out", help="Folder to write to (default: RUN/explained).")
]
_TOP = 5
_LINES, _SHOWN = 100, 20  # lines and classes in a table; the files have all of them


def explain(
    run: RunArgument,
    files: Annotated[
        list[str], typer.Argument(metavar="IMAGE", help="Image files; with --images, names of images in it.")
    ],
    images: Annotated[str | None, typer.Option(metavar="PLACE", help=IMAGES_HELP)] = None,
    classes: Annotated[str | None, typer.Option(help="Show these classes, separated by commas.")] = None,
    top: Annotated[
        int | None, typer.Option(min=1, help=f"Show the most probable N of each image (default: {_TOP}).")
    ] = None,
    out: ExplainedFolder = None,
    overwrite: OverwriteFlag = False,
) -> None:
    """Show where in an image the evidence for a class is.

    **Examples**

      tertium explain runs/first photos/cat.jpg photos/street.jpg

      tertium explain runs/first photos/street.jpg --classes car,person --out maps/

      tertium explain runs/first street.jpg --images 'shards/*.tar'

    Each image gets a picture: the image, and the image under the map of each class; the circle marks the
    highest place. The numbers go to explained.csv. `tertium pointing` tests, by boxes, whether these are the
    right places. See docs/explain.md.
    """
    from tertium.runs import RunFolder

    # In the run's own folder, its own pictures are replaced.
    to = out or RunFolder(run).explained
    _explain(run, files, images, classes, top, to, overwrite or out is None)


def pointing(
    run: RunArgument,
    boxes: Annotated[
        Path, typer.Argument(metavar="BOXES", help="COCO's instances.json, or a year's folder of VOC.")
    ],
    images: Annotated[str, typer.Option(metavar="PLACE", help=IMAGES_HELP)],
    tolerance: Annotated[
        float | None, typer.Option(min=0, help="How far from a box still is a hit, in pixels (default: 15).")
    ] = None,
    out: ExplainedFolder = None,
    overwrite: OverwriteFlag = False,
) -> None:
    """Test by boxes whether a model looks at the right places.

    **Example**

      tertium pointing runs/first instances_val2014.json --images val2014/

    A class that has boxes in an image counts as hit if the highest place of its map lies in one of them. The
    figures go to pointing.json and, for each class, pointing.csv. See docs/explain.md.
    """
    from tertium.runs import RunFolder

    place = out or RunFolder(run).explained
    written = [place / "pointing.json", place / "pointing.csv"]
    keep_inputs(written, [boxes])
    keep_files(written, overwrite=overwrite or out is None)
    _point(run, boxes, images, tolerance, place)


def _explain(
    run: Path,
    files: Sequence[str],
    images: str | None,
    classes: str | None,
    top: int | None,
    out: Path,
    overwrite: bool,
) -> None:
    from tertium.cli.terminal import counted, table
    from tertium.prediction.explaining import explain_files

    if classes is not None and top is not None:
        raise InputError("--classes and --top exclude each other")
    trained = _load(run)
    chosen = None
    if classes is not None:
        whole = classes in trained.classes  # a name may have a comma in it
        chosen = [classes] if whole else [name.strip() for name in classes.split(",") if name.strip()]
        if not chosen:
            raise InputError("--classes names no class")
    with watching() as progress:
        rows = explain_files(
            trained,
            files,
            out,
            images=images,
            classes=chosen,
            top=top or _TOP,
            overwrite=overwrite,
            progress=progress,
        )
    cells = [
        [row.image, row.label, f"{row.probability:.3f}", f"{row.x:.0f}, {row.y:.0f}"] for row in rows[:_LINES]
    ]
    title = f"the first {_LINES} of {len(rows):,} lines" if len(rows) > _LINES else None
    console().print(table(["image", "class", "probability", "highest at x, y"], cells, title=title))
    say(f"Pictures of {counted(len(files), 'images')} and explained.csv → {out}")


def _point(run: Path, source: Path, images: str, tolerance: float | None, out: Path) -> None:
    from tertium.cli.terminal import counted, percent, table
    from tertium.prediction.pointing import TOLERANCE, pointing_game

    trained = _load(run)
    # Before the long work: a wrong place is said at once.
    with filling(out) as folder, watching() as progress:
        found = pointing_game(
            trained,
            _read_boxes(source, progress),
            images,
            tolerance=TOLERANCE if tolerance is None else tolerance,
            progress=progress,
        )
        found.write(folder / "pointing.json")
    order = found.accuracy.argsort(kind="stable")[:_SHOWN]
    cells = [
        [
            found.classes[place],
            f"{found.counts[place]:,}",
            f"{found.hits[place]:,}",
            percent(found.accuracy[place]),
        ]
        for place in order
    ]
    fewer = len(order) < len(found.classes)
    title = f"the {_SHOWN} worst of {len(found.classes):,} classes" if fewer else None
    console().print(table(["class", "images", "hits", "accuracy"], cells, title=title))
    say(
        f"Pointing accuracy: {percent(found.mean)} (mean of {counted(len(found.classes), 'classes')} in "
        f"{counted(found.images, 'images')}; at most {found.tolerance:g} pixels beside a box)\n"
        f"The middle of the image: {percent(found.centre_mean)}"
    )
    for note in found.notes:
        say(f"Note: {note}.")
    say(f"Figures: {out / 'pointing.json'}, per class: {out / 'pointing.csv'}")


def _read_boxes(source: Path, progress: Progress) -> Boxes:
    from tertium.labels.formats import coco, voc

    return (
        voc.read_boxes(source, progress=progress)
        if source.is_dir()
        else coco.read_boxes(source, progress=progress)
    )


def _load(run: Path) -> Trained:
    import torch

    from tertium.prediction.trained import Trained

    return Trained.load(run, device="cuda" if torch.cuda.is_available() else "cpu")
