"""Plans of negatives measured before training, each number against a slow loop; the page."""

from __future__ import annotations

import json
import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm
from scipy.stats import kendalltau
from sklearn.metrics import average_precision_score

from benchmarks.predict import __main__ as command
from benchmarks.predict import page, plans, score
from benchmarks.predict.plans import LEDGERS, Bench
from benchmarks.predict.score import Frozen, Plan, predict, pull, step_direction
from counterfoil.core.types import Role
from counterfoil.data.dataset import Relation
from counterfoil.losses.contrastive import InfoNCEWithCandidatesLoss
from counterfoil.negatives.sampling import RandomNegativeSampler

DOCS = Path(__file__).parents[3] / "docs"
T = 0.1


@pytest.fixture
def frozen() -> Frozen:
    """Ten images with two captions each, in five dimensions."""
    rng = torch.Generator().manual_seed(0)
    images, texts = (
        torch.nn.functional.normalize(torch.randn(n, 5, generator=rng), dim=1) for n in (10, 20)
    )
    owner = torch.arange(10).repeat_interleave(2)
    true = torch.arange(10).unsqueeze(1) == owner
    true |= torch.rand(true.shape, generator=rng) < 0.1
    same = torch.arange(20)
    same[5] = same[1]
    return Frozen(images, texts, owner, true, same)


class Drawn:
    """A random wrong text and image of each anchor, remembered."""

    def __init__(self, frozen: Frozen) -> None:
        self.sampler = RandomNegativeSampler(relation=Relation(frozen.owner, images=10))
        self.provides, self.log = self.sampler.provides, []

    def draw(self, texts, rng):
        pairs = self.sampler.draw(texts, rng)
        self.log.append((texts, pairs))
        return pairs


def test_a_pull_is_what_a_loop_over_anchors_gives(frozen):
    """InfoNCE with a drawn text and image: pushes, direction, hardness, shares and entropy."""
    loss = InfoNCEWithCandidatesLoss(
        texts=("hard text",), images=("hard image",), temperature=T, reduction="mean"
    )
    drawn = Drawn(frozen)
    found = pull(frozen, Plan(loss, 4, drawn), seed=3)
    x, y = frozen.images.double(), frozen.texts.double()
    direction, pushes = torch.zeros(5, 5).double(), []
    seen = []
    for rows, pairs in drawn.log:
        for start in range(0, len(rows), 4):
            batch = rows[start : start + 4].tolist()
            seen += batch
            for place, text in enumerate(batch):
                image = int(frozen.owner[text])
                at = start + place
                own = float(x[image] @ y[text])
                others = [
                    t
                    for t in batch
                    if frozen.owner[t] != image and frozen.same[t] != frozen.same[text]
                ]
                hard_text = int(pairs[Role.HARD_TEXT].text[at, 0])
                hard_image = int(pairs[Role.HARD_IMAGE].image[at, 0])
                sides = (
                    [(image, t) for t in [*others, hard_text]],
                    [(i, text) for i in [*(int(frozen.owner[t]) for t in others), hard_image]],
                )
                mine = []
                for side in sides:
                    grown = [math.exp(float(x[i] @ y[t]) / T) for i, t in side]
                    whole = sum(grown) + math.exp(own / T)
                    for (i, t), weight in zip(side, grown, strict=True):
                        push = weight / whole / 2 / T
                        mine.append((push, float(x[i] @ y[t]) - own, bool(frozen.true[i, t]), i, t))
                        direction -= push * torch.outer(x[i], y[t])
                        direction += push * torch.outer(x[image], y[text])
                pushes.append((text, mine))
    assert sorted(seen) == list(range(20))
    flat = [one for _, mine in pushes for one in mine]
    total = sum(one[0] for one in flat)
    torch.testing.assert_close(found.direction.double(), direction, rtol=1e-4, atol=1e-4)
    assert found.false_share == pytest.approx(100 * sum(p for p, _, t, *_ in flat if t) / total)
    wrong = (x @ y.T)[~frozen.own].std()
    assert float(wrong) == pytest.approx(score.spread(frozen), rel=1e-5)


def test_hardness_and_effective_negatives_of_one_wrong_pair():
    """Of two anchors whose wrong pairs score 0.5 and 0.1 both push by what the loss says."""
    images = torch.eye(2)
    texts = torch.tensor([[0.8, 0.5], [0.1, 0.9]])
    every = torch.eye(2, dtype=torch.bool)
    frozen = Frozen(images, texts, torch.arange(2), every, torch.arange(2))
    found = pull(frozen, Plan(plans.info_nce({"temperature": T}), 2))
    scores = images @ texts.T  # image 0: 0.8, 0.1; image 1: 0.5, 0.9
    pushed = harder = entropy = 0.0
    weights = torch.zeros(2, 2)
    for i, j in ((0, 1), (1, 0)):
        for anchor in (i, j):  # in the image's row, and in the text's column
            own = float(scores[anchor, anchor])
            weights[i, j] += 1 / (1 + math.exp((own - float(scores[i, j])) / T))
    for i, j in ((0, 1), (1, 0)):
        pushed += float(weights[i, j])
        harder += float(weights[i, j] * (scores[i, j] - scores[i, i]))
    spread = float(scores[~every].std())
    assert found.hardness == pytest.approx(harder / pushed / spread, rel=1e-4)
    share = weights[0, 1] / weights.sum()
    entropy = -float(share * share.log() + (1 - share) * (1 - share).log())
    assert found.effective == pytest.approx(math.exp(entropy), rel=1e-4)
    assert found.false_share == 0


def test_masks_leave_pairs_out(frozen):
    nothing = pull(frozen, Plan(plans.info_nce({"temperature": T}), 20))
    apart = pull(
        frozen,
        Plan(
            plans.info_nce({"temperature": T}), 20, mask=lambda i, t, s, own: frozen.true[i][:, t]
        ),
    )
    assert nothing.false_share > 0
    assert apart.false_share == 0
    limit = plans._by_score(0.0)
    scores = torch.tensor([[0.5, 0.6], [0.2, 0.55]])
    own = torch.eye(2, dtype=torch.bool)
    # 0.6 is above both true pairs of its row and column
    assert limit(torch.arange(2), torch.arange(2), scores, own).tolist() == [
        [False, True],
        [False, False],
    ]


def test_the_step_is_half_whitened(frozen):
    found = pull(frozen, Plan(plans.info_nce({"temperature": T}), 20))
    sides = []
    for vectors in (frozen.images.double().numpy(), frozen.texts.double().numpy()):
        moments = vectors.T @ vectors / len(vectors)
        ridge = score.RIDGE * np.trace(moments) / 5 * np.eye(5)
        sides.append(np.linalg.inv(sqrtm(moments + ridge).real))
    direction = sides[0] @ found.direction.double().numpy() @ sides[1]
    expected = direction / np.linalg.norm(direction)
    np.testing.assert_allclose(step_direction(frozen, found).numpy(), expected, atol=1e-4)


def test_a_prediction_is_the_best_of_its_steps(frozen):
    """Recall by counting, and precision by scikit-learn, after each step."""
    found = pull(frozen, Plan(plans.info_nce({"temperature": T}), 20))
    said = predict(frozen, frozen, found)
    start, change = frozen.images @ frozen.texts.T, step_direction(frozen, found)
    change = frozen.images @ change @ frozen.texts.T
    rsums = []
    for step in score.STEPS:
        scores, total = start + step * change, 0.0
        for k in (1, 5, 10):
            for i in range(10):
                best = max(float(scores[i, t]) for t in range(20) if frozen.owner[t] == i)
                above = sum(
                    1 for t in range(20) if frozen.owner[t] != i and float(scores[i, t]) >= best
                )
                total += 100 / 10 * (above < k)
            for t in range(20):
                own = float(scores[frozen.owner[t], t])
                above = sum(
                    1 for i in range(10) if i != frozen.owner[t] and float(scores[i, t]) >= own
                )
                total += 100 / 20 * (above < k)
        rsums.append(total)
    assert said.rsum == pytest.approx(max(rsums))
    assert said.step == score.STEPS[rsums.index(max(rsums))]
    moved = start + said.step * change
    total = 0.0
    for block, true, own in (
        (moved, frozen.true, frozen.own),
        (moved.T, frozen.true.T, frozen.own.T),
    ):
        each = [
            average_precision_score(t[~o].numpy(), s[~o].numpy())
            for s, t, o in zip(block, true, own, strict=True)
            if bool((t & ~o).any())
        ]
        total += 50 * sum(each) / len(each)
    assert said.precision == pytest.approx(total, rel=1e-5)


def test_correlations_are_kendalls(frozen):
    rng = torch.Generator().manual_seed(0)
    said, means = torch.randint(4, (9,), generator=rng).double(), torch.randn(9, generator=rng)
    rows = [{seed: float(mean) for seed in (2, 3)} for mean in means]
    part = page._Part(page.pairs_of(rows), said, torch.tensor([1.0] * 4 + [2.0] * 5))
    tau = page._tau([part], within=False)
    assert len(tau) == 1 + page.RESAMPLES
    assert float(tau[0]) == pytest.approx(kendalltau(said, means).statistic)
    assert torch.equal(tau, tau[:1].expand_as(tau))  # seeds agree
    agree = ties = pairs = 0
    for one, other in combinations(range(9), 2):
        if (one < 4) == (other < 4):
            order = np.sign(float(said[one] - said[other])) * np.sign(
                float(means[one] - means[other])
            )
            agree, ties, pairs = agree + order, ties + (order == 0), pairs + 1
    within = page._tau([part], within=True)
    assert float(within[0]) == pytest.approx(agree / math.sqrt((pairs - ties) * pairs))


def test_seeds_are_drawn_anew():
    """Two arms that win three of four seeds each way: the order of their means varies."""
    pairs = page.pairs_of([{2: 1.0, 3: 1.0, 4: 1.0, 5: 0.0}, {2: 0.0, 3: 0.0, 4: 0.0, 5: 2.5}])
    assert pairs.sign[0].tolist() == [1.0]
    share = float((pairs.sign[1:] > 0).double().mean())
    # the first wins unless the fourth seed is drawn twice or more: 1 - 0.75^4 - 0.75^3
    assert share == pytest.approx(0.75**4 + 0.75**3, abs=0.04)


def test_plans_of_a_small_bed_are_measured(bed, tmp_path, monkeypatch, capsys):
    few = tuple(ledger for ledger in LEDGERS if ledger.name == "methods")
    monkeypatch.setattr(command, "LEDGERS", few)
    call = ["measure", str(bed.folder), "--as", "towers", "--folder", str(tmp_path)]
    assert command.main(call) == 0
    found = json.loads((tmp_path / "methods.json").read_text())
    assert list(found) == list(few[0].plans(Bench(bed.folder)))
    for numbers in found.values():
        assert numbers["batch"] == 512
        assert numbers["rsum"] >= 0
    capsys.readouterr()
    assert command.main(["table", str(tmp_path), "--ledgers", str(DOCS)]) == 0
    assert "| methods (chosen on) | dev RSum | one batch | 10 |" in capsys.readouterr().out
    assert command.main(["table", str(tmp_path / "none")]) == 2
    assert "run `measure` first" in capsys.readouterr().err


def test_every_plan_is_a_row_of_its_ledger(bed):
    for ledger in LEDGERS:
        numbers = page.seeds_of(DOCS, ledger)
        rows = ledger.plans(Bench(bed.folder))
        assert set(rows) <= set(numbers), ledger.name
        assert all(len(numbers[row]["dev RSum"]) >= 6 for row in rows), ledger.name


def test_the_page_shows_its_ledger():
    """What was measured is kept; correlations come anew from it and from the ledgers."""
    known = json.loads((DOCS / page.SUMMARY).read_text("utf-8"))
    _, inside, _ = page.shown((DOCS / page.PAGE).read_text("utf-8"))
    assert inside.strip() == page.table(known)
    again = page.summary(DOCS, known["plans"])
    assert again["claims"] == known["claims"]
    assert again["picks"] == known["picks"]
