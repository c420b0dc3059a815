"""`tertium features`: images once through a frozen network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tertium.cli.jobs import Large, Target, large_jobs, say_ended
from tertium.cli.processes import watching_first
from tertium.cli.shared import IMAGES_HELP, output, reads_labels, say, watching
from tertium.errors import some

if TYPE_CHECKING:
    from tertium.config import Settings
    from tertium.labels.opening import Source


@reads_labels
@large_jobs(joins=True)
def features(
    images: Annotated[str, typer.Option("--images", metavar="PLACE", help=IMAGES_HELP)],
    out: Annotated[
        Target,
        typer.Option(
            help="Where the features go: .npy, float16 [images, width]; FOLDER/ or an address: a large job.",
            metavar="PATH",
            parser=output,
        ),
    ],
    labels: Annotated[
        Path | None, typer.Option("--labels", help="Take only the images of this label file, in its order.")
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="A network: `tertium encoders` (default: the one that is shipped).")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="Its weights: pretrained (default), random, or a file of them.")
    ] = None,
    image_size: Annotated[
        int | None, typer.Option(help="Side of the square that it sees (default: its own).")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Threads beside the first (default: one for each spare core).")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a file that this command has not written.")
    ] = False,
) -> None:
    """Compute the features of images by a frozen network, once: training on features takes seconds.

    **Example**

      tertium features --images photos/ --out photos.npy

      tertium train --labels labels.csv --features photos.npy --out runs/first

    A file beside it, photos.npy.json, names the image of each row: train, evaluate and predict find rows by
    name. Images that cannot be read are left out and listed in photos.npy.broken.txt. If interrupted, the
    same command continues where it stopped; later, it computes only what is new or has changed
    (docs/features.md).

      tertium features --images 'shards/*.tar' --out parts/ --join photos.npy --engine ray

    This is a large job: a folder of Parquet parts, one for each shard of the images, which --join also writes
    as one array (docs/scale.md).
    """
    import torch

    from tertium.cli.terminal import counted
    from tertium.config import settings_from
    from tertium.data.pictures import SourcePictures
    from tertium.data.sources.opening import names_in, open_source
    from tertium.labels.opening import open_labels
    from tertium.models.encoders import pretrained
    from tertium.models.features import Extractor, check_path
    from tertium.training.fit import make_fabric

    single = out.joined if isinstance(out, Large) else out
    if single is not None:
        check_path(single, overwrite=overwrite)
    given = {"backbone": backbone, "weights": weights, "image_size": image_size, "workers": workers}
    settings = settings_from({key: value for key, value in given.items() if value is not None})
    if isinstance(out, Large):
        _features_in_parts(images, out, settings, labels)
        return
    source = open_source(images)
    names = names_in(source) if labels is None else open_labels(labels).images.to_pylist()
    pictures = SourcePictures.of(source, names)
    torch.manual_seed(settings.seed)  # random weights are the same again when it goes on
    with watching() as progress:
        extractor = Extractor(
            pretrained(
                settings.backbone, settings.weights, settings.image_size, settings.fit, settings.revision
            ),
            device=make_fabric(settings).device,
            workers=settings.workers,
            progress=progress,
        )
        broken = extractor.save(pictures, out)
    say(f"Features of {counted(len(names) - len(broken), 'images')} → {out}")
    if broken:
        say(f"Left out: {len(broken):,} of {len(names):,}, listed in {out}.broken.txt; {some(broken)}")


def _features_in_parts(images: str, out: Large, settings: Settings, labels: Source | None) -> None:
    from tertium.labels.opening import open_labels
    from tertium.models.sharded import features as extract_parts

    names = None if labels is None else open_labels(labels).images.to_pylist()
    with watching_first() as progress:
        finished = extract_parts(
            images,
            request=out.request,
            settings=settings,
            names=names,
            joined=out.joined,
            progress=progress,
        )
    if say_ended(finished, "") and out.joined is not None:
        say(f"All of them: {out.joined}")
