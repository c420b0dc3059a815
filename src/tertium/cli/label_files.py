"""Commands about label files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tertium.cli.shared import SplitName, Unlisted, UnlistedChoice, console, read, say


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
    from tertium.describe import describe as describe_labels
    from tertium.terminal import show_description

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
    from tertium.readers import write_labels
    from tertium.schemes import parse
    from tertium.tree import LabelTree

    forest = None
    if tree is not None:
        forest = LabelTree.from_json(tree) if tree.suffix == ".json" else LabelTree.from_csv(tree)
    chosen = parse(scheme, forest)
    full = read(labels, unlisted, None)
    if only is None:
        partial = chosen.apply(full, seed)
    else:
        rows = full.rows_in(only)
        partial = full.with_rows(rows, chosen.apply(full[rows], seed))
    write_labels(partial, out)
    share = partial.known / max(full.known, 1)
    say(f"{chosen}: kept {partial.known:,} of {full.known:,} known labels ({share:.1%}) → {out}")
