"""A fair comparison: every method under every scheme, on the same images and the same hidden labels.

`rows` reads what is compared, `search` draws hyper-parameters, `cells` trains one cell of the table,
`running` decides which cells there are, and `table` writes what they gave.
"""

from tertium.comparing.cells import Cell, Work
from tertium.comparing.rows import Column, Row, columns_from, rows_from
from tertium.comparing.running import Comparison, compare, on_ray, on_this_machine
from tertium.comparing.table import (
    ABOUT,
    CEILING,
    Entry,
    check_folder,
    half_interval,
    markdown,
    mean_over,
    summarise,
    write_results,
)

__all__ = [
    "ABOUT",
    "CEILING",
    "Cell",
    "Column",
    "Comparison",
    "Entry",
    "Row",
    "Work",
    "check_folder",
    "columns_from",
    "compare",
    "half_interval",
    "markdown",
    "mean_over",
    "on_ray",
    "on_this_machine",
    "rows_from",
    "summarise",
    "write_results",
]
