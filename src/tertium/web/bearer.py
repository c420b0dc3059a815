"""A secret that clients of the prediction service must show, as a bearer token."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from tertium.errors import InputError

VARIABLE = "TERTIUM_TOKEN"  # of the environment: what stands on a command line, every account can read
_SHORTEST = 16  # characters; shorter ones can be guessed
_ALLOWED = re.compile(r"[A-Za-z0-9._~+/-]+=*")  # what RFC 6750 lets a bearer token consist of
_MAKE = "python -c 'import secrets; print(secrets.token_urlsafe(32))' makes a good one"


class Token:
    """A secret, kept as its hash, so that comparing takes as long whatever was sent.

    >>> token = Token("a-secret-of-some-length", "the file")
    >>> token.opens([b"Bearer a-secret-of-some-length"]), token.opens([b"Bearer a-secret"]), token.opens([])
    (True, False, False)
    """

    def __init__(self, text: str, source: str) -> None:
        """Take a secret; ``source`` is where it came from, for the sentence that says what is wrong."""
        if not text:
            raise InputError(f"{source}: the token is empty; {_MAKE}")
        if not _ALLOWED.fullmatch(text):
            raise InputError(f"{source}: a token is one word of letters, digits and -._~+/; {_MAKE}")
        if len(text) < _SHORTEST:
            raise InputError(
                f"{source}: the token has {len(text)} characters, at least {_SHORTEST} are needed; {_MAKE}"
            )
        self._hash = _hashed(text.encode())

    def opens(self, given: Iterable[bytes]) -> bool:
        """Return whether these Authorization headers are one, and the right one."""
        headers = list(given)
        if len(headers) != 1:
            return False
        scheme, _, secret = headers[0].partition(b" ")
        same = hmac.compare_digest(_hashed(secret.strip(b" \t")), self._hash)
        return same and scheme.lower() == b"bearer"


def _hashed(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()


def find_token(file: Path | None, environment: Mapping[str, str] = os.environ) -> Token | None:
    """Return the token of a file or else of the environment; None if neither names one."""
    if file is not None:
        return Token(_read(file), str(file))
    if VARIABLE in environment:
        return Token(environment[VARIABLE].strip(), VARIABLE)
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text"
        raise InputError(f"{path}: the token cannot be read ({reason})") from None


def others_can_read(path: Path) -> bool:
    """Return whether accounts besides the owner may read a file."""
    return os.name == "posix" and bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))
