"""ESA (https://github.com/KevinLight831/ESA, c94e9b8). Every key of the folder is run."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor
from transformers import BertConfig

import golden_scores
import golden_vectors
from counterfoil.core.types import Embeddings, ModalityBatch, ScoreMatrix, Scores
from counterfoil.models.checkpoints import Checkpoint
from counterfoil.papers.compared.losses import SelfExpandingLoss
from counterfoil.papers.models.esa import ESA, NAMES, esa_from_checkpoint

SYSTEM = "esa"
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]
AGAINST = {"warmup_on": "all", "warmup_off": "hardest"}
IMAGE = re.compile(r"(img|img_grid)/(eval|train)/(\w+)")
TEXT = re.compile(r"txt_(bigru|bert)/emb")
SCORES = re.compile(r"scores_(bigru|bert)")
TRAINED = re.compile(r"sel_(bigru|bert)/(?:(warmup_on|warmup_off)/)?(.+)")
LOSS = re.compile(r"loss_h(\d+)/(warmup_on|warmup_off)/(cost_im|cost_s|grad_scores)")


@golden_vectors.cached
def golden() -> golden_vectors.Golden:
    return golden_scores.load(SYSTEM)


@pytest.fixture(autouse=True)
def bert(tmp_path_factory) -> None:
    """A folder with the tiny text model's configuration, where `model` finds it."""
    where = tmp_path_factory.mktemp("bert")
    BertConfig(**golden().meta["config"]["tiny_bert"]).save_pretrained(where)
    model.folder = str(where)


def model(text: str = "bigru", image: str = "img", **options: object) -> ESA:
    """The model of two of the folder's encoders; all of them lie in one state dict."""
    side_of_images = {"img": "img_enc", "img_grid": "img_enc_grid"}[image]
    named = {side_of_images: "img_enc", f"txt_enc_{text}": "txt_enc"}
    state = {
        f"{named[side]}.{rest}": value
        for name, value in golden_scores.checkpoint(SYSTEM).state.items()
        for side, _, rest in [name.partition(".")]
        if side in named
    }
    built = esa_from_checkpoint(Checkpoint(state, options), bert=model.folder).build()
    assert isinstance(built, ESA)
    return built


def images() -> ModalityBatch:
    return golden_scores.images(golden().inputs)


def texts(kind: str, copies: str = "") -> ModalityBatch:
    """Items with garbage as padding; with "2", two augmented copies of each side by side."""
    prefix = "bert_" if kind == "bert" else ""
    ids, lengths = (golden().inputs[f"{prefix}{what}{copies}"] for what in ("captions", "lengths"))
    mask = torch.arange(ids.shape[1]) < lengths.unsqueeze(1)
    return ModalityBatch(torch.arange(len(ids)), ids.masked_fill(~mask, 10**9), mask)


def copies_of_images(host: ESA) -> Embeddings:
    """Copies side by side, made of the regions that the folder's uniforms keep."""
    names = sorted(name for name in golden().inputs if name.startswith("drop_uniform_"))
    uniforms = torch.stack([golden().inputs[name] for name in names], 1)
    host.image.train()
    kept = uniforms >= golden().meta["config"]["keep_threshold"]
    return host.pooled(host.image(images()), kept)


def image(tower: str, mode: str, what: str) -> Tensor:
    host = model(image=tower, no_imgnorm=what == "emb_no_norm")
    if mode == "train":
        vectors = copies_of_images(host).tokens[:, 0]
        if what.startswith("bn_"):
            return getattr(host.image.norm, what.removeprefix("bn_").removesuffix("_after"))
        assert what == "emb_2copies", what
        return vectors
    items = images()
    values = items.values.clone().requires_grad_()
    vectors = host.encode_images(ModalityBatch(items.ids, values, items.mask)).tokens[:, 0]
    if what != "grad_images":
        assert what in ("emb", "emb_no_norm"), what
        return vectors
    rows = torch.arange(len(vectors)).unsqueeze(1) + 1
    weighed = vectors * rows * torch.linspace(-1, 1, vectors.shape[1])
    return torch.autograd.grad(weighed.sum(), values)[0]


def judged(scores: Tensor, copies: int, kind: str) -> tuple[Tensor, Tensor]:
    """The two directions of the loss, rows first; everything off the copies is a negative."""
    term = SelfExpandingLoss(against=AGAINST[kind], margin=golden().meta["config"]["margin"])
    each = torch.ones(copies, copies, dtype=torch.bool)
    true = torch.block_diag(*[each] * (len(scores) // copies)).bool()
    grid = ScoreMatrix(scores, true, scores.diagonal()[::copies], name="expanded", repeats=copies)
    rows, columns = term.directions(grid)
    torch.testing.assert_close(term(Scores({"expanded": grid})), rows + columns)
    return rows, columns


def parameter(name: str) -> str:
    """Our name of one of theirs."""
    name = re.sub("^txt_enc_(bigru|bert)", "txt_enc", name)
    prefix = next(theirs for theirs in NAMES.prefixes if name.startswith(theirs))
    return NAMES.prefixes[prefix] + name.removeprefix(prefix)


def trained(text: str, kind: str | None, what: str) -> Tensor:
    host = model(text)
    seen, read = copies_of_images(host), host.encode_texts(texts(text, "2"))
    scores = host.score_matrix(seen, read)
    if kind is None:
        assert what == "scores", what
        return scores
    rows, columns = judged(scores, golden().meta["config"]["hardnum"], kind)
    if what in ("cost_im", "cost_s"):
        return columns if what == "cost_im" else rows
    if what in ("grad_img_emb", "grad_cap_emb"):
        bag = seen if what == "grad_img_emb" else read
        return torch.autograd.grad(rows + columns, bag.tokens)[0][:, 0]
    named = dict(host.named_parameters())
    return torch.autograd.grad(rows + columns, named[parameter(what.removeprefix("grad/"))])[0]


def loss(copies: str, kind: str, what: str) -> Tensor:
    suffix = "" if int(copies) == golden().meta["config"]["hardnum"] else f"_h{copies}"
    scores = golden().inputs[f"loss_scores{suffix}"].clone().requires_grad_()
    rows, columns = judged(scores, int(copies), kind)
    if what == "grad_scores":
        return torch.autograd.grad(rows + columns, scores)[0]
    return columns if what == "cost_im" else rows


def ours(key: str) -> Tensor:
    """Our value for an authors' output, by its name; an unknown name is an error."""
    if found := TEXT.fullmatch(key):
        return model(found[1]).encode_texts(texts(found[1])).tokens[:, 0]
    if found := SCORES.fullmatch(key):
        host = model(found[1])
        return host.score_matrix(host.encode_images(images()), host.encode_texts(texts(found[1])))
    for pattern, made in ((IMAGE, image), (TRAINED, trained), (LOSS, loss)):
        if found := pattern.fullmatch(key):
            return made(*found.groups())
    raise AssertionError(f"the golden folder has {key!r}, which no test understands")


@pytest.mark.parametrize("key", golden_vectors.keys(SYSTEM))
def test_agrees_with_the_authors(key):
    golden_scores.agrees(golden(), key, ours(key))
