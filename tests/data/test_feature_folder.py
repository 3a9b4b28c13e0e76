import json

import numpy as np
import pytest
import torch

from corpus_cases import random_array
from counterfoil.data.features import FeatureArray, open_features, write_features

IDS = ["x", "ü y", "z"]


@pytest.mark.parametrize("kind, error", [("float32", 0), ("float16", 2e-3), ("int8", 0.02)])
def test_round_trip(tmp_path, kind, error):
    features = FeatureArray.of(
        random_array(3, 4, 5), lengths=np.array([4, 1, 2]), boxes=random_array(3, 4, 4)
    )
    part = features.subset(torch.tensor([2, 0, 1]))
    write_features(tmp_path / "f", IDS, part, kind=kind, model="m")
    table = open_features(tmp_path / "f")
    assert table.ids == IDS
    assert table.features.values.dtype == np.dtype(kind)
    assert isinstance(table.features.values, np.memmap)
    items, wanted = table.features.take(torch.arange(3)), part.take(torch.arange(3))
    torch.testing.assert_close(items.values, wanted.values, atol=error, rtol=0)
    assert torch.equal(items.mask, wanted.mask)
    assert torch.equal(items.boxes, wanted.boxes)


def test_int8_uses_the_whole_range_of_each_dimension(tmp_path):
    values = np.array([[[1.27, 0.001, 0]], [[-0.635, -0.00127, 0]]], np.float32)
    write_features(tmp_path / "f", ["a", "b"], FeatureArray.of(values), kind="int8")
    stored = np.load(tmp_path / "f" / "features.npy")
    assert stored.tolist() == [[[127, 100, 0]], [[-64, -127, 0]]]
    read = open_features(tmp_path / "f").features.take(torch.tensor([0])).values
    torch.testing.assert_close(read, torch.tensor([[[1.27, 0.001, 0]]]), atol=1e-6, rtol=0)


def test_several_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr("counterfoil.data.features.AT_ONCE", 2)
    values = random_array(5, 2, 3)
    for kind in ("float32", "int8"):
        write_features(tmp_path / "f", list("abcde"), FeatureArray.of(values), kind=kind)
        read = open_features(tmp_path / "f").features.take(torch.arange(5)).values
        torch.testing.assert_close(read, torch.from_numpy(values), atol=0.02, rtol=0)


def test_nothing_half_written(tmp_path):
    values = random_array(2, 3)
    values[1, 0] = np.nan
    with pytest.raises(ValueError, match="row 1 holds NaN"):
        write_features(tmp_path / "f", ["a", "b"], FeatureArray.of(values))
    with pytest.raises(ValueError, match="7e\\+04 does not fit into float16; store float32"):
        write_features(tmp_path / "f", ["a"], FeatureArray.of(np.full((1, 2), 7e4, np.float32)))
    with pytest.raises(ValueError, match="2 ids were given for 1 rows"):
        write_features(tmp_path / "f", ["a", "b"], FeatureArray.of(random_array(1, 2)))
    assert not list(tmp_path.iterdir())


def test_bad_folders_in_words(tmp_path):
    folder = tmp_path / "f"
    write_features(folder, IDS, FeatureArray.of(random_array(3, 4, 5)))
    (folder / "features.json").write_text(json.dumps({"ids": ["a"]}))
    with pytest.raises(ValueError, match=r"names 1 images, but features\.npy has 3 rows"):
        open_features(folder)
    (folder / "features.json").write_text(json.dumps({"ids": [1, 2, 3]}))
    with pytest.raises(ValueError, match=r'needs \{"ids": \[\.\.\.\]\}'):
        open_features(folder)
    (folder / "features.json").write_text("{")
    with pytest.raises(ValueError, match="cannot be read as the manifest of image features"):
        open_features(folder)
    (folder / "features.json").write_text(json.dumps({"ids": IDS}))
    np.save(folder / "boxes.npy", random_array(3, 2, 4))
    with pytest.raises(ValueError, match="the boxes need"):
        open_features(folder)
    (folder / "features.npy").unlink()
    with pytest.raises(ValueError, match=r"features\.npy does not exist"):
        open_features(folder)
