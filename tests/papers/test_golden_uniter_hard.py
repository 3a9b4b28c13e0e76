"""UNITER's hard negatives (https://github.com/ChenRocks/UNITER, 1dbfa62): screened and trained on.

In "hn_image/released" the authors put regions where the padding of other captions begins. That is
done here to the encodings, so that their numbers are seen to come from nothing else.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import golden_scores
import golden_vectors
import uniter_cases
from counterfoil.core.types import (
    Batch,
    Embeddings,
    EncodedBatch,
    EncodedViews,
    ModalityBatch,
    Pairs,
    Role,
    ScoreMatrix,
    Scores,
)
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.triplet import MarginRankingLoss
from counterfoil.negatives.online import TopScoringMiner
from counterfoil.papers.models.uniter import UNITER
from counterfoil.training.step import TrainingStep

SYSTEM = "uniter"
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]
RIGHT = {"hn_text": Role.HARD_IMAGE, "hn_image/fixed": Role.HARD_TEXT}
STREAMS = [*RIGHT, "hn_image/released"]


@golden_vectors.cached
def model() -> UNITER:
    return uniter_cases.build(SYSTEM)


def golden() -> golden_vectors.Golden:
    return golden_scores.load(SYSTEM)


def rows(stream: str) -> Pairs:
    """The authors' rows: the anchor pair, then its candidates."""
    given = golden().inputs
    caption = given["hn/caption"]
    image = given["caption_image"][caption]
    if stream == "hn_text":
        images = torch.cat([image, given["hn/negative_images"]])
        return Pairs(images, caption.expand_as(images))
    texts = torch.cat([caption, given["hn/negative_captions"]])
    return Pairs(image.expand_as(texts), texts)


def encoded(stream: str) -> tuple[Embeddings, Embeddings]:
    """Images and texts of the rows; as the authors release it, with regions out of place."""
    pairs = rows(stream)
    images, texts = uniter_cases.encoded(model(), SYSTEM, pairs.image, pairs.text)
    return (misplaced(images, pairs, texts) if stream.endswith("released") else images), texts


def misplaced(images: Embeddings, pairs: Pairs, texts: Embeddings) -> Embeddings:
    """Regions taken from where they would begin if all captions were as long as the last."""
    read = uniter_cases.captions(SYSTEM, pairs.text)
    padding = torch.ones_like(read.mask)  # which the authors embed too
    everything = model().encode_texts(ModalityBatch(read.ids, read.values, padding))
    both = torch.cat([everything.tokens, images.tokens], 1)
    begin = int(texts.mask[-1].sum())
    return Embeddings(both[:, begin : begin + images.mask.shape[1]], images.mask)


def gather(stream: str) -> Tensor:
    """Where the authors take each token of a row from: the padded text, its image behind it."""
    pairs = rows(stream)
    text, image = (
        uniter_cases.captions(SYSTEM, pairs.text),
        uniter_cases.images(SYSTEM, pairs.image),
    )
    said, seen = text.mask.sum(1).tolist(), image.mask.sum(1).tolist()
    begin = said[-1] if stream.endswith("released") else text.mask.shape[1]
    index = torch.arange(max(t + i for t, i in zip(said, seen))).repeat(len(said), 1)
    for row, (t, i) in enumerate(zip(said, seen)):
        index[row, t : t + i] = torch.arange(begin, begin + i)
    return index


@torch.no_grad()
def scores(stream: str) -> Tensor:
    return model().score_pairs(*encoded(stream))


def batch(stream: str) -> Batch:
    """The anchor pair, offered its candidates."""
    pairs = rows(stream)
    images, texts = (
        look(SYSTEM, torch.unique(side))
        for look, side in (
            (uniter_cases.images, pairs.image),
            (uniter_cases.captions, pairs.text),
        )
    )
    zero = torch.zeros(1, dtype=torch.long)
    return Batch(
        step=0,
        image_rows=pairs.image[:1],
        text_rows=pairs.text[:1],
        images=uniter_cases.images(SYSTEM, pairs.image[:1]),
        texts=uniter_cases.captions(SYSTEM, pairs.text[:1]),
        block=(1, 1),
        anchors=Pairs(zero, zero),
        candidates={RIGHT[stream]: Pairs(pairs.image[None, 1:], pairs.text[None, 1:])},
        offered=(images, texts),
    )


def source() -> TopScoringMiner:
    return TopScoringMiner(keep=golden().meta["config"]["hard_size"])


@pytest.mark.parametrize("stream", STREAMS)
def test_scores(stream: str) -> None:
    golden_vectors.same(golden(), f"{stream}/scores", scores(stream))
    golden_vectors.same(golden(), f"{stream}/gather_index", gather(stream))


@pytest.mark.parametrize("stream", STREAMS)
def test_the_hardest_by_score_and_what_they_cost(stream: str) -> None:
    """From the scores alone, as a step has them."""
    found, keep = scores(stream), golden().meta["config"]["hard_size"]
    hard = 1 + found[1:].topk(keep).indices.sort().values
    golden_vectors.same(golden(), f"{stream}/hard_rows", hard)
    chance = found.sigmoid()
    grid = ScoreMatrix(chance[:1].view(1, 1), torch.ones(1, 1).bool(), chance[:1])
    term = MarginRankingLoss(role="hard text", margin=golden().meta["config"]["margin"])
    each = [
        term(Scores({"inference": grid}, {Role.HARD_TEXT: chance[row].view(1, 1)})) for row in hard
    ]
    golden_vectors.same(golden(), f"{stream}/rank_loss", torch.stack(each))


@pytest.mark.parametrize("stream", list(RIGHT))
def test_screened(stream: str) -> None:
    given, role = batch(stream), RIGHT[stream]
    view = EncodedBatch(model().encode_images(given.images), model().encode_texts(given.texts))
    found = source().propose(
        model(), given, EncodedViews({"inference": view}), torch.zeros(1, 1), torch.Generator()
    )
    new, place, all_rows = (
        (found.images, found.pairs[role].image, rows(stream).image)
        if role is Role.HARD_IMAGE
        else (found.texts, found.pairs[role].text, rows(stream).text)
    )
    assert new is not None
    ids = new.ids[place[0] - 1]
    numbers = [1 + all_rows[1:].tolist().index(row) for row in ids.tolist()]
    golden_vectors.same(golden(), f"{stream}/hard_rows", torch.tensor(sorted(numbers)))
    harder = scores(stream)[numbers]
    assert torch.equal(harder, harder.sort(descending=True).values)


@pytest.mark.parametrize("stream", list(RIGHT))
def test_trained_on(stream: str) -> None:
    """One step from the batch to the mean of the authors' losses, with a gradient."""
    model = uniter_cases.build(SYSTEM)
    model.score = "probability"
    margin = golden().meta["config"]["margin"]
    term = MarginRankingLoss(role=RIGHT[stream].value, margin=margin, reduction="mean")
    step = TrainingStep(model, WeightedSum(terms={"hard": (1.0, term)}), sources=[source()]).train()
    loss = step(batch(stream))["hard"]
    loss.backward()
    wanted = golden().outputs[f"{stream}/rank_loss"]
    atol = golden().atol(f"{stream}/rank_loss")
    torch.testing.assert_close(loss.detach(), wanted.mean(), rtol=0, atol=atol)
    assert any(p.grad is not None and p.grad.any() for p in model.parameters())
