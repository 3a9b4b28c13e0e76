from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

import train_cases as cases
from counterfoil.core.types import (
    INFERENCE,
    Batch,
    Embeddings,
    EncodedBatch,
    EncodedViews,
    ModalityBatch,
    Needs,
    Pairs,
    Role,
    Scores,
    WordTask,
)
from counterfoil.data.batching import collate
from counterfoil.data.processor import ProcessorConfig
from counterfoil.losses.aoq import OfflineTriplet
from counterfoil.losses.base import Loss, WeightedSum, step_generator
from counterfoil.losses.contrastive import InfoNCELoss
from counterfoil.losses.schedules import StartAt
from counterfoil.losses.triplet import HardestTripletLoss, SumTripletLoss
from counterfoil.models.base import RetrievalModel
from counterfoil.negatives.sources import MinedExtras, NegativeSource
from counterfoil.training.step import TrainingStep
from sources_cases import Drawn, Guided

ANCHORS = [0, 1, 5, 7, 9]


class Seen(Loss):
    """Keeps what it was asked to judge."""

    def __init__(self, **needs: Any) -> None:
        super().__init__()
        self.view = needs.pop("view", self.view)
        self.needs = Needs(**needs)
        self.scores: Scores

    def forward(self, scores: Scores) -> torch.Tensor:
        self.scores = scores
        return self.matrix(scores).scores.sum()


class Proposes(NegativeSource):
    gives = Needs(roles=frozenset({Role.WRITTEN}), words=frozenset({"masked"}))

    def __init__(self) -> None:
        self.drawn: list[float] = []

    def propose(self, model: Any, batch: Any, views: Any, grid: Any, rng: Any) -> MinedExtras:
        self.drawn.append(torch.rand(1, generator=rng).item())
        count = len(batch.anchors.text)
        values = batch.texts.values[:count].flip(0)
        place = (len(batch.text_rows) + torch.arange(count)).unsqueeze(1)
        pairs = Pairs(batch.anchors.image.unsqueeze(1), place)
        texts = ModalityBatch(torch.full((count,), -1), values, batch.texts.mask[:count].flip(0))
        word = WordTask(torch.zeros(2, 3), torch.zeros(2).long())
        return MinedExtras(texts, {Role.WRITTEN: pairs}, {"masked": word})


def made(term: Loss, kind: str = "global", **sources: Any) -> TrainingStep:
    return TrainingStep(
        cases.host(kind, cases.processor()), WeightedSum(terms={"t": (1.0, term)}), **sources
    )


def test_scores_are_those_of_the_model() -> None:
    processor, term = cases.processor(), Seen(roles=cases.Offline.provides)
    step = made(term, "bag", sources=[Drawn(cases.Offline.provides)])
    batch = cases.batch_of(processor, ANCHORS, offline=True, step=7)
    step(batch)
    images, texts = processor.images(batch.image_rows), processor.texts(batch.text_rows)
    whole = step.model.score_matrix(
        step.model.encode_images(images), step.model.encode_texts(texts)
    )
    grid = term.scores.matrices["inference"]
    torch.testing.assert_close(grid.scores, whole[: batch.block[0], : batch.block[1]])
    text_to_image = processor.dataset.text_to_image
    assert grid.positive.tolist() == [
        [int(text_to_image[t]) == int(i) for t in ANCHORS]
        for i in batch.image_rows[: batch.block[0]]
    ]
    anchor = [
        whole[list(batch.image_rows).index(text_to_image[t]), n] for n, t in enumerate(ANCHORS)
    ]
    torch.testing.assert_close(grid.anchor, torch.stack(anchor))
    assert grid.scale == 2.0
    assert term.scores.step == 7
    for role, pair in batch.pairs.items():
        torch.testing.assert_close(term.scores.pairs[role], whole[pair.image, pair.text])


def test_what_is_proposed_is_scored() -> None:
    processor, term, source = cases.processor(), Seen(roles=frozenset({Role.WRITTEN})), Proposes()
    step = made(term, sources=[source])
    batch = cases.batch_of(processor, ANCHORS)
    step(batch)
    written = term.scores.pairs[Role.WRITTEN]
    grid = term.scores.matrices["inference"].scores
    wanted = grid[batch.anchors.image, torch.arange(len(ANCHORS)).flip(0)]
    torch.testing.assert_close(written.squeeze(1), wanted)
    assert set(term.scores.words) == {"masked"}
    step(batch)
    step(replace(batch, step=1))
    assert source.drawn[0] == source.drawn[1] != source.drawn[2]


def test_a_guide_reaches_the_inference_grid() -> None:
    term = Seen(targets=True)
    step = made(term, sources=[Guided(lambda batch: torch.full(batch.block, 0.5))])
    step(cases.batch_of(cases.processor(), ANCHORS))
    assert (term.scores.matrices["inference"].guide == 0.5).all()


def test_other_views_have_grids_where_they_are_judged() -> None:
    term = Seen(view="plain")
    step = made(term, "bag")
    step(cases.batch_of(cases.processor(), ANCHORS))
    assert set(term.scores.matrices) == {"plain", "inference"}
    step = made(Seen(), "bag")
    step(cases.batch_of(cases.processor(), ANCHORS))
    assert set(step.objective.terms["t"].scores.matrices) == {"inference"}


def test_own_losses_are_among_the_losses() -> None:
    losses: Mapping[str, torch.Tensor] = made(SumTripletLoss(), "own")(
        cases.batch_of(cases.processor(), ANCHORS)
    )
    assert set(losses) == {"t", "model_spread"}


def test_autocast_scores_in_half_and_judges_in_full() -> None:
    processor = cases.processor()
    full = made(SumTripletLoss())(cases.batch_of(processor, ANCHORS))["t"]
    term = Seen()
    half = made(term, precision="bf16")
    half(cases.batch_of(processor, ANCHORS))
    assert term.scores.matrices["inference"].scores.dtype == torch.float32
    loss = made(SumTripletLoss(), precision="bf16")(cases.batch_of(processor, ANCHORS))["t"]
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(full.item(), rel=0.05)
    assert loss.item() != full.item()


@pytest.mark.parametrize(
    ("term", "sources", "words"),
    [
        (
            OfflineTriplet(),
            {},
            "needs pairs in the role of 'hard image', 'hard text', which no source gives; mine",
        ),
        (
            OfflineTriplet(),
            {"sources": [Drawn({Role.HARD_TEXT})]},
            "needs pairs in the role of 'hard image', which no source gives; mine them",
        ),
        (Seen(targets=True), {}, "needs a guide"),
        (Seen(view="plain"), {}, "reads the scores of 'plain', and .* makes: 'inference'"),
        (
            Seen(words=frozenset({"doubt"})),
            {},
            "needs the word tasks 'doubt', which no source gives",
        ),
        (
            Seen(roles=frozenset({Role.WRITTEN})),
            {"sources": [Drawn({Role.WRITTEN}), Proposes()]},
            "Proposes and another source both give pairs in the role of 'written'",
        ),
    ],
)
def test_what_nobody_provides(term: Loss, sources: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        made(term, **sources)


def test_level_is_the_loss_of_equal_scores() -> None:
    batch = cases.batch_of(cases.processor(), [0, 3, 6, 9])
    level = made(HardestTripletLoss(margin=0.3)).level(batch)
    assert level is not None
    assert level.item() == pytest.approx(2 * 4 * 0.3)
    level = made(InfoNCELoss(reduction="mean")).level(batch)
    assert level is not None
    assert level.item() == pytest.approx(math.log(4))
    unknown = made(Seen(roles=frozenset({Role.WRITTEN})), sources=[Proposes()])
    assert unknown.level(batch) is None


def test_sources_are_no_parameters() -> None:
    step = made(Seen(targets=True), sources=[Guided(torch.nn.Linear(2, 2))])
    assert not [name for name, _ in step.named_parameters() if "guide" in name]


class Twofold(RetrievalModel):
    """Every item twice, the second copy shifted, and a view that sees the whole batch."""

    score_names = frozenset({INFERENCE, "copies", "mixed"})
    uses_batch_context = True

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[frozenset[str]] = []

    def encode_images(self, images: ModalityBatch) -> Embeddings:
        tokens = images.values.masked_fill(~images.mask.unsqueeze(2), 0).sum(1, keepdim=True)
        return Embeddings(tokens, images.mask[:, :1])

    def encode_texts(self, texts: ModalityBatch) -> Embeddings:
        tokens = texts.values.masked_fill(~texts.mask, 0).sum(1).float().view(-1, 1, 1)
        return Embeddings(tokens.expand(-1, -1, cases.WIDTH), texts.mask[:, :1])

    def score_pairs(self, images: Embeddings, texts: Embeddings) -> torch.Tensor:
        return (images.tokens * texts.tokens).sum((1, 2))

    def score_matrix(self, images: Embeddings, texts: Embeddings) -> torch.Tensor:
        return images.tokens[:, 0] @ texts.tokens[:, 0].T

    def forward(self, batch: Batch) -> EncodedViews:
        one = EncodedBatch(self.encode_images(batch.images), self.encode_texts(batch.texts))
        return EncodedViews(
            {INFERENCE: one, "copies": EncodedBatch(twice(one.images), twice(one.texts), 2)}
        )

    def batch_forward(
        self, batch: Batch, views: EncodedViews, wanted: frozenset[str]
    ) -> EncodedViews:
        self.asked.append(wanted)
        one = views.inference
        mixed = Embeddings(one.images.tokens + torch.rand(1), one.images.mask)
        return EncodedViews(
            {**views.views, "mixed": EncodedBatch(mixed, one.texts)}, {"own": mixed.tokens.sum()}
        )


def twice(bag: Embeddings) -> Embeddings:
    tokens = torch.stack([bag.tokens, bag.tokens + 1], 1).flatten(0, 1)
    return Embeddings(tokens, bag.mask.repeat_interleave(2, 0))


def test_copies_make_a_larger_grid() -> None:
    term = Seen(view="copies")
    batch = cases.batch_of(cases.processor(), ANCHORS)
    TrainingStep(Twofold(), WeightedSum(terms={"t": (1.0, term)}))(batch)
    grid, (images, texts) = term.scores.matrices["copies"], batch.block
    assert grid.repeats == 2
    assert grid.scores.shape == grid.positive.shape == (2 * images, 2 * texts)
    for i in range(2 * images):
        for t in range(2 * texts):
            assert grid.positive[i, t] == batch.positive[i // 2, t // 2]
    for n, (i, t) in enumerate(zip(batch.anchors.image, batch.anchors.text, strict=True)):
        assert grid.anchor[n] == grid.scores[2 * i : 2 * i + 2, 2 * t : 2 * t + 2].min()


def test_what_sees_the_whole_batch_draws_alike_and_only_when_it_is_judged() -> None:
    model, late = Twofold(), Seen(view="mixed")
    terms = {"now": (1.0, Seen()), "late": (1.0, StartAt(term=late, steps=3))}
    step = TrainingStep(model, WeightedSum(terms=terms), seed=5)
    early = step(cases.batch_of(cases.processor(), ANCHORS, step=2))
    assert early["late"] == 0
    assert "model_own" in early
    state = torch.get_rng_state()
    torch.manual_seed(1)
    once = step(cases.batch_of(cases.processor(), ANCHORS, step=3))
    torch.manual_seed(2)
    assert once == step(cases.batch_of(cases.processor(), ANCHORS, step=3))
    torch.set_rng_state(state)
    assert model.asked == [frozenset({INFERENCE}), *[frozenset({INFERENCE, "mixed"})] * 2]


class Knows(NegativeSource):
    """A guide of the block and of pairs."""

    gives = Needs(targets=True, pair_targets=frozenset(Role))

    def targets(self, batch: Batch) -> torch.Tensor:
        return torch.zeros(batch.block)

    def pair_targets(self, batch: Batch, pairs: Pairs) -> torch.Tensor:
        return (batch.image_rows[pairs.image] * 100 + batch.text_rows[pairs.text]).float()


def test_drawn_pairs_are_guided_where_a_term_asks() -> None:
    term = Seen(pair_targets=frozenset({Role.HARD_TEXT}), roles=frozenset({Role.HARD_TEXT}))
    batch = cases.batch_of(cases.processor(), ANCHORS, offline=True)
    made(term, sources=[Drawn(cases.Offline.provides), Knows()])(batch)
    pairs = batch.pairs[Role.HARD_TEXT]
    rows = batch.image_rows[pairs.image] * 100 + batch.text_rows[pairs.text]
    assert torch.equal(term.scores.guides[Role.HARD_TEXT], rows.float())
    both = Seen(targets=True, pair_targets=term.needs.pair_targets, roles=term.needs.roles)
    with pytest.raises(ValueError, match="too, and no source gives them for drawn pairs"):
        made(both, sources=[Drawn(cases.Offline.provides), Guided(torch.zeros)])
    with pytest.raises(ValueError, match="targets of pairs in the role of 'written' too"):
        made(Seen(pair_targets=frozenset({Role.WRITTEN})), sources=[Knows()])


def test_a_term_draws_the_same_at_the_same_step() -> None:
    term = Seen()
    step = TrainingStep(Twofold(), WeightedSum(terms={"t": (1.0, term)}), seed=5)
    seeds = []
    for number in (0, 1, 0):
        step(cases.batch_of(cases.processor(), ANCHORS, step=number))
        seeds.append(torch.rand(1, generator=step_generator(term.scores, "x")).item())
    assert seeds[0] == seeds[2] != seeds[1]


@pytest.mark.parametrize("kind", ["global", "bag"])
def test_judged_pairs_are_no_negatives_of_a_step_and_extra_positives_have_their_scores(
    kind: str,
) -> None:
    plain = cases.processor()
    related = replace(
        plain.dataset,
        extra_positives=Pairs(torch.tensor([1, 3]), torch.tensor([0, 5])),
        extra_weights=torch.tensor([0.5, 1.0]),
        ambiguous=Pairs(torch.tensor([3]), torch.tensor([1])),
    )
    processor = ProcessorConfig().fit(related).process(related)
    texts = torch.tensor(ANCHORS)
    drawn = {Role.HARD_IMAGE: Pairs(torch.tensor([[1], [2], [0], [0], [0]]), texts.unsqueeze(1))}
    seen = []
    for source in (plain, processor):
        torch.manual_seed(0)
        term = Seen(roles=frozenset(drawn))
        step = made(term, kind, sources=[Drawn(drawn)])
        step(collate(source, texts, negatives=drawn))
        seen.append(term.scores)
    whole, left = (scores.matrices[INFERENCE] for scores in seen)
    # rows are images 0, 1, 2, 3; columns texts 0, 1, 5, 7, 9
    out = torch.zeros_like(whole.scores, dtype=torch.bool)
    for pair in ((1, 0), (3, 2), (3, 1)):
        out[pair] = True
    torch.testing.assert_close(left.scores, whole.scores.masked_fill(out, -torch.inf))
    torch.testing.assert_close(left.anchor, whole.anchor)
    assert whole.extra is None
    assert left.extra is not None
    pairs = [*zip(left.extra.image.tolist(), left.extra.text.tolist())]
    assert pairs == [(1, 0), (3, 2)]
    assert left.extra.weight.tolist() == [0.5, 1.0]
    torch.testing.assert_close(left.extra.score, whole.scores[[1, 3], [0, 2]])
    mined = [scores.pairs[Role.HARD_IMAGE].flatten() for scores in seen]
    assert mined[1].isneginf().tolist() == [True, False, False, False, False]
    torch.testing.assert_close(mined[1][1:], mined[0][1:])
