"""Files of a model hub: which commit a name stands for, and its files in the local cache.

The cache and what governs it are Hugging Face's own (``HF_HOME``, ``HF_ENDPOINT``, ``HF_HUB_OFFLINE``,
``HF_TOKEN``). Without a connection, what an earlier download has left is taken.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tertium.errors import InputError

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

_TRIES = 3  # of a download; each goes on where the one before it was cut off
_SECONDS = 30  # that the hub may take to say what it has


@dataclass(frozen=True)
class Pinned:
    """One file of a repository, at one commit, in the cache."""

    repository: str
    commit: str
    file: str
    sha256: str
    licence: str  # as the repository names it; empty if it does not, or cannot be asked

    @property
    def id(self) -> str:
        """As timm takes it."""
        return f"{self.repository}@{self.commit}"

    def source(self) -> dict[str, str]:
        """Where it came from, for the run."""
        about = {"hub": self.repository, "revision": self.commit, "file": self.file, "sha256": self.sha256}
        return about | ({"licence": self.licence} if self.licence else {})


def fetch(repository: str, revision: str | None, files: Sequence[str]) -> Pinned:
    """Have the first of these files that there is in the cache; a damaged one is an `InputError`.

    The cache keeps a file below the commit that it is of, and which commit a branch stood for.
    """
    info = _ask(repository, revision)
    if info is None:
        return _cached(repository, revision, files)
    there = {each.rfilename: each for each in info.siblings or ()}
    file = next((each for each in files if each in there), None)
    if file is None:
        raise InputError(f"{repository}: has none of the files that timm can load ({', '.join(files)})")
    path = _download(repository, file, revision)
    found, large = sha256(path), there[file].lfs
    if large is not None and found != large.sha256:
        path.resolve().unlink(missing_ok=True)  # or it would be taken the next time
        raise InputError(f"{repository}: {file} has come damaged (its checksum is another); try again")
    licence = getattr(info.card_data, "license", None) or ""
    return Pinned(repository, path.parent.name, file, found, str(licence))


def _ask(repository: str, revision: str | None) -> ModelInfo | None:
    """Return what the hub says of a repository; None if it cannot be reached."""
    from huggingface_hub import HfApi, errors

    try:
        return HfApi().model_info(repository, revision=revision, files_metadata=True, timeout=_SECONDS)
    except errors.GatedRepoError:
        raise InputError(
            f"{repository}: its owners want you to accept their terms first; then set HF_TOKEN"
        ) from None
    except errors.RevisionNotFoundError:
        raise InputError(f'{repository}: has no revision "{revision}"') from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise InputError(f'the hub has no model "{repository}", or none that you may see') from None
    except Exception:  # no connection, which shows in many ways
        return None


def _download(repository: str, file: str, revision: str | None) -> Path:
    """Download a file into the cache; where the connection was cut, go on there."""
    from huggingface_hub import hf_hub_download

    for left in reversed(range(_TRIES)):
        try:
            return Path(hf_hub_download(repository, file, revision=revision))
        except Exception as error:  # what a connection can do is not all of one kind
            if not left:
                reason = (str(error).partition("\n")[0] or type(error).__name__).rstrip(".")
                raise InputError(f"{repository}: {file} cannot be downloaded ({reason})") from None
            time.sleep(1)
    raise AssertionError("the last try returns or raises")


def _cached(repository: str, revision: str | None, files: Sequence[str]) -> Pinned:
    """Take what an earlier download has left."""
    from huggingface_hub import constants, try_to_load_from_cache

    for file in files:
        there = try_to_load_from_cache(repository, file, revision=revision)
        if isinstance(there, str):
            path = Path(there)
            return Pinned(repository, path.parent.name, file, sha256(path), "")
    asked = "the hub does not answer"
    why = "HF_HUB_OFFLINE forbids to ask the hub" if constants.is_offline_mode() else asked
    raise InputError(
        f"{repository}: not in {constants.HF_HUB_CACHE}, and {why}; "
        "get it where there is a connection, or let weights be a file"
    )


def sha256(path: Path) -> str:
    """Return the checksum of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
