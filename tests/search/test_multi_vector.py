"""An index of a multi-vector model: proposals by one vector each, exact scores of these."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from counterfoil.core.types import Embeddings
from counterfoil.saved import save_model
from counterfoil.scoring.encode import encode_images, encode_texts
from counterfoil.search import proposals, vector_index
from counterfoil.search.index import build_index, open_index
from counterfoil.search.proposals import MaxSimProposals, proposed
from index_cases import filip

DATA = "scenes:images=36"


def exact(model, images, texts):
    inputs, wanted = model.process(images), model.process(texts)
    with torch.no_grad():
        return model.model.score_matrix(
            encode_images(model.model, inputs.images, len(images)),
            encode_texts(model.model, wanted.texts, len(texts.texts)),
        )


@pytest.mark.parametrize("direction", ["t2i", "i2t", "both"])
def test_results_are_those_of_the_exact_scores(direction, tmp_path):
    model, data = filip(direction)
    scores = exact(model, data, data)
    with build_index(model, data, tmp_path / "index") as index:
        for row in (0, 7):
            hits = index.search(data.texts[row], top_k=5)
            best = scores[:, row].topk(5)
            assert [hit.id for hit in hits] == [data.image_ids[i] for i in best.indices.tolist()]
            found = [hit.score for hit in hits]
            np.testing.assert_allclose(found, best.values.numpy(), rtol=1e-4)
            assert all(hit.probability is None for hit in hits)
        hits = index.search_image(data.pictures.open(3), top_k=5)
        assert hits[0].score == pytest.approx(float(scores[3].max()), rel=1e-4)
        by_id = index.search_id(data.image_ids[3], top_k=5)
        assert [hit.id for hit in by_id] == [hit.id for hit in hits]
        alike = index.search_id(data.image_ids[3], top_k=5, find="images")
        assert data.image_ids[3] not in [hit.id for hit in alike]


def test_an_index_is_reopened_changed_and_checked(tmp_path, monkeypatch):
    model, data = filip()
    folder = tmp_path / "index"
    save_model(tmp_path / "m", spec=model.spec, model=model.model, processor=model.processor)
    build_index(model, data.subset(torch.arange(20)), folder, half=True).close()
    monkeypatch.setattr(vector_index, "_MAX_PARTS", 1)  # the next part is merged with the first
    scores = exact(model, data, data)
    with open_index(folder, model=tmp_path / "m") as index:
        assert index.add(data).images == 16
        assert len(index.vectors.images.parts) == 1
        assert len(index.vectors.images) == 36
        index.delete([data.image_ids[int(scores[:, 0].argmax())]])
        wanted = scores[:, 0].topk(4).indices[1:].tolist()
        hits = index.search(data.texts[0], top_k=3)
        assert [hit.id for hit in hits] == [data.image_ids[i] for i in wanted]
        index.vectors.verify()
        with pytest.raises(ValueError, match="holds several vectors of an item"):
            index.calibrate(data)
    (damaged,) = folder.glob("*images*.tokens.npy")
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(ValueError, match=r"tokens\.npy is damaged: its checksum"):
        open_index(folder, model=tmp_path / "m")


def test_pictures_alone_are_proposed_by_the_words_that_the_model_knows(tmp_path):
    model, data = filip()
    bare = data.cut(torch.arange(36), torch.arange(0), torch.arange(0))
    scores = exact(model, data, data)
    with build_index(model, bare, tmp_path / "index") as index:
        hits = index.search(data.texts[0], top_k=3)
        found = index.proposals.words
    wanted = scores[:, 0].topk(3).indices.tolist()
    assert [hit.id for hit in hits] == [data.image_ids[i] for i in wanted]
    inputs = model.process(data)
    texts = encode_texts(model.model, inputs.texts, len(data.texts))
    images = encode_images(model.model, inputs.images, len(data))
    regions = MaxSimProposals.fit(model.model, images, None).words
    tokens = texts.tokens[texts.mask]
    near, far = ((tokens @ centroids.T).amax(1).mean() for centroids in (found, regions))
    assert near > far


def test_a_faiss_index_proposes(tmp_path):
    pytest.importorskip("faiss")
    model, data = filip()
    scores = exact(model, data, data)
    with build_index(model, data, tmp_path / "index", backend="faiss-hnsw") as index:
        hits = index.search(data.texts[0], top_k=3)
    wanted = scores[:, 0].topk(3).indices.tolist()
    assert [hit.id for hit in hits] == [data.image_ids[i] for i in wanted]


def clustered(n, longest, rng, centers):
    """Bags near to a few directions, as the words of a language are."""
    near = centers[torch.randint(len(centers), (n, longest), generator=rng)]
    tokens = near + 0.03 * torch.randn(near.shape, generator=rng)
    lengths = torch.randint(1, longest + 1, (n, 1), generator=rng)
    unit = torch.nn.functional.normalize(tokens, dim=-1)
    return Embeddings(unit, torch.arange(longest) < lengths)


@pytest.mark.parametrize("direction", ["t2i", "i2t", "both"])
@pytest.mark.parametrize("mean", [True, False])
def test_few_proposals_hold_the_exact_ten(direction, mean, monkeypatch):
    monkeypatch.setattr(proposals, "CENTROIDS", 64)
    rng = torch.Generator().manual_seed(0)
    words, regions = torch.randn(40, 16, generator=rng), torch.randn(60, 16, generator=rng)
    images, texts = clustered(2000, 6, rng, regions), clustered(400, 5, rng, words)
    queries = clustered(30, 5, rng, words)
    model = filip(direction, mean)[0].model
    made = MaxSimProposals.fit(model, images, texts)
    best = model.score_matrix(images, queries).T.topk(10).indices
    first = (made.text_vectors(queries) @ made.image_vectors(images).T).topk(100).indices
    kept = (best.unsqueeze(2) == first.unsqueeze(1)).any(2).float().mean()
    assert kept >= 0.95
    assert made.image_vectors(images).shape == (2000, made.width)


def test_a_twentieth_is_proposed():
    assert proposed(8000, 10) == 400
    assert proposed(8000, 100) == 1000
    assert proposed(30, 10) == 30
    assert proposed(300, 5) == 64


def test_where_every_vector_is_a_centroid_the_maxima_are_exact():
    rng = torch.Generator().manual_seed(0)
    texts = clustered(4, 1, rng, torch.randn(4, 8, generator=rng))
    images = clustered(5, 3, rng, torch.randn(9, 8, generator=rng))
    model = filip()[0].model
    made = MaxSimProposals.fit(model, images, texts)
    assert made.words is not None
    found = made.image_vectors(images)
    for text in texts.tokens[:, 0]:
        place = int((made.words @ text).argmax())
        wanted = (images.tokens @ text).masked_fill(~images.mask, -9).amax(1)
        torch.testing.assert_close(found[:, place], wanted)
