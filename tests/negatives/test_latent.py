from __future__ import annotations

import math
import sys
from collections import Counter

import pytest
import torch

from counterfoil.negatives.similarity import (
    FUNCTION_WORDS,
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


def test_inner_products_are_those_of_scikit_learn() -> None:
    pytest.importorskip("sklearn")
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    texts = sentences(200)
    weighed = TfidfVectorizer(stop_words=sorted(FUNCTION_WORDS)).fit_transform(texts)
    weights = dense(texts, stem=False).double()
    torch.testing.assert_close(
        weights @ weights.T, torch.from_numpy((weighed @ weighed.T).toarray()), rtol=0, atol=1e-6
    )
    space = TruncatedSVD(8, algorithm="arpack", random_state=0).fit_transform(weighed)
    points = latent_vectors(texts, LatentSpaceConfig(components=8, stem=False)).double()
    wanted = torch.from_numpy(space @ space.T)
    assert (points @ points.T - wanted).norm() < 0.02 * wanted.norm()


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
