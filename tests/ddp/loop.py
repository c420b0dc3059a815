"""`tertium.Loss` in somebody's own loop under DDP: what one process and two are both given.

Run as ``torchrun --nproc-per-node 2 -m tests.ddp.loop FOLDER``. Unlike in Tertium's own loop, images go from
one process to the other.
"""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from safetensors.torch import load, save, save_file
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tertium import methods
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.losses import Loss
from tertium.processes import rank, world
from tests.reference import CASES

COUNT, BATCH, EPOCHS = 24, 8, 4


def problem(method: methods.Method) -> tuple[np.ndarray, Labels, np.ndarray]:
    rng = np.random.default_rng(7)
    features = rng.normal(size=(COUNT, 5)).astype(np.float32)
    truth = np.where(features[:, :4] + 0.3 * rng.normal(size=(COUNT, 4)) > 0, 1, -1)
    labels = Labels.from_dense(truth * (rng.random(truth.shape) < 0.6))
    try:
        method.check(labels)
    except InputError:
        labels = Labels.from_dense(truth)
    return features, labels, rng.random(truth.shape, dtype=np.float32)


def own_part(rows: torch.Tensor) -> torch.Tensor:
    """Of each batch one half; in what order, only the processes together know."""
    return rows[rank() * len(rows) // world() : (rank() + 1) * len(rows) // world()]


def train(method: methods.Method) -> dict[str, torch.Tensor]:
    """Return the weights and all that the loss keeps; it is saved and loaded once on the way."""
    features, labels, guesses = problem(method)
    inputs, dense = torch.from_numpy(features), torch.from_numpy(labels.dense())

    def make() -> Loss:
        with mock.patch.object(type(method), "check"):
            return Loss(method, labels=labels, epochs=EPOCHS, features=features, predictions=guesses)

    loss, head = make(), nn.Linear(5, 4)
    loss.start(head)
    model = DistributedDataParallel(head) if world() > 1 else head
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    order = torch.Generator().manual_seed(1)
    for epoch in range(EPOCHS):
        loss.epoch()
        for batch in torch.randperm(COUNT, generator=order).split(BATCH):
            rows = own_part(batch)
            loss(model(inputs[rows]), dense[rows], rows).backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.step(lr=0.001)
        if epoch == 1:
            saved = save(loss.state_dict())
            loss = make()
            loss.load_state_dict(load(saved))
    kept = {key: value for key, value in loss.state_dict().items() if key.startswith(("table.", "tensor."))}
    return kept | {"weight": head.weight.detach().clone(), "bias": head.bias.detach().clone()}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    for compact in (False, True):
        with mock.patch("tertium.methods.state.EXACT", 0 if compact else 2**30):
            for number, (name, parameters) in enumerate(CASES):
                method = methods.make(name, parameters)
                if not compact or (method.remembers and parameters.get("optimizer") != "dense"):
                    save_file(train(method), folder / f"{number}-{compact}-{rank()}.safetensors")
    drawn = Loss("sampled_negative", rate=0.5)(torch.zeros(6, 4), torch.zeros(6, 4))
    save_file({"drawn": drawn}, folder / f"drawn-False-{rank()}.safetensors")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
