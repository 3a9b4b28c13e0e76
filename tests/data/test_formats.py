"""What every format of pictures with captions promises, for the same data set in each of them."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from corpus_cases import (
    captions_by_image,
    features_of_all,
    karpathy_image,
    random_array,
    splits_by_image,
    write_features,
    write_folder,
    write_karpathy,
)
from counterfoil.data.checks import check_dataset, without_unreadable
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.features import FeatureArray
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


def _captions(name: str) -> list[str]:
    return captions_by_image(scenes())[name]


def _contents(folder: Path, broken: int | None) -> list[bytes]:
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
        rows.append(karpathy_image(name, split, _captions(name), first))
        first += len(_captions(name))
    write_karpathy(folder / "karpathy", rows)
    for row, content in enumerate(contents):
        (folder / "karpathy" / "images" / f"{row}.png").write_bytes(content)
    return folder / "karpathy"


def texts_beside_pictures(folder: Path, contents: list[bytes]) -> Path:
    for row, (name, split) in enumerate(splits_by_image(scenes()).items()):
        place = folder / "beside" / split / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(contents[row])
        place.with_suffix(".txt").write_text("\n".join(_captions(name)))
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
            "captions": _captions(name),
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


@pytest.fixture(params=FORMATS, ids=lambda write: write.__name__)
def write(request: pytest.FixtureRequest) -> Write:
    datasets.disable_progress_bars()
    return request.param


@pytest.fixture
def place(write: Write, tmp_path: Path) -> Path:
    return write(tmp_path, _contents(tmp_path, None))


def row_of(dataset: ImageTextDataset, name: str) -> int:
    """Row of an image; in folders of splits its id begins with the split."""
    return next(row for row, own in enumerate(dataset.image_ids) if f"/{own}".endswith(f"/{name}"))


def test_captions_splits_and_pictures(place):
    dataset = load_dataset(place)
    rows = [row_of(dataset, name) for name in scenes().image_ids]
    captions = list(captions_by_image(dataset).values())
    assert [captions[row] for row in rows] == list(captions_by_image(scenes()).values())
    assert [dataset.splits[row] for row in rows] == scenes().splits
    for row, wanted in zip(rows, range(12)):
        opened = dataset.pictures.open(row)
        assert opened.mode == "RGB"
        assert opened.tobytes() == scenes().pictures.open(wanted).tobytes()
    assert len(set(dataset.text_ids)) == len(dataset.texts)


def test_read_twice_it_is_the_same(place):
    first, second = load_dataset(place), load_dataset(place, name="other")
    assert first.fingerprint == second.fingerprint
    assert first.image_ids == second.image_ids
    assert second.name == "other"


def test_a_split_and_its_pictures(place):
    dataset = load_dataset(place)
    test = dataset.split("test")
    assert len(test) == 3
    assert sorted(test.texts) == sorted(t for row in (9, 10, 11) for t in _captions(f"{row}.png"))
    for row, name in enumerate(test.image_ids):
        whole = dataset.pictures.open(dataset.image_ids.index(name))
        assert test.pictures.open(row).tobytes() == whole.tobytes()
        assert test.pictures.place(row) == dataset.pictures.place(dataset.image_ids.index(name))
    assert len({dataset.pictures.place(row) for row in range(12)}) == 12


def test_workers_receive_it(place):
    dataset = load_dataset(place)
    again = pickle.loads(pickle.dumps(dataset.pictures))
    assert again.open(7).tobytes() == dataset.pictures.open(7).tobytes()


def test_features_are_joined_by_ids(place, tmp_path):
    dataset = load_dataset(place)
    values = torch.from_numpy(random_array(12, 2, 3))
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    ids = [dataset.image_ids[row] for row in order.tolist()]
    write_features(tmp_path / "f", ids, FeatureArray.of(values[order].numpy()))
    joined = load_dataset(place, features=tmp_path / "f")
    assert torch.equal(features_of_all(joined), values)


def test_it_is_checked_and_damaged_pictures_are_left_out(write, tmp_path):
    if write is webdataset:
        return  # shards are written from readable pictures; see the next test
    place = write(tmp_path, _contents(tmp_path, 4))
    dataset = load_dataset(place)
    report = check_dataset(dataset)
    assert len(report.unreadable) == 1
    assert "cannot be read as a picture" in report.unreadable[0]
    rest, unreadable = without_unreadable(dataset)
    assert (len(rest), list(unreadable)) == (11, [dataset.image_ids[row_of(dataset, "4.png")]])
    assert check_dataset(rest).errors == ()


def test_damaged_pictures_of_shards_are_left_out(tmp_path):
    place = webdataset(tmp_path, _contents(tmp_path, None))
    dataset = load_dataset(place)
    shard, _, start, count = dataset.pictures.rows[4]
    content = bytearray(shard.read_bytes())
    content[start + 8 : start + count] = bytes(count - 8)
    shard.write_bytes(content)
    assert list(check_dataset(dataset).unreadable) == list(without_unreadable(dataset)[1].values())
    assert len(without_unreadable(load_dataset(place))[0]) == 11


def test_nothing_else_is_read_as_it(place):
    """Each format is recognised by its own files alone, also beside a note."""
    if place.is_dir():
        (place / "README.md").write_text("about")
    assert len(load_dataset(place)) == 12
