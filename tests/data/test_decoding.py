"""One decoder: generated files with pixels known beforehand, and files that are not what they say."""

import io
import os
import socket
import struct
import subprocess
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import EpsImagePlugin, Image, features

from tertium.data import decoding
from tertium.data.decoding import Gate, decode_image, open_image, plain
from tertium.data.inputs import open_inputs
from tertium.errors import InputError

STEPS = np.arange(0, 256, 4, dtype=np.uint8).reshape(8, 8)
COLOURS = np.stack([STEPS, STEPS[::-1], 255 - STEPS.T], axis=-1)  # [8, 8, 3]
SIDES = np.zeros((16, 32, 3), dtype=np.uint8)  # four corners that differ, in blocks that JPEG keeps
SIDES[:8, :16], SIDES[:8, 16:], SIDES[8:, :16] = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def grey(values):
    """Return what a viewer shows for one channel of 8 bits."""
    return np.stack([values] * 3, axis=-1)


def over_white(colours, alpha):
    share = alpha[..., None] / 255
    return np.rint(share * colours + (1 - share) * 255).astype(np.uint8)


def saved(image, kind, **options):
    if not isinstance(image, Image.Image):
        image = Image.fromarray(image)
    if kind == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener()
    if kind == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def decoded(content):
    image = decode_image(content, "it")
    assert (image.mode, image.info, len(image.getexif())) == ("RGB", {}, 0)
    return np.asarray(image)


# ---- what a viewer shows ---------------------------------------------------------------------------------


ALPHA = np.linspace(0, 255, 64).astype(np.uint8).reshape(8, 8)
BLACK_AND_WHITE = ((STEPS // 4) % 2 * 255).astype(np.uint8)
DEEP = (STEPS.astype(np.uint16) << 8) + 77  # 16 bits
PALETTE = Image.fromarray(COLOURS).quantize(16)


def rgba(colours=COLOURS, alpha=ALPHA):
    return Image.fromarray(np.dstack([colours, alpha]))


def with_transparent_entries(kind, transparency, entries):
    """Return a file with a palette of which some entries are not shown, and its pixels."""
    shown = np.asarray(PALETTE.convert("RGB")).copy()
    clear = np.isin(np.asarray(PALETTE), entries)
    shown[clear] = 255
    assert 0 < clear.sum() < clear.size
    return saved(PALETTE, kind, transparency=transparency), shown


def tiff(values, photometric=1, bits=None, sample_format=None, order="<"):
    """Return an uncompressed TIFF of one channel, as Pillow cannot write all of them."""
    body = values.astype(values.dtype.newbyteorder(order)).tobytes() if bits is None else pack12(values)
    kinds = {"u": 1, "i": 2, "f": 3}
    entries = [
        (256, 4, values.shape[1]),
        (257, 4, values.shape[0]),
        (258, 3, bits or values.dtype.itemsize * 8),
        (259, 3, 1),
        (262, 3, photometric),
        (273, 4, 8),
        (277, 3, 1),
        (278, 4, values.shape[0]),
        (279, 4, len(body)),
        (339, 3, sample_format or kinds[values.dtype.kind]),
    ]
    head = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", 8 + len(body))
    rows = b"".join(
        struct.pack(order + ("HHIHH" if kind == 3 else "HHII"), tag, kind, 1, value, *([0] * (kind == 3)))
        for tag, kind, value in entries
    )
    return head + body + struct.pack(order + "H", len(entries)) + rows + bytes(4)


def pack12(values):
    pairs = values.reshape(-1, 2).astype(np.uint32)
    whole = pairs[:, 0] << 12 | pairs[:, 1]
    return np.stack([whole >> 16, whole >> 8 & 255, whole & 255], axis=1).astype(np.uint8).tobytes()


def adobe_ycck(red, green, blue):
    """Return a JPEG of one colour as Adobe writes YCCK: inks as YCbCr, and black inverted."""
    inks = 255 - red, 255 - green, 255 - blue
    luma, cb, cr = Image.new("RGB", (1, 1), inks).convert("YCbCr").getpixel((0, 0))
    # Pillow inverts what it writes as CMYK, and says that it is not transformed.
    content = saved(Image.new("CMYK", (16, 16), (255 - luma, 255 - cb, 255 - cr, 0)), "JPEG", quality=100)
    place = content.index(b"Adobe") + 11
    assert content[place] == 0
    return content[:place] + b"\x02" + content[place + 1 :]


EXACT = {
    "png 1 bit": lambda: (saved(Image.fromarray(BLACK_AND_WHITE).convert("1"), "PNG"), grey(BLACK_AND_WHITE)),
    "png grey": lambda: (saved(STEPS, "PNG"), grey(STEPS)),
    "png 16 bit": lambda: (saved(DEEP, "PNG"), grey(np.rint(DEEP / 257).astype(np.uint8))),
    "png 16 bit, of 8": lambda: (saved(STEPS.astype(np.uint16) * 257, "PNG"), grey(STEPS)),
    "png 16 bit, a value is clear": lambda: (
        saved(DEEP, "PNG", transparency=int(DEEP[3, 3])),
        grey(np.where(DEEP[3, 3] == DEEP, 255, np.rint(DEEP / 257)).astype(np.uint8)),
    ),
    "png grey and alpha": lambda: (
        saved(Image.merge("LA", [Image.fromarray(STEPS), Image.fromarray(ALPHA)]), "PNG"),
        over_white(grey(STEPS), ALPHA),
    ),
    "png palette": lambda: (saved(PALETTE, "PNG"), np.asarray(PALETTE.convert("RGB"))),
    "png palette, an entry is clear": lambda: with_transparent_entries("PNG", 3, [3]),
    "png palette, several are clear": lambda: with_transparent_entries("PNG", b"\0\xff\0", [0, 2]),
    "png": lambda: (saved(COLOURS, "PNG"), COLOURS),
    "png, a colour is clear": lambda: (
        saved(COLOURS, "PNG", transparency=tuple(COLOURS[2, 5].tolist())),
        np.where((COLOURS[2, 5] == COLOURS).all(axis=-1, keepdims=True), 255, COLOURS),
    ),
    "png rgba": lambda: (saved(rgba(), "PNG"), over_white(COLOURS, ALPHA)),
    "png rgba, opaque": lambda: (saved(rgba(alpha=np.full_like(ALPHA, 255)), "PNG"), COLOURS),
    "bmp 1 bit": lambda: (saved(Image.fromarray(BLACK_AND_WHITE).convert("1"), "BMP"), grey(BLACK_AND_WHITE)),
    "bmp grey": lambda: (saved(STEPS, "BMP"), grey(STEPS)),
    "bmp palette": lambda: (saved(PALETTE, "BMP"), np.asarray(PALETTE.convert("RGB"))),
    "bmp": lambda: (saved(COLOURS, "BMP"), COLOURS),
    "gif 1 bit": lambda: (saved(Image.fromarray(BLACK_AND_WHITE).convert("1"), "GIF"), grey(BLACK_AND_WHITE)),
    "gif grey": lambda: (saved(STEPS, "GIF"), grey(STEPS)),
    "gif palette": lambda: (saved(PALETTE, "GIF"), np.asarray(PALETTE.convert("RGB"))),
    "gif, an entry is clear": lambda: with_transparent_entries("GIF", 3, [3]),
    "webp": lambda: (saved(COLOURS, "WEBP", lossless=True), COLOURS),
    "webp rgba": lambda: (
        saved(rgba(), "WEBP", lossless=True, exact=True),
        over_white(COLOURS, ALPHA),
    ),
    "tiff 1 bit": lambda: (
        saved(Image.fromarray(BLACK_AND_WHITE).convert("1"), "TIFF"),
        grey(BLACK_AND_WHITE),
    ),
    "tiff grey": lambda: (saved(STEPS, "TIFF"), grey(STEPS)),
    "tiff palette": lambda: (saved(PALETTE, "TIFF"), np.asarray(PALETTE.convert("RGB"))),
    "tiff palette and alpha": lambda: (
        saved(Image.merge("PA", [PALETTE, Image.fromarray(ALPHA)]), "TIFF"),
        over_white(np.asarray(Image.merge("PA", [PALETTE, Image.fromarray(ALPHA)]).convert("RGB")), ALPHA),
    ),
    "tiff": lambda: (saved(COLOURS, "TIFF"), COLOURS),
    "tiff lzw": lambda: (saved(COLOURS, "TIFF", compression="tiff_lzw"), COLOURS),
    "tiff rgba": lambda: (saved(rgba(), "TIFF"), over_white(COLOURS, ALPHA)),
    "tiff grey and alpha": lambda: (
        saved(Image.merge("LA", [Image.fromarray(STEPS), Image.fromarray(ALPHA)]), "TIFF"),
        over_white(grey(STEPS), ALPHA),
    ),
    "tiff rgbx": lambda: (saved(Image.fromarray(COLOURS).convert("RGBX"), "TIFF"), COLOURS),
    "tiff 16 bit": lambda: (saved(DEEP, "TIFF"), grey(np.rint(DEEP / 257).astype(np.uint8))),
    "tiff 16 bit, big-endian": lambda: (
        tiff(DEEP, order=">"),
        grey(np.rint(DEEP / 257).astype(np.uint8)),
    ),
    "tiff 16 bit, 0 is white": lambda: (
        tiff(DEEP, photometric=0),
        grey(255 - np.rint(DEEP / 257).astype(np.uint8)),
    ),
    "tiff 12 bit": lambda: (
        tiff(DEEP >> 4, bits=12),
        grey(np.rint((DEEP >> 4) / 4095 * 255).astype(np.uint8)),
    ),
    "tiff int32, 0 to 255": lambda: (saved(STEPS.astype(np.int32), "TIFF"), grey(STEPS)),
    "tiff int32, 0 to 1": lambda: (
        saved((BLACK_AND_WHITE // 255).astype(np.int32), "TIFF"),
        grey(BLACK_AND_WHITE),
    ),
    "tiff int32, its own range": lambda: (
        saved(STEPS.astype(np.int32) * 1000 - 7, "TIFF"),
        grey(np.rint(STEPS / STEPS.max() * 255).astype(np.uint8)),
    ),
    "tiff int32, big-endian": lambda: (
        tiff(STEPS.astype(np.int32) * 1000, order=">"),
        grey(np.rint(STEPS / STEPS.max() * 255).astype(np.uint8)),
    ),
    "tiff uint32 above 2^31": lambda: (
        tiff(STEPS.astype(np.uint32) * 2**24),
        grey(np.rint(STEPS / STEPS.max() * 255).astype(np.uint8)),
    ),
    "tiff int16": lambda: (
        tiff(STEPS.astype(np.int16) * 100 - 9000),
        grey(np.rint(STEPS / STEPS.max() * 255).astype(np.uint8)),
    ),
    "tiff int32, all the same": lambda: (
        saved(np.full((8, 8), 70_000, dtype=np.int32), "TIFF"),
        grey(np.zeros((8, 8), dtype=np.uint8)),
    ),
    "tiff float, 0 to 1": lambda: (
        saved(STEPS.astype(np.float32) / 255, "TIFF"),
        grey(STEPS),
    ),
    "tiff float, a dark one of 0 to 1": lambda: (
        saved(np.full((8, 8), 0.25, dtype=np.float32), "TIFF"),
        grey(np.full((8, 8), 64, dtype=np.uint8)),
    ),
    "tiff float, 0 to 255": lambda: (saved(STEPS.astype(np.float32), "TIFF"), grey(STEPS)),
    "tiff float, a little above 1": lambda: (
        saved(STEPS.astype(np.float32) / 240, "TIFF"),
        grey(np.rint(STEPS / STEPS.max() * 255).astype(np.uint8)),
    ),
    "tiff float, its own range": lambda: (
        saved(STEPS.astype(np.float32) * 9 - 500, "TIFF"),
        grey(np.rint(STEPS / STEPS.max() * 255).astype(np.uint8)),
    ),
    "tiff float, not all are numbers": lambda: (
        saved(np.array([[0.5, np.nan], [np.inf, -np.inf]], dtype=np.float32), "TIFF"),
        grey(np.array([[128, 0], [255, 0]], dtype=np.uint8)),
    ),
    "tiff float, 0 is white": lambda: (
        tiff(STEPS.astype(np.float32) / 255, photometric=0),
        grey(255 - STEPS),
    ),
}


@pytest.mark.parametrize("case", EXACT)
def test_lossless_files_have_the_pixels_that_a_viewer_shows(case):
    content, wanted = EXACT[case]()
    np.testing.assert_array_equal(decoded(content), wanted)


def flat(mode, colour, kind, **options):
    return lambda: saved(Image.new(mode, (16, 16), colour), kind, **options)


ORANGE, INKS, LUMA = (200, 100, 50), (55, 155, 205, 0), (124, 86, 182)
LAB = Image.new("RGB", (1, 1), ORANGE).convert("LAB").getpixel((0, 0))


@pytest.mark.parametrize(
    ("make", "wanted", "off"),
    [
        (flat("L", 90, "JPEG"), (90, 90, 90), 1),
        (flat("RGB", ORANGE, "JPEG"), ORANGE, 2),
        (flat("YCbCr", LUMA, "JPEG"), ORANGE, 3),
        (flat("RGB", ORANGE, "MPO"), ORANGE, 2),
        (flat("CMYK", INKS, "JPEG"), ORANGE, 3),
        (flat("CMYK", (*INKS[:3], 128), "JPEG"), (100, 50, 25), 3),
        (lambda: adobe_ycck(*ORANGE), ORANGE, 4),
        (flat("CMYK", INKS, "TIFF"), ORANGE, 1),
        (flat("YCbCr", LUMA, "TIFF"), ORANGE, 2),
        (flat("LAB", LAB, "TIFF"), ORANGE, 2),
        (flat("RGB", ORANGE, "TIFF", compression="jpeg"), ORANGE, 3),
        (flat("RGB", ORANGE, "WEBP"), ORANGE, 3),
        (flat("RGB", ORANGE, "GIF"), ORANGE, 0),
        (flat("RGB", ORANGE, "AVIF"), ORANGE, 3),
        (flat("RGBA", (*ORANGE, 0), "AVIF"), (255, 255, 255), 1),
        (flat("RGB", ORANGE, "HEIF"), ORANGE, 3),
        (flat("RGBA", (*ORANGE, 0), "HEIF"), (255, 255, 255), 1),
        (flat("I;16", 40_000, "HEIF"), (156, 156, 156), 1),
    ],
)
def test_lossy_files_have_them_nearly(make, wanted, off):
    found = decoded(make()).astype(int)
    assert np.abs(found - np.array(wanted)).max() <= off


def test_the_first_frame_of_many(rng):
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "lime", "blue")]
    for kind, options in (
        ("GIF", {}),
        ("PNG", {}),
        ("WEBP", {"lossless": True}),
        ("TIFF", {}),
        ("MPO", {"quality": 100}),
        ("AVIF", {}),
        ("HEIF", {}),
    ):
        content = saved(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        assert np.abs(decoded(content).astype(int) - (255, 0, 0)).max() < 8, kind


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGB", "CMYK", "YCbCr", "LAB", "HSV", "LA", "PA", "RGBA"])
def test_images_in_memory_may_have_any_mode(mode):
    image = Image.fromarray(COLOURS).convert(mode)
    np.testing.assert_array_equal(np.asarray(plain(image)), np.asarray(image.convert("RGB")))


@pytest.mark.parametrize("mode", ["La", "RGBa"])
def test_premultiplied_alpha_in_memory(mode):
    clear = rgba().convert("LA") if mode == "La" else rgba()
    off = np.asarray(plain(clear.convert(mode))).astype(int) - np.asarray(plain(clear))
    assert np.abs(off).max() <= 2  # 8 bits before and after


def test_ordinary_photographs_are_as_pillow_has_them(rng):
    """Figures that were measured stand: for plain RGB and grey files nothing has changed, to the last bit."""
    pixels = rng.integers(0, 256, (37, 53, 3), dtype=np.uint8)
    for image in (Image.fromarray(pixels), Image.fromarray(pixels[..., 0])):
        for kind, options in (("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("WEBP", {})):
            content = saved(image, kind, **options)
            wanted = np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
            np.testing.assert_array_equal(decoded(content), wanted)


# ---- how the camera was held -----------------------------------------------------------------------------


TURNED = {
    1: SIDES,
    2: SIDES[:, ::-1],
    3: SIDES[::-1, ::-1],
    4: SIDES[::-1],
    5: SIDES.transpose(1, 0, 2),
    6: np.rot90(SIDES, -1),
    7: SIDES[::-1, ::-1].transpose(1, 0, 2),
    8: np.rot90(SIDES),
}


@pytest.mark.parametrize("orientation", TURNED)
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF", "MPO", "AVIF", "HEIF"])
def test_images_are_upright(kind, orientation, tmp_path):
    image = Image.fromarray(SIDES)
    noted = image.getexif()
    noted[0x0112] = orientation
    options = {"subsampling": "4:4:4"} if kind in ("AVIF",) else {}
    options |= {"chroma": 444, "quality": 90} if kind == "HEIF" else {}
    options |= {"quality": 95, "subsampling": 0} if kind in ("JPEG", "MPO") else {}
    options |= {"lossless": True} if kind == "WEBP" else {}
    content = saved(image, kind, exif=noted.tobytes(), **options)
    found = decoded(content).astype(int)
    assert found.shape == TURNED[orientation].shape
    assert np.abs(found - TURNED[orientation]).mean() < 12
    (tmp_path / "x.jpg").write_bytes(content)
    assert open_inputs(tmp_path).pictures.measured(0)[1] == (found.shape[1], found.shape[0])


def test_an_image_in_memory_is_turned_too():
    image = Image.fromarray(SIDES)
    image.getexif()[0x0112] = 6
    np.testing.assert_array_equal(np.asarray(plain(image)), TURNED[6])


@pytest.mark.parametrize("orientation", [0, 9, 77])
def test_orientations_that_there_are_not_change_nothing(orientation):
    image = Image.fromarray(SIDES)
    noted = image.getexif()
    noted[0x0112] = orientation
    np.testing.assert_array_equal(decoded(saved(image, "PNG", exif=noted)), SIDES)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_notes_do_no_harm():
    for noted in (
        b"Exif\0\0",
        b"Exif\0\0II*\0\xff\xff\xff\xff",
        b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\1\x12\0\3",
    ):
        np.testing.assert_array_equal(decoded(saved(SIDES, "PNG", exif=noted)), SIDES)


# ---- large ones ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "case", ["png", "png 16 bit", "png rgba", "png palette, several are clear", "tiff float, its own range"]
)
def test_large_images_are_made_smaller_part_by_part(case, monkeypatch):
    content, _ = EXACT[case]()
    large = Image.fromarray(decoded(content))
    monkeypatch.setattr(decoding, "_WHOLE", 10)  # of 64 pixels
    monkeypatch.setattr(decoding, "_TILE", 4)
    np.testing.assert_array_equal(decoded(content), np.asarray(large.reduce(3)))


def test_a_large_jpeg_is_decoded_smaller(monkeypatch, rng):
    content = saved(Image.fromarray(rng.integers(0, 256, (6, 9, 3), np.uint8)).resize((900, 600)), "JPEG")
    whole = decode_image(content, "it")
    monkeypatch.setattr(decoding, "_WHOLE", 100_000)
    drafts = []
    monkeypatch.setattr(
        decoding.JpegImageFile, "draft", lambda self, mode, size: drafts.append((self.size, size))
    )
    decode_image(content, "it")
    assert drafts == [((900, 600), (225, 150))]
    monkeypatch.undo()
    monkeypatch.setattr(decoding, "_WHOLE", 100_000)
    small = decode_image(content, "it")
    assert small.size == (225, 150)
    assert np.abs(np.asarray(small).astype(int) - np.asarray(whole.reduce(4))).mean() < 1


@pytest.mark.parametrize(
    ("side", "size"), [(450, (450, 300)), (100, (100, 67)), (1, (1, 1)), (5000, (900, 600))]
)
def test_within_a_side(side, size, tmp_path):
    for name in ("a.jpg", "a.png"):
        Image.new("RGB", (900, 600), "teal").save(tmp_path / name)
        small = open_image(tmp_path / name, within=side)
        assert small.size == size
        assert np.abs(np.asarray(small).astype(int) - (0, 128, 128)).max() < 4


def png_of(width, height, body=b""):
    def chunk(kind, content):
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(body))
        + chunk(b"IEND", b"")
    )


def test_too_large_is_not_damaged(tmp_path):
    (tmp_path / "map.png").write_bytes(png_of(30_000, 30_000))
    with pytest.raises(InputError) as refused:
        open_image(tmp_path / "map.png")
    assert str(refused.value) == (
        f"{tmp_path}/map.png: too large: 30,000 × 30,000 pixels, at most 536,870,912"
    )
    with pytest.raises(InputError, match="damaged"):  # of a size that is allowed, but without pixels
        decode_image(png_of(3000, 3000), "it")


def test_too_large_for_pillow_is_said_too(monkeypatch):
    content = saved(COLOURS, "WEBP")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)
    with pytest.raises(InputError, match="it: too large: Pillow reads at most 40 pixels of WebP"):
        decode_image(content, "it")


def test_what_does_not_fit_into_memory_is_said(monkeypatch):
    def full(image):
        raise MemoryError

    monkeypatch.setattr(decoding, "_rgb", full)
    with pytest.raises(InputError, match="it: too large for the memory that is left: 8 × 8 pixels"):
        decode_image(saved(COLOURS, "PNG"), "it")


def test_the_gate_lets_no_more_pass_than_there_is_room_for():
    gate, lock, inside, most = Gate(10), threading.Lock(), [], []

    def work(weight):
        with gate.hold(weight):
            with lock:
                inside.append(weight)
                most.append(sum(min(each, 10) for each in inside))
            threading.Event().wait(0.001)
            with lock:
                inside.remove(weight)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, [3, 4, 99, 1, 5, 10, 2] * 12))
    assert max(most) == 10
    assert inside == []


def test_a_failure_leaves_the_gate_open():
    gate = Gate(1)
    for _ in range(3):
        with pytest.raises(ValueError, match="no"), gate.hold(1):
            raise ValueError("no")


def test_images_pass_the_gate_by_what_they_need(monkeypatch):
    """What is decoded at once fits into the room: the weights are those of the images."""
    held = []

    class Recording(Gate):
        def hold(self, weight):
            held.append(weight)
            return super().hold(weight)

    monkeypatch.setattr(decoding, "_gate", Recording(2**31))
    large = Image.new("L", (400, 300))
    for kind, mode, each in (
        ("PNG", "RGB", 8),  # four bytes for a pixel, and as many for the result
        ("PNG", "L", 8),  # the result, and once more where it is turned
        ("JPEG", "RGB", 8),
        ("WEBP", "RGB", 20),
        ("TIFF", "RGB", 12),
    ):
        decode_image(saved(large.convert(mode), kind), "it")
        assert held.pop() == each * 120_000, (kind, mode)
    decode_image(saved(large.convert("RGB"), "JPEG", progressive=True), "it")
    assert held.pop() == 14 * 120_000
    monkeypatch.setattr(decoding, "_WHOLE", 10**4)
    decode_image(saved(large.convert("RGB"), "TIFF"), "it")
    assert held.pop() >= 2**31  # alone: meanwhile Pillow's own limit is lifted


def test_a_forked_process_has_a_gate_of_its_own():
    with decoding._gate.hold(10**12):
        child = os.fork()
        if child == 0:
            os._exit(0 if decoding._gate._taken == 0 else 1)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_pillows_limit_is_as_before_and_holds_for_others(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 20)  # Pillow refuses twice as many
    monkeypatch.setattr(decoding, "_WHOLE", 10)
    monkeypatch.setattr(decoding, "_TILE", 4)
    for kind in ("TIFF", "GIF", "PNG", "JPEG", "BMP"):
        content = saved(COLOURS, kind)
        with pytest.raises(Image.DecompressionBombError):
            Image.open(io.BytesIO(content))
        assert decoded(content).shape == ((2, 2, 3) if kind == "JPEG" else (3, 3, 3))
        assert Image.MAX_IMAGE_PIXELS == 20


PEAK = """
import sys, threading
from pathlib import Path
from tertium.data.inputs import open_inputs
from tertium.web.reviewing.views import Views

views = Views(open_inputs(Path(sys.argv[1]), names=[sys.argv[2]]).pictures, None)
threads = [threading.Thread(target=views.image, args=(0,)) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "side"), [("RGB", 13_000), ("P", 13_000)])
def test_eight_large_images_at_once_take_bounded_memory(mode, side, tmp_path):
    Image.new(mode, (side, side)).save(tmp_path / "bomb.png")
    asked = subprocess.run(
        [sys.executable, "-c", PEAK, tmp_path, "bomb.png"], capture_output=True, text=True, check=True
    )
    assert int(asked.stdout) < 2.6 * 2**20  # kB; 2 GB to decode, and the interpreter


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("JPEG", {}),
        ("JPEG", {"progressive": True}),
        ("PNG", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
    ],
)
def test_twenty_thousand_pixels_a_side_are_read(kind, options, tmp_path):
    Image.new("RGB", (20_000, 20_000), (200, 100, 50)).save(tmp_path / "map", kind, **options)
    found = open_image(tmp_path / "map")
    assert found.width == found.height >= 5000
    assert np.abs(np.array(found.getpixel((2500, 2500))) - (200, 100, 50)).max() <= 2


# ---- what is not an image --------------------------------------------------------------------------------


def in_time(call):
    """Return what a call raises; one that waits for ever fails."""
    found = []

    def run():
        try:
            call()
        except InputError as error:
            found.append(str(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for ever"
    return found[0]


def test_a_pipe_is_not_waited_for(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "a.jpg")
    wanted = f"{tmp_path}/a.jpg: a pipe, socket or device, not an image file"
    assert in_time(lambda: open_image(tmp_path / "a.jpg")) == wanted
    # Nor if it takes the place of a file after that was looked at.
    monkeypatch.setattr(decoding.stat, "S_ISREG", lambda mode: True)
    assert in_time(lambda: open_image(tmp_path / "a.jpg")) == f"{tmp_path}/a.jpg: is empty"


def test_sockets_devices_and_folders_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("s.jpg")
        (tmp_path / "zero.jpg").symlink_to("/dev/zero")
        (tmp_path / "folder.jpg").mkdir()
        for name, kind in (("s", "a pipe, socket"), ("zero", "a pipe, socket"), ("folder", "a folder")):
            assert kind in in_time(lambda name=name: open_image(tmp_path / f"{name}.jpg"))


def test_postscript_starts_no_program(tmp_path, monkeypatch):
    called = tmp_path / "called"
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {called}\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # looked for anew
    Image.new("RGB", (9, 7)).save(tmp_path / "evil.jpg", "EPS")
    with pytest.raises(InputError, match=r"evil\.jpg: not an image that can be read \(JPEG, PNG"):
        open_image(tmp_path / "evil.jpg")
    assert not called.exists()
    with pytest.raises(OSError), Image.open(tmp_path / "evil.jpg") as opened:  # noqa: PT011
        opened.load()
    assert called.exists()  # so would it have been


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="none: no such image"):
        open_image(tmp_path / "none")
    (tmp_path / "empty").touch()
    with pytest.raises(InputError, match="empty: is empty"):
        open_image(tmp_path / "empty")
    for content in (
        b"GIF8",
        b"BM",
        b"II*\0",
        b"<svg/>",
        b"\xff\xd8\xff",
        b"RIFF\0\0\0\0WEBP",
        b"\0\0\0\x14ftypheic",
    ):
        with pytest.raises(InputError, match="it: not an image that can be read"):
            decode_image(content, "it")
    with pytest.raises(InputError, match=r"not an image that can be read \(TIFF: unknown pixel mode\)"):
        decode_image(tiff(STEPS.astype(np.float16)), "it")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_that_may_not_be_read(tmp_path):
    Image.new("RGB", (2, 2)).save(tmp_path / "a.png")
    (tmp_path / "a.png").chmod(0)
    with pytest.raises(InputError, match=r"a\.png: cannot be read \(Permission denied\)"):
        open_image(tmp_path / "a.png")


def test_without_the_extra_a_heic_file_says_what_it_needs(monkeypatch):
    content = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(InputError, match=r"it: reading HEIC images needs: pip install 'tertium\[heif\]'"):
        decode_image(content, "it")
    monkeypatch.setitem(sys.modules, "PIL.AvifImagePlugin", None)
    with pytest.raises(InputError, match="it: reading AVIF images needs: pip install --upgrade pillow"):
        decode_image(content.replace(b"ftypheic", b"ftypavif"), "it")
    from PIL import WebPImagePlugin

    monkeypatch.setattr(WebPImagePlugin, "SUPPORTED", False, raising=False)
    with pytest.raises(InputError, match="it: reading WebP images needs: a Pillow that was built with it"):
        decode_image(b"RIFF\0\0\0\0WEBP", "it")


WHOLE = EXACT | {"jpeg": lambda: (saved(SIDES, "JPEG"), SIDES)}


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(sorted(WHOLE)), st.lists(st.tuples(st.integers(0, 10**4), st.integers(0, 255))), st.data()
)
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_damaged_files_give_pixels_or_one_sentence(case, changes, data):
    content = bytearray(WHOLE[case]()[0])
    for place, value in changes:
        content[place % len(content)] = value
    cut = data.draw(st.integers(0, len(content)))
    with suppress(InputError):
        assert decode_image(bytes(content[:cut]), "it").mode == "RGB"
