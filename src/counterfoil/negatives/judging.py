"""A judge of mined negatives: which are true after all, as corrections of the data.

The hardest negatives are the first to be true. A model, best one that reads image and text together,
scores every mined pair and every caption with its own image. A pair that scores as high as true
pairs of the same image and text is *promoted* to an extra positive; one that scores higher than the
lowest of them is *dropped*, so that it is neither a negative nor a positive. The corrections are
data (`counterfoil.data.corrections`), for people to review and for every training to honour.
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
from counterfoil.negatives.store import HardNegativeLists
from counterfoil.scoring.encode import EmbeddedDataset
from counterfoil.scoring.pairs import RescoredPairs, score_index_pairs

_AT_ONCE = 2**18  # pairs compared with their true pairs at once
WEIGHT_DIGITS = 3


@final
@dataclass(frozen=True, kw_only=True)
class JudgeConfig:
    """Where a judge draws the lines.

    A pair is compared with the true pairs of its image and of its text: the image's own captions,
    and the text with its own image. Its *share* is the share of these that score at most as high.

    Attributes:
        promote_at: a pair with this share or more is an extra positive, whose weight is the share:
            its score is at least this quantile of the true pairs'.
        drop_at: another pair with this share or more is left out of the negatives.

    Raises:
        ValueError: not 0 < `drop_at` <= `promote_at` <= 1.
    """

    promote_at: float = 0.5
    drop_at: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.drop_at <= self.promote_at <= 1:
            raise ValueError(
                f"drop_at={self.drop_at} and promote_at={self.promote_at}: quantiles above 0 and "
                "at most 1 are needed, and pairs are dropped no later than promoted"
            )


@final
@dataclass(frozen=True, slots=True, eq=False)
class JudgedNegatives:
    """P mined pairs, each once, with the share of true pairs that they reach.

    Attributes:
        pairs: (P,) rows, in order of image and then of text.
        scores: (P,) float32, by the judge.
        share: (P,) float32, of the true pairs of the same image and text that score at most as
            high; -1 where there is none to compare with.
    """

    pairs: Pairs
    scores: Tensor
    share: Tensor

    def promoted(self, config: JudgeConfig) -> Tensor:
        """(P,) bool, pairs that are extra positives."""
        return self.share >= config.promote_at

    def dropped(self, config: JudgeConfig) -> Tensor:
        """(P,) bool, pairs that are neither negatives nor positives."""
        return (self.share >= config.drop_at) & ~self.promoted(config)

    def corrections(self, dataset: ImageTextDataset, config: JudgeConfig) -> tuple[Correction, ...]:
        """The promoted and dropped pairs as corrections of the judged data set."""
        found = []
        decided = (self.promoted(config) | self.dropped(config)).nonzero().squeeze(1)
        for place in decided.tolist():
            image, text = int(self.pairs.image[place]), int(self.pairs.text[place])
            true = bool(self.share[place] >= config.promote_at)
            found.append(
                Correction(
                    "true" if true else "drop",
                    dataset.image_ids[image],
                    dataset.text_ids[text],
                    dataset.texts[text],
                    weight=round(float(self.share[place]), WEIGHT_DIGITS) if true else 1.0,
                )
            )
        return tuple(found)


def judge_negatives(
    members: Sequence[EmbeddedDataset],
    relation: Relation,
    lists: HardNegativeLists,
    *,
    device: torch.device | str | None = None,
) -> JudgedNegatives:
    """Score all pairs of mined lists, each once, and the true pairs to compare them with.

    Collective: the processes share the pairs, so all of them must call it.

    Args:
        members: the judge, with its encodings of the data set; the mean score of several counts.
        relation: image of each text of the data set.
        lists: mined from it.
        device: where to compute, see `stream_scores`.

    Raises:
        ValueError: the lists or the encodings are of another data set, or a score is not a number.
    """
    lists.check(relation)
    for member in members:
        if (len(member.images), len(member.texts)) != (len(lists.texts), len(lists.images)):
            raise ValueError(
                f"the judge has encoded {len(member.images)} images and {len(member.texts)} texts, "
                f"but the lists are of {len(lists.texts)} and {len(lists.images)}; encode the same "
                "split with it"
            )
    mined = RescoredPairs(members, lists.texts, lists.images, device=device)
    captions, counts = relation.captions(relation.rows())
    owners = relation.rows().repeat_interleave(counts)
    true = score_index_pairs(members, owners, captions, device=device)
    return JudgedNegatives(*mined.pairs, _shares(relation, *mined.pairs, captions, true))


def _shares(
    relation: Relation, pairs: Pairs, scores: Tensor, captions: Tensor, true: Tensor
) -> Tensor:
    """(P,) share of true pairs at or below each score; -1 without any.

    Args:
        relation: of the data set.
        pairs: (P,) rows.
        scores: (P,) of these pairs.
        captions: all captions of all images, image after image.
        true: their scores with their own images.
    """
    counts = relation.counts
    owners = relation.rows().repeat_interleave(counts)
    # one row an image; inf, which no score reaches, fills the rows of images with fewer captions
    own = torch.full((relation.images, int(counts.max())), torch.inf)
    place = torch.arange(len(captions)) - (counts.cumsum(0) - counts)[owners]
    own[owners, place] = true
    of_text = torch.full((len(relation.text_to_image),), torch.inf)
    of_text[captions] = true
    reached = torch.cat(
        [
            (own[image] <= score.unsqueeze(1)).sum(1) + (of_text[text] <= score)
            for image, text, score in zip(
                *(part.split(_AT_ONCE) for part in (pairs.image, pairs.text, scores)), strict=True
            )
        ]
    )
    number = counts[pairs.image] + (relation.text_to_image[pairs.text] >= 0)
    return torch.where(number > 0, reached / number.clamp(min=1), -1.0)
