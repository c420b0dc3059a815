"""Commands about label files."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tertium.cli.convert import Contradictions, Out, Rule
from tertium.cli.shared import (
    IMAGES_HELP,
    LabelsArgument,
    LabelsArguments,
    SplitName,
    Unlisted,
    UnlistedChoice,
    console,
    reads_label_files,
    reads_labels,
    say,
    summary_of,
    watching,
    words_of,
    writes_files,
)

if TYPE_CHECKING:
    from tertium.data.coverage import Coverage
    from tertium.labels import Labels
    from tertium.labels.readers import LabelFile

_TRIED = 3  # images that are looked for beside a label file


@reads_labels
@writes_files()
def describe(
    labels: LabelsArgument,
    images: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help=f"Say which files and labels have no partner. {IMAGES_HELP}"),
    ] = None,
    unlisted: UnlistedChoice = Unlisted.unknown,
    split: SplitName = None,
    out: Annotated[
        Path | None, typer.Option(help="Write how often each class is present, absent and unknown: .csv.")
    ] = None,
    twins: Annotated[
        Path | None,
        typer.Option(help="Write new names for classes with nearly the same name: CSV for --rename."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Describe a label file: its classes, what looks odd, which annotation setting it resembles.

    **Examples**

      tertium describe labels.csv

      tertium describe labels.csv --images photos/ --out classes.csv
    """
    from tertium.cli.terminal import show_coverage, show_description
    from tertium.data.coverage import coverage
    from tertium.labels.describe import describe as describe_labels
    from tertium.labels.renaming import twins as find_twins
    from tertium.labels.renaming import write_renaming

    reading = labels.read(unlisted=unlisted.value)
    found = reading.labels if split is None else reading.labels.part(split)
    about = describe_labels(found)
    files = None if images is None else coverage(images, reading.labels.images.to_pylist())
    if out is not None:
        about.write_classes(out)
    if twins is not None:
        write_renaming(find_twins(found), twins)
    if as_json:
        plain = {
            **about.to_dict(),
            "seen": reading.seen,
            "notes": reading.notes,
            "twins": find_twins(found),
            "files": None if files is None else asdict(files),
        }
        console().print_json(json.dumps(plain, ensure_ascii=False))
        return
    show_description(console(), about)
    if reading.seen:
        say(f"Values seen: {reading.seen}.")
    if images is not None and files is not None:
        show_coverage(console(), files, images)
    for note in reading.notes:
        say(f"Note: {note}.")
    if twins is not None:
        say(f"New names → {twins}; look through it, then add --rename {shlex.quote(str(twins))}")
    told = [] if unlisted is Unlisted.unknown else ["--unlisted", unlisted.value]
    _say_next([str(labels), *words_of(labels.options()), *told], images or _folder_of(labels, found), files)


def _folder_of(labels: LabelFile, found: Labels) -> str | None:
    """Return where the images are: beside the label file, or in a folder there."""
    names = found.images[:_TRIED].to_pylist()
    beside = labels.path.parent
    if all((beside / name).is_file() for name in names):
        return str(beside)
    try:
        with os.scandir(beside) as entries:
            folders = sorted(beside / entry.name for entry in entries if entry.is_dir())
    except OSError:  # a folder that may not be listed
        return None
    return next((str(place) for place in folders if all((place / name).is_file() for name in names)), None)


def _say_next(words: Sequence[str], images: str | None, files: Coverage | None) -> None:
    """Say what to do with a label file: commands that work as they are printed."""
    if images is None:
        say("Next: add --images FOLDER, to see whether the labels fit the files.")
    elif files is None:
        say(f"Next: {shlex.join(['tertium', 'describe', *words, '--images', images])}")
    elif files.missing:
        say(f"Next: add the missing files to {images}, or take their lines out of the label file.")
    else:
        out = next(path for number in count(1) if not (path := Path("runs", str(number))).exists())
        inputs = ["--images", images, "--out", str(out)]
        say(f"Next: {shlex.join(['tertium', 'train', '--labels', *words, *inputs])}")


@reads_labels
@writes_files()
def simulate(
    labels: LabelsArgument,
    scheme: Annotated[str, typer.Option(help="For example random:0.1; see the list above.")],
    out: Annotated[Path, typer.Option(help="Where the partial labels go: .csv, .tsv, .parquet or .arrow.")],
    seed: Annotated[int, typer.Option(help="The same seed hides the same labels.")] = 0,
    unlisted: UnlistedChoice = Unlisted.unknown,
    only: Annotated[
        str | None, typer.Option(help="Hide labels in this split only and keep the others.")
    ] = None,
    tree: Annotated[
        Path | None, typer.Option(help="Label tree for hierarchy: .csv (parent,child) or .json.")
    ] = None,
) -> None:
    """Hide labels as an annotation process would, to try methods where the truth is known.

    **Schemes**: full · random:KEEP · positives:KEEP · single_positive · per_image:POSITIVES,NEGATIVES ·
    per_class:N · balanced:KEEP,NEGATIVES · hierarchy (with --tree) · federated:KEEP,NEGATIVES

    **Examples**

      tertium simulate labels.csv --unlisted absent --scheme random:0.1 --only train --out partial.csv

      tertium simulate labels.csv --unlisted absent --scheme per_image:1,all --out partial.parquet
    """
    from tertium.labels.readers import unwritten
    from tertium.schemes import simulate as hide

    with watching() as progress:
        done = hide(
            labels,
            scheme,
            seed=seed,
            only=only,
            tree=tree,
            unlisted=unlisted.value,
            out=out,
            progress=progress,
        )
    where = "" if only is None else f" of the {only} part"
    share = done.kept / max(done.known, 1)
    say(f"{done.scheme}: kept {done.kept:,} of {done.known:,} known labels{where} ({share:.1%}) → {out}")
    for note in unwritten(done.labels, out):
        say(f"Note: {note}.")


@reads_label_files
@writes_files()
def merge(
    files: LabelsArguments,
    out: Out,
    unlisted: Annotated[
        list[Unlisted] | None,
        typer.Option(help="What a file does not list, for its own classes: once for all files, or for each."),
    ] = None,
    rename: Annotated[
        Path | None, typer.Option(help="CSV file from,to or file,from,to with new names of classes.")
    ] = None,
    close: Annotated[
        Path | None, typer.Option(help="Label tree: present goes up, absent goes down; .csv or .json.")
    ] = None,
    contradictions: Rule = Contradictions.error,
) -> None:
    """Merge several label files into one; their images and classes may overlap.

    A class that a file does not have stays **unknown** in its images: nobody looked for it there. With
    --unlisted absent, what a file does not list is absent, for that file's own classes and images only.

    **Example**

      tertium merge cats.csv dogs.csv --unlisted absent --unlisted unknown --out both.parquet
    """
    from tertium.labels.merging import merge as merge_labels

    each: list[Literal["unknown", "absent"]] = [choice.value for choice in unlisted or [Unlisted.unknown]]
    with watching() as progress:
        merged = merge_labels(
            files,
            unlisted=each * len(files) if len(each) == 1 else each,
            rename=rename,
            close=close,
            contradictions=contradictions.value,
            out=out,
            progress=progress,
        )
    say(f"{summary_of(merged.labels)} → {out}")
    if merged.duplicates:
        say(f"Note: {merged.duplicates:,} labels stand in several files; each counts once.")
    if merged.contradicted:
        say(
            f"Note: {merged.contradicted:,} labels were both present and absent; "
            f"taken as {contradictions.value}."
        )
