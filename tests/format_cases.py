"""One small data set as files of every format of pictures with captions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from corpus_cases import (
    captions_by_image,
    karpathy_image,
    splits_by_image,
    write_folder,
    write_karpathy,
)
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.readers import load_dataset
from counterfoil.data.readers.webdataset import write_webdataset

datasets = pytest.importorskip("datasets")
BROKEN = b"\x89PNG\r\n\x1a\n, and no picture"


@cache
def scenes() -> ImageTextDataset:
    """Twelve pictures in three splits, one to three captions each."""
    whole = load_dataset("scenes:images=12")
    kept = [row for row in range(60) if row % 5 <= row // 5 % 3]
    return replace(
        whole,
        name="toy",
        image_ids=[f"{row}.png" for row in range(12)],
        text_ids=[whole.text_ids[row] for row in kept],
        texts=[whole.texts[row] for row in kept],
        text_to_image=whole.text_to_image[kept],
        splits=["train"] * 6 + ["dev"] * 3 + ["test"] * 3,
    )


def captions_of(name: str) -> list[str]:
    return captions_by_image(scenes())[name]


def contents_of(folder: Path, broken: int | None) -> list[bytes]:
    """Pictures as PNG files, perhaps one of them broken."""
    contents = []
    for row in range(12):
        scenes().pictures.open(row).save(folder / "one.png")
        contents.append(BROKEN if row == broken else (folder / "one.png").read_bytes())
    (folder / "one.png").unlink()
    return contents


def list_of_captions(folder: Path, contents: list[bytes]) -> Path:
    write_folder(scenes(), folder / "list")
    for path, content in zip(sorted((folder / "list" / "images").iterdir()), contents):
        path.write_bytes(content)
    return folder / "list"


def karpathy(folder: Path, contents: list[bytes]) -> Path:
    rows, first = [], 0
    for name, split in splits_by_image(scenes()).items():
        rows.append(karpathy_image(name, split, captions_of(name), first))
        first += len(captions_of(name))
    write_karpathy(folder / "karpathy", rows)
    for row, content in enumerate(contents):
        (folder / "karpathy" / "images" / f"{row}.png").write_bytes(content)
    return folder / "karpathy"


def texts_beside_pictures(folder: Path, contents: list[bytes]) -> Path:
    for row, (name, split) in enumerate(splits_by_image(scenes()).items()):
        place = folder / "beside" / split / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(contents[row])
        place.with_suffix(".txt").write_text("\n".join(captions_of(name)))
    return folder / "beside"


def webdataset(folder: Path, contents: list[bytes]) -> Path:
    source = load_dataset(list_of_captions(folder, contents))
    write_webdataset(source, folder / "shards", size=4)
    return folder / "shards"


def _table(contents: list[bytes], split: str | None = None) -> datasets.Dataset:
    """A row for each image of a split, or of all, which a column names then."""
    rows = [
        {
            "image": {"bytes": contents[row], "path": name},
            "captions": captions_of(name),
            "id": name,
            **({} if split else {"split": own}),
        }
        for row, (name, own) in enumerate(splits_by_image(scenes()).items())
        if split in (None, own)
    ]
    return datasets.Dataset.from_list(rows)


def parquet(folder: Path, contents: list[bytes]) -> Path:
    (folder / "parquet").mkdir()
    for split, name in (("train", "train-00000"), ("dev", "validation"), ("test", "test")):
        _table(contents, split).to_parquet(folder / "parquet" / f"{name}.parquet")
    return folder / "parquet"


def one_parquet_file(folder: Path, contents: list[bytes]) -> Path:
    _table(contents).to_parquet(folder / "toy.parquet")
    return folder / "toy.parquet"


def saved_to_disk(folder: Path, contents: list[bytes]) -> Path:
    table = _table(contents)
    table.cast_column("image", datasets.Image()).save_to_disk(folder / "saved")
    return folder / "saved"


Write = Callable[[Path, list[bytes]], Path]
FORMATS: tuple[Write, ...] = (
    list_of_captions,
    karpathy,
    texts_beside_pictures,
    webdataset,
    parquet,
    one_parquet_file,
    saved_to_disk,
)
