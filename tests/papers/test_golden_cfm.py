"""CFM against vectors of the authors' code. Every key that the folder holds is run."""

from __future__ import annotations

import re
import tempfile

import pytest
import torch
from torch import Tensor
from transformers import BertConfig

import golden_scores
import golden_vectors
from counterfoil.core.types import (
    Batch,
    Embeddings,
    EncodedBatch,
    EncodedViews,
    Pairs,
    Role,
    ScoreMatrix,
    Scores,
)
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.triplet import HardestTripletLoss
from counterfoil.negatives.online import existing_extras
from counterfoil.papers.compared.counterfactual import CounterfactualSampler, violated_triplets
from counterfoil.papers.compared.losses import SelfAdjustedCFMLoss, SelfExploredCFMLoss
from counterfoil.papers.models.gpo import NAMES, gpo_from_checkpoint
from counterfoil.training.step import TrainingStep

SYSTEM = "cfm"
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]
ITEMS = {
    "sa/images_syn": ("images", Role.EDITED),
    "se/images_pos_masked": ("images", Role.MASKED_POSITIVE),
    "se/images_neg_masked": ("images", Role.MASKED_NEGATIVE),
    "sa/captions_syn": ("texts", Role.EDITED),
    "se/captions_pos_masked": ("texts", Role.MASKED_POSITIVE),
    "se/captions_neg_masked": ("texts", Role.MASKED_NEGATIVE),
}
EMBEDDINGS = {
    "sa/img_emb": ("images", Role.EDITED),
    "se/img_emb_pos": ("images", Role.MASKED_POSITIVE),
    "se/img_emb_neg": ("images", Role.MASKED_NEGATIVE),
    "sa/cap_emb": ("texts", Role.EDITED),
    "se/cap_emb_pos": ("texts", Role.MASKED_POSITIVE),
    "se/cap_emb_neg": ("texts", Role.MASKED_NEGATIVE),
}
ORDER = (Role.EDITED, Role.MASKED_POSITIVE, Role.MASKED_NEGATIVE)


@golden_vectors.cached
def bert() -> str:
    """A folder with the tiny text model's configuration."""
    where = tempfile.mkdtemp(prefix="counterfoil-cfm-")
    config = golden_vectors.load(SYSTEM).meta["config"]["tiny_bert"]
    BertConfig(**config).save_pretrained(where)
    return where


class Case:
    """The authors' batch, both branches on, the way from scores to losses step by step."""

    def __init__(self) -> None:
        self.golden = golden_scores.load(SYSTEM)
        self.config = self.golden.meta["config"]
        self.model = (
            gpo_from_checkpoint(golden_scores.checkpoint(SYSTEM), bert=bert()).build().eval()
        )
        self.batch = self._batch()
        self.source = CounterfactualSampler(
            margin=self.config["margin"],
            adjust=self.config["prob_sa"],
            explore=self.config["prob_se"],
            swapped=self.config["rate_exchange"],
            hidden=self.config["rate_drop"],
            mask=self.config["mask_token"],
            gradients="token",
            specials=True,
        )
        self.images = leaf(self.model.encode_images(self.batch.images))
        self.texts = leaf(self.model.encode_texts(self.batch.texts))
        self.score_matrix = self.model.score_matrix(self.images, self.texts)
        views = EncodedViews({"inference": EncodedBatch(self.images, self.texts)})
        self.proposal = self.source.propose(
            self.model, self.batch, views, self.score_matrix, torch.Generator()
        )
        self.by_image, self.by_text = violated_triplets(
            self.batch, self.score_matrix, self.source.margin
        )
        self.new_images = leaf(self.model.encode_images(self.proposal.images))
        self.new_texts = leaf(self.model.encode_texts(self.proposal.texts))

    def _batch(self) -> Batch:
        images = golden_scores.images(self.golden.inputs)
        texts = golden_scores.captions(self.golden.inputs)
        rows = torch.arange(len(images))
        block = len(images), len(images)
        return Batch(0, rows, rows, images, texts, block, Pairs(rows, rows))

    def terms(self) -> WeightedSum:
        margin = self.config["margin2"]
        return WeightedSum(
            terms={
                "triplet": (1.0, HardestTripletLoss(margin=self.config["margin"])),
                "sa": (1.0, SelfAdjustedCFMLoss(margin=margin)),
                "se": (1.0, SelfExploredCFMLoss(margin=margin)),
            }
        )

    def losses(self) -> dict[str, Tensor]:
        images = Embeddings.cat([self.images, self.new_images])
        texts = Embeddings.cat([self.texts, self.new_texts])
        pairs = {
            role: existing_extras(
                p.flatten(), lambda q: self.model.score_indices(images, texts, q)
            ).view(p.shape)
            for role, p in self.proposal.pairs.items()
        }
        grid = ScoreMatrix(self.score_matrix, self.batch.positive, self.score_matrix.diagonal())
        return self.terms()(Scores({"inference": grid}, pairs))

    def part(self, side: str, role: Role, whole: Tensor) -> Tensor:
        """The rows of a role among everything that was made of one side."""
        count = len(self.by_text if side == "images" else self.by_image)
        nth = ORDER.index(role)
        return whole[nth * count : (nth + 1) * count]


def leaf(bag: Embeddings) -> Embeddings:
    return Embeddings(bag.tokens.detach().requires_grad_(), bag.mask)


@golden_vectors.cached
def case() -> Case:
    return Case()


def active(found: object, count: int) -> Tensor:
    return torch.zeros(count, dtype=torch.uint8).index_fill_(0, found.number, 1)


def importance(made: Case, key: str) -> Tensor:
    """What `Edited` ranks tokens by, caught on its way to the edits."""
    caught: list[tuple[Tensor, Tensor]] = []
    patch = pytest.MonkeyPatch()
    from counterfoil.papers.compared import counterfactual

    real = counterfactual.overwrite_tokens

    def spy(into, source, ranks, may, *, share):  # type: ignore[no-untyped-def]
        caught.append(tuple(r.masked_fill(~m.mask, 0) for r, m in zip(ranks, (into, source))))
        return real(into, source, ranks, may, share=share)

    with patch.context() as patched:
        patched.setattr(counterfactual, "overwrite_tokens", spy)
        views = EncodedViews({"inference": EncodedBatch(made.images, made.texts)})
        made.source.propose(made.model, made.batch, views, made.score_matrix, torch.Generator())
    words, regions = caught
    found = regions if "regions" in key else words
    return found[0] if key.endswith("pos") else found[1]


def parameter(name: str) -> Tensor:
    """Gradient of the whole step, as training makes it, at one of the authors' parameters."""
    made = Case()
    step = TrainingStep(made.model, made.terms(), sources=[made.source])
    torch.stack(list(step(made.batch).values())).sum().backward()
    prefix = next(theirs for theirs in NAMES.prefixes if name.startswith(theirs))
    return dict(made.model.named_parameters())[
        NAMES.prefixes[prefix] + name.removeprefix(prefix)
    ].grad


def ours(key: str) -> Tensor:
    """Our value for an authors' output, by its name; an unknown name is an error."""
    made = case()
    count = len(made.score_matrix)
    if key == "scores":
        return made.score_matrix
    if key in ("mask_i2t", "mask_t2i"):
        return active(made.by_image if key == "mask_i2t" else made.by_text, count)
    if key in ("hard_caption_per_image", "hard_image_per_caption"):
        found = violated_triplets(made.batch, made.score_matrix, 1e3)[
            key == "hard_image_per_caption"
        ]
        return found.negative
    if key.startswith("importance/"):
        return importance(made, key)
    if key in ITEMS:
        side, role = ITEMS[key]
        items = made.proposal.images if side == "images" else made.proposal.texts
        values = items.values if side == "images" else items.values * items.mask
        return made.part(side, role, values)
    if key.removesuffix("_lengths") in ITEMS:
        side, role = ITEMS[key.removesuffix("_lengths")]
        return made.part(side, role, made.proposal.texts.mask.sum(1))
    if key in EMBEDDINGS:
        side, role = EMBEDDINGS[key]
        new = made.new_images if side == "images" else made.new_texts
        return made.part(side, role, new.tokens[:, 0])
    if found := re.fullmatch(r"total/grad/(.+)", key):
        return parameter(found[1])
    losses = made.losses()
    total = torch.stack(list(losses.values())).sum()
    if found := re.fullmatch(r"(triplet|sa|se|total)/loss", key):
        return total if found[1] == "total" else losses[found[1]]
    leaves = {
        "total/grad_img_emb": made.images,
        "total/grad_cap_emb": made.texts,
        "total/grad_img_emb_pack": made.new_images,
        "total/grad_cap_emb_pack": made.new_texts,
    }
    assert key in leaves, f"the golden folder has {key!r}, which no test understands"
    return torch.autograd.grad(total, leaves[key].tokens, retain_graph=True)[0][:, 0]


@pytest.mark.parametrize("key", golden_vectors.keys(SYSTEM))
def test_agrees_with_the_authors(key: str) -> None:
    golden = golden_vectors.load(SYSTEM)
    if golden.exact(key):
        golden_vectors.same(golden, key, ours(key))
    else:
        golden_scores.agrees(golden, key, ours(key))


def test_a_step_gives_the_same_losses() -> None:
    made = Case()
    found = TrainingStep(made.model, made.terms(), sources=[made.source])(made.batch)
    for name, loss in made.losses().items():
        torch.testing.assert_close(found[name], loss)
    torch.testing.assert_close(
        torch.stack(list(found.values())).sum(), made.golden.outputs["total/loss"]
    )
