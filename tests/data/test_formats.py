"""What every format of pictures with captions promises, for the same data set in each of them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from corpus_cases import captions_by_image, features_of_all, random_array, write_features
from counterfoil.data.checks import check_dataset, without_unreadable
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.features import FeatureArray
from counterfoil.data.readers import load_dataset
from format_cases import FORMATS, Write, captions_of, contents_of, datasets, scenes, webdataset


@pytest.fixture(params=FORMATS, ids=lambda write: write.__name__)
def write(request: pytest.FixtureRequest) -> Write:
    datasets.disable_progress_bars()
    return request.param


@pytest.fixture
def place(write: Write, tmp_path: Path) -> Path:
    return write(tmp_path, contents_of(tmp_path, None))


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
    assert sorted(test.texts) == sorted(t for row in (9, 10, 11) for t in captions_of(f"{row}.png"))
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
    place = write(tmp_path, contents_of(tmp_path, 4))
    dataset = load_dataset(place)
    report = check_dataset(dataset)
    assert len(report.unreadable) == 1
    assert "cannot be read as a picture" in report.unreadable[0]
    rest, unreadable = without_unreadable(dataset)
    assert (len(rest), list(unreadable)) == (11, [dataset.image_ids[row_of(dataset, "4.png")]])
    assert check_dataset(rest).errors == ()


def test_damaged_pictures_of_shards_are_left_out(tmp_path):
    place = webdataset(tmp_path, contents_of(tmp_path, None))
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
