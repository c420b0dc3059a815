import torch

from tertium.state import SampleState


def test_tables_are_made_once_and_kept():
    state = SampleState(4, 3)
    table = state.table("a", fill=2.0)
    table.write(torch.tensor([1]), torch.zeros(1, 3))
    assert state.table("a", fill=9.0) is table
    assert state.table("a").read(torch.tensor([0, 1])).tolist() == [[2.0] * 3, [0.0] * 3]


def test_types():
    state = SampleState(2, 2)
    marks = state.table("marks", dtype=torch.bool)
    marks.write(torch.tensor([0]), torch.tensor([[True, False]]))
    assert marks.read(torch.tensor([0, 1])).dtype == torch.bool
    half = state.table("half", dtype=torch.float16, fill=0.25)
    assert half.read(torch.tensor([1])).dtype == torch.float32
    given = state.table("given", values=torch.eye(2))
    assert given.values.tolist() == [[1, 0], [0, 1]]


def test_everything_survives_saving_and_loading():
    state = SampleState(2, 2)
    state.table("a", fill=1.0)
    state.tensors["prior"] = torch.tensor([0.1, 0.2])
    other = SampleState(2, 2)
    other.load(state.to_dict())
    assert torch.equal(other.table("a").values, torch.ones(2, 2))
    assert torch.equal(other.tensors["prior"], state.tensors["prior"])
    other.table("a").write(torch.tensor([0]), torch.zeros(1, 2))
    assert torch.equal(state.table("a").values, torch.ones(2, 2))  # a copy, not a view


def test_writing_cuts_the_gradient():
    state = SampleState(1, 1)
    state.table("a").write(torch.tensor([0]), torch.ones(1, 1, requires_grad=True))
    assert not state.table("a").values.requires_grad
