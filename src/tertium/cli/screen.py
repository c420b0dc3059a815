"""The console on which everything is printed: names from a user's files are shown, never obeyed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

# Characters that move the cursor, change colours or the order of letters, or that no terminal can be sent.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Screen(Console):
    """A console that shows control characters as escapes; its own colours are not affected."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield what is printed, piece by piece."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else Segment(visible(piece.text), piece.style)


def visible(text: str) -> str:
    r"""Return a text with its control characters as escapes.

    >>> visible("a\x1b[31mb")
    'a\\x1b[31mb'
    """
    return _UNSAFE.sub(lambda found: found.group().encode("unicode_escape").decode(), text)
