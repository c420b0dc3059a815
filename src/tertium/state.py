"""State that a method keeps: tables with a row for each training image, and named tensors.

It lives outside every module, since a wrapper for several processes would overwrite what differs between
them. The labels themselves never change: corrections are state.
"""

from __future__ import annotations

import torch
from torch import Tensor


class Table:
    """A row [C] for each training image, read and written by the rows of a batch."""

    def __init__(self, values: Tensor) -> None:
        self.values = values  # [N, C] on the CPU

    def read(self, rows: Tensor) -> Tensor:
        """Return these rows [B, C] where ``rows`` are: a Boolean table as it is, any other as float32."""
        found = self.values[rows.cpu()]
        return (found if found.dtype == torch.bool else found.float()).to(rows.device)

    def write(self, rows: Tensor, values: Tensor) -> None:
        """Replace these rows."""
        self.values[rows.cpu()] = values.detach().to("cpu", self.values.dtype)


class SampleState:
    """The tables and tensors of one training run, by name.

    >>> state = SampleState(images=3, classes=2)
    >>> table = state.table("guess", fill=0.5)
    >>> table.write(torch.tensor([2]), torch.tensor([[0.25, 1.0]]))
    >>> state.table("guess").read(torch.tensor([2, 0]))
    tensor([[0.2500, 1.0000],
            [0.5000, 0.5000]])
    """

    def __init__(self, images: int, classes: int) -> None:
        self.shape = (images, classes)
        self._tables: dict[str, Table] = {}
        self.tensors: dict[str, Tensor] = {}

    def table(
        self,
        name: str,
        *,
        dtype: torch.dtype = torch.float32,
        fill: float = 0.0,
        values: Tensor | None = None,
    ) -> Table:
        """Return the table of this name; the first call makes it, from ``values`` [N, C] or filled evenly."""
        if name not in self._tables:
            start = torch.full(self.shape, fill, dtype=dtype) if values is None else values.to(dtype)
            self._tables[name] = Table(start)
        return self._tables[name]

    def to_dict(self) -> dict[str, Tensor]:
        """Return everything by name, to be saved."""
        tables = {f"table.{name}": table.values for name, table in self._tables.items()}
        return tables | {f"tensor.{name}": value for name, value in self.tensors.items()}

    def load(self, saved: dict[str, Tensor]) -> None:
        """Take over what `to_dict` gave."""
        for key, value in saved.items():
            kind, _, name = key.partition(".")
            if kind == "table":
                self._tables[name] = Table(value.clone())
            else:
                self.tensors[name] = value.clone()
