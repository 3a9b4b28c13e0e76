"""Ways to mine: every pair in float32, in bfloat16 first, or only what a quick host proposes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.speed import Result
from benchmarks.speed.bags import bags, scan
from benchmarks.speed.gemm import product_in_tiles, seconds
from benchmarks.speed.pools import CAPTIONS
from benchmarks.speed.pools import member as embedded
from benchmarks.speed.selfmining import HIGH, WIDE
from counterfoil.core.types import Embeddings
from counterfoil.models.layers.fused import prepare_context
from counterfoil.negatives.mining import (
    Certificate,
    mine_half_precision,
    mine_lists,
    rerank_proposals,
)
from counterfoil.scoring.encode import EmbeddedDataset

IMAGES, TEXTS, WIDTH, PROPOSALS = 512, 2560, 256, 4
HARD_TEXTS, HARD_IMAGES = 100, 20


def results(threads: int) -> Iterator[Result]:
    """SCAN t2i by each way."""
    images, texts = bags(IMAGES, TEXTS, WIDTH)
    slow = EmbeddedDataset(scan("t2i", WIDTH), prepare_context(images, gram=True), texts)
    quick = embedded(_pooled(images), _pooled(texts))
    text_to_image = torch.arange(TEXTS) // CAPTIONS
    regions, words = images.tokens.flatten(0, 1), texts.tokens[texts.mask]
    told: list[Certificate] = []
    ways: dict[str, Callable[[], object]] = {
        "all pairs in float32": lambda: mine_lists(
            [slow], text_to_image, texts_per_image=HARD_TEXTS, images_per_text=HARD_IMAGES
        ),
        "bfloat16, then float32": lambda: told.append(_halved(slow, text_to_image)),
        f"VSE proposes {PROPOSALS} x": lambda: _proposed(quick, slow, text_to_image),
    }
    for name, way in ways.items():
        before = seconds(lambda: product_in_tiles(regions, words, HIGH, WIDE))
        cost = seconds(way)
        after = seconds(lambda: product_in_tiles(regions, words, HIGH, WIDE))
        product = (before + after) / 2  # a busy machine drifts
        speed = f"{IMAGES * TEXTS / cost:,.0f} pairs/s"
        note = f"{cost:.1f} s against {product:.1f} s, {speed}"
        if told:
            sure = told[-1].certain_images, told[-1].certain_texts
            note += f", {sure[0]} images and {sure[1]} texts certain at once"
            told.clear()
        size = f"{IMAGES} x {TEXTS}, width {WIDTH}, top {HARD_TEXTS} and {HARD_IMAGES}"
        yield Result(f"SCAN t2i lists, {name}, {size}", cost / product, note=note)


def _pooled(bag: Embeddings) -> Tensor:
    """(N, D) unit means of bags of unit vectors, which say something of how the bags score."""
    return normalize(bag.tokens.masked_fill(~bag.mask.unsqueeze(-1), 0).sum(1), dim=1)


def _halved(member: EmbeddedDataset, text_to_image: Tensor) -> Certificate:
    _, certificate = mine_half_precision(
        [member], text_to_image, texts_per_image=HARD_TEXTS, images_per_text=HARD_IMAGES
    )
    return certificate


def _proposed(quick: EmbeddedDataset, slow: EmbeddedDataset, text_to_image: Tensor) -> None:
    more = mine_lists(
        [quick],
        text_to_image,
        texts_per_image=PROPOSALS * HARD_TEXTS,
        images_per_text=PROPOSALS * HARD_IMAGES,
    )
    rerank_proposals(
        more, [slow], text_to_image, texts_per_image=HARD_TEXTS, images_per_text=HARD_IMAGES
    )
