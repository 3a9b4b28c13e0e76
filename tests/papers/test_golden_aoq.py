"""AOQ (https://github.com/sunnychencool/AOQ, 5bfe620): losses, mining and sampling."""

from __future__ import annotations

import re

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import golden_vectors
from counterfoil.core.types import INFERENCE, Embeddings, ModalityBatch, Role, ScoreMatrix, Scores
from counterfoil.data.dataset import Relation
from counterfoil.losses.aoq import AdaptiveQuintuplet, OfflineQuintuplet, OfflineTriplet
from counterfoil.losses.base import Loss
from counterfoil.models.layers.cross_attention import Rule
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.negatives.aoq_format import CAPTIONS
from counterfoil.negatives.mining import mine_lists
from counterfoil.negatives.sampling import OfflineNegativeSampler, SamplingConfig
from counterfoil.negatives.store import HardNegativeLists
from counterfoil.papers.models.bfan import BFAN
from counterfoil.papers.models.vsrn import VSRN
from negatives_cases import member

SYSTEM = "aoq"
ROLES = {
    "off_it": Role.HARD_TEXT,
    "off_ti": Role.HARD_IMAGE,
    "off_oo": Role.CROSS,
    "off_dd": Role.COMPANION,
}
LOSS = re.compile(r"(?P<case>case\d+|emb)/(?P<form>author/eq5|formula/\w+?)_(?P<what>loss|grad_.+)")
WEIGHT = re.compile(r"(?P<case>case\d+)/weight_(?P<side>text|image)")
PAIR = re.compile(r"pair/(?P<focus>\w+)/(?P<what>scores|grad_regions|grad_words)")
VECTORS = {"off_it": ("im", "s_off"), "off_ti": ("im_off", "s"), "off_oo": ("im_off", "s_off")}
VECTORS["off_dd"] = ("im_der", "s_der")

pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]


@golden_vectors.cached
def golden() -> golden_vectors.Golden:
    return golden_vectors.load(SYSTEM)


def term(case: str, form: str) -> Loss:
    config = golden().meta["config"]["cases"][int(case.removeprefix("case") or 0)]
    margins = {"online": config["marginonline"], "offline": config["marginoffline"]}
    weighted = {"alpha": config["alpha"], "beta": config["beta"]}
    match form:
        case "formula/eq3":
            return OfflineTriplet(**margins)
        case "formula/eq4":
            return OfflineQuintuplet(**margins)
        case "author/eq5":
            return AdaptiveQuintuplet(**margins, **weighted)
        case "formula/eq5_detached":
            return AdaptiveQuintuplet(**margins, **weighted, detach=True)
        case "formula/eq5_clamped":
            return AdaptiveQuintuplet(**margins, **weighted, clamp=True)
    raise AssertionError(f"the form {form} is not known")


def leaves(case: str) -> dict[str, Tensor]:
    """What gradients are taken by: scores, or vectors where the case has those."""
    prefix = f"{case}/"
    found = {k.removeprefix(prefix): v for k, v in golden().inputs.items() if k.startswith(prefix)}
    return {name: value.clone().requires_grad_() for name, value in found.items()}


def judged(inputs: dict[str, Tensor]) -> Scores:
    """Scores with the diagonal true, as the authors have it."""
    if "S" in inputs:
        block, pairs = inputs["S"], {role: inputs[name] for name, role in ROLES.items()}
    else:
        block = inputs["im"] @ inputs["s"].T
        pairs = {
            ROLES[name]: (inputs[image] * inputs[text]).sum(1)
            for name, (image, text) in VECTORS.items()
        }
    grid = ScoreMatrix(block, torch.eye(len(block), dtype=torch.bool), block.diagonal())
    return Scores({INFERENCE: grid}, {role: pair.unsqueeze(1) for role, pair in pairs.items()})


def loss_value(case: str, form: str, what: str) -> Tensor:
    inputs = leaves(case)
    loss: Tensor = term("case0" if case == "emb" else case, form)(judged(inputs))
    if what == "loss":
        return loss.detach()
    leaf = inputs[what.removeprefix("grad_")]
    (grad,) = torch.autograd.grad(loss, leaf, allow_unused=True)
    return torch.zeros_like(leaf) if grad is None else grad


def weight_value(case: str, side: str) -> Tensor:
    loss = term(case, "author/eq5")
    assert isinstance(loss, AdaptiveQuintuplet)
    weights = loss.weights(judged(leaves(case)))
    return (weights.text if side == "text" else weights.image)[:, 0].detach()


@golden_vectors.cached
def relation() -> Relation:
    texts = len(golden().inputs["mining/cap_emb"])
    return Relation(torch.arange(texts) // CAPTIONS, images=texts // CAPTIONS)


@golden_vectors.cached
def mined() -> HardNegativeLists:
    inputs, outputs = golden().inputs, golden().outputs
    return mine_lists(
        [member(inputs["mining/img_emb"], inputs["mining/cap_emb"])],
        relation().text_to_image,
        texts_per_image=outputs["mining/i2t"].shape[1],
        images_per_text=outputs["mining/t2i"].shape[1],
    )


@golden_vectors.cached
def drawn() -> tuple[Tensor, Tensor]:
    """The released sampler's rows for its draws, and whether the derived pair is true."""
    config = golden().meta["config"]
    plan = SamplingConfig(
        texts=config["offcandisize_h"],
        images=config["image_list"],
        tied_rank=True,
        resample=False,
    )
    sampler = OfflineNegativeSampler(lists=mined(), relation=relation(), plan=plan)
    caption, rank, choice = golden().inputs["sampling/draws"].unbind(1)
    hard_text, hard_image = sampler.at(caption, rank, sampler.tied(caption, rank))
    captions, counts = relation().captions(hard_image)
    companion = captions[counts.cumsum(0) - counts + choice]
    text_to_image = relation().text_to_image
    columns = (
        text_to_image[caption],
        caption,
        hard_image,
        hard_text,
        text_to_image[hard_text],
        companion,
    )
    return torch.stack(columns, 1), sampler.corresponds(hard_text, hard_image)


def reader(host: str, *, bidirectional: bool) -> tuple[Regions, GRU]:
    """The towers of a host of AOQ; the folder has no image encoders."""
    config = golden().meta["config"]
    words, word_width, width = (config[k] for k in ("vocab_size", "word_dim", "embed_size"))
    text = GRU(words=words, word_width=word_width, width=width, bidirectional=bidirectional)
    state = load_file(golden_vectors.folder(SYSTEM) / "state.safetensors")
    prefix = f"{host}_txt_enc."
    mine = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    text.load_state_dict(mine)
    return Regions(features=1, width=width), text


def bfan(focus: Rule) -> BFAN:
    image, text = reader("bfan", bidirectional=True)
    return BFAN(image=image, text=text, focus=focus).eval()


def vsrn() -> VSRN:
    image, text = reader("vsrn", bidirectional=False)
    return VSRN(image=image, text=text).eval()


def captions() -> ModalityBatch:
    ids, lengths = golden().inputs["enc/captions"], golden().inputs["enc/lengths"]
    mask = torch.arange(ids.shape[1]) < lengths.unsqueeze(1)
    return ModalityBatch(torch.arange(len(ids)), ids, mask)


def bfan_captions() -> Tensor:
    texts = bfan("equal").encode_texts(captions())
    return texts.tokens.masked_fill(~texts.mask.unsqueeze(-1), 0)


def offline_pairs(focus: Rule, what: str) -> Tensor:
    inputs = golden().inputs
    regions, words = (inputs[f"pair/{n}"].clone().requires_grad_() for n in ("regions", "words"))
    mask = torch.arange(words.shape[1]) < inputs["enc/lengths"].unsqueeze(1)
    images = Embeddings(regions, torch.ones(regions.shape[:2], dtype=torch.bool))
    scores = bfan(focus).score_pairs(images, Embeddings(words, mask))
    if what == "scores":
        return scores.detach()
    leaf = regions if what == "grad_regions" else words
    return torch.autograd.grad((scores * inputs["pair/weights"]).sum(), leaf)[0]


def ours(key: str) -> Tensor:
    if found := LOSS.fullmatch(key):
        return loss_value(found["case"], found["form"], found["what"])
    if found := WEIGHT.fullmatch(key):
        return weight_value(found["case"], found["side"])
    if found := PAIR.fullmatch(key):
        return offline_pairs("prob" if found["focus"] == "prob" else "equal", found["what"])
    match key:
        case "enc/bfan_cap_emb":
            return bfan_captions()
        case "enc/vsrn_cap_emb":
            return vsrn().encode_texts(captions()).tokens[:, 0]
        case "mining/i2t":
            return mined().texts
        case "mining/t2i":
            return mined().images
        case "sampling/rows":
            return drawn()[0]
        case "sampling/derived_pair_is_true_match":
            return drawn()[1]
    raise AssertionError(f"{key} is new: nothing here compares it")


@pytest.mark.parametrize("key", golden_vectors.keys(SYSTEM))
def test_every_value_of_the_authors_code(key: str) -> None:
    value, theirs = ours(key), golden().outputs[key]
    assert value.shape == theirs.shape
    if golden().exact(key):
        assert torch.equal(value.long(), theirs.long())
    else:
        torch.testing.assert_close(value, theirs, rtol=1e-5, atol=golden().atol(key))


def test_the_cases_cover_a_negative_weight_and_a_true_derived_pair() -> None:
    outputs = golden().outputs
    assert (outputs["case1/weight_text"] < 0).any()
    assert outputs["sampling/derived_pair_is_true_match"].any()


def test_the_papers_sampler_never_draws_a_true_derived_pair() -> None:
    captions = golden().inputs["sampling/draws"][:, 0]
    sampler = OfflineNegativeSampler(
        lists=mined(), relation=relation(), plan=SamplingConfig(count=50)
    )
    pairs = sampler.draw(captions, torch.Generator().manual_seed(0))
    for role in (Role.CROSS, Role.COMPANION):
        assert (relation().text_to_image[pairs[role].text] != pairs[role].image).all()


def test_an_unknown_key_fails() -> None:
    for key in ("case0/author/eq9_loss", "sampling/columns", "case0/formula/eq5_squared_loss"):
        with pytest.raises(AssertionError, match=r"new|not known"):
            ours(key)
