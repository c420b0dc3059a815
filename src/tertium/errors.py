"""Errors of the user, explained in one sentence; and what else ends a command early."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input: the message is one sentence that names the file, line, class or value at fault.

    The command line prints it without a traceback and exits with code 2.
    """


class LostProcess(InputError):
    """Another of the processes that train together has ended, or does not answer."""


class SaidElsewhere(Exception):  # it tells of an error, and is none
    """Another process has reported the error: this one ends silently."""


class Stopped(Exception):  # a wish, not an error
    """A run was stopped from outside: after a checkpoint was written, or before the first step."""

    def __init__(self, number: int, *, kept: bool) -> None:
        super().__init__(number)
        self.number, self.kept = number, kept  # the number of the signal


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return a hint that names the nearest valid choice, or lists the choices when none is near.

    >>> did_you_mean("ignroe", ["ignore", "negative"])
    'did you mean "ignore"?'
    >>> did_you_mean("zzz", ["ignore", "negative"])
    'choose one of ignore, negative'
    """
    known = list(choices)
    near = nearest(word, known)
    if near is not None:
        return f'did you mean "{near}"?'
    shown = ", ".join(known[:12]) + (f", … ({len(known)} in all)" if len(known) > 12 else "")
    return f"choose one of {shown}"


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice that a misspelt word most likely stands for, if there is one."""
    lowered = {choice.lower(): choice for choice in choices}
    found = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    if not found and len(word) >= 4:  # half of a compound, such as "weight" for "positive_weight"
        found = [name for name in lowered if word.lower() in name]
    return lowered[found[0]] if found else None


def some(names: Iterable[str], limit: int = 3) -> str:
    """Return the first few names for a message, with how many more there are.

    >>> some(["a.jpg", "b.jpg", "c.jpg", "d.jpg"])
    'a.jpg, b.jpg, c.jpg and 1 more'
    """
    everything = list(names)
    rest = len(everything) - limit
    return ", ".join(everything[:limit]) + (f" and {rest} more" if rest > 0 else "")
