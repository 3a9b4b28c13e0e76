"""Sentence encoders and the latent space of captions."""

from __future__ import annotations

import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import processes
import train_cases as cases
from artifact_cases import resealed
from counterfoil.core.types import Batch
from counterfoil.data.batching import collate
from counterfoil.data.dataset import Positives
from counterfoil.data.processor import ProcessedDataset
from counterfoil.negatives.similarity import (
    FUNCTION_WORDS,
    CaptionSimilarity,
    CaptionSpace,
    LatentSpaceConfig,
    latent_similarity,
    latent_vectors,
    tf_idf,
)

CAPTIONS = [
    "A dog runs across the grass.",
    "Two dogs running on green grass",
    "a man's horse, near a RED house",
    "the men ride horses",
    "red red house",
    "Of the and a.",
]


def loop_tf_idf(texts: list[str], stem: dict[str, str]) -> list[dict[str, float]]:
    bags = []
    for text in texts:
        words = "".join(c if c.isalpha() else " " for c in text.lower()).split()
        words = [stem.get(w, w) for w in words if w not in FUNCTION_WORDS]
        bags.append(Counter(w for w in words if len(w) > 1))
    known = {w for bag in bags for w in bag}
    idf = {w: 1 + math.log((1 + len(texts)) / (1 + sum(w in b for b in bags))) for w in known}
    weighed = [{w: n * idf[w] for w, n in bag.items()} for bag in bags]
    norms = [math.sqrt(sum(v**2 for v in bag.values())) or 1.0 for bag in weighed]
    return [{w: v / norm for w, v in bag.items()} for bag, norm in zip(weighed, norms)]


def dense(texts: list[str], *, stem: bool) -> torch.Tensor:
    return torch.from_numpy(tf_idf(texts, stem=stem).toarray()).float()


@pytest.mark.parametrize("stem", [False, True])
def test_weights_are_those_of_a_loop(stem: bool) -> None:
    stems = {"dogs": "dog", "runs": "run", "running": "run", "horses": "hors", "horse": "hors"}
    bags = loop_tf_idf(CAPTIONS, stems | {"house": "hous"} if stem else {})
    words = sorted({w for bag in bags for w in bag})
    wanted = torch.tensor([[bag.get(w, 0.0) for w in words] for bag in bags])
    assert ("dogs" in words) != stem
    torch.testing.assert_close(dense(CAPTIONS, stem=stem), wanted)


def sentences(count: int, seed: int = 0) -> list[str]:
    rng = torch.Generator().manual_seed(seed)
    letters = "bcdfghjklmnp"
    words = [a + "e" + b + "o" for a in letters for b in letters]
    picks = torch.randint(len(words), (count, 6), generator=rng) % torch.randint(
        1, len(words), (count, 6), generator=rng
    )
    return [" ".join(words[p] for p in row) for row in picks.tolist()]


def test_points_are_those_of_the_svd() -> None:
    texts = sentences(200)
    weights = dense(texts, stem=False).double()
    u, s, _ = torch.linalg.svd(weights, full_matrices=False)
    points = latent_vectors(texts, LatentSpaceConfig(components=8, stem=False)).double()
    assert points.shape == (200, 8)
    torch.testing.assert_close(points.norm(dim=0), s[:8], rtol=1e-3, atol=0)
    best = (u[:, :8] * s[:8]) @ (u[:, :8] * s[:8]).T
    assert (points @ points.T - best).norm() < 0.02 * best.norm()


def test_all_dimensions_keep_all_inner_products() -> None:
    weights = dense(CAPTIONS, stem=True)
    points = latent_vectors(CAPTIONS, LatentSpaceConfig())
    assert points.shape == (6, 6)
    torch.testing.assert_close(points @ points.T, weights @ weights.T, rtol=0, atol=1e-5)
    assert points[5].abs().max() < 1e-6


def test_the_same_from_the_same_seed() -> None:
    texts = sentences(100)
    one, again = (latent_vectors(texts, LatentSpaceConfig(components=5, seed=1)) for _ in range(2))
    assert torch.equal(one, again)


def test_nearness_is_that_of_a_loop() -> None:
    points = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    points[4] = 0
    for cosine in (False, True):
        rows = points / points.norm(dim=1, keepdim=True).clamp(min=1e-12) if cosine else points
        wanted = torch.zeros(7, 7)
        for i in range(7):
            inner = [float(rows[i] @ rows[j]) for j in range(7)]
            most = max(inner) or 1.0
            wanted[i] = torch.tensor([x / most for x in inner])
        torch.testing.assert_close(latent_similarity(points, cosine=cosine), wanted)
        assert not wanted[4].any()


def test_what_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="components=0 is not possible"):
        LatentSpaceConfig(components=0)
    with pytest.raises(ValueError, match="none of the 2 captions has a word that says something"):
        latent_vectors(["", "of the"], LatentSpaceConfig())
    monkeypatch.setitem(sys.modules, "snowballstemmer", None)
    with pytest.raises(ValueError, match=r"counterfoil\[stem\]"):
        latent_vectors(CAPTIONS, LatentSpaceConfig())
    assert len(latent_vectors(CAPTIONS, LatentSpaceConfig(stem=False))) == len(CAPTIONS)


ANCHORS = [0, 1, 5, 7, 9, 30]  # captions 0 and 1 share an image


def stored() -> CaptionSpace:
    return CaptionSpace.of(cases.dataset(), LatentSpaceConfig(components=6))


def batch_of(texts: list[int], positives: Positives = "id") -> Batch:
    made = cases.processor()
    processor = ProcessedDataset(made.processor, made.dataset.with_positives(positives))
    return collate(processor, torch.tensor(texts))


def loop_guide(
    points: torch.Tensor, texts: list[int], text_to_image: list[int]
) -> dict[Any, list[float]]:
    """By corpus image: the mean over its anchor captions of F to each anchor text."""
    inner = {t: [float(points[t] @ points[u]) for u in texts] for t in texts}
    rows = {t: [x / (max(inner[t]) or 1.0) for x in inner[t]] for t in texts}
    images = {text_to_image[t] for t in texts}
    told = {i: [rows[t] for t in texts if text_to_image[t] == i] for i in images}
    return {i: [sum(column) / len(some) for column in zip(*some)] for i, some in told.items()}


def test_an_image_stands_for_its_captions() -> None:
    space, batch = stored(), batch_of(ANCHORS)
    text_to_image = cases.dataset().text_to_image.tolist()
    found = CaptionSimilarity(space=space).targets(batch)
    wanted = loop_guide(space.take(torch.arange(36)), ANCHORS, text_to_image)
    rows = [wanted[image] for image in batch.image_rows[: batch.block[0]].tolist()]
    torch.testing.assert_close(found, torch.tensor(rows))
    assert found.isfinite().all()
    assert found.shape == (5, 6)
    assert (found.T[0] != found.T[2]).any()


def test_diagonal_positives_mark_the_other_captions() -> None:
    space = stored()
    found = CaptionSimilarity(space=space).targets(batch_of(ANCHORS, positives="diagonal"))
    marked = torch.zeros(6, 6, dtype=torch.bool)
    marked[0, 1] = marked[1, 0] = True
    assert torch.equal(found.isneginf(), marked)
    by_id = CaptionSimilarity(space=space).targets(batch_of(ANCHORS))
    torch.testing.assert_close(found[2:], by_id[1:])


def test_drawn_items_behind_the_block_say_nothing() -> None:
    guide = CaptionSimilarity(space=stored())
    plain = cases.batch_of(cases.processor(), ANCHORS)
    drawn = cases.batch_of(cases.processor(), ANCHORS, offline=True)
    assert len(drawn.text_rows) > len(plain.text_rows)
    assert torch.equal(guide.targets(plain), guide.targets(drawn))


def test_cosine_is_symmetric() -> None:
    batch = batch_of([0, 3, 6, 9])
    cosine = CaptionSimilarity(space=stored(), measure="cosine").targets(batch)
    torch.testing.assert_close(cosine, cosine.T)
    torch.testing.assert_close(cosine.diagonal(), torch.ones(4))


def worker() -> np.ndarray:
    return CaptionSimilarity(space=stored()).targets(batch_of(ANCHORS)).numpy()


def test_processes_agree() -> None:
    for found in processes.run(worker, 2):
        assert (found == worker()).all()


def test_comes_back_from_disk(tmp_path: Path) -> None:
    space, dataset = stored(), cases.dataset()
    space.save(tmp_path / "s")
    space.save(tmp_path / "s")  # replaced
    found = CaptionSpace.open(tmp_path / "s", fingerprint=dataset.fingerprint)
    assert found.manifest == space.manifest
    assert isinstance(found.points, np.memmap)
    rows = torch.tensor([3, 0, 3])
    assert torch.equal(found.take(rows), space.take(rows))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s"]


@pytest.mark.parametrize(
    ("points", "words"),
    [
        ((3, 1), "NaN or infinite numbers"),
        (slice(-1), r"shape \(35, 6\), but its manifest promises float32 of shape \(36, 6\)"),
    ],
)
def test_damage_is_told(points: Any, words: str, tmp_path: Path) -> None:
    stored().save(tmp_path / "s")
    array = np.array(np.load(tmp_path / "s" / "points.npy"))
    if isinstance(points, slice):
        array = array[points]
    else:
        array[points] = np.nan
    np.save(tmp_path / "s" / "points.npy", array)
    resealed(tmp_path / "s")
    with pytest.raises(ValueError, match=words):
        CaptionSpace.open(tmp_path / "s", fingerprint=cases.dataset().fingerprint)


def test_another_corpus_is_refused(tmp_path: Path) -> None:
    stored().save(tmp_path / "s")
    with pytest.raises(ValueError, match=r"made from the captions of corpus .* but this one is"):
        CaptionSpace.open(tmp_path / "s", fingerprint=cases.dataset(seed=1).fingerprint)


def test_an_unknown_measure() -> None:
    with pytest.raises(ValueError, match="'dot' is not a measure of nearness"):
        CaptionSimilarity(space=stored(), measure="dot")  # type: ignore[arg-type]
