"""LSEH against vectors of the authors' code. Every key that the folder holds is run."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

import golden_scores
import golden_vectors
from counterfoil.core.types import ScoreMatrix, Scores
from counterfoil.negatives.similarity import latent_similarity
from counterfoil.papers.compared.losses import LSEHLoss

SYSTEM = "lseh"
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]
EMBEDDINGS = ("img_emb", "cap_emb")


class Case:
    """The authors' batch: an image stands once for every caption, of which some share it."""

    def __init__(self) -> None:
        self.golden = golden_scores.load(SYSTEM)
        inputs = self.golden.inputs
        self.leaves = {name: inputs[name].clone().requires_grad_() for name in EMBEDDINGS}
        self.scores = self.leaves["img_emb"] @ self.leaves["cap_emb"].T
        eye = torch.eye(len(self.scores), dtype=torch.bool)
        ids = inputs["image_ids"]
        same = (ids.unsqueeze(1) == ids) & ~eye
        assert same.any(), "nothing would tell the two treatments of same-image pairs apart"
        near = latent_similarity(inputs["description_vectors"]).masked_fill(same, -torch.inf)
        self.score_matrix = ScoreMatrix(self.scores, eye, self.scores.diagonal(), guide=near)

    def term(self, config: str, against: str) -> LSEHLoss:
        known = self.golden.meta["config"]
        margins = known["paper" if config == "formula_masked" else config]
        kept = "excluded" if config == "formula_masked" else "no margin"
        return LSEHLoss(**margins, against=against, same_image=kept)

    def gradient(self, loss: Tensor, name: str) -> Tensor:
        wanted = self.scores if name == "scores" else self.leaves[name]
        return torch.autograd.grad(loss, wanted)[0]


def ours(key: str) -> Tensor:
    """Our value for an authors' output, by its name; an unknown name is an error."""
    case = Case()
    vectors = case.golden.inputs["description_vectors"]
    if key == "F":
        return latent_similarity(vectors)
    if key == "gram":
        return vectors @ vectors.T
    if key == "scores":
        return case.scores
    config, _, rest = key.partition("/")
    if rest == "margin_matrix":
        return case.term(config, "hardest").margin(case.score_matrix)
    against, _, what = rest.partition("/")
    assert against in ("hardest", "sum"), f"the golden folder has {key!r}, which nobody knows"
    term = case.term(config, against)
    loss = term(Scores({"inference": case.score_matrix}))
    if what == "loss":
        return loss
    if what.startswith("loss_cost_s_cost_im_"):
        return torch.stack([loss, *term.directions(case.score_matrix)])
    found = re.fullmatch(r"grad_(\w+)", what)
    assert found, f"the golden folder has {key!r}, which no test understands"
    return case.gradient(loss, found[1])


@pytest.mark.parametrize("key", golden_vectors.keys(SYSTEM))
def test_agrees_with_the_authors(key: str) -> None:
    golden_scores.agrees(golden_scores.load(SYSTEM), key, ours(key))
