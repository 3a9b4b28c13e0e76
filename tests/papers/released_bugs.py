"""Bugs of the authors' released code, reproduced as oracles; the package does not have them.

* T1 (TAGS-DC): generated captions are measured against a broken positive.
* Padded regions, as zeros, are regions: in batch norms (GPO, X-Dim) and in X-Dim's attention.
* HREM's padding: padded regions are regions, short texts borrow padded words, a short item lowers
  the number of values that its successors are pooled from; and the divergence is reversed.
* NAAF's threshold changes from caption to caption, and starts at 0 in every batch.
* U1 (UNITER, inherited by TAGS and LightningDOT): an image's wrong captions are read with shifted
  regions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, normalize

from counterfoil.core.types import Batch, Embeddings, EncodedViews, ModalityBatch, Pairs, Role
from counterfoil.models.base import RetrievalModel
from counterfoil.negatives.online import MinedExtras, TopScoringMiner
from counterfoil.papers.models.hrem import BatchGraph, FragmentMatches
from counterfoil.papers.models.naaf import ENOUGH_WORDS, NAAF, best_affinities, mined_thresholds
from counterfoil.papers.tags.generation import TagsGenerator
from counterfoil.scoring.encode import gather_parts, gather_shards, shard_index


def stray(model: RetrievalModel, images: Embeddings, texts: Embeddings) -> Tensor:
    """(B,) scores of the authors' broken positives: every word and region is the second token.

    Their gather index of this row is its attention mask, all ones (T1).
    """
    second = texts.tokens[:, 1:2]
    return model.score_pairs(
        Embeddings(second.expand(-1, images.mask.shape[1], -1), images.mask),
        Embeddings(second.expand_as(texts.tokens), texts.mask),
    )


def unmasked(items: ModalityBatch) -> ModalityBatch:
    """The items with padding that counts, as zeros."""
    values = items.values.masked_fill(~items.mask.unsqueeze(2), 0)
    return replace(items, values=values, mask=torch.ones_like(items.mask))


class StrayTailored(TagsGenerator):
    """TAGS-DC with T1: a hinge against the right positive is the authors' against the broken one.

    It needs a word task of the generated captions ("doubt" or "correct"): their scores are
    proposed then, and not the captions.
    """

    def propose(
        self,
        model: RetrievalModel,
        batch: Batch,
        views: EncodedViews,
        grid: Tensor,
        rng: torch.Generator,
    ) -> MinedExtras:
        proposal = super().propose(model, batch, views, grid, rng)
        anchors = batch.anchors
        originals = self.inputs.texts(batch.text_rows[anchors.text.cpu()])
        originals = originals.to(batch.device)
        images = views.inference.images.rows(anchors.image)
        positive = gather_shards(
            len(anchors.image),
            lambda rows: stray(model, images.rows(rows), model.encode_texts(originals.rows(rows))),
            batch.device,
        )
        moved = grid[anchors.image, anchors.text] - positive
        scores = proposal.scores[Role.WRITTEN] + moved.unsqueeze(1)
        return replace(proposal, scores={**proposal.scores, Role.WRITTEN: scores})


def misaligned(images: Embeddings, texts: Embeddings) -> Embeddings:
    """What UNITER's released code reads in place of the regions of P image-anchored pairs (U1).

    It takes the length of the last text for that of the longest. The places of the regions are
    filled from there on: first with what is left of the padded text, then with the first regions;
    the last regions are lost.

    Args:
        images: P of them.
        texts: P of them, in the order of the authors' batch, as a model encodes them: what stands
            at padding is read.
    """
    lengths = texts.mask.sum(1)
    longest, last = int(lengths.max()), int(lengths[-1])
    wide = images.tokens.shape[1]
    beside = torch.cat([texts.tokens[:, :longest], images.tokens], 1)
    return Embeddings(beside[:, last : last + wide], images.mask)


def misread(
    model: RetrievalModel,
    batch: Batch,
    views: EncodedViews,
    grid: Tensor,
    new: ModalityBatch | None,
    text: Tensor,
) -> Tensor:
    """(B, k) scores of hard captions that share a misaligned batch with their anchor's own caption.

    They are moved by as much as that caption's score is off, so that a hinge against its right
    score is the authors' hinge.

    Args:
        matcher: the model in training.
        batch: the batch.
        views: its whole pools, encoded.
        grid: (I, T) scores of the anchor block.
        new: captions whose places follow those of the text pool.
        text: (B, k) places of the hard captions, -1 for none.
    """
    pool = views.inference.texts
    if new is not None:
        added = model.encode_texts(new.rows(shard_index(len(new), text.device)))
        pool = Embeddings.cat([pool, gather_parts(added, len(new))])
    anchors = batch.anchors
    at = torch.cat([anchors.text.unsqueeze(1), text], 1)
    images = views.inference.images
    scores = gather_shards(
        len(at),
        lambda rows: misread_batches(model, images.rows(anchors.image[rows]), pool, at[rows]),
        text.device,
    )
    true = grid[anchors.image, anchors.text]
    return scores[:, 1:] + (true - scores[:, 0]).unsqueeze(1)


def misread_batches(
    model: RetrievalModel, images: Embeddings, texts: Embeddings, at: Tensor
) -> Tensor:
    """(B, N) scores of each image with its own batch of texts, read misaligned; -inf at -1."""
    scores = torch.full(at.shape, -torch.inf, device=at.device)
    for row in range(len(at)):
        there = (at[row] >= 0).nonzero().squeeze(1)
        some = texts.rows(at[row, there])
        image = images.rows(torch.full_like(there, row))
        score = model.score_pairs(misaligned(image, some), some)
        scores = scores.to(score.dtype).index_put((torch.full_like(there, row), there), score)
    return scores


class MisreadScreened(TopScoringMiner):
    """UNITER's hard negatives with U1."""

    def propose(
        self,
        model: RetrievalModel,
        batch: Batch,
        views: EncodedViews,
        grid: Tensor,
        rng: torch.Generator,
    ) -> MinedExtras:
        proposal = super().propose(model, batch, views, grid, rng)
        pairs = dict(proposal.pairs)
        wrong = misread(model, batch, views, grid, proposal.texts, pairs.pop(Role.HARD_TEXT).text)
        return MinedExtras(images=proposal.images, pairs=pairs, scores={Role.HARD_TEXT: wrong})

    def _candidate_scores(
        self, model: RetrievalModel, images: Embeddings, texts: Embeddings, role: Role, at: Pairs
    ) -> Tensor:
        if role == Role.HARD_TEXT:  # rows share an image each
            image = images.rows(at.image.amax(1).clamp(min=0))
            return misread_batches(model, image, texts, at.text)
        return super()._candidate_scores(model, images, texts, role, at)


class ReversedGraph(BatchGraph):
    """HREM's graph with KL(relevance || distance)."""

    def _divergence(self, guide: Tensor, relevance: Tensor) -> Tensor:
        return super()._divergence(relevance, guide)


@torch.no_grad()
def borrowed_matches(
    images: Embeddings, texts: Embeddings, best: int
) -> tuple[FragmentMatches, FragmentMatches]:
    """`hrem.match_fragments` over padded regions, and over padded words of short texts."""
    own = texts.mask[:, :, None, None]
    read = own | (torch.arange(texts.mask.shape[1]) < best)[:, None, None]
    words, regions = (normalize(x.tokens, dim=-1) for x in (texts, images))
    cosine = leaky_relu(torch.einsum("tld,ird->tlir", words, regions), 0.1) * read
    of_words = (cosine / cosine.norm(dim=1, keepdim=True)).amax(3)  # (T, L, I)
    of_regions = cosine / cosine.norm(dim=3, keepdim=True).clamp(min=1e-12)
    of_regions = of_regions.masked_fill(~own, -torch.inf).amax(1)  # (T, I, R)
    own, read = own[..., 0], read[..., 0]
    top = of_words.masked_fill(~read, -torch.inf).transpose(1, 2).topk(best).values
    return (
        FragmentMatches(of_regions.topk(best).values.transpose(0, 1), of_regions.mean(2).T),
        FragmentMatches(top, (of_words * own).sum(1) / own.sum(1)),
    )


def shrinking_mean(bag: Embeddings, highest: int) -> Tensor:
    """`hrem.top_mean`, where the shortest item so far sets the number of values."""
    count = bag.mask.sum(1).clamp(max=highest).cummin(0).values.unsqueeze(1)
    values = bag.tokens.masked_fill(~bag.mask.unsqueeze(-1), -torch.inf)
    values = values.sort(1, descending=True).values[:, :highest]
    taken = torch.arange(highest) < count
    return values.masked_fill(~taken.unsqueeze(2), 0).sum(1) / count


class CaptionTrace(NamedTuple):
    """NAAF's mining through a batch: `correct` (T,) says whose own image ranks first.

    `thresholds` (T + 1, 2) has those of each caption, and at last those that are carried on;
    `matched` and `mismatched` are the similarities sampled.
    """

    scores: Tensor
    thresholds: Tensor
    correct: Tensor
    matched: Tensor
    mismatched: Tensor


def mine_by_caption(model: NAAF, images: Embeddings, texts: Embeddings) -> CaptionTrace:
    """Score image n with text n and all others, by thresholds from the captions before."""
    thresholds, columns, correct = [model.thresholds.clone()], [], []
    matched, mismatched = (images.tokens.new_zeros(0) for _ in range(2))
    for t in range(len(texts)):
        text, current = texts.rows(slice(t, t + 1)), thresholds[-1]
        column = model._matrix(images, text, current[0])
        columns.append(column)
        scores = column.detach()[:, 0]
        correct.append(int(scores.argmax()) == t)
        if correct[-1]:
            lowest = int(scores.argmin())
            with torch.no_grad():
                pools = (images.rows(slice(row, row + 1)) for row in (t, lowest))
                samples = [best_affinities(pool, text) for pool in pools]
            matched = torch.cat([matched, samples[0]])
            mismatched = torch.cat([mismatched, samples[1]])
        if correct[-1] and len(matched) > ENOUGH_WORDS:
            current = mined_thresholds(matched, mismatched, current, model.alpha)
        elif len(matched) < ENOUGH_WORDS:
            current = torch.zeros_like(current)
        thresholds.append(current)
    stacked = torch.stack(thresholds)
    return CaptionTrace(torch.cat(columns, 1), stacked, torch.tensor(correct), matched, mismatched)
