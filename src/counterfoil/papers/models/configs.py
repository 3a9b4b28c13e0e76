"""How the models of `counterfoil.papers.systems` are built, for features or for pixels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from counterfoil.core.config import Config, config, from_data, lazy
from counterfoil.data.processor import ImageForm, ProcessorConfig
from counterfoil.data.tokenizers import SPECIAL, START
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.cross_attention import Direction, Rule
from counterfoil.models.layers.joint_encoder import SPREAD
from counterfoil.models.layers.pooling import ImageTower, Pool, TextTower
from counterfoil.models.layers.pretrained import BertTextTower, TimmGridTower
from counterfoil.models.layers.towers import GRU, Init, MLPRegions, PatchTower, Regions
from counterfoil.models.vsepp import VSEPP
from counterfoil.papers.models.bfan import BFAN
from counterfoil.papers.models.cgmn import CGMN
from counterfoil.papers.models.chan import CHAN
from counterfoil.papers.models.dive import DivE, PooledParts, WordsAndStates
from counterfoil.papers.models.ernievil import ErnieViL
from counterfoil.papers.models.esa import ESA
from counterfoil.papers.models.gpo import GPO
from counterfoil.papers.models.hrem import HREM, BatchGraph
from counterfoil.papers.models.lightningdot import (
    FIRST,
    FirstTokenTower,
    LightningDOT,
    TokenAndRegions,
)
from counterfoil.papers.models.naaf import NAAF
from counterfoil.papers.models.scan import SCAN
from counterfoil.papers.models.sgraf import SGRAF, Module
from counterfoil.papers.models.uniter import WordPieceEmbedding
from counterfoil.papers.models.user import EnhancedRegions
from counterfoil.papers.models.vsrn import VSRN, Captioner
from counterfoil.papers.models.xdim import XDim
from counterfoil.papers.systems import (
    LARGE,
    PROFILES,
    SINGLES,
    SYSTEMS,
    DatasetProfile,
    System,
    find_system,
)

# Of single papers


def vsepp_config(
    *,
    width: int = 1024,
    word_width: int = 300,
    images: ImageForm = "features",
    image_pool: Pool = "mean",
    two_way: bool = False,
) -> Config[RetrievalModel]:
    """VSE++: pooled image vector, last state of a unidirectional GRU (both ways, mean pooled)."""
    return config(
        VSEPP,
        image=_image(images, width),
        text=_gru(width, word_width=word_width, bidirectional=two_way),
        image_pool=image_pool,
        text_pool="mean+max" if two_way else "last",
    )


def scan_config(
    *,
    direction: Direction = "t2i",
    aggregate: Literal["LogSumExp", "Mean"] = "LogSumExp",
    lambda_lse: float = 6.0,
    width: int = 1024,
    images: ImageForm = "features",
) -> Config[RetrievalModel]:
    """SCAN: the temperatures are the paper's, 9 where words attend and 4 where regions do."""
    return config(
        SCAN,
        image=_image(images, width),
        text=_gru(width),
        direction=direction,
        aggregate=aggregate,
        lambda_softmax=9.0 if direction == "t2i" else 4.0,
        lambda_lse=lambda_lse,
    )


def vsrn_config(
    *,
    width: int = 2048,
    word_width: int = 300,
    images: ImageForm = "features",
    variant: Literal["f30k", "coco"] = "f30k",
) -> Config[RetrievalModel]:
    """VSRN as the authors train it.

    On Flickr30K ("f30k") image vectors are normalised over the batch, on MS-COCO ("coco") regions
    before reasoning, over channels as in the published code ("vector" in the paper). The published
    captioner is a quarter as wide as the joint space.
    """
    captioner = lazy(
        Captioner,
        words=from_data("words"),
        width=width,
        hidden=max(1, width // 4),
        word_width=word_width,
    )
    return config(
        VSRN,
        image=_image(images, width),
        text=_gru(width, word_width=word_width, bidirectional=False),
        captioner=captioner,
        region_norm="channel",
        normalise_regions=variant == "coco",
        batch_norm=variant == "f30k",
    )


def _gru(width: int, **changes: Any) -> GRU:
    return lazy(GRU, words=from_data("words"), width=width, **changes)


def _image(images: ImageForm, width: int) -> ImageTower:
    if images == "pixels":
        return lazy(PatchTower, size=from_data("size"), width=width)
    return lazy(Regions, features=from_data("features"), width=width)


# Of the table

BERT = "bert-base-uncased"
CASED = "bert-base-cased"  # of UNITER and its kin
SMALL_SIZE = (2, 128, 4)  # layers, width and heads of a transformer on the small sets
DROP = 0.2  # share of regions and of words that is dropped in training
RESNEXT = "resnext101_32x8d.fb_wsl_ig1b_ft_in1k"
GRID_PROCESSOR = ProcessorConfig(
    images="pixels",
    size=512,
    mean=(0.485, 0.456, 0.406),
    deviation=(0.229, 0.224, 0.225),
    texts=BERT,
)


def model_config(
    name: str, dataset: str, *, copies: int = 2, profile: DatasetProfile | None = None
) -> Config[RetrievalModel]:
    """A model of regions at the width of a data set, or of another profile."""
    profile, system = profile or PROFILES[dataset], find_system(name)
    if name in SINGLES or name == "vsrn":
        return _classic("vsrn-single" if name == "vsrn" else name, dataset, profile)
    match system.paper:
        case "gpo":
            return config(GPO, image=_regions(system, profile), text=_words(system, profile))
        case "user":
            image = _regions(system, profile, drop=0.0)
            if profile.processor.images == "features":  # pixels have no features to enhance
                image = lazy(EnhancedRegions, tower=image, features=from_data("features"))
            return config(GPO, image=image, text=_words(system, profile))
        case "xdim":
            return config(XDim, image=_regions(system, profile), text=_words(system, profile))
        case "chan":
            # Beside a BiGRU it is published with self-attention over regions and log-sum-exp over
            # words. On our own small sets words are averaged, as beside BERT, so that the margin
            # is in cosines.
            return config(
                CHAN,
                image=_regions(system, profile, mlp=False),
                text=_words(system, profile),
                block="basic" if system.bert else "selfattention",
                pooling="LSE" if dataset in LARGE and not system.bert else "Mean",
            )
        case "esa":
            image, text = _regions(system, profile, drop=0.0), _words(system, profile, dropout=0.1)
            return config(ESA, image=image, text=text, copies=copies)
        case "hrem":
            weight = 1.5 if dataset == "coco" else 1.0
            graph = lazy(BatchGraph, width=profile.width, mask_weight=weight)
            image = _regions(system, profile, init="xavier")
            return config(HREM, image=image, text=_words(system, profile), graph=graph)
        case "cgmn":  # twice as wide as the others on the large sets, as VSRN
            width = profile.width * (2 if dataset in LARGE else 1)
            text = _gru(width, word_width=profile.word_width, dropout=profile.dropout)
            return config(CGMN, image=_image(profile.processor.images, width), text=text)
        case "ernievil":
            given = {"vocabulary": "words", "features": "features", "mask": "mask"}
            return config(ErnieViL, **{name: from_data(key) for name, key in given.items()})
        case "lightningdot":
            return _lightningdot(system, large=dataset in LARGE)
    return _dive(profile)


def _classic(name: str, dataset: str, profile: DatasetProfile) -> Config[RetrievalModel]:
    width, words, large = profile.width, profile.word_width, dataset in LARGE
    images = profile.processor.images
    match SYSTEMS[name].paper:
        case "vsepp" if large:
            model = vsepp_config(width=width, images=images)
        case "vsepp":
            model = vsepp_config(
                width=width, word_width=words, images=images, image_pool="mean+max", two_way=True
            )
        case "scan" if name == "scan-i2t":
            lambda_lse = 20.0 if dataset == "coco" else 5.0
            model = scan_config(direction="i2t", lambda_lse=lambda_lse, width=width, images=images)
        case "scan" if name == "scan-t2i-avg":
            model = scan_config(aggregate="Mean", width=width, images=images)
        case "scan":
            model = scan_config(width=width, images=images)
        case "bfan":
            focus: Rule = "prob" if name == "bfan-prob" else "equal"
            model = config(BFAN, image=_image(images, width), text=_gru(width), focus=focus)
        case "naaf":  # one mined threshold a batch; the released code has one a caption
            model = config(NAAF, image=_image(images, width), text=_gru(width))
        case "sgr" | "saf" as part:
            module: Module = "SGR" if part == "sgr" else "SAF"
            text = _gru(width, dropout=0.4)
            return config(SGRAF, image=_image(images, width), text=text, module=module)
        case _ if large:  # VSRN's published size: twice as wide as the other models
            model = vsrn_config(width=2 * width, variant="coco" if dataset == "coco" else "f30k")
        case _:
            model = vsrn_config(width=width, word_width=words, images=images)
    if not profile.dropout:
        return model
    return model.replace(text=model.arguments["text"].replace(dropout=profile.dropout))


def processor_config(name: str, dataset: str) -> ProcessorConfig:
    """The processor of its inputs."""
    system, processor = find_system(name), PROFILES[dataset].processor
    if system.paper == "ernievil":
        return ProcessorConfig(texts=BERT, longest=46)  # of 48 tokens
    if system.boxes and dataset in LARGE:
        return ProcessorConfig(texts=CASED)
    if system.boxes and dataset == "scenes":
        return ProcessorConfig()
    if system.grid:
        return GRID_PROCESSOR
    return replace(processor, texts=BERT) if system.bert else processor


def _lightningdot(system: System, *, large: bool) -> Config[RetrievalModel]:
    """LightningDOT; on the small sets narrow and without dropout, as UNITER is there."""
    layers, width, heads = system.size if large else SMALL_SIZE
    dropout = 0.1 if large else 0.0
    image: ImageTower = lazy(
        TokenAndRegions,
        features=from_data("features"),
        width=width,
        vocabulary=from_data("words"),
        dropout=dropout,
        first=FIRST if large else SPECIAL.index(START),
    )
    text: TextTower = lazy(
        WordPieceEmbedding,
        vocabulary=from_data("words"),
        positions=512,
        width=width,
        dropout=dropout,
        mask=from_data("mask"),
    )
    towers = [
        lazy(
            FirstTokenTower,
            embed=embed,
            layers=layers,
            heads=heads,
            inner=4 * width,
            dropout=dropout,
            project=width,
        )
        for embed in (image, text)
    ]
    spread = SPREAD if large else round(width**-0.5, 2)
    return config(LightningDOT, image=towers[0], text=towers[1], spread=spread)


def _dive(profile: DatasetProfile) -> Config[RetrievalModel]:
    """DivE; the parts of a text are its words' embeddings."""
    width = profile.width
    if profile.processor.images == "pixels":
        tower: ImageTower = lazy(PatchTower, size=from_data("size"), width=width)
    else:
        tower = lazy(
            MLPRegions,
            features=from_data("features"),
            width=width,
            inner=width // 2,
            stacked=True,
            dropout=0.1,
            region_drop=DROP,
        )
    gru = lazy(
        GRU,
        words=from_data("words"),
        word_width=profile.word_width,
        width=width,
        dropout=max(0.1, profile.dropout),
        word_drop=DROP,
        drop_ends=False,
    )
    return config(
        DivE,
        image=lazy(PooledParts, tower=tower, pool="max"),
        text=lazy(WordsAndStates, gru=gru),
        head_width=width // 2,
    )


def _regions(
    system: System,
    profile: DatasetProfile,
    *,
    mlp: bool = True,
    init: Init = "default",
    drop: float = DROP,
) -> ImageTower:
    """Tower of regions; of grid cells or patches where the model reads pixels."""
    width = profile.width
    if system.grid:
        return lazy(
            TimmGridTower,
            name=RESNEXT,
            width=width,
            pretrained=from_data("pretrained"),
            smallest=0.6,
            mirror=0.5,
            cell_drop=DROP,
        )
    if profile.processor.images == "pixels":
        return lazy(PatchTower, size=from_data("size"), width=width)
    features = from_data("features")
    if mlp:
        return lazy(MLPRegions, features=features, width=width, init=init, region_drop=drop)
    return lazy(Regions, features=features, width=width, region_drop=drop)


def _words(system: System, profile: DatasetProfile, *, dropout: float = 0.0) -> TextTower:
    if system.bert:
        return lazy(
            BertTextTower,
            name=BERT,
            width=profile.width,
            pretrained=from_data("pretrained"),
            dropout=dropout,
            word_drop=DROP,
            mask=from_data("mask"),
            config=from_data("text config"),
        )
    return lazy(
        GRU,
        words=from_data("words"),
        word_width=profile.word_width,
        width=profile.width,
        dropout=max(dropout, profile.dropout),
        word_drop=DROP,
    )
