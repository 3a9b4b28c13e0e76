import numpy as np
import pytest
import torch

from corpus_cases import random_array
from counterfoil.data import features as features_module
from counterfoil.data.features import FeatureArray, RowStack, feature_mean_std


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
    stored = np.full((1, 2, 3), 3e38, np.float32)
    assert FeatureArray.of(stored).take(torch.tensor([0])).values.isfinite().all()


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
