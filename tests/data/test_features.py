import json

import numpy as np
import pytest
import torch

from corpus_cases import random_array, write_features, write_split
from counterfoil.data import features as features_module
from counterfoil.data.features import (
    FeatureArray,
    RowStack,
    feature_mean_std,
    features_of,
    open_features,
    warn_of_zeros,
    write_feature_array,
)


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_take_gives_the_stored_numbers(kind, tmp_path):
    stored = random_array(20, 3, 5).astype(kind)
    np.save(tmp_path / "x.npy", stored)
    features = FeatureArray.of(np.load(tmp_path / "x.npy", mmap_mode="r"))
    rows = torch.tensor([7, 0, 7, 19])
    items = features.take(rows)
    assert items.values.dtype == torch.float32
    assert torch.equal(items.values, torch.from_numpy(stored.astype(np.float32)[rows]))
    assert items.mask.all()
    assert torch.equal(items.ids, rows)


def test_int8_is_scaled():
    stored = np.array([[[100, -3]]], dtype=np.int8)
    features = FeatureArray.of(stored, scale=np.array([0.5, 2], np.float32))
    assert features.take(torch.tensor([0])).values.tolist() == [[[50.0, -6.0]]]


def test_global_features_are_one_region():
    features = FeatureArray.of(random_array(4, 6))
    assert (features.regions, features.width) == (1, 6)
    assert features.take(torch.arange(4)).values.shape == (4, 1, 6)


def test_regions_that_are_not_real_are_masked_and_zero_whatever_is_stored():
    stored = random_array(2, 3, 2)
    stored[1, 1:] = np.nan
    items = FeatureArray.of(stored, lengths=np.array([3, 1])).take(torch.tensor([1, 0]))
    assert items.mask.tolist() == [[True, False, False], [True, True, True]]
    assert items.values[0, 1:].tolist() == [[0, 0], [0, 0]]


def test_subset_of_subset():
    stored, boxes = random_array(10, 2, 3), random_array(10, 2, 4)
    part = (
        FeatureArray.of(stored, boxes=boxes)
        .subset(torch.tensor([9, 4, 2]))
        .subset(torch.tensor([2, 0]))
    )
    items = part.take(torch.tensor([1, 0]))
    np.testing.assert_array_equal(items.values, stored[[9, 2]])
    np.testing.assert_array_equal(items.boxes, boxes[[9, 2]])


def test_nan_is_named_by_its_row():
    stored = random_array(4, 2, 3)
    stored[2, 1, 0] = np.inf
    features = FeatureArray.of(stored, where="x.npy")
    features.take(torch.tensor([0, 1, 3]))
    with pytest.raises(ValueError, match=r"x\.npy: row 2 holds NaN or infinite"):
        features.take(torch.tensor([3, 2]))
    assert features.take_unchecked(torch.arange(4))[1].tolist() == [True, True, False, True]


def test_large_finite_values_are_no_nan():
    stored = np.full((1, 2000, 3), 9e17, np.float32)  # the sum of squares overflows float32
    assert FeatureArray.of(stored).take(torch.tensor([0])).values.isfinite().all()


def test_values_whose_squares_overflow_are_refused():
    stored = random_array(2, 2, 3)
    stored[1, 0, 0] = -3e38
    features = FeatureArray.of(stored, where="x.npy")
    assert features.take_unchecked(torch.arange(2))[1].tolist() == [True, False]
    with pytest.raises(ValueError, match=r"x\.npy: row 1 holds .* larger ones than 1e\+18"):
        features.take(torch.arange(2))


@pytest.mark.parametrize("lengths", [[-1, 2], [2, 3], [1.5, 1], [float("nan"), 1]])
def test_lengths_are_numbers_of_stored_regions(lengths):
    with pytest.raises(ValueError, match="whole numbers from 0 to 2"):
        FeatureArray.of(random_array(2, 2, 3), lengths=np.array(lengths))


def test_boxes_and_scales_are_numbers():
    features = FeatureArray.of(random_array(2, 2, 3), boxes=np.full((2, 2, 4), np.nan))
    with pytest.raises(ValueError, match="the boxes hold NaN"):
        features.take(torch.arange(2))
    with pytest.raises(ValueError, match="the scale holds NaN"):
        FeatureArray.of(np.ones((2, 2, 3), np.int8), scale=np.array([1, np.inf, 1]))


def test_zeros_are_warned_of(capsys):
    warn_of_zeros(FeatureArray.of(random_array(40, 2, 3)))
    assert not capsys.readouterr().err
    warn_of_zeros(FeatureArray.of(np.zeros((40, 2, 3), np.float32), where="x.npy"))
    assert "x.npy are zero" in capsys.readouterr().err


def test_stack_reads_parts_as_one():
    parts = [random_array(3, 2, seed=1), random_array(1, 2, seed=2), random_array(4, 2, seed=3)]
    stack, whole = RowStack(parts), np.concatenate(parts)
    rows = np.array([7, 0, 3, 2, 3, 4])
    np.testing.assert_array_equal(stack[rows], whole[rows])
    assert (stack.shape, len(stack), stack.ndim) == ((8, 2), 8, 2)
    assert stack[np.array([], dtype=int)].shape == (0, 2)


def test_stack_of_two_kinds_of_numbers():
    parts = [random_array(2, 3).astype(np.float16), random_array(1, 3) * 1e6]
    stack = RowStack(parts, np.float32)
    np.testing.assert_array_equal(stack[np.array([2, 0])], np.stack([parts[1][0], parts[0][0]]))
    assert stack[np.array([0])].dtype == np.float32


def test_stack_refuses_what_differs():
    with pytest.raises(ValueError, match=r"\(3, 2\) float32, \(3, 5\) float32 cannot be read as"):
        RowStack([random_array(3, 2), random_array(3, 5)])


@pytest.mark.parametrize(
    "values, more, words",
    [
        (np.zeros((2, 3, 4, 5), np.float32), {}, r"shape \(2, 3, 4, 5\)"),
        (np.zeros((2, 3), np.float64), {}, "are float64; float16, float32, int8"),
        (np.zeros((2, 3), np.int8), {}, "int8 features need a scale"),
        (np.zeros((2, 3), np.float32), {"scale": np.ones(3)}, "int8 features need a scale"),
        (np.zeros((2, 3), np.int8), {"scale": np.ones(4)}, r"the scale need \(3,\), not \(4,\)"),
        (np.zeros((2, 5, 3), np.float32), {"boxes": np.ones((2, 4, 4))}, "the boxes need"),
        (np.zeros((2, 5, 3), np.float32), {"lengths": np.ones(3)}, "the lengths need"),
    ],
)
def test_wrong_shapes_are_refused(values, more, words):
    with pytest.raises(ValueError, match=words):
        FeatureArray.of(values, **more)


def test_mean_and_deviation_of_real_regions():
    values = 100 + 3 * random_array(150, 4, 5)
    lengths = np.arange(150) % 4 + 1
    mean, deviation = feature_mean_std(FeatureArray.of(values, lengths=lengths))
    real = np.concatenate([v[:n] for v, n in zip(values, lengths)]).astype(np.float64)
    np.testing.assert_allclose(mean, real.mean(0), rtol=1e-6)
    np.testing.assert_allclose(deviation, real.std(0), rtol=1e-6)


def test_a_constant_is_not_divided_by_zero():
    _, deviation = feature_mean_std(FeatureArray.of(np.ones((3, 2), np.float32)))
    assert (deviation > 0).all()


def test_only_a_sample_is_read(monkeypatch):
    monkeypatch.setattr(features_module, "SAMPLE", 3)
    values = np.arange(101, dtype=np.float32)[:, None]
    mean, _ = feature_mean_std(FeatureArray.of(values))
    assert torch.equal(mean, torch.tensor([50.0], dtype=torch.float64))


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


def taken(features):
    return features.take(torch.arange(len(features))).values[:, 0].numpy()


@pytest.mark.parametrize(
    "stored, image_ids",
    [
        (["a.jpg", "b.jpg", "c.jpg"], ["c.jpg", "a.jpg"]),
        (["a", "b", "c"], ["c.jpg", "images/a.jpg"]),
        (["train/a.npz", "b.png", "c.png"], ["c.jpg", "a.jpg"]),
        (
            ["17", "000018", "9"],
            ["COCO_val2014_000000000009.jpg", "COCO_train2014_000000000017.jpg"],
        ),
    ],
)
def test_joined_by_id_however_it_is_written(tmp_path, stored, image_ids):
    values = random_array(3, 4)
    write_features(tmp_path / "f", stored, FeatureArray.of(values))
    np.testing.assert_array_equal(taken(features_of(image_ids, tmp_path / "f")), values[[2, 0]])


def test_exact_ids_go_before_numbers(tmp_path):
    values = random_array(2, 4)
    write_features(tmp_path / "f", ["x1.jpg", "y1.jpg"], FeatureArray.of(values))
    np.testing.assert_array_equal(taken(features_of(["y1.jpg"], tmp_path / "f")), values[1:])
    with pytest.raises(ValueError, match=r"1 of 1 images have no features"):
        features_of(["z1.jpg"], tmp_path / "f")  # both end in 1: no guess is made


def test_two_images_never_share_a_row(tmp_path):
    write_features(tmp_path / "f", ["a.jpg", "b.jpg"], FeatureArray.of(random_array(2, 4)))
    with pytest.raises(ValueError, match="2 of 2 images have no features"):
        features_of(["x/a.png", "y/a.png"], tmp_path / "f")


@pytest.mark.papers
def test_precomp_folder(tmp_path):
    for n, split in enumerate(("train", "test")):
        values = random_array(2, 3, 4, seed=n)
        write_split(tmp_path, split, values, list("abcd"), [f"{split}0.jpg", f"{split}1.jpg"])
    features = features_of(["test1.jpg", "train0.jpg"], tmp_path)
    np.testing.assert_array_equal(
        features.take(torch.arange(2)).values,
        np.stack([random_array(2, 3, 4, seed=1)[1], random_array(2, 3, 4, seed=0)[0]]),
    )


def test_one_file_by_order(tmp_path):
    np.save(tmp_path / "f.npy", random_array(3, 4))
    assert isinstance(features_of(list("abc"), tmp_path / "f.npy").values, np.ndarray)
    with pytest.raises(ValueError, match="has 3 rows for 2 images"):
        features_of(list("ab"), tmp_path / "f.npy")


def test_bad_places_in_words(tmp_path):
    with pytest.raises(ValueError, match=r"holds no image features: looked for features\.json"):
        features_of(["a"], tmp_path)
    write_features(tmp_path / "f", ["a", "b"], FeatureArray.of(random_array(2, 4)))
    with pytest.raises(
        ValueError, match=r"1 of 2 images have no features in .*'q'; ids there look like 'a'"
    ):
        features_of(["a", "q"], tmp_path / "f")
