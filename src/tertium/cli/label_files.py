"""Commands about label files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from tertium.cli.convert import Contradictions, Out, Rule
from tertium.cli.shared import (
    MissingWords,
    Separator,
    SplitName,
    Unlisted,
    UnlistedChoice,
    console,
    label_file,
    read,
    reads_labels,
    say,
    summary_of,
    watching,
)


@reads_labels
def describe(
    labels: Annotated[Path, typer.Argument(metavar="LABELS", help="Label file.")],
    unlisted: UnlistedChoice = Unlisted.unknown,
    split: SplitName = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what a label file holds, and which annotation setting it resembles.

    **Example**

      tertium describe labels.csv
    """
    from tertium.cli.terminal import show_description
    from tertium.labels.describe import describe as describe_labels

    found = read(labels, unlisted, None)
    about = describe_labels(found if split is None else found.part(split))
    if as_json:
        console().print_json(json.dumps(about.to_dict(), ensure_ascii=False))
    else:
        show_description(console(), about)


@reads_labels
def simulate(
    labels: Annotated[Path, typer.Argument(metavar="LABELS", help="Label file, best with full labels.")],
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


def merge(
    files: Annotated[list[Path], typer.Argument(metavar="LABELS", help="Label files, at least two.")],
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
    separator: Separator = None,
    missing: MissingWords = None,
) -> None:
    """Make one label file of several that share images or classes.

    A class that a file does not have stays **unknown** in its images: nobody looked for it there. With
    --unlisted absent, what a file does not list is absent, for that file's own classes and images only.

    **Example**

      tertium merge cats.csv dogs.csv --unlisted absent --unlisted unknown --out both.parquet
    """
    from tertium.labels.merging import merge as merge_labels

    each: list[Literal["unknown", "absent"]] = [choice.value for choice in unlisted or [Unlisted.unknown]]
    with watching() as progress:
        merged = merge_labels(
            [label_file(file, separator, missing) for file in files],
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
