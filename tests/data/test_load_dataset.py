import os
import resource
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch

from corpus_cases import (
    captions_by_image,
    features_of_all,
    karpathy_image,
    random_array,
    small_corpus,
    write_karpathy,
    write_picture,
    write_split,
)
from counterfoil.data.readers import load_dataset

IMAGES = [karpathy_image(f"{n}.jpg", "train", [f"dog {n}"], first=n) for n in range(4)]


@pytest.mark.papers
def test_karpathy_folder_file_and_features_of_a_precomp_folder(tmp_path):
    path = write_karpathy(tmp_path / "toy", IMAGES)
    values = random_array(4, 3, 4)
    write_split(
        tmp_path / "regions", "train", values, list("abcd"), [f"{n}.jpg" for n in (3, 1, 0, 2)]
    )
    for source in (tmp_path / "toy", path):
        dataset = load_dataset(source, features=tmp_path / "regions", name="mine")
        assert dataset.name == "mine"
        assert dataset.texts[2] == "dog 2"
        assert dataset.pictures.open(0).size == (12, 8)
        np.testing.assert_array_equal(features_of_all(dataset), values[[2, 1, 3, 0]])


@pytest.mark.papers
def test_precomp_folder_with_pictures(tmp_path):
    write_split(tmp_path / "p", "train", random_array(2, 4), list("abcd"), ["y.jpg", "x"])
    for n, name in enumerate(("x.jpg", "y.jpg")):
        write_picture(tmp_path / "photos" / name, n)
    dataset = load_dataset(tmp_path / "p", images=tmp_path / "photos")
    assert [Path(dataset.pictures.place(row)).name for row in (0, 1)] == ["y.jpg", "x.jpg"]
    (tmp_path / "photos" / "x.jpg").unlink()
    with pytest.raises(ValueError, match=r"1 of 2 images have no picture in .*'x'"):
        load_dataset(tmp_path / "p", images=tmp_path / "photos")
    with pytest.raises(ValueError, match="is not a folder"):
        load_dataset(tmp_path / "p", images=tmp_path / "none")


def test_embeddings(tmp_path):
    for name in ("images", "texts"):
        np.save(tmp_path / f"{name}.npy", random_array(2, 4))
    assert load_dataset(tmp_path).text_features is not None


@pytest.fixture
def drawn(monkeypatch):
    """A stand-in for the rendered scenes that notes its calls."""
    calls = []

    def scenes(*, images: int = 10, seed: int = 0):
        calls.append((images, seed))
        return small_corpus((1,) * 4)

    monkeypatch.setitem(
        sys.modules, "counterfoil.data.scenes", types.SimpleNamespace(scenes=scenes)
    )
    return calls


def test_scenes_by_name(drawn, tmp_path):
    load_dataset("scenes")
    dataset = load_dataset("scenes:seed=3, images=2000", name="mine")
    assert drawn == [(10, 0), (2000, 3)]
    assert dataset.name == "mine"
    np.save(tmp_path / "f.npy", random_array(4, 9))
    assert load_dataset("scenes", features=tmp_path / "f.npy").features.width == 9
    with pytest.raises(ValueError, match="'sede' is not a setting of scenes; did you mean 'seed'"):
        load_dataset("scenes:sede=3")
    with pytest.raises(ValueError, match="'seed=x' needs a whole number, as in seed=3"):
        load_dataset("scenes:seed=x")


def test_what_is_no_data_set(tmp_path):
    with pytest.raises(ValueError, match=r"none does not exist; give .* a Karpathy JSON"):
        load_dataset(tmp_path / "none")
    with pytest.raises(ValueError, match='for a data set of the hub write "hf:some/flickr30k"'):
        load_dataset("some/flickr30k")
    with pytest.raises(ValueError, match=r"is no data set: looked for .* a Karpathy JSON"):
        load_dataset(tmp_path)
    (tmp_path / "x.bin").write_bytes(b"\x00")
    with pytest.raises(ValueError, match=r"x\.bin is no data set"):
        load_dataset(tmp_path / "x.bin")
    for name in ("dataset_a.json", "dataset_b.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match=r"dataset_a\.json and dataset_b\.json; give the path"):
        load_dataset(tmp_path)


@pytest.mark.papers
def test_features_stay_on_disk(tmp_path):
    """Opening and drawing from 400 MB of features needs a fraction of it in private memory."""
    shape = (4000, 10, 2560)
    out = np.lib.format.open_memmap(tmp_path / "train_ims.npy", "w+", np.float32, shape)
    del out  # a sparse file of zeros
    (tmp_path / "train_caps.txt").write_text("a dog\n" * 4000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    dataset = load_dataset(tmp_path, splits=["train"]).split("train")
    for row in range(0, 1000, 100):
        dataset.features.take(torch.arange(row, row + 8))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert isinstance(dataset.features.values, np.memmap)
    assert grown < 100_000  # kilobytes


@pytest.mark.papers
@pytest.mark.skipif("COUNTERFOIL_DATA" not in os.environ, reason="COUNTERFOIL_DATA is not set")
def test_flickr8k_with_its_regions():
    data = Path(os.environ["COUNTERFOIL_DATA"])
    dataset = load_dataset(data / "flickr8k", features=data / "flickr8k_regions")
    assert [len(dataset.split(name)) for name in ("train", "dev", "test")] == [6000, 1000, 1000]
    assert len(dataset.texts) == 40_000
    regions = load_dataset(data / "flickr8k_regions")
    assert captions_by_image(dataset) == captions_by_image(regions)
    row = dataset.image_ids.index(regions.image_ids[6500])
    torch.testing.assert_close(
        dataset.features.take(torch.tensor([row])).values,
        regions.features.take(torch.tensor([6500])).values,
    )
    assert dataset.pictures.open(row).size == (192, 192)
