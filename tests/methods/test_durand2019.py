from types import SimpleNamespace

import pytest
import torch

from tertium.data.batches import Batch
from tertium.errors import InputError
from tertium.labels import Labels
from tertium.methods import make
from tertium.methods.state import SampleState

LABELS = torch.tensor([[1, 0, 0], [-1, 0, 0]], dtype=torch.int8)
SAID = torch.tensor([[-5.0, 3.0, 1.0], [5.0, -2.5, -1.0]])


@pytest.fixture
def run():
    labels = Labels.from_dense(LABELS.numpy())
    return SimpleNamespace(epoch=0, epochs=9, labels=labels, state=SampleState(*labels.shape))


def at_epoch(method, run, epoch):
    run.epoch = epoch
    method.before_epoch(run)
    present, absent = (run.state.table(f"curriculum.{side}").values.int() for side in ("present", "absent"))
    return (present - absent).tolist()


def test_confident_predictions_become_labels_when_a_round_begins(run):
    method = make("curriculum")
    method.prepare(run)
    method.after_step(SAID, Batch(torch.empty(2, 0), LABELS, torch.arange(2)), run)
    nothing = [[0, 0, 0], [0, 0, 0]]
    assert [at_epoch(method, run, epoch) for epoch in (1, 2, 3)] == [nothing] * 3
    confident = [[-1, 1, 0], [1, -1, 0]]
    assert at_epoch(method, run, 4) == confident
    run.state.table("curriculum.latest").write(torch.arange(2), torch.zeros(2, 3))
    assert at_epoch(method, run, 5) == confident  # until the next round
    assert at_epoch(method, run, 7) == nothing  # chosen anew, not piled up


def test_known_labels_win_over_predictions(run):
    method = make("curriculum")
    method.prepare(run)
    batch = Batch(torch.empty(2, 0), LABELS, torch.arange(2))
    method.after_step(SAID, batch, run)
    at_epoch(method, run, 4)
    logits = torch.zeros(2, 3, requires_grad=True)
    method.terms(logits, batch, run)["known"].backward()
    assert logits.grad.sign().tolist() == [[-1, -1, 0], [1, 1, 0]]


def test_bad_parameters_are_named():
    for name, value in (("rounds", 0), ("confidence", -1.0)):
        with pytest.raises(InputError, match=name.rstrip("s")):
            make("curriculum", {name: value})
