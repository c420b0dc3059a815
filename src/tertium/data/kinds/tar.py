"""Tar archives, such as the shards that WebDataset writes; not compressed ones."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence

from tertium.data.sources.archives import Archives, Member, open_archives
from tertium.data.sources.places import File, streaming
from tertium.errors import InputError

ENDINGS = (".tar",)
OPTIONS: tuple[str, ...] = ()
SEQUENTIAL = True  # what is in it shows only when it is read from its beginning to its end


def opened(place: str, files: Sequence[File]) -> Archives:
    """Find the images in tar archives."""
    return open_archives(place, files, "tar 1", _members, _unpacked)


def holds(_: File) -> bool:
    """Return whether a file has the bytes of images itself."""
    return True


def _members(file: File) -> Iterator[Member]:
    """Yield the files in an archive; of one that was cut off, also the last one that began."""
    try:
        with streaming(file) as content, tarfile.open(fileobj=content, mode="r:") as archive:
            while (member := archive.next()) is not None:
                archive.members = []  # type: ignore[attr-defined]  # which would all be kept
                if member.isreg() and not member.issparse():
                    yield Member(member.name, member.offset_data, member.size, member.size)
            content.seek(archive.offset)
            if len(content.read(tarfile.BLOCKSIZE)) < tarfile.BLOCKSIZE:
                raise tarfile.ReadError("truncated header")  # not even the mark of the end is there
    except InputError:
        raise
    except tarfile.ReadError as error:
        if "truncated header" in str(error):
            raise InputError(f"{file.address}: the archive is cut off: its end is missing") from None
        if "unexpected end of data" not in str(error):
            raise InputError(f"{file.address}: not a tar archive, or a compressed one ({error})") from None
    except (tarfile.TarError, ValueError, EOFError) as error:
        raise InputError(f"{file.address}: the tar archive is damaged ({error})") from None


def _unpacked(file: File, member: Member) -> bytes:
    found = file.read(member.offset, member.length)
    if len(found) < member.length:
        raise InputError(
            f"the archive is cut off: {len(found):,} of {member.length:,} bytes of the image are there"
        )
    return found
