"""A joint encoder that is trained on probabilities: whatever ranks its pairs ranks their logits.

Every pair of this model has a logit near 17, whose float32 probability is 1.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import counterfoil as cf
import train_cases as cases
from counterfoil.core.types import (
    Embeddings,
    EncodedBatch,
    EncodedViews,
    ModalityBatch,
    Pairs,
    Role,
)
from counterfoil.data.batching import collate
from counterfoil.data.processor import ProcessorConfig
from counterfoil.evaluation.protocols import evaluate_protocol
from counterfoil.model import Model
from counterfoil.models.layers.joint_encoder import PairModel
from counterfoil.negatives.online import TopScoringMiner
from counterfoil.negatives.sampling import RandomNegativeSampler
from counterfoil.search.rerank import Reranker, RerankItems


class Saturated(PairModel):
    """Cosines of a bi-encoder around a logit of 17."""

    def __init__(self, host: cf.RetrievalModel) -> None:
        super().__init__("probability")
        self.host = host

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        return self.host.encode_images(images)

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        return self.host.encode_texts(texts)

    def score_indices(self, images: Embeddings, texts: Embeddings, pairs: Pairs) -> Tensor:
        return 17 + 0.2 * self.host.score_pairs(images.rows(pairs.image), texts.rows(pairs.text))


@pytest.fixture(scope="module")
def processed():
    data = cases.dataset()
    texts = [f"{text} no{row}" for row, text in enumerate(data.texts)]
    data = replace(data, texts=texts)
    return ProcessorConfig().fit(data).process(data)


@pytest.fixture(scope="module")
def model(processed):
    return Saturated(cases.host("global", processed)).eval()


@pytest.fixture(scope="module")
def logits(model, processed):
    """(I, T) logits, which differ, and whose probabilities do not."""
    data = processed.dataset
    with torch.no_grad():
        images = model.encode_images(processed.images(torch.arange(len(data))))
        texts = model.encode_texts(processed.texts(torch.arange(len(data.texts))))
        scores = model.score_matrix(images, texts)
    assert len(scores.unique()) == scores.numel()
    assert model.loss_scores(scores).unique().tolist() == [1.0]
    return scores


def whole(model, processed) -> Model:
    return Model(model, processed.processor, "saturated")


def test_recall_counts_no_ties(model, processed, logits):
    data = processed.dataset
    report = evaluate_protocol([whole(model, processed).embed(data)], data)
    assert (report.i2t.tied, report.t2i.tied) == (0, 0)
    own = logits[data.text_to_image, torch.arange(len(data.texts))]
    wanted = (logits > own).sum(0)
    assert report.t2i.r1 == pytest.approx(100 * float((wanted == 0).float().mean()))
    assert report.t2i.r5 == pytest.approx(100 * float((wanted < 5).float().mean()))


def test_mining_lists_by_the_logit(model, processed, logits):
    data = processed.dataset.with_positives("id")
    lists = cf.mine_hard_negatives(
        whole(model, processed), data, texts_per_image=4, images_per_text=3
    ).lists
    true = data.text_to_image == torch.arange(len(data))[:, None]
    wrong = logits.masked_fill(true, -torch.inf)
    assert torch.equal(lists.texts.long(), wrong.topk(4, dim=1).indices)
    assert torch.equal(lists.images.long(), wrong.T.topk(3, dim=1).indices)


def test_screening_keeps_the_highest_logits(model, processed, logits):
    rows = torch.tensor([0, 7, 13, 30])
    draws = RandomNegativeSampler(relation=processed.dataset.relation, texts=9, images=7)
    batch = collate(
        processed, rows, candidates=draws.draw(rows, torch.Generator().manual_seed(3)), step=3
    )
    with torch.no_grad():
        view = EncodedBatch(model.encode_images(batch.images), model.encode_texts(batch.texts))
        found = TopScoringMiner(keep=3).propose(
            model,
            batch,
            EncodedViews({"inference": view}),
            torch.zeros(batch.block),
            torch.Generator(),
        )
    images = torch.cat([batch.image_rows, *([found.images.ids] if found.images else [])])
    texts = torch.cat([batch.text_rows, *([found.texts.ids] if found.texts else [])])
    assert found.pairs.keys() == {Role.HARD_TEXT, Role.HARD_IMAGE}
    for role, kept in found.pairs.items():
        offered = batch.candidates[role]
        for anchor in range(len(rows)):
            pairs = set(zip(offered.image[anchor].tolist(), offered.text[anchor].tolist()))
            best = sorted(pairs, key=lambda pair: -logits[pair].item())[:3]
            chosen = images[kept.image[anchor]].tolist(), texts[kept.text[anchor]].tolist()
            assert list(zip(*chosen, strict=True)) == best


def test_re_ranking_orders_by_the_logit(model, processed, logits):
    """What the search page shows."""
    data = processed.dataset
    reranker = Reranker(whole(model, processed), depth=9, dataset=data)
    query = RerankItems.from_query(data.texts[5])
    results = RerankItems("image", tuple(data.image_ids[:9]), images=(None,) * 9)
    found = reranker.best(query, results, range(9), 9)
    order = [row for row, _ in found]
    assert order == logits[:9, 5].argsort(descending=True).tolist()
    assert len({score for _, score in found}) == 9
