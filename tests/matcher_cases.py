"""Every matcher with items it reads, for the contract tests. A new host appends its cases here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from counterfoil.core.config import Config, config, lazy
from counterfoil.core.types import ModalityBatch
from counterfoil.models.base import RetrievalModel
from counterfoil.models.blip import BLIP
from counterfoil.models.clip import DualEncoder
from counterfoil.models.embeddings import EmbeddingModel
from counterfoil.models.filip import FILIP
from counterfoil.models.frozen import FrozenAdapters, FrozenWithAdapters
from counterfoil.models.layers.pooling import ImageTower, TextTower
from counterfoil.models.layers.towers import GRU, MLPRegions, PatchTower, Regions
from counterfoil.models.open_clip import OpenClipModel
from counterfoil.models.sentence_transformers import (
    CrossEncoderModel,
    DenseEmbedder,
    MultiVectorEmbedder,
)
from counterfoil.models.vsepp import VSEPP
from counterfoil.papers.models.bfan import BFAN
from counterfoil.papers.models.chan import CHAN
from counterfoil.papers.models.dive import DivE, PooledParts, WordsAndStates
from counterfoil.papers.models.esa import ESA
from counterfoil.papers.models.gpo import GPO
from counterfoil.papers.models.hrem import HREM, BatchGraph
from counterfoil.papers.models.naaf import NAAF
from counterfoil.papers.models.scan import SCAN
from counterfoil.papers.models.sgraf import SGRAF
from counterfoil.papers.models.uniter import UNITER
from counterfoil.papers.models.vilt import ViLT
from counterfoil.papers.models.vsrn import VSRN, Captioner
from counterfoil.papers.models.xdim import XDim

FEATURES, REGIONS, WORDS, LENGTH, WIDTH = 6, 5, 20, 7, 8


def regions(n: int, rng: torch.Generator) -> ModalityBatch:
    """Images of one to five regions."""
    counts = torch.randint(1, REGIONS + 1, (n, 1), generator=rng)
    values = torch.randn(n, REGIONS, FEATURES, generator=rng)
    boxes = torch.rand(n, REGIONS, 4, generator=rng)
    return ModalityBatch(torch.arange(n), values, torch.arange(REGIONS) < counts, boxes)


def pixels(n: int, rng: torch.Generator) -> ModalityBatch:
    values = torch.randn(n, 3, 16, 16, generator=rng)
    return ModalityBatch(torch.arange(n), values, torch.ones(n, 1, dtype=torch.bool))


def shapes(n: int, rng: torch.Generator) -> ModalityBatch:
    """Pictures of up to three by two patches of eight pixels, at the top left."""
    values = torch.randn(n, 3, 24, 16, generator=rng)
    heights, widths = (torch.randint(1, most + 1, (n, 1, 1), generator=rng) for most in (3, 2))
    mask = (torch.arange(3).view(3, 1) < heights) & (torch.arange(2) < widths)
    return ModalityBatch(torch.arange(n), values, mask.flatten(1))


def words(n: int, rng: torch.Generator) -> ModalityBatch:
    """Captions of one to seven words."""
    counts = torch.randint(1, LENGTH + 1, (n, 1), generator=rng)
    values = torch.randint(1, WORDS, (n, LENGTH), generator=rng)
    return ModalityBatch(torch.arange(n), values, torch.arange(LENGTH) < counts)


def vectors(n: int, rng: torch.Generator) -> ModalityBatch:
    values = torch.randn(n, 1, WIDTH, generator=rng)
    return ModalityBatch(torch.arange(n), values, torch.ones(n, 1, dtype=torch.bool))


@dataclass(frozen=True)
class Case:
    name: str
    spec: Config[RetrievalModel]
    images: Callable[[int, torch.Generator], ModalityBatch] = regions
    texts: Callable[[int, torch.Generator], ModalityBatch] = words

    def build(self) -> RetrievalModel:
        torch.manual_seed(0)
        return trained(self.spec.build()).eval()


def trained(model: RetrievalModel) -> RetrievalModel:
    """The same with batch norms that do something, as they do after training."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            for tensor in (module.weight, module.bias, module.running_mean):
                nn.init.normal_(tensor)
    return model


def _regions() -> Regions:
    return lazy(Regions, features=FEATURES, width=WIDTH)


def _gru(**options: bool) -> GRU:
    return lazy(GRU, words=WORDS, word_width=4, width=WIDTH, **options)


def _patches() -> PatchTower:
    return lazy(PatchTower, size=16, patch=8, width=WIDTH, channels=4, depth=1)


def _scan(**options: object) -> Config[RetrievalModel]:
    return config(SCAN, image=_regions(), text=_gru(), **options)


def _filip(image: ImageTower | None = None, **options: object) -> Config[RetrievalModel]:
    return config(FILIP, image=image or _regions(), text=_gru(), **options)


def _chan(**options: object) -> Config[RetrievalModel]:
    return config(CHAN, image=_regions(), text=_gru(), **options)


def _vsrn(image: ImageTower | None = None, **options: object) -> Config[RetrievalModel]:
    text = _gru(bidirectional=False)
    return config(VSRN, image=image or _regions(), text=text, layers=2, **options)


def _sgraf(**options: object) -> Config[RetrievalModel]:
    sizes = {"regions": REGIONS, "similarity_width": 4}
    return config(SGRAF, image=_regions(), text=_gru(), **sizes, **options)


def _captioner() -> Captioner:
    return lazy(Captioner, words=WORDS, width=WIDTH, hidden=5, word_width=4)


def _hrem(image: ImageTower, **options: object) -> Config[RetrievalModel]:
    graph = lazy(BatchGraph, width=WIDTH, heads=2, best=3)
    return config(HREM, image=image, text=_gru(), graph=graph, heads=2, **options)


def _pooled(tower: ImageTower | TextTower) -> PooledParts:
    return lazy(PooledParts, tower=tower)


def _dive(image: PooledParts | None = None, **options: object) -> Config[RetrievalModel]:
    regions = lazy(MLPRegions, features=FEATURES, width=WIDTH, stacked=True)
    text = lazy(WordsAndStates, gru=_gru())
    sizes = {"heads": 2, "head_width": 4, **options}
    return config(DivE, image=image or _pooled(regions), text=text, **sizes)


def _uniter(**options: object) -> Config[RetrievalModel]:
    sizes = {"layers": 2, "width": WIDTH, "heads": 2, "inner": 12, "positions": LENGTH + 2}
    return config(UNITER, vocabulary=WORDS, features=FEATURES, classes=4, **sizes, **options)


def _vilt(**options: object) -> Config[RetrievalModel]:
    sizes = {"layers": 2, "width": WIDTH, "heads": 2, "inner": 12, "positions": LENGTH + 2}
    return config(ViLT, vocabulary=WORDS, size=16, patch=8, **sizes, **options)


def _blip(**options: object) -> Config[RetrievalModel]:
    sizes = {"layers": 2, "width": WIDTH, "heads": 2, "inner": 12, "positions": LENGTH + 2}
    sizes |= {"image_layers": 2, "image_width": 12, "image_heads": 2, "image_inner": 8}
    return config(BLIP, vocabulary=WORDS, size=16, patch=8, **sizes, **options)


CASES = (
    Case("vse", config(VSEPP, image=_regions(), text=_gru(bidirectional=False))),
    Case(
        "vse-order",
        config(
            VSEPP, image=_regions(), text=_gru(), text_pool="mean", measure="order", absolute=True
        ),
    ),
    Case(
        "vse-max",
        config(VSEPP, image=_regions(), text=_gru(), image_pool="mean+max", text_pool="max"),
    ),
    Case(
        "vse-pixels",
        config(VSEPP, image=_patches(), text=_gru(), image_pool="first", text_pool="mean"),
        images=pixels,
    ),
    Case("scan-t2i", _scan()),
    Case("scan-t2i-mean", _scan(aggregate="Mean", lambda_softmax=20.0)),
    Case("scan-t2i-softmax", _scan(aggregate="Max", raw_norm="softmax")),
    Case("scan-t2i-clipped", _scan(aggregate="Sum", raw_norm="clipped")),
    Case("scan-i2t", _scan(direction="i2t", lambda_softmax=4.0, lambda_lse=5.0)),
    Case("scan-i2t-mean", _scan(direction="i2t", aggregate="Mean", raw_norm="l2norm")),
    Case("scan-i2t-softmax", _scan(direction="i2t", aggregate="Max", raw_norm="softmax")),
    Case("scan-i2t-none", _scan(direction="i2t", aggregate="Sum", raw_norm="no_norm")),
    Case(
        "scan-pixels",
        config(SCAN, image=_patches(), text=_gru()),
        images=pixels,
    ),
    Case("bfan", config(BFAN, image=_regions(), text=_gru())),
    Case("bfan-prob", config(BFAN, image=_regions(), text=_gru(), focus="prob")),
    Case("bfan-pixels", config(BFAN, image=_patches(), text=_gru()), images=pixels),
    Case("naaf", config(NAAF, image=_regions(), text=_gru())),
    Case("naaf-pixels", config(NAAF, image=_patches(), text=_gru()), images=pixels),
    Case("sgraf-sgr", _sgraf()),
    Case("sgraf-saf", _sgraf(module="SAF")),
    Case("xdim", config(XDim, image=lazy(MLPRegions, features=FEATURES, width=WIDTH), text=_gru())),
    Case("vsrn", _vsrn(captioner=_captioner())),
    Case("vsrn-f30k", _vsrn(normalise_regions=False, batch_norm=True)),
    Case("vsrn-channel", _vsrn(region_norm="channel")),
    Case("vsrn-pixels", _vsrn(_patches(), bn_passes="separate"), images=pixels),
    Case("chan", _chan(block="selfattention")),
    Case("chan-mean", _chan(pooling="Mean")),
    Case("chan-softmax", _chan(pooling="Softmax", block="transformer", heads=4)),
    Case("chan-max", _chan(pooling="Max")),
    Case("chan-tha", _chan(coding="THA")),
    Case("chan-tha-softmax", _chan(coding="THA", pooling="Softmax")),
    Case("chan-vsa", _chan(coding="VSA", pooling="Sum", alpha=0.2)),
    Case("chan-vsa-max", _chan(coding="VSA", pooling="Max", normalise_images=False)),
    Case("chan-pixels", config(CHAN, image=_patches(), text=_gru()), images=pixels),
    Case("gpo", config(GPO, image=lazy(MLPRegions, features=FEATURES, width=WIDTH), text=_gru())),
    Case(
        "gpo-raw",
        config(GPO, image=_regions(), text=_gru(), normalise_images=False, normalise_texts=False),
    ),
    Case("gpo-pixels", config(GPO, image=_patches(), text=_gru()), images=pixels),
    Case("hrem", _hrem(lazy(MLPRegions, features=FEATURES, width=WIDTH, init="xavier"))),
    Case("hrem-plain", config(HREM, image=_regions(), text=_gru(), heads=4, residual=0.5)),
    Case("hrem-pixels", _hrem(_patches(), residual=0.0), images=pixels),
    Case("esa", config(ESA, image=lazy(MLPRegions, features=FEATURES, width=WIDTH), text=_gru())),
    Case("esa-raw", config(ESA, image=_regions(), text=_gru(), copies=3, normalise_images=False)),
    Case("esa-pixels", config(ESA, image=_patches(), text=_gru()), images=pixels),
    Case("dive", _dive()),
    Case("dive-euclidean", _dive(similarity="smooth_chamfer_euclidean", slots=2)),
    Case("dive-chamfer", _dive(similarity="chamfer", rounds=1)),
    Case("dive-max", _dive(similarity="max", mmd_weight=0.0, diversity_weight=0.0)),
    Case("dive-sigmoid", _dive(_pooled(_patches()), similarity="mean_sigmoid"), images=pixels),
    Case("dive-one", config(DivE, image=_pooled(_regions()), text=_pooled(_gru()), slots=1)),
    Case("uniter", _uniter()),
    Case("uniter-logit", _uniter(score="logit", outputs=("rank", "fill", "doubt", "correct"))),
    Case("uniter-match", _uniter(outputs=("match", "regress", "classify"), mask=3)),
    Case("vilt", _vilt(), images=pixels),
    Case("vilt-match", _vilt(outputs=("match", "fill", "doubt"), mask=3), images=shapes),
    Case("vilt-logit", _vilt(score="logit", outputs=("rank", "correct")), images=shapes),
    Case("blip", _blip(), images=pixels),
    Case("blip-probability", _blip(score="probability", mask=3), images=pixels),
    Case("filip", _filip()),
    Case("filip-patches", _filip(image=_patches(), direction="i2t", mean=False), images=pixels),
    Case("filip-t2i", _filip(direction="t2i", mean=False)),
    Case("vectors", config(EmbeddingModel), images=vectors, texts=vectors),
)


def poisoned(tensor: Tensor, mask: Tensor) -> Tensor:
    """The same with garbage, never zeros, where the mask is False."""
    hidden = ~mask.view(*mask.shape, *[1] * (tensor.dim() - mask.dim()))
    garbage = torch.nan if tensor.is_floating_point() else 10**9
    return tensor.masked_fill(hidden, garbage)


# need a folder: see tests/models/test_{clip,open_clip,adapted,sentence_transformers}.py
ELSEWHERE = {
    CrossEncoderModel,
    DenseEmbedder,
    MultiVectorEmbedder,
    DualEncoder,
    OpenClipModel,
    FrozenWithAdapters,
    FrozenAdapters,
}
