"""List lengths, margin and re-mining period from the size of the data and of the batch.

Not in a paper: what the experiments of counterfoil measured (docs/results/aoq.md), as a rule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

LONGEST, SHORTEST = (300, 60), (20, 5)  # texts of an image, images of a text; AOQ's, section 4.1
SHARE = 0.01  # of the data; Flickr8k's training split has AOQ's lengths


@final
@dataclass(frozen=True, slots=True)
class MiningAdvice:
    """Settings of mining and of the loss on mined negatives, with the reasons.

    Attributes:
        texts: hardest texts to list for each image.
        images: hardest images to list for each text.
        rank: mean rank, among all wrong captions, of the hardest one in a batch.
        pays: whether the batch rarely holds a caption of the lists; only then did they help.
        reasons: a sentence for each choice.
    """

    texts: int
    images: int
    rank: float
    pays: bool
    reasons: tuple[str, ...]


def advise_mining(captions: int, images: int, *, batch: int = 0) -> MiningAdvice:
    """Choose the settings for a split of so many captions and images.

    Args:
        captions: of the split.
        images: of the split.
        batch: captions in a batch of the training; 0 if there is none.

    >>> advice = advise_mining(30_000, 6_000, batch=8)
    >>> advice.texts, advice.images, round(advice.rank), advice.pays
    (300, 60, 3750, True)
    >>> advise_mining(30_000, 6_000, batch=128).pays
    False
    """
    lengths = [
        min(max(round(SHARE * count), shortest), longest, max(count - 1, 1))
        for count, shortest, longest in zip((captions, images), SHORTEST, LONGEST, strict=True)
    ]
    texts, per_text = lengths
    # of B - 1 wrong captions drawn from T - 1, the hardest has a mean rank of T / B
    rank = captions / batch if batch else 1.0
    pays = rank > texts
    reasons = [
        f"Lists of {texts:,} captions an image and {per_text:,} images a caption: 1 % of "
        f"{captions:,} captions and {images:,} images, within {SHORTEST[0]} to {LONGEST[0]} and "
        f"{SHORTEST[1]} to {LONGEST[1]}."
    ]
    if batch:
        where = "beyond the lists, where" if pays else "in the lists, where no gain of"
        measured = "mined negatives were measured to help" if pays else "mining was measured"
        reasons.append(
            f"The hardest wrong caption in a batch of {batch:,} has a mean rank of {rank:,.0f}, "
            f"{where} {measured}."
        )
        reasons.append(
            "Margin 0 on mined negatives (0.2 cost 21 points of RSum); they are mined once."
        )
    return MiningAdvice(texts, per_text, rank, pays, tuple(reasons))
