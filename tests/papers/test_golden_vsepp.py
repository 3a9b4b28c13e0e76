"""VSE++ against vectors of the authors' code. Every key that the folder holds is run."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

import golden_scores
import golden_vectors
from counterfoil.core.types import ScoreMatrix, Scores
from counterfoil.losses.triplet import HardestTripletLoss, SumTripletLoss
from counterfoil.models.vsepp import vsepp_from_checkpoint

SYSTEM = "vsepp"
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]
OPTIONS = {
    "cosine": {},
    "order": {"measure": "order", "use_abs": True},
    "no_imgnorm": {"no_imgnorm": True},
}
TERMS = {"mh": HardestTripletLoss, "sh": SumTripletLoss}


def block(scores: Tensor) -> Scores:
    eye = torch.eye(len(scores), dtype=torch.bool)
    return Scores({"inference": ScoreMatrix(scores, eye, scores.diagonal())})


def loss(kind: str, scores: Tensor, margin: float) -> Tensor:
    return TERMS[kind](margin=margin, reduction="sum")(block(scores))


class Case:
    def __init__(self, config: str) -> None:
        self.golden = golden_scores.load(SYSTEM)
        converted = vsepp_from_checkpoint(golden_scores.checkpoint(SYSTEM, **OPTIONS[config]))
        self.model = converted.build()
        self.image = self.model.encode_images(golden_scores.images(self.golden.inputs))
        self.text = self.model.encode_texts(golden_scores.captions(self.golden.inputs))
        self.scores = self.model.score_matrix(self.image, self.text)
        settings = self.golden.meta["config"]
        self.margin = settings["margin_order" if config == "order" else "margin_cosine"]

    def gradient(self, target: Tensor, name: str) -> Tensor:
        target.backward()
        ours = dict(self.model.named_parameters())
        return ours[name.replace("img_enc.", "image.").replace("txt_enc.", "text.")].grad

    def norm(self, target: Tensor) -> Tensor:
        target.backward()
        return torch.stack([p.grad.norm() for p in self.model.parameters()]).norm()


def ours(key: str) -> Tensor:
    """Our value for an authors' output, by its name; an unknown name is an error."""
    config, _, rest = key.partition("/")
    if config == "loss_scores":
        golden = golden_scores.load(SYSTEM)
        scores = golden.inputs["loss_scores"].clone().requires_grad_()
        kind = rest.rpartition("_")[2]
        value = loss(kind, scores, golden.meta["config"]["margin_cosine"])
        if rest == f"loss_{kind}":
            return value
        assert rest == f"grad_{kind}", key
        return torch.autograd.grad(value, scores)[0]
    case = Case("cosine" if config == "vjp" else config)
    if config == "vjp":
        image, text = case.golden.inputs["w_img"], case.golden.inputs["w_cap"]
        total = (case.image.tokens[:, 0] * image).sum() + (case.text.tokens[:, 0] * text).sum()
        return case.gradient(total, rest)
    if rest in ("img_emb", "cap_emb"):
        return (case.image if rest == "img_emb" else case.text).tokens[:, 0]
    if rest == "scores":
        return case.scores
    found = re.fullmatch(r"(loss|grad_norm|grad_loss)_(mh|sh)(?:/(.+))?", rest)
    assert found, f"the golden folder has {key!r}, which no test understands"
    what, kind, parameter = found.groups()
    value = loss(kind, case.scores, case.margin)
    if what == "loss":
        return value
    return case.norm(value) if what == "grad_norm" else case.gradient(value, parameter)


@pytest.mark.parametrize("key", golden_vectors.keys(SYSTEM))
def test_agrees_with_the_authors(key):
    golden_scores.agrees(golden_scores.load(SYSTEM), key, ours(key))


def test_grid_equals_pairs():
    for config in OPTIONS:
        case = Case(config)
        b = len(case.image)
        torch.testing.assert_close(
            case.model.score_pairs(case.image, case.text), case.scores.diagonal()
        )
        assert case.scores.shape == (b, b)
