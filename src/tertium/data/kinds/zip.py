"""Zip archives."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence

from tertium.data.sources.archives import Archives, Member, open_archives
from tertium.data.sources.places import File, streaming
from tertium.errors import InputError

ENDINGS = (".zip",)
OPTIONS: tuple[str, ...] = ()
_HEADER = 30  # bytes before the name, in front of each file
_LARGEST = 2**32  # bytes of an image


def opened(place: str, files: Sequence[File]) -> Archives:
    """Find the images in zip archives."""
    return open_archives(place, files, "zip 1", _members, _unpacked)


def holds(_: File) -> bool:
    """Return whether a file has the bytes of images itself."""
    return True


def _members(file: File) -> Iterator[Member]:
    try:
        with streaming(file) as content, zipfile.ZipFile(content) as archive:
            for each in archive.infolist():
                if not each.is_dir():
                    method = -1 if each.flag_bits & 1 else each.compress_type  # the first bit: encrypted
                    sizes = each.compress_size, each.file_size
                    yield Member(each.filename, each.header_offset, *sizes, method, each.CRC)
    except InputError:
        raise
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
        raise InputError(f"{file.address}: not a zip archive, or a damaged one ({error})") from None


def _unpacked(file: File, member: Member) -> bytes:
    head = file.read(member.offset, _HEADER)
    if len(head) < _HEADER or head[:4] != b"PK\3\4":
        raise InputError("the archive is damaged: the image is not where it should be")
    name, extra = struct.unpack("<HH", head[26:30])
    packed = file.read(member.offset + _HEADER + name + extra, member.length)
    if len(packed) < member.length or member.size > _LARGEST:
        raise InputError("the archive is cut off or damaged: bytes of the image are missing")
    found = _inflated(packed, member)
    if zlib.crc32(found) != member.checksum:
        raise InputError("the archive is damaged: the image has another checksum")
    return found


def _inflated(packed: bytes, member: Member) -> bytes:
    if member.method == zipfile.ZIP_STORED:
        return packed
    if member.method != zipfile.ZIP_DEFLATED:
        how = "encrypted" if member.method < 0 else f"packed by method {member.method}"
        raise InputError(f"the image is {how}, which is not read; pack it with deflate, or not at all")
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, max(member.size, 1))
    except zlib.error as error:
        raise InputError(f"the archive is damaged ({error})") from None
