"""Cross-attention hosts that mine their own negatives, against the plain product of real words."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks.speed import Result
from benchmarks.speed.bags import bags, bfan, scan
from benchmarks.speed.gemm import product_in_tiles, seconds
from benchmarks.speed.pools import CAPTIONS
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.fused import prepare_context
from counterfoil.negatives.mining import mine_lists
from counterfoil.scoring.encode import EmbeddedDataset

IMAGES, TEXTS, KEPT, WIDTHS = 512, 2560, 100, (256, 1024)
HIGH, WIDE = 128 * 36, 3584  # tiles of the plain product: as large as the engine's own
TARGETS = {"SCAN t2i": 3.0, "SCAN i2t": 3.0, "BFAN equal": None}


def results(threads: int) -> Iterator[Result]:
    """SCAN both ways and BFAN, two widths."""
    for width in WIDTHS:
        images, texts = bags(IMAGES, TEXTS, width)
        plain = _plain(images.tokens.flatten(0, 1), texts.tokens[texts.mask])
        hosts: dict[str, RetrievalModel] = {
            "SCAN t2i": scan("t2i", width),
            "SCAN i2t": scan("i2t", width),
            "BFAN equal": bfan("equal", width),
        }
        for name, model in hosts.items():
            pool = prepare_context(images, gram=name != "SCAN i2t")
            before = seconds(plain)
            cost = seconds(_mining(EmbeddedDataset(model, pool, texts)))
            product = (before + seconds(plain)) / 2  # a busy machine drifts
            speed = f"{IMAGES * TEXTS / cost:,.0f} pairs/s"
            note = f"{cost:.1f} s against {product:.1f} s, {speed}"
            size = f"{IMAGES} x {TEXTS}, width {width}, top {KEPT} both ways"
            yield Result(f"{name} mines itself, {size}", cost / product, TARGETS[name], note=note)


def _plain(regions: Tensor, words: Tensor) -> Callable[[], object]:
    return lambda: product_in_tiles(regions, words, HIGH, WIDE)


def _mining(member: EmbeddedDataset) -> Callable[[], object]:
    text_to_image = torch.arange(TEXTS) // CAPTIONS
    return lambda: mine_lists([member], text_to_image, texts_per_image=KEPT, images_per_text=KEPT)
