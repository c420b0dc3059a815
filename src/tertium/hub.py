"""Files of a hub for models and data sets: which commit a name stands for, and its files in the local cache.

The cache and what governs it are Hugging Face's own (``HF_HOME``, ``HF_ENDPOINT``, ``HF_HUB_OFFLINE``,
``HF_TOKEN``). Without a connection, what an earlier download has left is taken.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from tertium.errors import InputError, did_you_mean, nearest, some

if TYPE_CHECKING:
    from huggingface_hub.hf_api import DatasetInfo, ModelInfo

Kind = Literal["model", "dataset"]
_WORDS = {"model": "model", "dataset": "data set"}
_ANY = ("",)  # ending
_TRIES = 3  # of a download; each goes on where the one before it was cut off
_SECONDS = 30  # that the hub may take to say what it has
_LISTED = 200  # names of the hub that are looked through for one that is near
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REVISION = r"(?:@(refs/(?:convert|pr)/[\w-]+|[^/@]+))?"
_NAME = re.compile(rf"([\w-][\w.-]*/[\w-][\w.-]*){_REVISION}")
_ADDRESS = re.compile(rf"hf:/+datasets/([\w.-]+/[\w.-]+){_REVISION}(?:/(.*))?")  # a Path has one slash


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
    path, found = _checked(repository, file, revision, there[file].lfs)
    licence = getattr(info.card_data, "license", None) or ""
    return Pinned(repository, path.parent.name, file, found, str(licence))


# ---- data sets ---------------------------------------------------------------------------------------------


class DataPlace(NamedTuple):
    """Files of a data set: all, or those below a folder or of a pattern."""

    repository: str
    revision: str | None
    inside: str

    def holds(self, file: str) -> bool:
        """Whether a file is meant."""
        folder = self.inside.rstrip("/")
        return not folder or file == folder or file.startswith(f"{folder}/") or fnmatch.fnmatch(file, folder)


class DataFiles(NamedTuple):
    """Files of a data set at one commit, in the cache."""

    commit: str
    folder: Path  # that has them, by their names in the repository
    names: list[str]


def data_place(text: str | Path) -> DataPlace | None:
    """Return what an address names, or a name such as owner/name@revision; None if it is neither.

    >>> data_place("hf://datasets/me/birds@v1/data/train*.parquet")
    DataPlace(repository='me/birds', revision='v1', inside='data/train*.parquet')
    >>> data_place("me/birds"), data_place("./birds")
    (DataPlace(repository='me/birds', revision=None, inside=''), None)
    """
    found = _ADDRESS.fullmatch(str(text)) or _NAME.fullmatch(str(text))
    if found is None:
        return None
    repository, revision, *rest = found.groups()
    return DataPlace(repository, revision, (rest[0] or "") if rest else "")


def is_address(text: str | Path) -> bool:
    """Whether this is the address of a data set on the hub."""
    return _ADDRESS.fullmatch(str(text)) is not None


def pinned(address: str) -> str:
    """Return an address of a data set with the commit that it stands for now; any other as it is."""
    place = data_place(address) if is_address(address) else None
    if place is None or _COMMIT.fullmatch(place.revision or ""):
        return address
    info = _ask(place.repository, place.revision, "dataset")
    if info is None:
        return address
    return f"hf://datasets/{place.repository}@{info.sha}{'/' if place.inside else ''}{place.inside}"


def data_files(place: DataPlace, endings: tuple[str, ...]) -> DataFiles:
    """Have files of a data set with these endings in the cache, all of one commit; or one of any ending."""
    repository, revision, _ = place
    info = _ask(repository, revision, "dataset")
    if info is None:
        return _cached_data(place, endings)
    there = {each.rfilename: each for each in info.siblings or ()}
    names = sorted(name for name in there if name.endswith(endings) and place.holds(name))
    if endings == _ANY and names != [place.inside]:
        raise InputError(f'{repository}: has no file "{place.inside}"; {did_you_mean(place.inside, there)}')
    if not names:
        where = f" that fit {place.inside}" if place.inside else ""
        raise InputError(
            f"{repository}: has no {' or '.join(endings)} files{where}, but {some(sorted(there)) or 'none'}; "
            f"the hub may have some at {repository}@refs/convert/parquet"
        )
    paths = [_checked(repository, name, revision, there[name].lfs, "dataset")[0] for name in names]
    folders = {_above(path, name) for path, name in zip(paths, names, strict=True)}
    if len(folders) > 1:
        raise InputError(f"{repository}: has changed while it was downloaded; try again")
    folder = folders.pop()
    return DataFiles(folder.name, folder, names)


def data_file(address: str | Path) -> Path:
    """Have one file of a data set in the cache."""
    place = data_place(address)
    if place is None or not place.inside:
        raise InputError(f"{address}: name a file of the data set, as in hf://datasets/owner/name/labels.csv")
    return data_files(place, _ANY).folder / place.inside


def _above(path: Path, name: str) -> Path:
    """Return the folder in which a file has this name."""
    return path.parents[name.count("/")]


def _cached_data(place: DataPlace, endings: tuple[str, ...]) -> DataFiles:
    """Take what an earlier download has left."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(
            snapshot_download(
                place.repository, repo_type="dataset", revision=place.revision, local_files_only=True
            )
        )
    except Exception:  # it is not there, which is said in several ways
        raise InputError(_not_here(place.repository)) from None
    files = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    names = sorted(name for name in files if name.endswith(endings) and place.holds(name))
    if not names:
        raise InputError(_not_here(place.repository))
    return DataFiles(folder.name, folder, names)


# ---- the hub and its cache ---------------------------------------------------------------------------------


def _ask(repository: str, revision: str | None, kind: Kind = "model") -> ModelInfo | DatasetInfo | None:
    """Return what the hub says of a repository; None if it cannot be reached."""
    from huggingface_hub import HfApi, errors

    api = HfApi()
    ask = api.model_info if kind == "model" else api.dataset_info
    try:
        return ask(repository, revision=revision, files_metadata=True, timeout=_SECONDS)
    except errors.GatedRepoError:
        raise InputError(
            f"{repository}: its owners want you to accept their terms first; then set HF_TOKEN"
        ) from None
    except errors.RevisionNotFoundError:
        raise InputError(f'{repository}: has no revision "{revision}"') from None
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        raise InputError(
            f'the hub has no {_WORDS[kind]} "{repository}", or none that you may see{_near(repository, kind)}'
        ) from None
    except Exception:  # no connection, which shows in many ways
        return None


def _near(repository: str, kind: Kind) -> str:
    """Say which names of the hub are near to one that it does not have."""
    from huggingface_hub import HfApi

    owner, _, name = repository.partition("/")
    api = HfApi()
    names = api.list_models if kind == "model" else api.list_datasets
    try:
        found = [each.id for each in names(author=owner, limit=_LISTED)]
        found = found or [each.id for each in names(search=name, limit=_LISTED)]
    except Exception:  # the name is wrong anyway
        return ""
    near = nearest(repository, found)
    return f'; did you mean "{near}"?' if near else f"; there are {some(found)}" if found else ""


def _checked(
    repository: str, file: str, revision: str | None, large: object, kind: Kind = "model"
) -> tuple[Path, str]:
    """Download a file; return where it is, and its checksum, which must be the one that the hub promised."""
    path = _download(repository, file, revision, kind)
    found = sha256(path)
    if large is not None and found != getattr(large, "sha256", found):
        path.resolve().unlink(missing_ok=True)  # or it would be taken the next time
        raise InputError(f"{repository}: {file} has come damaged (its checksum is another); try again")
    return path, found


def _download(repository: str, file: str, revision: str | None, kind: Kind) -> Path:
    """Download a file into the cache; where the connection was cut, go on there."""
    from huggingface_hub import hf_hub_download

    for left in reversed(range(_TRIES)):
        try:
            return Path(hf_hub_download(repository, file, repo_type=kind, revision=revision))
        except Exception as error:  # what a connection can do is not all of one kind
            if not left:
                reason = (str(error).partition("\n")[0] or type(error).__name__).rstrip(".")
                raise InputError(f"{repository}: {file} cannot be downloaded ({reason})") from None
            time.sleep(1)
    raise AssertionError("the last try returns or raises")


def _cached(repository: str, revision: str | None, files: Sequence[str]) -> Pinned:
    """Take what an earlier download has left."""
    from huggingface_hub import try_to_load_from_cache

    for file in files:
        there = try_to_load_from_cache(repository, file, revision=revision)
        if isinstance(there, str):
            path = Path(there)
            return Pinned(repository, path.parent.name, file, sha256(path), "")
    raise InputError(f"{_not_here(repository)}, or let weights be a file")


def _not_here(repository: str) -> str:
    from huggingface_hub import constants

    asked = "the hub does not answer"
    why = "HF_HUB_OFFLINE forbids to ask the hub" if constants.is_offline_mode() else asked
    return f"{repository}: not in {constants.HF_HUB_CACHE}, and {why}; get it where there is a connection"


def sha256(path: Path) -> str:
    """Return the checksum of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
