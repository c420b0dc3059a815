"""Progress of long work, told to whoever watches."""


class Progress:
    """Hears what goes on and keeps silent; the command line has one that draws bars."""

    def start(self, what: str, total: int, unit: str) -> None:
        """Begin a piece of work of ``total`` units."""

    def advance(self, count: int = 1) -> None:
        """Say that ``count`` more units are done."""

    def note(self, text: str) -> None:
        """Say something that the reader should know."""
