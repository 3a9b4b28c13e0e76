"""GPO (https://github.com/woodfrog/vse_infty, 29df9d6 and 8600f89). Every key is run."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor
from transformers import BertConfig

import golden_scores
import golden_vectors
from counterfoil.core.types import Embeddings, ModalityBatch, ScoreMatrix, Scores
from counterfoil.losses.triplet import HardestTripletLoss, SumTripletLoss
from counterfoil.models.checkpoints import Checkpoint
from counterfoil.papers.models.gpo import GPO, NAMES, GeneralizedPooling, gpo_from_checkpoint

SYSTEM = "gpo"
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]
TERMS = {"warmup_on": SumTripletLoss, "warmup_off": HardestTripletLoss}
IMAGE = re.compile(r"(img|img_grid)/(eval|train)/(\w+)")
TEXT = re.compile(r"txt_(bigru|bert)/(\w+)")
LOSS = re.compile(r"loss_(bigru|bert|scores)/(warmup_on|warmup_off)/(.+)")


@golden_vectors.cached
def golden() -> golden_vectors.Golden:
    return golden_scores.load(SYSTEM)


@pytest.fixture(autouse=True)
def bert(tmp_path_factory) -> None:
    """A folder with the tiny text model's configuration, where `model` finds it."""
    where = tmp_path_factory.mktemp("bert")
    BertConfig(**golden().meta["config"]["tiny_bert"]).save_pretrained(where)
    model.folder = str(where)


def model(image: str = "img_enc", text: str = "txt_enc_bigru", **options: object) -> GPO:
    """The model of two of the folder's encoders; all of them lie in one state dict."""
    names = {image: "img_enc", text: "txt_enc"}
    state = {
        f"{names[side]}.{rest}": value
        for name, value in golden_scores.checkpoint(SYSTEM).state.items()
        for side, _, rest in [name.partition(".")]
        if side in names
    }
    built = gpo_from_checkpoint(Checkpoint(state, options), bert=model.folder).build()
    assert isinstance(built, GPO)
    return built


def bag(values: Tensor, lengths: Tensor) -> ModalityBatch:
    """Items with garbage as padding."""
    mask = torch.arange(values.shape[1]) < lengths.unsqueeze(1)
    garbage = torch.nan if values.is_floating_point() else 10**9
    hidden = ~mask.view(*mask.shape, *[1] * (values.dim() - 2))
    return ModalityBatch(torch.arange(len(values)), values.masked_fill(hidden, garbage), mask)


def images() -> ModalityBatch:
    return bag(golden().inputs["images"], golden().inputs["image_lengths"])


def texts(kind: str) -> ModalityBatch:
    prefix = "bert_" if kind == "bert" else ""
    return bag(golden().inputs[f"{prefix}captions"], golden().inputs[f"{prefix}lengths"])


def pooling(what: str) -> Tensor:
    inputs = golden().inputs
    sizes = golden().meta["config"]
    made = GeneralizedPooling(
        positions=sizes["d_pe"], hidden=sizes["d_hidden"], temperature=sizes["gpo_temperature"]
    )
    made.load_state_dict(
        {
            name.removeprefix("gpo.").replace("gru.", "rnn.").replace("linear.", "score."): value
            for name, value in golden_scores.checkpoint(SYSTEM).state.items()
            if name.startswith("gpo.")
        }
    )
    if what == "weights":
        return made.weights(inputs["pool/lengths"], inputs["pool/features"].shape[1])
    if what == "theta_table":
        longest = len(golden().outputs["pool/theta_table"])
        return made.weights(torch.arange(longest) + 1, longest)
    sets = bag(inputs["pool/features"], inputs["pool/lengths"])
    features = sets.values.requires_grad_()
    pooled = made(Embeddings(features, sets.mask))
    if what == "pooled":
        return pooled
    (pooled * inputs["pool/w"]).sum().backward()
    if what == "grad_features":
        return features.grad
    name = what.removeprefix("grad/gpo.").replace("gru.", "rnn.").replace("linear.", "score.")
    return dict(made.named_parameters())[name].grad


def image(tower: str, mode: str, what: str) -> Tensor:
    side = {"img": "img_enc", "img_grid": "img_enc_grid"}[tower]
    host = model(side, no_imgnorm=what == "emb_no_norm").train(mode == "train")
    if mode == "train":  # theirs normalises with padding
        host.image.released_padding = True
    vectors = host.encode_images(images()).tokens[:, 0]
    if what.startswith("bn_"):
        return getattr(host.image.norm, what.removeprefix("bn_").removesuffix("_after"))
    assert what in ("emb", "emb_no_norm"), what
    return vectors


def text(kind: str, what: str) -> Tensor:
    host = model(text=f"txt_enc_{kind}", no_txtnorm=what == "emb_no_norm")
    items = texts(kind)
    if what == "bert_last_hidden_valid":
        ids = items.values.masked_fill(~items.mask, 0)
        states = host.text.body(input_ids=ids, attention_mask=items.mask.long()).last_hidden_state
        return states.masked_fill(~items.mask.unsqueeze(-1), 0)
    assert what in ("emb", "emb_no_norm"), what
    return host.encode_texts(items).tokens[:, 0]


def judged(scores: Tensor, kind: str) -> Tensor:
    """The loss; as theirs, every pair off the diagonal is a negative."""
    term = TERMS[kind](margin=golden().meta["config"]["margin"], reduction="sum")
    eye = torch.eye(len(scores), dtype=torch.bool)
    return term(Scores({"inference": ScoreMatrix(scores, eye, scores.diagonal())}))


def parameter(name: str) -> str:
    """Our name of one of theirs."""
    name = re.sub("^txt_enc_(bigru|bert)", "txt_enc", name)
    prefix = next(theirs for theirs in NAMES.prefixes if name.startswith(theirs))
    return NAMES.prefixes[prefix] + name.removeprefix(prefix)


def trained(text: str, kind: str, what: str) -> Tensor:
    host = model(text=f"txt_enc_{text}")
    seen, read = host.encode_images(images()), host.encode_texts(texts(text))
    seen.tokens.retain_grad()
    read.tokens.retain_grad()
    value = judged(host.score_matrix(seen, read), kind)
    if what == "value":
        return value
    value.backward()
    if what in ("grad_img_emb", "grad_cap_emb"):
        return (seen if what == "grad_img_emb" else read).tokens.grad[:, 0]
    if what.startswith("grad_norm_"):
        sides = ("image", "image_pool") if what == "grad_norm_img_enc" else ("text", "text_pool")
        parts = [p for side in sides for p in getattr(host, side).parameters()]
        return torch.stack([p.grad.norm() for p in parts if p.grad is not None]).norm()
    return dict(host.named_parameters())[parameter(what.removeprefix("grad/"))].grad


def loss(text: str, kind: str, what: str) -> Tensor:
    if text != "scores":
        return trained(text, kind, what)
    scores = golden().inputs["loss_scores"].clone().requires_grad_()
    value = judged(scores, kind)
    if what == "value":
        return value
    assert what == "grad_scores", what
    return torch.autograd.grad(value, scores)[0]


def ours(key: str) -> Tensor:
    """Our value for an authors' output, by its name; an unknown name is an error."""
    if key.startswith("pool/"):
        return pooling(key.removeprefix("pool/"))
    if key in ("scores_bigru", "scores_bert"):
        kind = key.removeprefix("scores_")
        host = model(text=f"txt_enc_{kind}")
        return host.score_matrix(host.encode_images(images()), host.encode_texts(texts(kind)))
    for pattern, made in ((IMAGE, image), (TEXT, text), (LOSS, loss)):
        if found := pattern.fullmatch(key):
            return made(*found.groups())
    raise AssertionError(f"the golden folder has {key!r}, which no test understands")


@pytest.mark.parametrize("key", golden_vectors.keys(SYSTEM))
def test_agrees_with_the_authors(key):
    golden_scores.agrees(golden(), key, ours(key))


@pytest.mark.parametrize("key", ["pool/weights", "pool/theta_table"])
def test_what_is_kept_for_a_length_agrees_too(key):
    with torch.no_grad():
        golden_scores.agrees(golden(), key, ours(key))
