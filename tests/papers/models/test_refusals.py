"""What no model, tower or layer can be built with, and what is said about it."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest

from counterfoil.models.blip import BLIP
from counterfoil.models.filip import FILIP
from counterfoil.models.frozen import FrozenAdapters
from counterfoil.models.layers.pooling import check_heads
from counterfoil.models.layers.towers import GRU, MLPRegions, PatchTower, Regions
from counterfoil.models.vsepp import VSEPP
from counterfoil.papers.models.bfan import BFAN
from counterfoil.papers.models.chan import CHAN
from counterfoil.papers.models.dive import DivE, PooledParts, SlotAttention, WordsAndStates
from counterfoil.papers.models.esa import ESA, ExternalAttention
from counterfoil.papers.models.gpo import GeneralizedPooling
from counterfoil.papers.models.hrem import HREM, BatchGraph, ResidualPool
from counterfoil.papers.models.naaf import NAAF
from counterfoil.papers.models.scan import SCAN
from counterfoil.papers.models.uniter import UNITER
from counterfoil.papers.models.vilt import ViLT
from counterfoil.papers.models.vsrn import VSRN, Captioner

GRU_ = GRU(words=3, word_width=2, width=6)
PAIR = {"image": Regions(features=2, width=6), "text": GRU_}
APART = {"image": Regions(features=2, width=4), "text": GRU_}  # of different width
PARTS = {"image": PooledParts(tower=MLPRegions(features=2, width=6, stacked=True))}
PARTS |= {"text": WordsAndStates(gru=GRU_)}
WIDER = {"text": WordsAndStates(gru=GRU(words=3, width=8))}
TEXT = {"layers": 2, "width": 16, "heads": 2, "inner": 16, "positions": 9, "vocabulary": 20}
REGIONS, PICTURES = TEXT | {"features": 6, "classes": 4}, TEXT | {"size": 16, "patch": 8}
BOTH = PICTURES | {"image_layers": 2, "image_width": 24, "image_heads": 2, "image_inner": 16}
WRITER = {"words": 3, "width": 3, "hidden": 3, "word_width": 3}
SLOTS = {"width": 6, "part_width": 4, "slots": 3, "heads": 2, "head_width": 5, "rounds": 2}
GRAPH, POOL = {"width": 6, "heads": 2}, {"width": 8, "heads": 2}
HEADS, SIZE = (
    "3 heads do not divide a width of ",
    "patches of 8 pixels do not divide pictures of 20",
)

UNKNOWN: dict[Any, tuple[dict[str, Any], dict[str, str]]] = {
    BFAN: (PAIR, {"focus": "equal, prob"}),
    CHAN: (PAIR, {"coding": "VHA, THA", "pooling": "LSE"}),
    SCAN: (PAIR, {"direction": "", "raw_norm": "", "aggregate": ""}),
    FILIP: (PAIR, {"direction": "t2i, i2t, both"}),
    VSEPP: (PAIR, {"image_pool": "", "text_pool": "", "measure": ""}),
    VSRN: (PAIR, {"region_norm": "channel", "bn_passes": "together"}),
    DivE: (PARTS, {"similarity": "smooth", "diversity_of": "slots"}),
    SlotAttention: (SLOTS, {"positions": "none, sine"}),
    MLPRegions: ({"features": 6}, {"init": "default, xavier"}),
    BLIP: (BOTH, {"score": ""}),
    UNITER: (REGIONS, {"score": ""}),
    ViLT: (PICTURES, {"score": ""}),
}
ZERO: dict[Any, tuple[dict[str, Any], tuple[str, ...]]] = {
    Captioner: (WRITER, tuple(WRITER)),
    ESA: (PAIR, ("copies",)),
    ExternalAttention: ({}, ("width",)),
    GeneralizedPooling: ({}, ("hidden", "temperature")),
    BatchGraph: (GRAPH, ("best",)),
    ResidualPool: (POOL, ("heads",)),
    check_heads: (POOL, ("heads",)),
    SlotAttention: (SLOTS, ("slots", "heads", "head_width", "rounds", "inner")),
    BLIP: (BOTH, ("layers",)),
    FrozenAdapters: ({}, ("width",)),
    GRU: ({}, ("words",)),
    Regions: ({}, ("features",)),
    MLPRegions: ({"features": 6}, ("inner",)),
}
REST: list[tuple[Any, dict[str, Any], dict[str, Any], str]] = [
    (SCAN, APART, {}, "gives 4 numbers per vector and the text tower 6"),
    (BFAN, APART, {}, "gives 4 numbers per vector and the text tower 6"),
    (CHAN, APART, {}, "gives 4 numbers per vector and the text tower 6"),
    (NAAF, APART, {}, "gives 4 numbers per vector and the text tower 6"),
    (ESA, APART, {}, "the image tower gives 4 numbers per vector"),
    (HREM, APART, {"heads": 2}, "the image tower gives 4 numbers per vector and the text"),
    (HREM, PAIR, {"graph": BatchGraph(width=4, heads=2), "heads": 2}, "reads 4 numbers per item"),
    (VSRN, PAIR, {"captioner": Captioner(words=3, width=5)}, "reads 5 numbers per region and the"),
    (DivE, PARTS, WIDER, "gives 6 numbers for a whole and the text tower 8; give"),
    (CHAN, PAIR, {"beta": 0}, "beta=0 is no temperature; it must be positive"),
    (CHAN, PAIR, {"block": "selfattention"}, "8 heads do not divide a width of 6"),
    (Captioner, WRITER, {"longest": 1}, "longest=1 leaves no token to predict"),
    (BatchGraph, GRAPH, {"share": 0}, "share=0 of a batch cannot be read"),
    (ResidualPool, POOL, {"residual": 1.5}, "residual=1.5 is no share"),
    (ResidualPool, POOL, {"heads": 3}, f"{HEADS}8"),
    (check_heads, POOL, {"heads": 3}, f"{HEADS}8"),
    (PooledParts, {"apart": True}, {"tower": Regions(features=2, width=7)}, "cannot be halved; wi"),
    (WordsAndStates, {}, {"gru": GRU(words=3, layers=2)}, "use GRU(layers=1, bidirectional=True)"),
    (WordsAndStates, {}, {"gru": GRU(words=3, bidirectional=False)}, "use GRU(layers=1, bidirecti"),
    (UNITER, REGIONS, {"outputs": ("rang",)}, "outputs='rang' is not known; use one of rank, ma"),
    (UNITER, REGIONS, {"outputs": ("fill",)}, "give no score; name 'rank' or 'match'"),
    (UNITER, REGIONS, {"mask": 20}, "mask=20 is not an id of a vocabulary of 20"),
    (UNITER, REGIONS, {"heads": 3}, f"{HEADS}16"),
    (ViLT, PICTURES, {"outputs": ("regress", "rank")}, "outputs='regress' is not known; use one "),
    (ViLT, PICTURES, {"outputs": ("fill",)}, "give no score; name 'rank' or 'match'"),
    (ViLT, PICTURES, {"mask": 20}, "mask=20 is not an id of a vocabulary of 20"),
    (ViLT, PICTURES, {"heads": 3}, f"{HEADS}16"),
    (ViLT, PICTURES, {"size": 20}, SIZE),
    (BLIP, BOTH, {"size": 20}, SIZE),
    (BLIP, BOTH, {"heads": 3}, f"{HEADS}16"),
    (BLIP, BOTH, {"image_heads": 5}, "5 heads do not divide a width of 24"),
    (FrozenAdapters, {"width": 8}, {"hidden": -1}, "hidden=-1 is not possible"),
    (PatchTower, {"size": 64}, {"patch": 12}, "patch=12 does not fit pictures of 64 pixels"),
    (PatchTower, {"size": 60}, {"patch": 16}, "patch=16 does not fit pictures of 60 pixels"),
    (PatchTower, {"size": 64}, {"patch": 1}, "patch=1 does not fit pictures of 64 pixels"),
    (ESA, PAIR, {"region_drop": 1.0}, "region_drop=1.0 is not possible; give a share from 0"),
]
for share in (-0.1, 1, 2.0):
    text = f"_drop={share} is not possible; give a share"
    REST.append((Regions, {"features": 3}, {"region_drop": share}, f"region{text}"))
    REST.append((GRU, {"words": 3}, {"word_drop": share}, f"word{text}"))


def refused(make: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        make(**options)


@pytest.mark.parametrize("kind", UNKNOWN)
def test_an_unknown_word_is_refused(kind):
    parts, known = UNKNOWN[kind]
    for name, words in known.items():
        said = f"{name}='other' is not known; use one of {words}"
        refused(kind, parts | {name: "other"}, said)


@pytest.mark.parametrize("kind", ZERO)
def test_nothing_is_no_size(kind):
    parts, names = ZERO[kind]
    for name in names:
        refused(kind, parts | {name: 0}, f"{name}=0 is not possible")


@pytest.mark.parametrize(("kind", "parts", "wrong", "said"), REST)
def test_what_cannot_be_built(kind, parts, wrong, said):
    refused(kind, parts | wrong, said)


@pytest.mark.parametrize(("kind", "parts"), [(BLIP, BOTH), (ViLT, PICTURES)])
def test_without_transformers(monkeypatch, kind, parts):
    monkeypatch.setitem(sys.modules, "transformers", None)
    refused(kind, parts, 'pip install "counterfoil[hf]"')
