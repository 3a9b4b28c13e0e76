"""HREM (https://github.com/CrossmodalGroup/HREM, 1ad2612). Every key of the folder is run.

"graph_clean" has neither padded regions nor short captions: there we agree as we are, but for the
direction of the divergence. "graph_compat" has both, and wants the authors' padding, which
`released_bugs` has.
"""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import Tensor

import golden_scores
import golden_vectors
from counterfoil.core.types import (
    INFERENCE,
    Batch,
    Embeddings,
    EncodedViews,
    ModalityBatch,
    Pairs,
    ScoreMatrix,
    Scores,
)
from counterfoil.losses.triplet import HardestTripletLoss, SumTripletLoss
from counterfoil.models.checkpoints import Checkpoint, given_options
from counterfoil.papers.compared.losses import DistanceWeightedTripletLoss, draw_by_distance
from counterfoil.papers.models import hrem
from counterfoil.papers.models.hrem import (
    BOTH,
    FRAGMENTS,
    HREM,
    IMAGES,
    TEXTS,
    BatchGraph,
    hrem_from_checkpoint,
    match_fragments,
    top_mean,
)
from papers.released_bugs import ReversedGraph, borrowed_matches, shrinking_mean

SYSTEM = "hrem"
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]
TERMS = {"hardest": HardestTripletLoss, "sum": SumTripletLoss}
GRIDS = frozenset({INFERENCE, IMAGES, TEXTS, BOTH})
ENCODED = re.compile(r"(img|txt)/(\w+)/(emb|emb_no_norm|regions|words_valid)")
GRAPH = re.compile(r"graph_(clean|compat)/(.+)")
EDGES = re.compile(r"(connect|relation)/(i2i|i2t|t2i|t2t)")
LOSS = re.compile(r"loss_(\w+)/(value|grad_img_emb|grad_cap_emb|grad/.+)")
SAMPLED = re.compile(r"dw/(.+)")


NAMES = replace(  # the graph is in the golden folder, not in their checkpoints
    hrem.NAMES,
    prefixes={
        **hrem.NAMES.prefixes,
        "graph.gnn.layers.0.": "graph.layer.",
        **{
            f"graph.adj_model.adj_learning.{theirs}.{place}.": f"graph.{ours}.{own}."
            for theirs, ours in (("mlp_i2t", "by_images"), ("mlp_t2i", "by_texts"))
            for place, own in ((0, 0), (3, 2))  # a dropout of 0 stood between
        },
    },
)
GRAPH_OPTIONS = {
    "nhead": "heads",
    "dropout": "dropout",
    "threshold": "share",
    "mask_weight": "mask_weight",
    "reg_loss_weight": "penalty",
    "sigma": "sigma",
    "T": "temperature",
}


@golden_vectors.cached
def bert() -> str:
    """A folder that says how small their text model is."""
    folder = Path(tempfile.mkdtemp(prefix="counterfoil-hrem-"))
    tiny = golden_scores.load(SYSTEM).meta["config"]["tiny_bert"]
    (folder / "config.json").write_text(json.dumps({"model_type": "bert"} | tiny))
    return str(folder)


def build() -> HREM:
    """The authors' model with their graph."""
    checkpoint = golden_scores.checkpoint(SYSTEM, **golden_scores.load(SYSTEM).meta["config"])
    kept = {n: value for n, value in checkpoint.state.items() if not n.startswith("graph.")}
    model = hrem_from_checkpoint(Checkpoint(kept, checkpoint.options), bert=bert()).build()
    assert isinstance(model, HREM)
    state = NAMES.renamed(checkpoint.state)
    options = given_options(BatchGraph, checkpoint, GRAPH_OPTIONS)
    best = len(state["graph.by_texts.0.weight"])
    model.graph = ReversedGraph(width=model.image.width, best=best, **options)
    model.load_state_dict(state)
    return model.eval()


def masked(values: Tensor, lengths: Tensor) -> ModalityBatch:
    mask = torch.arange(values.shape[1]) < lengths.unsqueeze(1)
    return ModalityBatch(torch.arange(len(values)), values, mask)


def images(kind: str) -> ModalityBatch:
    inputs = golden_scores.load(SYSTEM).inputs
    name = {"full": "images", "padded": "images_padded"}[kind]
    return masked(inputs[name], inputs[f"image_lengths_{kind}"])


def texts(kind: str) -> ModalityBatch:
    inputs = golden_scores.load(SYSTEM).inputs
    return masked(inputs[f"captions_{kind}"], inputs[f"lengths_{kind}"])


def batch(case: str) -> Batch:
    """Every row is an image and a text, as theirs are, though some share an image."""
    kinds = {"clean": ("full", "long"), "compat": ("padded", "short")}[case]
    pools = images(kinds[0]), texts(kinds[1])
    rows, n = torch.arange(len(pools[0])), len(pools[0])
    return Batch(0, rows, rows, *pools, (n, n), Pairs(rows, rows))


@dataclass
class Run:
    """One pass through model, graph and losses."""

    model: HREM
    views: EncodedViews
    through: EncodedViews  # the same with what the graph adds

    @staticmethod
    def of(case: str) -> Run:
        model, made = build(), batch(case)
        plain = model(made)
        own = plain.inference
        for side in (own.images, own.texts):
            side.tokens.retain_grad()
        return Run(model, plain, model.batch_forward(made, plain, GRIDS))

    def loss(self, kind: str, grids: frozenset[str]) -> Tensor:
        """Over the grids: a row has its own caption, and others of its image are left out."""
        golden = golden_scores.load(SYSTEM)
        ids, true = golden.inputs["img_ids"], torch.eye(len(golden.inputs["img_ids"])).bool()
        none = (ids.unsqueeze(0) == ids.unsqueeze(1)) & ~true
        total = torch.zeros(())
        for name in grids:
            view = self.through.views[name]
            block = self.model.score_matrix(view.images, view.texts)
            grid = ScoreMatrix(
                block.masked_fill(none, -torch.inf), true, block.diagonal(), name=name
            )
            term = TERMS[kind](margin=golden.meta["config"]["margin"], view=name)
            total = total + term(Scores({name: grid}))
        return total


def encoded(side: str, kind: str, what: str) -> Tensor:
    model = build()
    items = images(kind) if side == "img" else texts(kind)
    tower, head = (
        (model.image, model.image_pool) if side == "img" else (model.text, model.text_pool)
    )
    bag = tower(items)
    if what == "regions":
        return bag.tokens
    if what == "words_valid":
        return bag.tokens.masked_fill(~bag.mask.unsqueeze(-1), 0)
    if what == "emb_no_norm":
        return head(bag)
    encode = model.encode_images if side == "img" else model.encode_texts
    return encode(items).tokens[:, 0]


def graph(case: str, what: str) -> Tensor:
    run = Run.of(case)
    model, plain, fragments = run.model, run.views.inference, run.views.views[FRAGMENTS]
    vectors = plain.images.tokens[:, 0], plain.texts.tokens[:, 0]
    if what == "base_scores":
        return model.score_matrix(plain.images, plain.texts)
    if what == "words_incl_padding":
        return fragments.texts.tokens
    if what == "loss_before_graph_warmup":
        return run.loss("hardest", frozenset({INFERENCE}))
    if what in ("enhanced_img_emb", "enhanced_cap_emb"):
        view = run.through.views[BOTH]
        return (view.images if "img" in what else view.texts).tokens[:, 0]
    if what == "reg_loss":
        return run.through.auxiliary["relations"] / model.graph.weight
    if what.startswith("mean_score/"):
        by_images, by_texts = hrem.match_fragments(
            fragments.images, fragments.texts, model.graph.best
        )
        return {"i2t": by_images, "t2i": by_texts}[what.removeprefix("mean_score/")].mean
    if loss := LOSS.fullmatch(what):
        return judged(run, *loss.groups())
    relations = model.graph.relations(*vectors, fragments.images, fragments.texts)
    if what == "attention_bias":
        return relations.bias(model.graph.mask_weight)
    edges = EDGES.fullmatch(what)
    assert edges, f"the golden folder has {what!r}, which no test understands"
    edge = getattr(relations, edges[2])
    return edge.connected if edges[1] == "connect" else edge.relevance


def judged(run: Run, kind: str, what: str) -> Tensor:
    total = run.loss(kind, GRIDS) + run.through.auxiliary["relations"]
    if what == "value":
        return total
    total.backward()
    plain = run.views.inference
    if what in ("grad_img_emb", "grad_cap_emb"):
        return (plain.images if "img" in what else plain.texts).tokens.grad[:, 0]
    theirs = what.removeprefix("grad/")
    return dict(run.model.named_parameters())[NAMES.ours(theirs)].grad


def sampled(what: str) -> Tensor:
    golden = golden_scores.load(SYSTEM)
    ids, settings = golden.inputs["img_ids"], golden.meta["config"]["dw"]
    pool = [golden.inputs[f"dw_{side}_emb"].clone().requires_grad_() for side in ("img", "cap")]
    block, positive = pool[0] @ pool[1].T, ids.unsqueeze(1) == ids.unsqueeze(0)
    term = DistanceWeightedTripletLoss(
        margin=settings["margin_used"],
        nearest=settings["cut_off"],
        furthest=settings["nonzero_loss_cutoff"],
        dimensions=settings["d"],
    )
    pairs = positive.nonzero()
    uniforms = golden.inputs["dw_uniforms"][: 2 * len(pairs)]
    if what == "anchor_positive_pairs":
        return pairs
    if what.startswith(("weights_", "sampled_negative_")):
        by_texts = what.endswith("t2i")
        chances = term.chances(block.T if by_texts else block, positive)[pairs[:, 0]]
        return (
            chances if "weights" in what else draw_by_distance(chances, uniforms.chunk(2)[by_texts])
        )
    loss = term.sampled_hinges(ScoreMatrix(block, positive, block.diagonal()), uniforms)
    if what == "loss":
        return loss
    loss.backward()
    return {"grad_img_emb": pool[0], "grad_cap_emb": pool[1]}[what].grad


def pooled(what: str) -> Tensor:
    inputs = golden_scores.load(SYSTEM).inputs
    values = golden_scores.load(SYSTEM).outputs[f"kpool/{what}"]
    bag = masked(inputs["images"][:, :, : values.shape[1]], inputs["kpool_lengths"])
    mean = shrinking_mean if what == "compat_shrinking_k" else top_mean
    return mean(Embeddings(bag.values, bag.mask), 2)


def ours(key: str) -> Tensor:
    """Our value for an authors' output, by its name; an unknown name is an error."""
    if key.startswith("kpool/"):
        return pooled(key.removeprefix("kpool/"))
    if match := ENCODED.fullmatch(key):
        return encoded(*match.groups())
    if match := GRAPH.fullmatch(key):
        matches = borrowed_matches if match[1] == "compat" else match_fragments
        with mock.patch.object(hrem, "match_fragments", matches):
            return graph(*match.groups())
    match = SAMPLED.fullmatch(key)
    assert match, f"the golden folder has {key!r}, which no test understands"
    return sampled(match[1])


@pytest.mark.parametrize("key", golden_vectors.keys(SYSTEM))
def test_agrees_with_the_authors(key):
    golden_scores.agrees(golden_scores.load(SYSTEM), key, ours(key))


def test_without_their_padding_the_padded_batch_gives_other_views():
    golden, made, model = golden_scores.load(SYSTEM), batch("compat"), build()
    told = model.batch_forward(made, model(made), GRIDS).views[BOTH].images.tokens[:, 0]
    assert (told - golden.outputs["graph_compat/enhanced_img_emb"]).abs().max() > 1e-4
