"""Object storage and the web: what is there, parts of it, and files put there, with patience.

S3, Google's and Azure's storage are read by pyarrow, which is installed anyway; every other address by
fsspec, as far as it knows it.
"""

from __future__ import annotations

import fnmatch
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, TypeVar

from tertium.errors import InputError

_WAITS = (0.5, 1.0, 2.0, 4.0)  # seconds before another try
_CONNECT, _SILENCE = 10.0, 60.0  # seconds to wait for a connection, and for the next bytes
_DENIED = re.compile(
    r"ACCESS_DENIED|INVALID_ACCESS_KEY|INVALID_CLIENT_TOKEN|SIGNATURE_DOES_NOT_MATCH|EXPIRED_TOKEN"
    r"|UNRECOGNIZED_CLIENT|HTTP status 40[13]|HTTP response code: 40[13]|PermissionDenied|Unauthori[sz]ed",
    re.IGNORECASE,
)
_VERSIONS = ("etag", "mtime", "last_modified", "lastmodified", "created", "updated", "blob_id", "generation")
_GONE = (404, 410)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Stored:
    """A file at an address."""

    address: str
    size: int
    version: str


class _System(Protocol):
    """What is asked of a library for storage; addresses are whole."""

    def look_up(self, address: str) -> Stored | None:
        """Return a file, or None if there is none."""
        ...

    def below(self, address: str) -> list[Stored]:
        """Return all files below an address."""
        ...

    def read(self, address: str, offset: int, length: int) -> bytes:
        """Return a part of a file."""
        ...

    def whole(self, address: str) -> bytes:
        """Return a file as it is now."""
        ...

    def write(self, address: str, content: bytes) -> None:
        """Make or replace a file; others see all of it or nothing."""
        ...

    def remove(self, address: str) -> None:
        """Remove a file."""
        ...


def look_up(address: str) -> Stored | None:
    """Return a file at an address, or None if there is none."""
    return _patiently(address, lambda: _system(address).look_up(address))


def find_all(pattern: str) -> list[Stored]:
    """Return the files whose addresses fit a pattern, by name; * also stands for parts of folders."""
    fixed = re.split(r"[*?\[]", pattern)[0]
    base = fixed[: fixed.rfind("/")]
    found = below(base)
    return [each for each in found if fnmatch.fnmatchcase(each.address, pattern)]


def below(address: str) -> list[Stored]:
    """Return the files below an address, by name."""
    found = _patiently(address, lambda: _system(address).below(address.rstrip("/")))
    return sorted(found, key=lambda each: each.address)


def fetch(address: str, offset: int, length: int) -> bytes:
    """Return a part of a file; a connection that is cut is tried again."""

    def read() -> bytes:
        found = _system(address).read(address, offset, length)
        if len(found) != length:
            raise OSError(f"{len(found):,} bytes came instead of {length:,}")
        return found

    return _patiently(address, read)


def whole(address: str) -> bytes:
    """Return a file as it is now."""
    return _patiently(address, lambda: _system(address).whole(address))


def write(address: str, content: bytes) -> None:
    """Make or replace a file; whoever reads it sees all of it or nothing."""
    _patiently(address, lambda: _system(address).write(address, content), "written")


def remove(address: str) -> None:
    """Remove a file that is there."""
    _patiently(address, lambda: _system(address).remove(address), "removed")


def _patiently(address: str, call: Callable[[], Result], done: str = "read") -> Result:
    """Call until it works; what another try cannot mend is one sentence at once."""
    for wait in (*_WAITS, None):
        try:
            return call()
        except InputError:
            raise
        except FileNotFoundError:
            raise InputError(f"{address}: no such file") from None
        except NotImplementedError:
            raise InputError(f"{address}: cannot be {done}; such addresses are only read") from None
        except Exception as error:  # each library has its own kinds
            reason = _reason(error)
            if _is_denied(error):
                raise InputError(f"{address}: access is denied; check your keys ({reason})") from None
            if wait is None:
                raise InputError(
                    f"{address}: cannot be {done}, tried {len(_WAITS) + 1} times ({reason})"
                ) from None
            time.sleep(wait)
    raise AssertionError("the last try returns or raises")


def _is_denied(error: Exception) -> bool:
    denied = isinstance(error, PermissionError) or getattr(error, "status", None) in (401, 403)
    return denied or _DENIED.search(str(error)) is not None


def _reason(error: Exception) -> str:
    """Return the first line of what a library says, on one line and not too long."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text if len(text) <= 200 else f"{text[:200]}…"


# ---- pyarrow -----------------------------------------------------------------------------------------------


class _Arrow:
    """Storage that pyarrow knows."""

    def __init__(self, scheme: str, system: Any) -> None:
        self._scheme, self._system = scheme, system

    def look_up(self, address: str) -> Stored | None:
        return self._stored(self._system.get_file_info(_path(address)))

    def below(self, address: str) -> list[Stored]:
        from pyarrow.fs import FileSelector

        selector = FileSelector(_path(address), recursive=True)
        return [each for info in self._system.get_file_info(selector) if (each := self._stored(info))]

    def read(self, address: str, offset: int, length: int) -> bytes:
        found: bytes = _opened(os.getpid(), self, _path(address)).read_at(length, offset)
        return found

    def whole(self, address: str) -> bytes:
        with self._system.open_input_stream(_path(address)) as content:
            found: bytes = content.read()
        return found

    def write(self, address: str, content: bytes) -> None:
        with self._system.open_output_stream(_path(address)) as sink:  # it appears when it is closed
            sink.write(content)

    def remove(self, address: str) -> None:
        self._system.delete_file(_path(address))

    def open(self, path: str) -> Any:
        """Return an open file, of which several threads may read parts."""
        return self._system.open_input_file(path)

    def _stored(self, info: Any) -> Stored | None:
        from pyarrow.fs import FileType

        if info.type != FileType.File:
            return None
        return Stored(f"{self._scheme}://{info.path}", int(info.size or 0), str(info.mtime_ns))


@lru_cache(maxsize=64)
def _opened(_process: int, system: _Arrow, path: str) -> Any:
    """Return an open file: opening asks for its size, and once is enough."""
    return system.open(path)


def _path(address: str) -> str:
    return address.partition("://")[2]


def _s3() -> Any:
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

    given = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
    scheme, _, host = given.rpartition("://")
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return S3FileSystem(
        anonymous=os.environ.get("TERTIUM_S3_ANONYMOUS") == "1",
        region=region or ("us-east-1" if host else None),
        scheme=scheme or None,
        endpoint_override=host or None,
        connect_timeout=_CONNECT,
        request_timeout=_SILENCE,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=3),
    )


def _gcs() -> Any:
    from pyarrow.fs import GcsFileSystem

    return GcsFileSystem(anonymous=os.environ.get("TERTIUM_GCS_ANONYMOUS") == "1")


def _azure() -> Any:
    from pyarrow.fs import AzureFileSystem

    account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
    if not account:
        raise InputError("az:// addresses need the name of the account: set AZURE_STORAGE_ACCOUNT_NAME")
    return AzureFileSystem(account_name=account, account_key=os.environ.get("AZURE_STORAGE_ACCOUNT_KEY"))


# ---- fsspec ------------------------------------------------------------------------------------------------


class _Fsspec:
    """Addresses that fsspec knows."""

    def __init__(self, scheme: str, system: Any) -> None:
        self._scheme, self._system = scheme, system

    def look_up(self, address: str) -> Stored | None:
        try:
            about = self._system.info(address)
        except FileNotFoundError as error:
            cause = error.__cause__  # for the web, whatever went wrong is called a file that is not found
            if cause is not None and getattr(cause, "status", None) not in _GONE:
                raise cause from None
            return None
        return _described(address, about) if about.get("type", "file") == "file" else None

    def below(self, address: str) -> list[Stored]:
        base = self._system._strip_protocol(address)  # there is no other name for it
        found = self._system.find(address, detail=True)
        return [_described(f"{address}{name.removeprefix(base)}", about) for name, about in found.items()]

    def read(self, address: str, offset: int, length: int) -> bytes:
        found: bytes = self._system.cat_file(address, start=offset, end=offset + length)
        # Some web servers send the whole file whatever part is asked for.
        return found[offset : offset + length] if len(found) > length else found

    def whole(self, address: str) -> bytes:
        found: bytes = self._system.cat_file(address)
        return found

    def write(self, address: str, content: bytes) -> None:
        self._system.pipe_file(address, content)

    def remove(self, address: str) -> None:
        self._system.rm_file(address)


def _described(address: str, about: dict[str, Any]) -> Stored:
    said = {key.lower(): value for key, value in about.items()}
    version = " ".join(str(said[key]) for key in _VERSIONS if said.get(key) is not None)
    if about.get("size") is None:
        raise InputError(f"{address}: the server does not say how large it is")
    return Stored(address, int(about["size"]), version)


def _by_fsspec(scheme: str) -> Any:
    try:
        import fsspec
    except ModuleNotFoundError:
        raise InputError(f"{scheme}:// addresses need fsspec: pip install 'fsspec[http]'") from None
    options: dict[str, Any] = {}
    if scheme in ("http", "https"):
        from aiohttp import ClientTimeout

        wait = ClientTimeout(total=None, sock_connect=_CONNECT, sock_read=_SILENCE)
        options = {"client_kwargs": {"timeout": wait}, "skip_instance_cache": True}
    try:
        return fsspec.filesystem(scheme, **options)
    except (ImportError, ValueError) as error:
        raise InputError(f"{scheme}:// addresses cannot be read here ({_reason(error)})") from None


_ARROW = {"s3": _s3, "gs": _gcs, "gcs": _gcs, "az": _azure, "abfs": _azure, "abfss": _azure}


def _system(address: str) -> _System:
    scheme = address.partition("://")[0].lower()
    return _made(os.getpid(), scheme, tuple(os.environ.get(name) for name in _KEYS))


_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL")


@lru_cache(maxsize=32)
def _made(_process: int, scheme: str, _keys: tuple[str | None, ...]) -> _System:
    """Return what reads addresses of a scheme: clients do not survive a fork, so each process has its own."""
    if scheme in _ARROW:
        return _Arrow(scheme, _ARROW[scheme]())
    return _Fsspec(scheme, _by_fsspec(scheme))
