"""Frozen-backbone features of images."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from tertium.data import ImageLoader, Order
from tertium.inputs import Pictures
from tertium.labels import Labels
from tertium.model import Backbone
from tertium.progress import Progress


def extract(
    backbone: Backbone,
    pictures: Pictures,
    size: int,
    *,
    device: torch.device,
    workers: int = 0,
    progress: Progress | None = None,
) -> npt.NDArray[np.float16]:
    """Return the pooled features [N, D] of images squashed to size × size."""
    progress = progress or Progress()
    backbone = backbone.to(device).eval()
    features = np.empty((len(pictures), backbone.width), dtype=np.float16)
    nameless = Labels.unknown([str(row) for row in range(len(pictures))], ["any"])
    progress.start("extracting features", len(pictures), "images")
    with torch.inference_mode():
        for batch in ImageLoader(pictures, nameless, size, Order(len(pictures), 64), workers=workers).epoch(
            0
        ):
            features[batch.index.numpy()] = backbone(batch.inputs.to(device)).cpu().numpy()
            progress.advance(len(batch.index))
    return features
