"""DivE against vectors of the authors' code. Every key that the folder holds is run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

import golden_scores
import golden_vectors
from counterfoil.core.types import Batch, Embeddings, ModalityBatch, Pairs, ScoreMatrix, Scores
from counterfoil.losses import base
from counterfoil.losses.base import Loss, WeightedSum, hinge, positive_scores
from counterfoil.losses.triplet import HardestTripletLoss, MeanTripletLoss
from counterfoil.models.checkpoints import Checkpoint
from counterfoil.papers.models.dive import (
    NAMES,
    DivE,
    dive_from_checkpoint,
    set_crowding,
    set_discrepancy,
    set_score_matrix,
)
from counterfoil.training.step import TrainingStep

SYSTEM = "dive"
KINDS = {
    "smooth_chamfer_similarity_cosine": "smooth_chamfer",
    "smooth_chamfer_similarity_euclidean": "smooth_chamfer_euclidean",
    "chamfer_similarity_cosine": "chamfer",
    "max_similarity_cosine": "max",
    "avg_similarity": "mean_sigmoid",
}
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]


def set_correlation(sets: Tensor) -> Tensor:
    """Norms of the cosines between the vectors of a set: a loss of theirs with weight 0."""
    gram = normalize(sets, dim=2) @ normalize(sets, dim=2).mT
    gram = gram.masked_fill(torch.eye(sets.shape[1], dtype=torch.bool), 0)
    return torch.linalg.vector_norm(gram.flatten(1), dim=1) / sets.shape[1] ** 2


def set_closeness(vectors: Tensor) -> Tensor:
    """The mean of e^(-2 ||x - y||) over pairs: another loss of theirs with weight 0."""
    return torch.exp(-2 * torch.pdist(vectors)).mean()


@golden_vectors.cached
def golden() -> golden_vectors.Golden:
    return golden_scores.load(SYSTEM)


def config() -> dict:
    return golden().meta["config"]


@pytest.fixture
def bert(tmp_path_factory) -> str:
    """A folder that says what the folder's tiny BERT looks like."""
    folder = tmp_path_factory.mktemp("bert")
    plain = {"model_type": "bert", "architectures": ["BertModel"], **config()["tiny_bert"]}
    (folder / "config.json").write_text(json.dumps(plain))
    return str(folder)


def state(text: str) -> dict[str, Tensor]:
    """The authors' tensors with one of the text encoders, which may share some of another's."""
    every = golden_scores.checkpoint(SYSTEM).state
    kept = {name: value for name, value in every.items() if name.startswith("img_enc.")}
    for prefix in ("txt_enc_bert", text) if "bert" in text else (text,):
        own = {name: value for name, value in every.items() if name.startswith(f"{prefix}.")}
        kept |= {name.replace(prefix, "txt_enc", 1): value for name, value in own.items()}
    return kept


def model(text: str, bert: str, *, compat: bool) -> DivE:
    options = {
        **config()["options"],
        "temperature": config()["temperature"],
    }
    if "bert" in text:  # the options are those of the BiGRU
        options["txt_pooling"] = "cls" if text.endswith("cls") else "max"
    made = dive_from_checkpoint(Checkpoint(state(text), options), bert=bert)
    changes = {"heads": config()["heads"], "head_width": config()["dim_head"]}
    spec = made.model.replace(released_padding=compat, **changes)
    built = replace(made, model=spec).build()
    assert isinstance(built, DivE)
    return built


def items(values: str, lengths: str) -> ModalityBatch:
    found, counts = golden().inputs[values], golden().inputs[lengths]
    mask = torch.arange(found.shape[1]) < counts.unsqueeze(1)
    return ModalityBatch(torch.arange(len(found)), found, mask)


def images(case: str) -> ModalityBatch:
    kind = "padded" if case == "padded_compat" else "full"
    return items("images" if kind == "full" else "images_padded", f"image_lengths_{kind}")


def captions(case: str, *, bert: bool) -> ModalityBatch:
    head, tail = "bert_" if bert else "", "" if case == "padded_compat" else "_equal"
    lengths = "lengths_equal" if tail else f"{head}lengths"
    return items(f"{head}captions{tail}", lengths)


def bags(name: str, *, leaf: bool = False) -> Embeddings:
    tokens = golden().inputs[name].clone().requires_grad_(leaf)
    return Embeddings(tokens, torch.ones(tokens.shape[:2], dtype=torch.bool))


def relation(images: int, texts: int) -> Tensor:
    per_image = config()["txt_per_img"]
    return torch.arange(texts) // per_image == torch.arange(images).unsqueeze(1)


def judged(scores: Tensor) -> ScoreMatrix:
    positive = relation(*scores.shape)
    return ScoreMatrix(scores, positive, scores.T[positive.T])


def options(variant: str) -> dict:
    return {**config()["options"], **config()["loss_variants"][variant]}


def ranking(variant: str, grid: ScoreMatrix) -> tuple[Tensor, Tensor, Tensor]:
    """The whole ranking loss, and that of images asking for texts and of texts for images."""
    chosen = options(variant)
    hardest = chosen["max_violation"] and not chosen["semi_hard_triplet"]
    if hardest:
        term: Loss = HardestTripletLoss(margin=chosen["margin"], reduction="mean")
        true = positive_scores(grid)
        hard = base.hardest_negatives(grid, true)
        texts, images = (hinge(h, true.score, chosen["margin"]).mean() for h in hard)
    else:
        semi_hard = chosen["semi_hard_triplet"]
        term = MeanTripletLoss(margin=chosen["margin"], semi_hard=semi_hard, reduction="mean")
        texts, images = term.directions(grid)
    return term(Scores({"inference": grid})), texts, images


def loss_value(variant: str, what: str) -> Tensor:
    names = ("set_img", "set_txt", "res_img", "res_txt")
    sets = {name: bags(name, leaf=True) for name in names}
    image, text = sets["set_img"], sets["set_txt"]
    alpha = config()["temperature"]
    ranked, texts, images = ranking(
        variant, judged(set_score_matrix("smooth_chamfer", image, text, alpha))
    )
    spread = [normalize(sets[name].tokens, dim=2) for name in names[2:]]
    if not options(variant)["unif_residual"]:
        spread = [image.tokens, text.tokens]
    parts = {
        "mmd_loss": set_discrepancy(image.tokens.flatten(0, 1), text.tokens.flatten(0, 1)),
        "unif_loss": sum(set_crowding(x).mean() for x in spread),
        "div_loss": sum(set_correlation(sets[name].tokens).mean() for name in names[2:]),
    }
    weights = {name: options(variant)[name.replace("loss", "weight")] for name in parts}
    total = ranked + sum(weights[name] * part for name, part in parts.items())
    parts |= {"i2t_loss": texts, "t2i_loss": images}
    if what.startswith("grad_"):
        return torch.autograd.grad(total, sets[what.removeprefix("grad_")].tokens)[0]
    return total if what == "value" else parts[what.removeprefix("part_")]


def similarity_value(texts: str, kind: str, what: str) -> Tensor:
    """The authors' Euclidean form is a distance."""
    sets = {"grad_img": bags("set_img", leaf=True), "grad_txt": bags(texts, leaf=True)}
    scores = set_score_matrix(KINDS[kind], *sets.values(), config()["temperature"])
    scores = -scores if kind.endswith("euclidean") else scores
    if what == "scores":
        return scores
    weights = golden().inputs["score_weights"]
    return torch.autograd.grad((scores * weights).sum(), sets[what].tokens)[0]


def regulariser_value(name: str, what: str) -> Tensor:
    image, text = bags("set_img", leaf=True).tokens, bags("set_txt", leaf=True).tokens
    slots, others = bags("res_img", leaf=True).tokens, bags("res_txt").tokens
    sides = (image.flatten(0, 1), text.flatten(0, 1))
    values: dict[str, Callable[[], Tensor]] = {
        "mmd_mean_g05": lambda: set_discrepancy(*sides),
        "mmd_mean_gNone": lambda: set_discrepancy(*sides, gamma=None),
        "mmd_sum_g05": lambda: set_discrepancy(*sides, total=True),
        "mmd_sum_gNone": lambda: set_discrepancy(*sides, gamma=None, total=True),
        "gram_diversity_mean": lambda: set_correlation(slots).mean(),
        "gram_diversity_sum": lambda: set_correlation(slots).sum(),
        "uniformity": lambda: set_crowding(normalize(slots, dim=2)).mean(),
        "uniformity_txt": lambda: set_crowding(normalize(others, dim=2)).mean(),
        "query": lambda: set_closeness(image[0]) + set_closeness(text[0]),
    }
    leaf = {"value": None, "grad": slots, "grad_img": image, "grad_txt": text}[what]
    return values[name]() if leaf is None else torch.autograd.grad(values[name](), leaf)[0]


def encoder_value(encoder: str, case: str, what: str, bert: str) -> Tensor:
    text = "txt_enc_bigru"
    if encoder != "img":
        known = {"bigru": text, "bert_max": "txt_enc_bert", "bert_cls_sepfc": "txt_enc_bert_cls"}
        text = known[encoder.removeprefix("txt_")]
    host = model(text, bert, compat=case == "padded_compat")
    if encoder == "img":
        sets, slots = host.images(images(case))
    else:
        sets, slots = host.texts(captions(case, bert="bert" in text))
    return sets.tokens if what == "set" else slots


def full_value(case: str, what: str, bert: str) -> Tensor:
    host = model("txt_enc_bigru", bert, compat=case == "padded_compat")
    seen, read = images(case), captions(case, bert=False)
    positive = relation(len(seen), len(read))
    text, image = positive.T.nonzero(as_tuple=True)
    rows = torch.arange(len(seen)), torch.arange(len(read))
    batch = Batch(0, *rows, seen, read, positive.shape, Pairs(image, text))
    terms = {
        "triplet": (1.0, HardestTripletLoss(margin=config()["options"]["margin"], reduction="mean"))
    }
    step = TrainingStep(host, WeightedSum(terms=terms))
    share = step.encode(batch)
    loss = torch.stack(list(step.compute_losses(batch, share).values())).sum()
    match what.partition("/"):
        case "scores", _, _:
            return host.score_matrix(share.inference.images, share.inference.texts)
        case "loss", _, _:
            return loss
        case "grad_img_set", _, _:
            return torch.autograd.grad(loss, share.inference.images.tokens)[0]
        case "grad_txt_set", _, _:
            return torch.autograd.grad(loss, share.inference.texts.tokens)[0]
        case "grad", _, theirs:
            name = NAMES.ours(theirs.replace("txt_enc_bigru", "txt_enc"))
            return torch.autograd.grad(loss, dict(host.named_parameters())[name])[0]
    raise AssertionError(f"the golden folder has {what!r}, which no test understands")


def ours(key: str, bert: str) -> Tensor:
    """Our value for an authors' output, by its name; an unknown name is an error."""
    head, _, rest = key.partition("/")
    name, _, what = rest.partition("/")
    match head:
        case "sim":
            return similarity_value("set_txt", name, what)
        case "sim_wide":
            return similarity_value("set_txt_wide", name, what)
        case "reg":
            return regulariser_value(name, what)
        case "loss":
            return loss_value(name, what)
        case "full":
            return full_value(name, what, bert)
    return encoder_value(head, name, what, bert)


@pytest.mark.parametrize("key", golden_vectors.keys(SYSTEM))
def test_agrees_with_the_authors(key, bert):
    golden_scores.agrees(golden(), key, ours(key, bert))


@pytest.mark.parametrize("encoder", ["img", "txt_bigru"])
def test_clean_padding_is_another_model(encoder, bert):
    theirs = golden().outputs[f"{encoder}/padded_compat/set"]
    host = model("txt_enc_bigru", bert, compat=False)
    read = host.images if encoder == "img" else host.texts
    given = images("padded_compat") if encoder == "img" else captions("padded_compat", bert=False)
    assert (read(given)[0].tokens - theirs).abs().max() > 0.01


def test_the_model_has_the_options_of_the_folder(bert):
    host, chosen = model("txt_enc_bigru", bert, compat=True), config()["options"]
    factor = chosen["spm_ff_mult"]
    assert host.image_slots.enter.out_features == factor * chosen["spm_query_dim"]
    assert host.alpha == config()["temperature"]
    assert (host.mmd_weight, host.diversity_weight) == (
        chosen["mmd_weight"],
        chosen["unif_weight"],
    )
