"""Commands about label files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tertium.cli.convert import Contradictions, Out, Rule
from tertium.cli.shared import SplitName, Unlisted, UnlistedChoice, console, read, say, summary_of

if TYPE_CHECKING:
    from tertium.labels.tree import LabelTree


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
    from tertium.labels.readers import write_labels
    from tertium.schemes import parse

    chosen = parse(scheme, None if tree is None else _tree(tree))
    full = read(labels, unlisted, None)
    if only is None:
        part = full
        partial = hidden = chosen.apply(full, seed)
    else:
        rows = full.rows_in(only)
        part = full[rows]
        hidden = chosen.apply(part, seed)
        partial = full.with_rows(rows, hidden)
    write_labels(partial, out)
    where = "" if only is None else f" of the {only} part"
    share = hidden.known / max(part.known, 1)
    say(f"{chosen}: kept {hidden.known:,} of {part.known:,} known labels{where} ({share:.1%}) → {out}")


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
) -> None:
    """Make one label file of several that share images or classes.

    A class that a file does not have stays **unknown** in its images: nobody looked for it there. With
    --unlisted absent, what a file does not list is absent, for that file's own classes and images only.

    **Example**

      tertium merge cats.csv dogs.csv --unlisted absent --unlisted unknown --out both.parquet
    """
    from tertium.errors import InputError
    from tertium.labels.closure import close as closed
    from tertium.labels.labels import ContradictionError
    from tertium.labels.merging import Part
    from tertium.labels.merging import merge as merge_labels
    from tertium.labels.merging import rename as rename_classes
    from tertium.labels.readers import write_labels
    from tertium.labels.renaming import read_renaming

    choices = unlisted or [Unlisted.unknown]
    if len(choices) not in (1, len(files)):
        raise InputError(f"--unlisted was given {len(choices)} times for {len(files)} files; once for each")
    if len(files) < 2:
        raise InputError("give at least two label files to merge")
    each = choices * len(files) if len(choices) == 1 else choices
    parts = [Part(str(file), read(file, choice, None)) for file, choice in zip(files, each, strict=True)]
    if rename is not None:
        parts = rename_classes(parts, read_renaming(rename))
    merged = merge_labels(parts, contradictions=contradictions.value)
    labels, clashes = merged.labels, merged.contradicted
    if close is not None:
        try:
            labels, more = closed(labels, _tree(close), contradictions=contradictions.value)
        except ContradictionError as error:
            raise InputError(f"by {close}, {error}; say which holds with --contradictions") from None
        clashes += more
    write_labels(labels, out)
    say(f"{summary_of(labels)} → {out}")
    if merged.duplicates:
        say(f"Note: {merged.duplicates:,} labels stand in several files; each counts once.")
    if clashes:
        say(f"Note: {clashes:,} labels were both present and absent; taken as {contradictions.value}.")


def _tree(path: Path) -> LabelTree:
    from tertium.labels.tree import LabelTree

    return LabelTree.from_json(path) if path.suffix == ".json" else LabelTree.from_csv(path)
