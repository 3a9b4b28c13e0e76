"""The papers' matchers with items that they read; a new one appends its cases."""

from __future__ import annotations

import matcher_cases
from counterfoil.core.config import Config, config, lazy
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.pooling import ImageTower, TextTower
from counterfoil.models.layers.towers import MLPRegions
from counterfoil.papers.models.bfan import BFAN
from counterfoil.papers.models.cgmn import CGMN
from counterfoil.papers.models.chan import CHAN
from counterfoil.papers.models.dive import DivE, PooledParts, WordsAndStates
from counterfoil.papers.models.ernievil import ErnieViL
from counterfoil.papers.models.esa import ESA
from counterfoil.papers.models.gpo import GPO
from counterfoil.papers.models.hrem import HREM, BatchGraph
from counterfoil.papers.models.lightningdot import (
    FirstTokenTower,
    LightningDOT,
    TokenAndRegions,
)
from counterfoil.papers.models.naaf import NAAF
from counterfoil.papers.models.scan import SCAN
from counterfoil.papers.models.sgraf import SGRAF
from counterfoil.papers.models.uniter import UNITER, WordPieceEmbedding
from counterfoil.papers.models.vilt import ViLT
from counterfoil.papers.models.vsrn import VSRN, Captioner
from counterfoil.papers.models.xdim import XDim
from matcher_cases import (
    FEATURES,
    LENGTH,
    REGIONS,
    WIDTH,
    WORDS,
    Case,
    own_gru,
    own_patches,
    own_regions,
    pixels,
    shapes,
)


def _scan(**options: object) -> Config[RetrievalModel]:
    return config(SCAN, image=own_regions(), text=own_gru(), **options)


def _chan(**options: object) -> Config[RetrievalModel]:
    return config(CHAN, image=own_regions(), text=own_gru(), **options)


def _vsrn(image: ImageTower | None = None, **options: object) -> Config[RetrievalModel]:
    text = own_gru(bidirectional=False)
    return config(VSRN, image=image or own_regions(), text=text, layers=2, **options)


def _sgraf(**options: object) -> Config[RetrievalModel]:
    sizes = {"regions": REGIONS, "similarity_width": 4}
    return config(SGRAF, image=own_regions(), text=own_gru(), **sizes, **options)


def _captioner() -> Captioner:
    return lazy(Captioner, words=WORDS, width=WIDTH, hidden=5, word_width=4)


def _hrem(image: ImageTower, **options: object) -> Config[RetrievalModel]:
    graph = lazy(BatchGraph, width=WIDTH, heads=2, best=3)
    return config(HREM, image=image, text=own_gru(), graph=graph, heads=2, **options)


def _pooled(tower: ImageTower | TextTower) -> PooledParts:
    return lazy(PooledParts, tower=tower)


def _dive(image: PooledParts | None = None, **options: object) -> Config[RetrievalModel]:
    regions = lazy(MLPRegions, features=FEATURES, width=WIDTH, stacked=True)
    text = lazy(WordsAndStates, gru=own_gru())
    sizes = {"heads": 2, "head_width": 4, **options}
    return config(DivE, image=image or _pooled(regions), text=text, **sizes)


def _uniter(**options: object) -> Config[RetrievalModel]:
    sizes = {"layers": 2, "width": WIDTH, "heads": 2, "inner": 12, "positions": LENGTH + 2}
    return config(UNITER, vocabulary=WORDS, features=FEATURES, classes=4, **sizes, **options)


def _vilt(**options: object) -> Config[RetrievalModel]:
    sizes = {"layers": 2, "width": WIDTH, "heads": 2, "inner": 12, "positions": LENGTH + 2}
    return config(ViLT, vocabulary=WORDS, size=16, patch=8, **sizes, **options)


def _lightningdot(project: int = 6, **options: object) -> Config[RetrievalModel]:
    sizes = {"heads": 2, "inner": 12, "project": project}
    image = lazy(
        TokenAndRegions,
        features=FEATURES,
        width=WIDTH,
        vocabulary=WORDS,
        first=1,
        hides="outputs" in options,
    )
    text = lazy(
        WordPieceEmbedding,
        vocabulary=WORDS,
        positions=LENGTH + 2,
        width=WIDTH,
        dropout=0.1,
        mask=3,
    )
    return config(
        LightningDOT,
        image=lazy(FirstTokenTower, embed=image, layers=2, **sizes),
        text=lazy(FirstTokenTower, embed=text, layers=1, **sizes),
        spread=0.3,
        **options,
    )


def _ernievil(**options: object) -> Config[RetrievalModel]:
    sizes = {"width": WIDTH, "heads": 2, "inner": 12, "image_width": 6, "image_heads": 3}
    sizes |= {"image_inner": 5, "shared": 4, "shared_heads": 2, "positions": LENGTH + 2}
    return config(ErnieViL, vocabulary=WORDS, features=FEATURES, spread=0.3, **{**sizes, **options})


CASES = (
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
        config(SCAN, image=own_patches(), text=own_gru()),
        images=pixels,
    ),
    Case("bfan", config(BFAN, image=own_regions(), text=own_gru())),
    Case("bfan-prob", config(BFAN, image=own_regions(), text=own_gru(), focus="prob")),
    Case("bfan-pixels", config(BFAN, image=own_patches(), text=own_gru()), images=pixels),
    Case("naaf", config(NAAF, image=own_regions(), text=own_gru())),
    Case("naaf-pixels", config(NAAF, image=own_patches(), text=own_gru()), images=pixels),
    Case("sgraf-sgr", _sgraf()),
    Case("sgraf-saf", _sgraf(module="SAF")),
    Case(
        "xdim", config(XDim, image=lazy(MLPRegions, features=FEATURES, width=WIDTH), text=own_gru())
    ),
    Case("vsrn", _vsrn(captioner=_captioner())),
    Case("vsrn-f30k", _vsrn(normalise_regions=False, batch_norm=True)),
    Case("vsrn-channel", _vsrn(region_norm="channel")),
    Case("vsrn-pixels", _vsrn(own_patches(), bn_passes="separate"), images=pixels),
    Case("cgmn", config(CGMN, image=own_regions(), text=own_gru(), layers=2, overlap=2)),
    Case("cgmn-cosine", config(CGMN, image=own_regions(), text=own_gru(), relation="cosine")),
    Case("cgmn-pixels", config(CGMN, image=own_patches(), text=own_gru()), images=pixels),
    Case("chan", _chan(block="selfattention")),
    Case("chan-mean", _chan(pooling="Mean")),
    Case("chan-softmax", _chan(pooling="Softmax", block="transformer", heads=4)),
    Case("chan-max", _chan(pooling="Max")),
    Case("chan-tha", _chan(coding="THA")),
    Case("chan-tha-softmax", _chan(coding="THA", pooling="Softmax")),
    Case("chan-vsa", _chan(coding="VSA", pooling="Sum", alpha=0.2)),
    Case("chan-vsa-max", _chan(coding="VSA", pooling="Max", normalise_images=False)),
    Case("chan-pixels", config(CHAN, image=own_patches(), text=own_gru()), images=pixels),
    Case(
        "gpo", config(GPO, image=lazy(MLPRegions, features=FEATURES, width=WIDTH), text=own_gru())
    ),
    Case(
        "gpo-raw",
        config(
            GPO, image=own_regions(), text=own_gru(), normalise_images=False, normalise_texts=False
        ),
    ),
    Case("gpo-pixels", config(GPO, image=own_patches(), text=own_gru()), images=pixels),
    Case("hrem", _hrem(lazy(MLPRegions, features=FEATURES, width=WIDTH, init="xavier"))),
    Case("hrem-plain", config(HREM, image=own_regions(), text=own_gru(), heads=4, residual=0.5)),
    Case("hrem-pixels", _hrem(own_patches(), residual=0.0), images=pixels),
    Case(
        "esa", config(ESA, image=lazy(MLPRegions, features=FEATURES, width=WIDTH), text=own_gru())
    ),
    Case(
        "esa-raw",
        config(ESA, image=own_regions(), text=own_gru(), copies=3, normalise_images=False),
    ),
    Case("esa-pixels", config(ESA, image=own_patches(), text=own_gru()), images=pixels),
    Case("dive", _dive()),
    Case("dive-euclidean", _dive(similarity="smooth_chamfer_euclidean", slots=2)),
    Case("dive-chamfer", _dive(similarity="chamfer", rounds=1)),
    Case("dive-max", _dive(similarity="max", mmd_weight=0.0, diversity_weight=0.0)),
    Case("dive-sigmoid", _dive(_pooled(own_patches()), similarity="mean_sigmoid"), images=pixels),
    Case("dive-one", config(DivE, image=_pooled(own_regions()), text=_pooled(own_gru()), slots=1)),
    Case("uniter", _uniter()),
    Case("uniter-logit", _uniter(score="logit", outputs=("rank", "fill", "doubt", "correct"))),
    Case("uniter-match", _uniter(outputs=("match", "regress", "classify"), mask=3)),
    Case("ernievil", _ernievil(meets=((1, 0), (2, 1)))),
    Case("ernievil-logit", _ernievil(meets=((0, 1), (2, 1)), score="logit", mask=3)),
    Case("lightningdot", _lightningdot()),
    Case("lightningdot-heads", _lightningdot(0, outputs=("fill", "regress", "classify"))),
    Case("vilt", _vilt(), images=pixels),
    Case("vilt-match", _vilt(outputs=("match", "fill", "doubt"), mask=3), images=shapes),
    Case("vilt-logit", _vilt(score="logit", outputs=("rank", "correct")), images=shapes),
)
ALL = (*matcher_cases.CASES, *CASES)
