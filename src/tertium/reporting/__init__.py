"""Pages that open offline: about one or more runs, and about a comparison; CSV files beside them."""

from tertium.reporting.comparison import compare, write_comparison
from tertium.reporting.looking import Given
from tertium.reporting.page import report, write_report

__all__ = ["Given", "compare", "report", "write_comparison", "write_report"]
