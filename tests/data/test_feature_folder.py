import json

import numpy as np
import pytest
import torch

from corpus_cases import random_array, write_features
from counterfoil.data.features import FeatureArray, open_features, write_feature_array

IDS = ["x", "ü y", "z"]


@pytest.mark.parametrize("kind, error", [("float32", 0), ("float16", 2e-3), ("int8", 0.02)])
def test_stored_kinds(tmp_path, kind, error):
    whole = FeatureArray.of(
        random_array(3, 4, 5), lengths=np.array([4, 1, 2]), boxes=random_array(3, 4, 4)
    )
    write_features(tmp_path, IDS, whole)
    values = np.load(tmp_path / "features.npy")
    if kind == "int8":
        scale = np.abs(values).max((0, 1)) / 127
        np.save(tmp_path / "scale.npy", scale)
        np.save(tmp_path / "features.npy", np.rint(values / scale).astype(np.int8))
    else:
        np.save(tmp_path / "features.npy", write_feature_array(values, kind))
    table = open_features(tmp_path)
    assert table.ids == IDS
    assert table.features.values.dtype == np.dtype(kind)
    assert isinstance(table.features.values, np.memmap)
    items, wanted = table.features.take(torch.arange(3)), whole.take(torch.arange(3))
    torch.testing.assert_close(items.values, wanted.values, atol=error, rtol=0)
    assert torch.equal(items.mask, wanted.mask)
    assert torch.equal(items.boxes, wanted.boxes)


def test_values_beyond_float16_are_refused():
    with pytest.raises(ValueError, match="7e\\+04 does not fit into float16; store float32"):
        write_feature_array(np.full((1, 2), 7e4, np.float32), "float16")


def test_bad_folders_in_words(tmp_path):
    folder = tmp_path / "f"
    write_features(folder, IDS, FeatureArray.of(random_array(3, 4, 5)))
    for manifest, message in (
        (json.dumps({"ids": ["a"]}), r"names 1 images, but features\.npy has 3 rows"),
        (json.dumps({"ids": [1, 2, 3]}), r'needs \{"ids": \[\.\.\.\]\}'),
        ("{", "cannot be read as the manifest of image features"),
    ):
        (folder / "features.json").write_text(manifest)
        with pytest.raises(ValueError, match=message):
            open_features(folder)
    (folder / "features.json").write_text(json.dumps({"ids": IDS}))
    np.save(folder / "boxes.npy", random_array(3, 2, 4))
    with pytest.raises(ValueError, match="the boxes need"):
        open_features(folder)
    (folder / "features.npy").unlink()
    with pytest.raises(ValueError, match=r"features\.npy does not exist"):
        open_features(folder)
