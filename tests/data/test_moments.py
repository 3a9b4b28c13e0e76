import numpy as np
import torch

from corpus_cases import random_array
from counterfoil.data import features
from counterfoil.data.features import FeatureArray, feature_mean_std


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
    monkeypatch.setattr(features, "SAMPLE", 3)
    values = np.arange(101, dtype=np.float32)[:, None]
    mean, _ = feature_mean_std(FeatureArray.of(values))
    assert torch.equal(mean, torch.tensor([50.0], dtype=torch.float64))
