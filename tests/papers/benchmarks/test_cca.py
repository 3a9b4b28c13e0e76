"""Closed-form CCA: its vectors are those of the generalised eigenvalue problem."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import eigh

from benchmarks.experiments.cca import RIDGE, _projections, write_cca_vectors
from counterfoil.data.readers import load_dataset


def test_the_correlations_solve_the_eigenvalue_problem() -> None:
    rng = np.random.default_rng(0)
    images, noise = rng.normal(size=(200, 6)), rng.normal(size=(200, 5))
    texts = images[:, :5] @ rng.normal(size=(5, 5)) + noise
    left, right = _projections(images, texts, 3)
    count = len(images)
    own, other = images.T @ images / count, texts.T @ texts / count
    own += np.eye(6) * RIDGE[0] * np.trace(images.T @ images / count) / 6
    other += np.eye(5) * RIDGE[1] * np.trace(texts.T @ texts / count) / 5
    cross = images.T @ texts / count
    squares = eigh(cross @ np.linalg.solve(other, cross.T), own, eigvals_only=True)[::-1][:3]
    # columns have the length of their correlation in the ridged metric
    lengths = np.diag(left.T @ own @ left)
    assert lengths == pytest.approx(squares)
    assert np.diag(right.T @ other @ right) == pytest.approx(squares)
    assert np.diag(left.T @ cross @ right) == pytest.approx(squares**1.5)


def test_vectors_of_all_splits_are_a_data_set_that_ranks_above_chance(tmp_path) -> None:
    source = load_dataset("scenes:images=300,dev=40,test=40,features=regions")
    write_cca_vectors(source, tmp_path / "vectors", width=32)
    made = load_dataset(str(tmp_path / "vectors"))
    for split in ("train", "dev", "test"):
        own, other = made.split(split), source.split(split)
        assert (own.image_ids, tuple(own.texts)) == (other.image_ids, tuple(other.texts))
        assert own.text_to_image.tolist() == other.text_to_image.tolist()
    test = made.split("test")
    assert test.features is not None
    assert test.text_features is not None
    rows = np.arange(len(test.texts))
    images = test.features.values[test.features.rows.numpy()][:, 0]
    texts = test.text_features.values[test.text_features.rows.numpy()][:, 0]
    scores = images @ texts.T
    ranks = (scores > scores[test.text_to_image.numpy(), rows]).sum(0)
    assert (ranks < 4).mean() > 0.3  # by chance 0.1


def test_data_without_features_are_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="has no features"):
        write_cca_vectors(load_dataset("scenes:images=36"), tmp_path / "vectors")
    assert not (tmp_path / "vectors").exists()
