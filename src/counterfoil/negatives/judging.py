"""A judge of mined negatives: which are true after all, as corrections of the data.

The hardest negatives are the first to be true. A model, at best one that reads image and text
together, scores every mined pair and every caption with its own image. A pair that scores well
above the true pair of its text is *promoted* to an extra positive; another one that scores as high
as the true pair is *dropped*, so that it is neither a negative nor a positive. The verdicts are
corrections (`counterfoil.data.corrections`), for people to review and for training to apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from counterfoil.core.types import Pairs
from counterfoil.data.corrections import Correction
from counterfoil.data.dataset import ImageTextDataset, Relation
from counterfoil.negatives.mining import scored_lists
from counterfoil.negatives.store import HardNegativeLists
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.pairs import RescoredPairs, score_index_pairs


@final
@dataclass(frozen=True, kw_only=True)
class JudgeConfig:
    """Thresholds of a judge, as quantiles of the scores of true pairs.

    A pair of a text with another image is compared with the true pair of the text: general captions
    score low with every image, their own among them. At quantile q it has to score at least as high
    as the true pair would if that stood at q, and not at the median, of all true pairs: q = 0.5
    asks for the score of the true pair, 0.9 for more by the 0.9 quantile of all true scores less
    their median, whatever the units of a score.

    Attributes:
        promote_at: a pair that reaches this quantile is an extra positive.
        drop_at: another pair that reaches this quantile is left out of the negatives.
        weight: of the extra positives in training; the share of them that is true is a good one.

    Raises:
        ValueError: not 0 < `drop_at` <= `promote_at` <= 1, or a weight outside 0 to 1.
    """

    promote_at: float = 0.95
    drop_at: float = 0.5
    weight: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.drop_at <= self.promote_at <= 1:
            raise ValueError(
                f"drop_at={self.drop_at} and promote_at={self.promote_at}: quantiles above 0 and "
                "at most 1 are needed, and drop_at may not be above promote_at"
            )
        if not 0 < self.weight <= 1:
            raise ValueError(f"weight={self.weight}: a number above 0 and at most 1 is needed")


@final
@dataclass(frozen=True, slots=True, eq=False)
class JudgedNegatives:
    """P mined pairs, each once.

    Attributes:
        pairs: (P,) rows, in order of image and then of text.
        scores: (P,) float32, by the judge.
        quantile: (P,) float32, the share of all true pairs that each outscores so, see
            `JudgeConfig`; 0 for a text without an image.
        lists: the judged lists in the judge's order, with its scores, those of true pairs among
            them: what `counterfoil.training.mined.MinedTeacher` learns from.
    """

    pairs: Pairs
    scores: Tensor
    quantile: Tensor
    lists: HardNegativeLists

    def promoted(self, config: JudgeConfig) -> Tensor:
        """(P,) bool, pairs that are extra positives."""
        return self.quantile >= config.promote_at

    def dropped(self, config: JudgeConfig) -> Tensor:
        """(P,) bool, pairs that are neither negatives nor positives."""
        return (self.quantile >= config.drop_at) & ~self.promoted(config)

    def corrections(self, dataset: ImageTextDataset, config: JudgeConfig) -> tuple[Correction, ...]:
        """The promoted and the dropped pairs as corrections of the judged data set."""
        promoted = self.promoted(config)
        places = (promoted | self.dropped(config)).nonzero().squeeze(1)
        columns = (self.pairs.image, self.pairs.text, promoted)
        return tuple(
            Correction(
                "true" if true else "drop",
                dataset.image_ids[image],
                dataset.text_ids[text],
                dataset.texts[text],
                weight=config.weight if true else 1.0,
            )
            for image, text, true in zip(
                *(column[places].tolist() for column in columns), strict=True
            )
        )


def judge_negatives(
    members: Sequence[EmbeddedDataset], relation: Relation, lists: HardNegativeLists
) -> JudgedNegatives:
    """Score all pairs of mined lists, each once, and the true pairs to compare them with.

    Collective: the processes share the pairs, so all of them must call it.

    Args:
        members: the judge, with its encodings of the data set; the mean score of several counts.
        relation: image of each text of the data set.
        lists: mined from it.

    Raises:
        ValueError: the lists or the encodings are of another data set, or a score is not a number.
    """
    lists = lists.checked(relation)
    for member in members:
        member.check_sizes(len(lists.texts), len(lists.images), "the judge")
    rescored = RescoredPairs(members, lists.texts, lists.images)
    pairs, scores = rescored.pairs
    captions, counts = relation.captions(relation.rows())
    images = relation.rows().repeat_interleave(counts)
    true = score_index_pairs(members, images, captions)
    own = torch.full((len(relation.text_to_image),), torch.inf)  # of a text without an image
    own[captions] = true
    scored = scored_lists(
        rescored.best("image", lists.texts.shape[1]),
        rescored.best("text", lists.images.shape[1]),
        true=own.masked_fill(own.isposinf(), -torch.inf),
    )
    # by how much each pair outscores the true one, as a place among the true pairs
    lead, ordered = scores - own[pairs.text], true.sort().values
    if not len(true):
        return JudgedNegatives(pairs, scores, torch.zeros_like(scores), scored)
    # strictly above: a judge that scores all pairs alike reaches nothing
    place = torch.searchsorted(ordered, lead + true.median())
    return JudgedNegatives(pairs, scores, place / len(true), scored)
