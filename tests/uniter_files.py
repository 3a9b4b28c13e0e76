"""Files as UNITER, TAGS and bottom-up attention write them."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

lmdb = pytest.importorskip("lmdb")
lz4 = pytest.importorskip("lz4.frame")
msgpack = pytest.importorskip("msgpack")

Array = npt.NDArray[Any]
Caption = tuple[str, list[int], dict[str, list[list[int] | None]]]  # image, token ids, tree

NAMES = ("flickr30k_000000000007.npz", "flickr30k_000000000012.npz")
PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "dog", "run", "##s", "red", "ball")
WIDTH, CLASSES = 6, 4


def packed_array(array: Array) -> dict[bytes, object]:
    """As msgpack-numpy encodes an array."""
    parts = {b"nd": True, b"type": array.dtype.str, b"kind": b"", b"shape": array.shape}
    return parts | {b"data": array.tobytes()}


def store(folder: Path, records: Mapping[str, bytes]) -> Path:
    """An LMDB environment with these records."""
    folder.mkdir(parents=True)
    with (
        lmdb.open(str(folder), map_size=1 << 22) as environment,
        environment.begin(write=True) as out,
    ):
        for key, value in records.items():
            out.put(key.encode(), value)
    return folder


def arrays(seed: int, count: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    fields = {
        "features": rng.normal(size=(count, WIDTH)),
        "norm_bb": rng.uniform(size=(count, 6)),
        "conf": np.sort(rng.uniform(size=count))[::-1],
        "soft_labels": rng.dirichlet(np.ones(CLASSES), size=count),
    }
    return {name: value.astype(np.float16) for name, value in fields.items()}


def image_database(folder: Path, kind: str, *, compressed: bool) -> dict[str, dict[str, Array]]:
    """A database of two images with 12 and 15 boxes stored, of which 11 and 14 count."""
    records, stored = {"__keys__": json.dumps(NAMES).encode()}, {}
    for seed, (name, count) in enumerate(zip(NAMES, (12, 15), strict=True)):
        stored[name] = arrays(seed, count)
        if compressed:
            archive = io.BytesIO()
            np.savez_compressed(archive, allow_pickle=True, **stored[name])
            records[name] = archive.getvalue()
        else:
            plain = {key: packed_array(value) for key, value in stored[name].items()}
            records[name] = msgpack.packb(plain, use_bin_type=True)
    store(folder / (f"{kind}_compressed" if compressed else kind), records)
    counts = dict(zip(NAMES, (11, 14), strict=True))
    (folder / "nbb_th0.2_max100_min10.json").write_text(json.dumps(counts))
    return stored


def rename(folder: Path, names: Mapping[str, str]) -> None:
    """Give the images of a database of `image_database` other names."""
    place = next(folder.glob("*/data.mdb")).parent
    with (
        lmdb.open(str(place), map_size=1 << 22) as environment,
        environment.begin(write=True) as out,
    ):
        for old, new in names.items():
            out.put(new.encode(), out.pop(old.encode()))
        out.put(b"__keys__", json.dumps(list(names.values())).encode())
    counts = folder / "nbb_th0.2_max100_min10.json"
    known = json.loads(counts.read_text())
    counts.write_text(json.dumps({new: known[old] for old, new in names.items()}))


CAPTIONS: dict[str, Caption] = {  # a dog runs / a red ball / dog
    "70": (NAMES[0], [5, 6, 7, 8], {"node": [[1]], "relation": [[2, 3]], "attribute": []}),
    "71": (NAMES[0], [5, 9, 10], {"node": [[2]], "attribute": [[1]], "relation": []}),
    "12": (NAMES[1], [6], {"node": [[0]], "attribute": [], "relation": [None]}),
}


def text_database(
    folder: Path,
    *,
    tree: bool = True,
    captions: Mapping[str, Caption] = CAPTIONS,
    pieces: Sequence[str] = PIECES,
) -> Path:
    """Captions of images, as WordPiece ids with the token groups of their scene graphs."""
    records = {}
    for key, (image, ids, groups) in captions.items():
        record: dict[str, object] = {"input_ids": ids, "img_fname": image}
        if tree:
            record["tree"] = {k: [{"ids": group} for group in v] for k, v in groups.items()}
        records[key] = lz4.compress(msgpack.packb(record, use_bin_type=True))
    store(folder, records)
    (folder / "txt2img.json").write_text(json.dumps({k: v[0] for k, v in captions.items()}))
    tokenizer = folder.parent / "pieces"
    tokenizer.mkdir(exist_ok=True)
    (tokenizer / "vocab.txt").write_text("\n".join(pieces))
    plain = {"tokenizer_class": "BertTokenizerFast", "do_lower_case": False}
    (tokenizer / "tokenizer_config.json").write_text(json.dumps(plain))
    (folder / "meta.json").write_text(json.dumps({"tokenizer": str(tokenizer)}))
    return folder


def tsv(path: Path, rows: list[tuple[int, int]], *, lxmert: bool = False) -> list[Array]:
    """A table of bottom-up attention, of images of 100 x 50 pixels with this many boxes each."""
    rng, lines, stored = np.random.default_rng(0), [], []
    for name, count in rows:
        values = rng.normal(size=(count, WIDTH)).astype(np.float32)
        corners = rng.uniform(0, 100, size=(count, 4)).astype(np.float32)
        text = [base64.b64encode(x.tobytes()).decode() for x in (corners, values)]
        size = ["50", "100"] if lxmert else ["100", "50"]  # height first, there
        middle = ["", "", "", ""] if lxmert else []
        lines.append("\t".join([str(name), *size, *middle, str(count), *text]))
        stored.append(values)
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return stored
