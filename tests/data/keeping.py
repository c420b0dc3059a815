"""The images of a folder, kept in each of the other ways."""

import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import webdataset
from pyarrow import feather

PER_SHARD = 5


def _contents(folder, names):
    return [(folder / name).read_bytes() for name in names]


def _tar(folder, names, to):
    (to / "shards").mkdir()
    for number, start in enumerate(range(0, len(names), PER_SHARD)):
        with webdataset.TarWriter(str(to / "shards" / f"{number:03}.tar")) as shard:
            for name in names[start : start + PER_SHARD]:
                key, ending = name.split(".")
                shard.write({"__key__": key, ending: (folder / name).read_bytes(), "json": {"of": name}})
    return f"{to}/shards/{{000..{number:03}}}.tar"


def _zip(folder, names, to):
    half = len(names) // 2
    for path, own, how in (
        ("a", names[:half], zipfile.ZIP_DEFLATED),
        ("b", names[half:], zipfile.ZIP_STORED),
    ):
        with zipfile.ZipFile(to / f"{path}.zip", "w", how) as archive:
            for name in own:
                archive.write(folder / name, name)
    return f"{to}/?.zip"


def _hugging_face(folder, names):
    pairs = zip(_contents(folder, names), names, strict=True)
    return pa.table({"image": [{"bytes": content, "path": name} for content, name in pairs]})


def _plain(folder, names):
    return pa.table({"jpg": pa.array(_contents(folder, names), pa.binary()), "file_name": names})


def _parquet(folder, names, to):
    pq.write_table(_hugging_face(folder, names), to / "hf.parquet", row_group_size=PER_SHARD)
    return f"{to}/hf.parquet"


def _parquet_plain(folder, names, to):
    table = _plain(folder, names).append_column("id", pa.array(range(len(names))))
    pq.write_table(table, to / "plain.parquet")
    return f"{to}/plain.parquet#name=file_name"


def _arrow(folder, names, to):
    table = _hugging_face(folder, names)
    with pa.OSFile(f"{to}/data.arrow", "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=PER_SHARD)
    return f"{to}/data.arrow"


def _feather(folder, names, to):
    feather.write_feather(_plain(folder, names), to / "plain.feather", compression="lz4", chunksize=PER_SHARD)
    return f"{to}/plain.feather"


def _list(folder, names, to):
    lines = [f"{name},{(folder / name).resolve()}\n" for name in names]
    (to / "list.csv").write_text("".join(["image,path\n", *lines]))
    return f"{to}/list.csv"


def _path_table(folder, names, to):
    paths = [str((folder / name).resolve()) for name in names]
    pq.write_table(pa.table({"image": names, "path": paths}), to / "paths.parquet")
    return f"{to}/paths.parquet"


WAYS = {
    "list": _list,
    "table of paths": _path_table,
    "tar": _tar,
    "zip": _zip,
    "parquet of hugging face": _parquet,
    "parquet": _parquet_plain,
    "arrow": _arrow,
    "feather": _feather,
}


def kept_as(way: str, folder: Path, names: list[str], to: Path) -> str:
    """Write the images of a folder anew; return what to give as ``--images``."""
    to.mkdir(parents=True, exist_ok=True)
    return WAYS[way](folder, names, to)
