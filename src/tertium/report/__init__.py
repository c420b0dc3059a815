"""Pages that open offline: about one or more runs, and about a comparison; CSV files beside them."""

from tertium.report.comparison import write_comparison
from tertium.report.looking import Given
from tertium.report.page import write_report

__all__ = ["Given", "write_comparison", "write_report"]
