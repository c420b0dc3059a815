"""Progress reporting for long-running work."""


class Progress:
    """Receives progress reports and ignores them; the command line has one that draws bars."""

    def start(self, what: str, total: int, unit: str) -> None:
        """Begin a task of ``total`` units."""

    def advance(self, count: int = 1) -> None:
        """Report that ``count`` more units are done."""

    def note(self, text: str) -> None:
        """Report something that the user should know."""
