"""CHAN (https://github.com/ppanzx/CHAN, 7a5075e). Every key of the folder is run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import golden_scores
import golden_vectors
from counterfoil.core.types import Embeddings, ModalityBatch, ScoreMatrix, Scores
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.losses.triplet import HardestTripletLoss, SumTripletLoss
from counterfoil.models.checkpoints import Checkpoint
from counterfoil.models.layers import fused
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.papers.models.chan import CHAN, chan_from_checkpoint
from counterfoil.papers.models.scan import SCAN

SYSTEM = "chan"
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]
SIMILARITY = re.compile(r"sim/(\w+)Coding/(\w+)Pooling(_nopad)?/(scores|grad_regions|grad_words)")
ATTENTION = re.compile(r"sim/T2ICrossAttentionPool/(scores|grad_regions|grad_words)")
CODING = re.compile(r"coding/(\w+)Coding")
IMAGE = re.compile(r"img_(\w+)/emb")
TEXT = re.compile(r"txt_(bigru|bert)/(?:emb|emb_valid)")
FULL = re.compile(r"full/([a-z]+)_([a-z]+)_(\w+)_(\w+)/(?:(warmup_on|warmup_off)/)?(.+)")
LOSS = re.compile(r"loss/(\w+)/(value|grad_scores)")
TRIPLETS = {"warmup_on": SumTripletLoss, "warmup_off": HardestTripletLoss}
SEES = {"basic": "regions", "selfattention": "padding", "transformer": "batch"}


def golden() -> golden_vectors.Golden:
    return golden_scores.load(SYSTEM)


@pytest.fixture
def bert(tmp_path_factory) -> Path:
    """A folder that says what the tiny BERT looks like."""
    folder = tmp_path_factory.mktemp("bert")
    plain = golden().meta["config"]["tiny_bert"] | {"model_type": "bert"}
    (folder / "config.json").write_text(json.dumps(plain))
    return folder


def host(bert: Path, mode: str = "basic", reader: str = "bigru", **options: object) -> CHAN:
    """The authors' model with one of its image and one of its text encoders."""
    named = {f"img_enc_{mode}": "img_enc", f"txt_enc_{reader}": "txt_enc"}
    state = {}
    for name, value in golden_scores.checkpoint(SYSTEM).state.items():
        side, _, rest = name.partition(".")
        if side in named:
            state[f"{named[side]}.{rest}"] = value
    config = golden().meta["config"]
    options = {"alpha": config["alpha"], "belta": config["belta"]} | options
    made = chan_from_checkpoint(Checkpoint(state, options), bert=str(bert), sees=SEES[mode])
    built = replace(made, model=made.model.replace(heads=config["n_head"])).build()
    assert isinstance(built, CHAN)
    return built


def upto(counts: Tensor, longest: int) -> Tensor:
    return torch.arange(longest) < counts.unsqueeze(1)


def images() -> ModalityBatch:
    inputs = golden().inputs
    values = inputs["images"]
    mask = upto(inputs["image_lengths"], values.shape[1])
    return ModalityBatch(torch.arange(len(values)), values, mask)


def captions(reader: str) -> ModalityBatch:
    names = ("bert_captions", "bert_lengths") if reader == "bert" else ("captions", "lengths")
    ids, lengths = (golden().inputs[name] for name in names)
    return ModalityBatch(torch.arange(len(ids)), ids, upto(lengths, ids.shape[1]))


def ready(*, whole: bool = False) -> tuple[Embeddings, Embeddings]:
    """The embeddings that the kernel cases start from, with garbage as padding."""
    found = []
    for name in ("region", "word"):
        tokens, lengths = (golden().inputs[f"kernel_{name}{end}"] for end in ("s", "_lengths"))
        mask = upto(lengths, tokens.shape[1]) | whole
        tokens = tokens.masked_fill(~mask.unsqueeze(-1), torch.nan)
        found.append(Embeddings(tokens.requires_grad_(), mask))
    return found[0], found[1]


def weighed(scores: Tensor, what: str, regions: Tensor, words: Tensor) -> Tensor:
    if what == "scores":
        return scores
    leaf = {"grad_regions": regions, "grad_words": words}[what]
    return torch.autograd.grad((scores * golden().inputs["score_weights"]).sum(), leaf)[0]


def kernel(bert: Path, coding: str, pooling: str, what: str, *, whole: bool) -> Tensor:
    model = host(bert, coding_type=f"{coding}Coding", pooling_type=f"{pooling}Pooling")
    regions, words = ready(whole=whole)
    return weighed(model.score_matrix(regions, words), what, regions.tokens, words.tokens)


def attention(what: str) -> Tensor:
    """SCAN's, over all regions: its code there ignores how many are real."""
    config, (_, words) = golden().meta["config"], ready()
    tokens = golden().inputs["kernel_regions"].clone().requires_grad_()
    regions = Embeddings(tokens, torch.ones(tokens.shape[:2], dtype=torch.bool))
    model = SCAN(
        image=Regions(features=1, width=1),
        text=GRU(words=1, width=1),
        aggregate="Mean",
        lambda_softmax=config["t2i_xattn_smooth"],
    )
    return weighed(model.score_matrix(regions, words), what, tokens, words.tokens)


def coded(bert: Path, coding: str) -> Tensor:
    """(I, T, L) similarities before they are pooled; the authors put -1 at padding."""
    model = host(bert, coding_type=f"{coding}Coding")
    regions, words = ready()
    found = []
    for t in range(len(words)):
        one = words.rows(torch.full((len(regions),), t))
        real = one.mask if coding == "VHA" else regions.mask
        results = fused.align_pairs(model.heads, regions, one).attend(model.coding)
        found.append(model.query_pooling.similarity(results, None).masked_fill(~real, -1))
    return torch.stack(found, 1)


def loss(term: object, scores: Tensor) -> Tensor:
    eye = torch.eye(len(scores), dtype=torch.bool)
    return term(Scores({"inference": ScoreMatrix(scores, eye, scores.diagonal())}))


def judged(name: str, what: str) -> Tensor:
    config, scores = golden().meta["config"], golden().inputs["loss_scores"].requires_grad_()
    if name.startswith("triplet_"):
        term = TRIPLETS[name.removeprefix("triplet_")](margin=config["margin"])
        value = loss(term, scores)
    else:  # they add the means of both directions up, we take the mean
        value = 2 * loss(InfoNCELoss(**config[name], reduction="mean"), scores)
    return value if what == "value" else torch.autograd.grad(value, scores)[0]


def full(bert: Path, config: tuple[str, str, str, str], warmup: str, what: str) -> Tensor:
    reader, mode, coding, pooling = config
    options = {"coding_type": f"{coding}Coding", "pooling_type": f"{pooling}Pooling"}
    model = host(bert, mode, reader, **options)
    scores = model.score_matrix(model.encode_images(images()), model.encode_texts(captions(reader)))
    if what == "scores":
        return scores
    n = min(scores.shape)
    value = loss(TRIPLETS[warmup](margin=golden().meta["config"]["margin"]), scores[:n, :n])
    if what == "loss":
        return value
    value.backward()
    learnt = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    if what == "grad_norm":
        return torch.stack([grad.norm() for grad in learnt.values()]).norm()
    name = re.sub(r"^grad/img_enc_\w+?\.", "image.", what)
    name = re.sub(r"^grad/txt_enc_\w+?\.", "text.", name).replace("text.linear.", "text.fc.")
    return learnt[name]


def ours(key: str, bert: Path) -> Tensor:
    """Our value for an authors' output, by its name; an unknown name is an error."""
    if found := SIMILARITY.fullmatch(key):
        coding, pooling, whole, what = found.groups()
        return kernel(bert, coding, pooling, what, whole=bool(whole))
    if found := ATTENTION.fullmatch(key):
        return attention(found[1])
    if found := CODING.fullmatch(key):
        return coded(bert, found[1])
    if found := IMAGE.fullmatch(key):
        return host(bert, found[1]).encode_images(images()).tokens
    if found := TEXT.fullmatch(key):
        texts = host(bert, reader=found[1]).encode_texts(captions(found[1]))
        return texts.tokens.masked_fill(~texts.mask.unsqueeze(-1), 0)
    if found := LOSS.fullmatch(key):
        return judged(*found.groups())
    found = FULL.fullmatch(key)
    assert found, f"the golden folder has {key!r}, which no test understands"
    reader, mode, coding, pooling, warmup, what = found.groups()
    return full(bert, (reader, mode, coding, pooling), warmup, what)


@pytest.mark.parametrize("key", golden_vectors.keys(SYSTEM))
def test_agrees_with_the_authors(key, bert):
    golden_scores.agrees(golden(), key, ours(key, bert))


@pytest.mark.parametrize("key", [k for k in golden_vectors.keys(SYSTEM) if "grad" in k])
def test_gradients_agree_when_only_some_pairs_are_visited(key, bert, monkeypatch):
    monkeypatch.setattr(fused, "SPARSE", 1.1)
    golden_scores.agrees(golden(), key, ours(key, bert))
