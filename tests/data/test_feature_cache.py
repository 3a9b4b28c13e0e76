from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from artifact_cases import resealed
from corpus_cases import write_picture, write_pictures
from counterfoil.core.artifact import ArtifactFormat
from counterfoil.core.types import ModalityBatch
from counterfoil.data import feature_cache
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.feature_cache import CachedFeatureProcessor
from counterfoil.data.images import PictureFiles
from counterfoil.data.processor import PixelProcessor
from counterfoil.data.readers import load_dataset

PIXELS = PixelProcessor(8)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("COUNTERFOIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "states"


class Model:
    """Means of eight patches of each channel; fails when it is to look at more than `most`."""

    def __init__(self) -> None:
        self.count, self.most = 0, 1000

    def __call__(self, images: ModalityBatch) -> Tensor:
        if self.count + len(images) > self.most:
            raise KeyboardInterrupt
        self.count += len(images)
        return patches(images)

    def of(self, dataset: ImageTextDataset, rows: Sequence[int], key: str = "key") -> Tensor:
        """What a lens that is new sees."""
        eye = CachedFeatureProcessor(PIXELS, self, key)
        return eye.from_dataset(dataset, torch.tensor(rows)).values


def patches(images: ModalityBatch) -> Tensor:
    return images.values.flatten(2).unflatten(2, (8, 8)).mean(3).transpose(1, 2)


def wanted(dataset: ImageTextDataset, rows: Sequence[int]) -> Tensor:
    return patches(PIXELS.from_dataset(dataset, torch.tensor(rows))).half().float()


def test_numbers_too_large_for_half_precision_are_kept_as_they_are():
    dataset = scenes()

    def large(images: ModalityBatch) -> Tensor:
        found = patches(images)
        return torch.where((images.values.amax((1, 2, 3)) > 0)[:, None, None], found * 1e6, found)

    rows = torch.tensor([5, 1])
    found, again = (
        CachedFeatureProcessor(PIXELS, large, "large").from_dataset(dataset, rows).values
        for _ in range(2)
    )
    torch.testing.assert_close(found, large(PIXELS.from_dataset(dataset, rows)))
    assert found.abs().max() > 65504
    assert torch.equal(again, found)


def photos(paths: Sequence[Path]) -> ImageTextDataset:
    names, none = [path.name for path in paths], torch.empty(0, dtype=torch.long)
    return ImageTextDataset(
        "photos", names, [], [], none, ["all"] * len(names), pictures=PictureFiles(paths)
    )


def scenes(count: int = 40) -> ImageTextDataset:
    return load_dataset(f"scenes:images={count}")


def test_rows_are_those_of_the_model_in_any_order():
    dataset, model, rows = scenes(), Model(), [7, 2, 39, 7]
    eye = CachedFeatureProcessor(PIXELS, model, "key")
    found = eye.from_dataset(dataset, torch.tensor(rows))
    assert torch.equal(found.values, wanted(dataset, rows))
    assert found.values.std() > 0.1
    assert found.mask.shape == (4, 8)
    assert found.mask.all()
    eye.from_dataset(dataset, torch.tensor([3]))
    assert model.count == 40


def test_data_sets_share_the_pictures_that_they_have_in_common(cache):
    model, dataset, more = Model(), scenes(), scenes(60)
    model.of(dataset.subset(torch.tensor([9, 30, 2])), [0])
    assert model.count == 3
    assert torch.equal(model.of(dataset, range(40)), wanted(dataset, range(40)))
    assert model.count == 40
    assert torch.equal(model.of(more, range(60)), wanted(more, range(60)))
    assert model.count == 60
    assert len(list(cache.iterdir())) == 1


def test_models_share_nothing(cache):
    model = Model()
    for key in ("one", "other"):
        model.of(scenes(), [0], key)
    assert model.count == 80
    assert len(list(cache.iterdir())) == 2


@pytest.mark.parametrize("most", [0, 14, 16, 32, 50])
def test_after_a_kill_it_goes_on(monkeypatch, most):
    monkeypatch.setattr(feature_cache, "BATCH", 4)
    monkeypatch.setattr(feature_cache, "MIN_PART_SIZE", 16)
    dataset, model = scenes(60), Model()
    model.most = most
    with pytest.raises(KeyboardInterrupt):
        model.of(dataset, [0])
    lost, model.most = model.count % 16, 1000
    assert torch.equal(model.of(dataset, range(60)), wanted(dataset, range(60)))
    assert model.count == 60 + lost


def test_a_part_that_was_not_finished_does_not_count(monkeypatch):
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    model = Model()
    with monkeypatch.context() as patch:
        patch.setattr(ArtifactFormat, "write_manifest", killed)
        with pytest.raises(KeyboardInterrupt):
            model.of(scenes(), [0])
    assert torch.equal(model.of(scenes(), range(40)), wanted(scenes(), range(40)))
    assert model.count == 80


def test_a_large_data_set_makes_few_parts(cache, monkeypatch):
    monkeypatch.setattr(feature_cache, "MIN_PART_SIZE", 2)
    monkeypatch.setattr(feature_cache, "MAX_PARTS", 5)
    assert torch.equal(Model().of(scenes(), range(40)), wanted(scenes(), range(40)))
    assert len(list(cache.glob("*/*/*.npy"))) == 5


@pytest.mark.parametrize("name", ["*.npy", "*.json"])
def test_what_is_damaged_is_looked_at_again(cache, name):
    model = Model()
    model.of(scenes(), [0])
    (path,) = cache.glob(f"*/*/{name}")
    path.write_bytes(path.read_bytes()[:100])
    assert torch.equal(model.of(scenes(), range(40)), wanted(scenes(), range(40)))
    assert model.count == 80


def test_names_and_states_of_other_kinds_are_looked_at_again(cache):
    model = Model()
    model.of(scenes(), [0])
    (path,) = cache.glob("*/*/manifest.json")
    for names, states in (([{}] * 40, None), (None, np.zeros((40, 3), np.float32))):
        if names:
            path.write_text(json.dumps(json.loads(path.read_text()) | {"names": names}))
        else:
            (path.parent / "states.npy").unlink()
            np.save(path.parent / "states.npy", states)
            resealed(path.parent)
        assert torch.equal(model.of(scenes(), range(40)), wanted(scenes(), range(40)))


def test_a_file_that_has_changed_is_looked_at_again(tmp_path):
    paths, model = write_pictures(tmp_path, range(3)), Model()
    model.of(photos(paths), [0])
    write_picture(paths[1], 7, size=(20, 20))
    dataset = photos(paths)
    assert torch.equal(model.of(dataset, range(3)), wanted(dataset, range(3)))
    assert model.count == 4
