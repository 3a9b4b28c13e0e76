"""VSRN against vectors of the authors' code. Every key that the folder holds is run."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

import golden_scores
import golden_vectors
from counterfoil.core.types import Batch, Embeddings, ModalityBatch, Pairs, ScoreMatrix, Scores
from counterfoil.losses.triplet import HardestTripletLoss
from counterfoil.papers.models.vsrn import VSRN, convert_vsrn, vsrn_from_checkpoint

SYSTEM = "vsrn"
START = 1
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]


@golden_vectors.cached
def golden() -> golden_vectors.Golden:
    return golden_scores.load(SYSTEM)


def model(config: str, *, training: bool = False) -> VSRN:
    longest = golden().meta["config"]["max_len"]
    options = {"data_name": f"{config}_precomp", "max_len": longest}
    built = vsrn_from_checkpoint(golden_scores.checkpoint(SYSTEM, **options)).build()
    assert isinstance(built, VSRN)
    return built.train(training)


@golden_vectors.cached
def order() -> Tensor:
    return golden().inputs["lengths"].argsort(descending=True, stable=True)


def images() -> ModalityBatch:
    return golden_scores.images(golden().inputs).rows(order())


def captions() -> ModalityBatch:
    return golden_scores.captions(golden().inputs).rows(order())


def batch() -> Batch:
    texts, seen = captions(), images()
    told = texts.values.masked_fill(~texts.mask, -1).unsqueeze(1)
    rows = torch.arange(len(seen))
    seen = ModalityBatch(rows, seen.values, seen.mask, targets=told)
    return Batch(0, rows, rows, seen, texts, (len(seen), len(seen)), Pairs(rows, rows))


def losses(host: VSRN) -> tuple[Tensor, Tensor]:
    """Hardest-negative and caption loss, in evaluation mode as the folder has them."""
    views = host(batch())
    scores = host.score_matrix(views.inference.images, views.inference.texts)
    grid = ScoreMatrix(scores, torch.eye(len(scores), dtype=torch.bool), scores.diagonal())
    margin = golden().meta["config"]["margin"]
    hardest = HardestTripletLoss(margin=margin, reduction="sum")(Scores({"inference": grid}))
    return hardest, views.auxiliary["caption"]


def gradient(host: VSRN, target: Tensor, theirs: str) -> Tensor:
    """By the parameter that the authors call by this name, in their shape."""
    state = golden_scores.checkpoint(SYSTEM).state
    names = {name: next(iter(_named(name))) for name in state}
    (grad,) = torch.autograd.grad(target, dict(host.named_parameters())[names[theirs]])
    return grad.view_as(state[theirs])


def _named(theirs: str) -> dict[str, Tensor]:
    state = dict(golden_scores.checkpoint(SYSTEM).state)
    place = list(state).index(theirs)
    return {list(convert_vsrn(state))[place]: state[theirs]}


def norm(config: str, twice: bool) -> Tensor:
    host = model(config)
    sum(losses(host)).backward()
    squares = [
        p.grad.square().sum() * (2 if twice and name.startswith("captioner.") else 1)
        for name, p in host.named_parameters()
    ]
    return torch.stack(squares).sum().sqrt()


def text_value(rest: str) -> Tensor:
    host = model("coco")
    vectors = host.encode_texts(captions()).tokens[:, 0]
    if rest == "cap_emb":
        return vectors
    return gradient(host, (vectors * golden().inputs["w_cap"]).sum(), rest.removeprefix("vjp/"))


def encoder_value(config: str, mode: str, what: str) -> Tensor:
    host = model(config, training=mode == "train")
    regions = host.regions(images())
    vectors = host.read(regions).tokens[:, 0]
    match what.partition("/"):
        case "img_emb", _, _:
            return vectors
        case "gcn", _, _:
            return regions.tokens
        case "scores", _, _:
            texts = host.encode_texts(captions())
            return host.score_matrix(host.read(regions), texts)
        case "after", _, name:
            return host.state_dict()[next(iter(_named(name)))]
        case "vjp", _, name:
            return gradient(host, (vectors * golden().inputs["w_img"]).sum(), name)
    raise AssertionError(f"the golden folder has {what!r}, which no test understands")


def caption_value(config: str, what: str) -> Tensor:
    host = model(config)
    if what == "loss":
        return losses(host)[1]
    regions, writer = host.regions(images()), host.captioner
    steps = writer.longest - 1
    if what == "seq_logprobs":
        ids = golden().outputs["batch/caption_labels"]
        states = writer.write(regions, ids, torch.full((len(ids),), steps))
        return writer.out(states).log_softmax(1).unflatten(0, (steps, -1)).transpose(0, 1)
    ids, likely = torch.full((len(regions), 1), START), []
    for read in range(1, steps):  # every caption once more for each word
        states = writer.write(regions, ids, torch.full((len(ids),), read))[-len(ids) :]
        best, word = writer.out(states).log_softmax(1).max(1)
        ids, likely = torch.cat([ids, word.unsqueeze(1)], 1), [*likely, best]
    return ids[:, 1:] if what == "greedy_tokens" else torch.stack(likely, 1)


def total_value(config: str, what: str) -> Tensor:
    host = model(config)
    if what.startswith("grad_norm"):
        return norm(config, what.endswith("released"))
    if what == "grad_gcn":
        regions = host.regions(images())
        leaf = regions.tokens.detach().requires_grad_()
        told = host.captioner(Embeddings(leaf, regions.mask), batch().images.targets[:, 0])
        return torch.autograd.grad(told / len(leaf), leaf)[0]
    return gradient(host, sum(losses(host)), what.removeprefix("grad/"))


def batch_value(what: str) -> Tensor:
    ids = captions().values
    writer = model("coco").captioner
    cut, steps = writer._cut(batch().images.targets[:, 0])
    width = writer.longest + 1
    return {
        "order": order(),
        "captions": ids,
        "lengths": captions().mask.sum(1),
        "caption_labels": torch.nn.functional.pad(cut, (0, width - cut.shape[1])),
        # theirs marks the first token too, and one place that is never reached
        "caption_masks": (torch.arange(width) <= steps.unsqueeze(1) + _cut_end(steps)).float(),
    }[what]


def _cut_end(steps: Tensor) -> Tensor:
    longest = golden().meta["config"]["max_len"]
    return (captions().mask.sum(1) >= longest).long().unsqueeze(1)


def ours(key: str) -> Tensor:
    """Our value for an authors' output, by its name; an unknown name is an error."""
    if found := re.fullmatch(r"(coco|f30k)/(eval|train)/(.+)", key):
        return encoder_value(*found.groups())
    if found := re.fullmatch(r"(coco|f30k)/caption/(\w+)", key):
        return caption_value(*found.groups())
    if found := re.fullmatch(r"(coco|f30k)/total/(.+)", key):
        return total_value(*found.groups())
    if found := re.fullmatch(r"(coco|f30k)/(retrieval/loss_mh|total_loss)", key):
        hardest, told = losses(model(found[1]))
        return hardest if found[2] != "total_loss" else hardest + told
    if found := re.fullmatch(r"batch/(\w+)", key):
        return batch_value(found[1])
    return text_value(key)


@pytest.mark.parametrize("key", golden_vectors.keys(SYSTEM))
def test_agrees_with_the_authors(key):
    golden_scores.agrees(golden(), key, ours(key))


def test_the_vector_norm_is_another_model():
    host = model("coco")
    host.region_norm = "vector"
    theirs = golden().outputs["coco/eval/img_emb"]
    assert (host.encode_images(images()).tokens[:, 0] - theirs).abs().max() > 0.01
