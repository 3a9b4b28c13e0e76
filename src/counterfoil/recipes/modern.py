"""The five hosts of NDGL, written down as their papers train them.

GPO (Chen et al., CVPR 2021), CHAN (Pan et al., CVPR 2023), ESA (Zhu et al., TCSVT 2023), HREM (Fu
et al., CVPR 2023) and DivE (Kim et al., CVPR 2023), on detected regions with a BiGRU, with BERT
where a name ends in ``-bert``, and GPO also on the grid of a ResNeXt-101 (``gpo-grid``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

from counterfoil.corpus.lens import LensPlan
from counterfoil.matcher import Matcher
from counterfoil.models.blocks.bert import Bert
from counterfoil.models.blocks.graph import BatchGraph
from counterfoil.models.blocks.grids import Grids
from counterfoil.models.blocks.gru import GRU
from counterfoil.models.blocks.mlp import Init, MLPRegions
from counterfoil.models.blocks.parts import PooledParts, WordsAndStates
from counterfoil.models.blocks.patches import Patches
from counterfoil.models.blocks.regions import Regions
from counterfoil.models.blocks.tower import ImageTower, TextTower
from counterfoil.models.chan import CHAN
from counterfoil.models.dive import DivE
from counterfoil.models.esa import ESA
from counterfoil.models.gpo import GPO
from counterfoil.models.hrem import HREM
from counterfoil.recipes.profiles import LARGE, PROFILES, Dataset, Profile
from counterfoil.spec import Spec, late, of, part

Paper = Literal["gpo", "chan", "esa", "hrem", "dive"]
Host = Literal[
    "gpo", "chan", "esa", "hrem", "dive", "gpo-bert", "chan-bert", "esa-bert", "hrem-bert",
    "gpo-grid",
]  # fmt: skip

HOSTS: tuple[Host, ...] = get_args(Host)
TITLES: dict[Paper, str] = {
    "gpo": "GPO",
    "chan": "CHAN",
    "esa": "ESA",
    "hrem": "HREM",
    "dive": "DivE",
}
BERT = "bert-base-uncased"
DROP = 0.2  # of regions and of words, in training
RESNEXT = "resnext101_32x8d.fb_wsl_ig1b_ft_in1k"
GRID_LENS = LensPlan(
    images="pixels",
    size=512,
    mean=(0.485, 0.456, 0.406),
    deviation=(0.229, 0.224, 0.225),
    texts=BERT,
)


def host(
    name: Host, dataset: Dataset, *, copies: int = 2, profile: Profile | None = None
) -> Spec[Matcher]:
    """The matcher at the width of a data set.

    Args:
        name: the host.
        dataset: what it is trained on.
        copies: of each item in ESA's expanded view, where that is judged.
        profile: another width than the data set's.
    """
    told = profile or PROFILES[dataset]
    match paper(name):
        case "gpo":
            return of(GPO, image=_regions(name, told), text=_words(name, told))
        case "chan":
            return _chan(name, dataset, told)
        case "esa":
            image, text = _regions(name, told, drop=0.0), _words(name, told, dropout=0.1)
            return of(ESA, image=image, text=text, copies=copies)
        case "hrem":
            return _hrem(name, dataset, told)
        case "dive":
            return _dive(told)


def paper(name: Host) -> Paper:
    """Whose host it is."""
    (found,) = (known for known in get_args(Paper) if name.split("-")[0] == known)
    whose: Paper = found
    return whose


def reads_bert(name: Host) -> bool:
    """Whether its texts are wordpieces."""
    return name.endswith(("-bert", "-grid"))


def title(name: Host) -> str:
    """As tables call it, with what reads its texts."""
    seen = " (ResNeXt-101, BERT)" if name.endswith("-grid") else " (BERT)"
    return TITLES[paper(name)] + (seen if reads_bert(name) else " (BiGRU)")


def lens(name: Host, dataset: Dataset) -> LensPlan:
    """What it sees."""
    plan = PROFILES[dataset].lens
    if name.endswith("-grid"):
        return GRID_LENS
    return replace(plan, texts=BERT) if reads_bert(name) else plan


def sets(name: Host) -> tuple[Dataset, ...]:
    """The data sets that it has recipes for: small ones where nothing is to be downloaded."""
    every: tuple[Dataset, ...] = get_args(Dataset)
    return tuple(to for to in every if to in LARGE or not reads_bert(name))


def _chan(name: Host, dataset: Dataset, profile: Profile) -> Spec[Matcher]:
    """Beside a BiGRU it is published with self-attention over regions and log-sum-exp over words.

    On our own small sets words are averaged, as beside BERT, so that the margin is in cosines.
    """
    large, bert = dataset in LARGE, reads_bert(name)
    return of(
        CHAN,
        image=_regions(name, profile, mlp=False),
        text=_words(name, profile),
        block="basic" if bert else "selfattention",
        pooling="LSE" if large and not bert else "Mean",
    )


def _hrem(name: Host, dataset: Dataset, profile: Profile) -> Spec[Matcher]:
    weight = 1.5 if dataset == "coco" else 1.0
    graph = part(BatchGraph, width=profile.width, mask_weight=weight)
    image = _regions(name, profile, init="xavier")
    return of(HREM, image=image, text=_words(name, profile), graph=graph)


def _dive(profile: Profile) -> Spec[Matcher]:
    """Words' embeddings are the parts of a text."""
    width = profile.width
    if profile.sees == "pixels":
        tower: ImageTower = part(Patches, size=late("size"), width=width)
    else:
        tower = part(
            MLPRegions,
            features=late("features"),
            width=width,
            inner=width // 2,
            stacked=True,
            dropout=0.1,
            region_drop=DROP,
        )
    gru = part(
        GRU,
        words=late("words"),
        word_width=profile.word_width,
        width=width,
        dropout=max(0.1, profile.dropout),
        word_drop=DROP,
        drop_ends=False,
    )
    return of(
        DivE,
        image=part(PooledParts, tower=tower, pool="max"),
        text=part(WordsAndStates, gru=gru),
        head_width=width // 2,
    )


def _regions(
    name: Host,
    profile: Profile,
    *,
    mlp: bool = True,
    init: Init = "default",
    drop: float = DROP,
) -> ImageTower:
    """Regions, or what stands for them where pixels are seen."""
    width = profile.width
    if name.endswith("-grid"):
        return part(
            Grids,
            name=RESNEXT,
            width=width,
            pretrained=late("pretrained"),
            smallest=0.6,
            mirror=0.5,
            cell_drop=DROP,
        )
    if profile.sees == "pixels":
        return part(Patches, size=late("size"), width=width)
    features = late("features")
    if mlp:
        return part(MLPRegions, features=features, width=width, init=init, region_drop=drop)
    return part(Regions, features=features, width=width, region_drop=drop)


def _words(name: Host, profile: Profile, *, dropout: float = 0.0) -> TextTower:
    if reads_bert(name):
        return part(
            Bert,
            name=BERT,
            width=profile.width,
            pretrained=late("pretrained"),
            dropout=dropout,
            word_drop=DROP,
            mask=late("mask"),
        )
    return part(
        GRU,
        words=late("words"),
        word_width=profile.word_width,
        width=profile.width,
        dropout=max(dropout, profile.dropout),
        word_drop=DROP,
    )
