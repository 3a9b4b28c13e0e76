"""A judge of mined pairs against loops over all of them."""

from __future__ import annotations

import pytest
import torch

import engine_cases as cases
from corpus_cases import small_corpus
from counterfoil.core.types import Pairs
from counterfoil.data.corrections import apply_corrections
from counterfoil.negatives.judging import JudgeConfig, JudgedNegatives, judge_negatives
from counterfoil.negatives.store import HardNegativeLists
from negatives_cases import ragged, random_lists


def slow(scores, text_to_image, lists) -> dict[tuple[int, int], float]:
    """The quantile that each listed pair reaches, pair after pair."""
    s = scores.tolist()
    true = sorted(s[image][text] for text, image in enumerate(text_to_image) if image >= 0)
    median = true[(len(true) - 1) // 2]
    pairs = {(image, text) for image, row in enumerate(lists.texts.tolist()) for text in row}
    pairs |= {(image, text) for text, row in enumerate(lists.images.tolist()) for image in row}
    found = {}
    for image, text in sorted(pair for pair in pairs if min(pair) >= 0):
        own = text_to_image[text]
        lead = s[image][text] - s[own][text] if own >= 0 else float("-inf")
        found[image, text] = sum(one - median < lead for one in true) / len(true)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_quantiles_equal_a_loop_and_each_pair_is_judged_once(seed):
    relation = ragged(9, seed=seed, orphans=2)
    lists = random_lists(relation, 6, 4, seed=seed)
    lists.texts[0, 3:] = -1
    rng = torch.Generator().manual_seed(seed)
    # whole numbers, so that differences are exact and many are equal
    scores = torch.randint(12, (9, len(relation.text_to_image)), generator=rng).float()
    judged = judge_negatives([cases.given(scores)], relation, lists)
    expected = slow(scores, relation.text_to_image.tolist(), lists)
    assert [*zip(judged.pairs.image.tolist(), judged.pairs.text.tolist())] == [*expected]
    torch.testing.assert_close(judged.quantile, torch.tensor([*expected.values()]))
    assert torch.equal(judged.scores, scores[judged.pairs.image, judged.pairs.text])


def test_any_units_of_scores_give_the_same_verdicts_and_equal_scores_none():
    relation = ragged(9)
    lists = random_lists(relation, 6, 4)
    rng = torch.Generator().manual_seed(0)
    scores = torch.randint(12, (9, len(relation.text_to_image)), generator=rng).float()
    plain, scaled, flat = (
        judge_negatives([cases.given(given)], relation, lists).quantile
        for given in (scores, 8 * scores - 16, torch.ones_like(scores))
    )
    assert torch.equal(plain, scaled)
    assert not flat.any()


def test_verdicts_are_corrections_that_apply_to_the_data():
    dataset = small_corpus((1, 1, 1))
    pairs = Pairs(torch.tensor([0, 1, 2]), torch.tensor([1, 2, 0]))
    judged = JudgedNegatives(pairs, torch.zeros(3), torch.tensor([0.95, 0.6, 0.4]), None)
    config = JudgeConfig(promote_at=0.9, drop_at=0.5, weight=0.25)
    corrections = judged.corrections(dataset, config)
    assert [one.to_dict() for one in corrections] == [
        {"do": "true", "image": "a0", "caption": "a1#0", "was": dataset.texts[1], "weight": 0.25},
        {"do": "drop", "image": "a1", "caption": "a2#0", "was": dataset.texts[2]},
    ]
    left = apply_corrections(dataset, corrections)
    assert (left.extra_positives.image.tolist(), left.extra_weights.tolist()) == ([0], [0.25])
    assert (left.ambiguous.image.tolist(), left.ambiguous.text.tolist()) == ([1], [2])


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"drop_at": 0.0}, "drop_at=0.0 and promote_at=0.95"),
        ({"promote_at": 1.01}, "quantiles above 0 and at most 1"),
        ({"drop_at": 0.9, "promote_at": 0.8}, "drop_at may not be above promote_at"),
        ({"drop_at": float("nan")}, "drop_at=nan"),
        ({"weight": 0.0}, "weight=0.0: a number above 0"),
        ({"weight": 2.0}, "at most 1"),
    ],
)
def test_settings_out_of_range_are_refused(settings, complaint):
    with pytest.raises(ValueError, match=complaint):
        JudgeConfig(**settings)


def test_a_judge_and_lists_of_other_data_are_refused():
    relation = ragged(9)
    lists = random_lists(relation, 6, 4)
    texts = len(relation.text_to_image)
    with pytest.raises(ValueError, match=f"judge encoded 8 images and {texts} texts, but 9 images"):
        judge_negatives([cases.given(torch.zeros(8, texts))], relation, lists)
    with pytest.raises(ValueError, match="mine them again from this corpus"):
        judge_negatives([cases.given(torch.zeros(9, texts))], ragged(9, orphans=1), lists)
    own = HardNegativeLists(
        relation.captions(torch.arange(9))[0][:9].int().view(9, 1), lists.images
    )
    with pytest.raises(ValueError, match="pairs that are true in this corpus"):
        judge_negatives([cases.given(torch.zeros(9, texts))], relation, own)
    nan = torch.full((9, texts), float("nan"))
    with pytest.raises(ValueError, match=r"score of image \d+ and text \d+ is not a number|NaN"):
        judge_negatives([cases.given(nan)], relation, lists)
