"""Filters against false negatives: what looks too true to be mined as wrong.

An image is described by more captions than its own. The hardest "wrong" captions of a good model
are the first to be true, so lists are mined with the suspects left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, final

import torch

from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.meanings import Meanings
from counterfoil.engine.sweep import Reducer
from counterfoil.engine.tiles import Member, Side
from counterfoil.engine.topk import TopK
from counterfoil.negatives.duplicates import check_least, near_pictures, near_vectors
from counterfoil.negatives.exclusions import Exclusions, of_captions, of_pictures
from counterfoil.negatives.filtered import Filtered, Guides, Window
from counterfoil.negatives.wording import near_captions

Positive = Literal["lowest", "highest"]
_LATER = {"later": True}  # of a field that says nothing at its default, so older runs keep digests


@final
@dataclass(frozen=True, kw_only=True)
class FilterPlan:
    """What to leave out of mined lists, besides an image's own captions; all off by default.

    A *positive* is the score of a true pair. A text has one, with the image it describes. An image
    has one for each of its captions, and a single number stands for them: by default the lowest,
    because a text that scores like the least likely true caption may be just as true, and leaving
    out a good negative costs one of many while keeping a true one trains against the truth.
    Anchors without a true pair have no limit.

    Filters are applied in the order in which they stand here; all but `skip` look at one pair at a
    time, so only the place of `skip` matters: it counts what the others have left.

    Attributes:
        captions: leave out a text of which the TF-IDF cosine with any caption of the image is at
            least this, see `counterfoil.negatives.wording`.
        pictures: leave out all captions of an image of which the cosine of features (of grey
            thumbnails, for a corpus of pictures) with the image is at least this, see
            `counterfoil.negatives.duplicates.looks`.
        meanings: leave out a text of which the cosine with any caption of the image is at least
            this, by a sentence encoder.
        encoder: that encoder, see `counterfoil.corpus.meanings.Meanings`.
        lowest: leave out scores below this.
        highest: leave out scores above this.
        below_positive: leave out scores above the anchor's positive less this.
        below_share: leave out scores above this share of the anchor's positive p, that is above
            p - (1 - share) |p| (NV-Retriever, https://arxiv.org/abs/2407.15831, "TopK-PercPos",
            for scores of either sign).
        guided: leave out pairs that a guide model scores above its own positive less this
            (GISTEmbed, https://arxiv.org/abs/2402.16829, where it is 0).
        positive: which of an image's positives stands for it, "lowest" or "highest".
        skip: leave out the so many hardest of what is left.

    Raises:
        ValueError: a number out of range.

    >>> FilterPlan(captions=0.6, skip=5).in_words()
    ('texts within TF-IDF cosine 0.6 of a caption of the image', 'the 5 hardest of the rest')
    """

    captions: float | None = None
    pictures: float | None = None
    meanings: float | None = field(default=None, metadata=_LATER)
    encoder: str | None = field(default=None, metadata=_LATER)
    lowest: float | None = None
    highest: float | None = None
    below_positive: float | None = None
    below_share: float | None = None
    guided: float | None = None
    positive: Positive = "lowest"
    skip: int = 0

    def __post_init__(self) -> None:
        for name in (f.name for f in fields(self)):
            given = getattr(self, name)
            if isinstance(given, float | int) and not math.isfinite(given):
                raise ValueError(f"{name}={given}: a finite number is needed")
        for name in ("captions", "pictures", "meanings"):
            if getattr(self, name) is not None:
                check_least(name, getattr(self, name))
        if self.lowest is not None and self.highest is not None and self.lowest > self.highest:
            raise ValueError(
                f"lowest={self.lowest} is above highest={self.highest}, so nothing is between them"
            )
        if self.below_share is not None and self.below_share <= 0:
            raise ValueError(f"below_share={self.below_share}: above 0 is needed, as in 0.95")
        if self.positive not in ("lowest", "highest"):
            raise ValueError(f"positive={self.positive!r} is unknown; use lowest or highest")
        if self.skip < 0:
            raise ValueError(f"skip={self.skip}: 0 or more are skipped")

    @property
    def needs_guide(self) -> bool:
        """Whether a guide model has to score the pairs too."""
        return self.guided is not None

    @property
    def judges_scores(self) -> bool:
        """Whether more than captions and pictures are compared."""
        return self != FilterPlan(
            captions=self.captions,
            pictures=self.pictures,
            meanings=self.meanings,
            encoder=self.encoder,
            positive=self.positive,
        )

    def in_words(self) -> tuple[str, ...]:
        """What is left out, in order, for the manifest of a store; nothing where all is off."""
        own = f"the anchor's {self.positive} positive"
        encoder = (self.encoder or "").replace("{", "{{").replace("}", "}}")
        said = (
            (self.captions, "texts within TF-IDF cosine {} of a caption of the image"),
            (self.pictures, "captions of pictures within cosine {} of the image"),
            (self.meanings, f"texts within cosine {{}} of a caption of the image, by {encoder}"),
            (self.lowest, "scores below {}"),
            (self.highest, "scores above {}"),
            (self.below_positive, f"scores above {own} less {{}}"),
            (self.below_share, f"scores above {{}} of {own}"),
            (self.guided, f"pairs that the guide scores above {own} less {{}}"),
            (self.skip or None, "the {} hardest of the rest"),
        )
        return tuple(words.format(value) for value, words in said if value is not None)


@final
class Filters:
    """A plan made ready for a corpus: near duplicates are found, guides have encoded it.

    Attributes:
        plan: what is left out.
        excluded: pairs that are never negatives, those that somebody found true among them, or
            None.
    """

    def __init__(
        self,
        plan: FilterPlan,
        corpus: Corpus,
        *,
        guides: Sequence[Member] = (),
        device: torch.device | str | None = None,
    ) -> None:
        """See `filters_of`."""
        check_encoder(plan)
        _check_guides(plan, corpus, guides)
        self.plan, self.excluded = plan, _exclusions(plan, corpus, device)
        self._owner = corpus.owner
        self._guides = Guides(guides) if guides else None

    def on(self, side: Side, reducer: Reducer) -> Reducer:
        """A reducer that shows another one only what passes; that one keeps the results.

        `Filtered.inner` is the reducer that sees the tiles: the given one or, where the plan skips,
        a `TopK` with room for what is skipped, whose lists are cut and handed over by `merge`. A
        plan that leaves nothing out gives back the reducer.

        Args:
            side: who asks: the anchors whose positives limit their negatives.
            reducer: sees -inf in place of what is left out and of true pairs. Its own look ahead is
                not passed on.

        Raises:
            ValueError: the plan skips, and the reducer is no `TopK`.
        """
        plan = self.plan
        if not plan.in_words() and self.excluded is None:
            return reducer
        if plan.skip and not isinstance(reducer, TopK):
            raise ValueError(
                f"skip={plan.skip} leaves out the hardest of ranked lists, and "
                f"{type(reducer).__name__} keeps none; use it with TopK"
            )
        window = Window(
            plan.lowest, plan.highest, plan.below_positive, plan.below_share, plan.guided
        )
        return Filtered(
            side,
            reducer,
            self._owner,
            window,
            excluded=self.excluded,
            guides=self._guides,
            reduce="amin" if plan.positive == "lowest" else "amax",
            skip=plan.skip,
        )


def filters_of(
    plan: FilterPlan,
    corpus: Corpus,
    *,
    guides: Sequence[Member] = (),
    device: torch.device | str | None = None,
) -> Filters:
    """Make a plan ready for the split that is mined.

    Args:
        plan: what to leave out.
        corpus: the images and texts whose rows are mined.
        guides: models that have encoded this corpus, for `FilterPlan.guided`; the mean of their
            scores counts. They compute where the tiles are.
        device: where near pictures are looked for.

    Raises:
        ValueError: a guide or an encoder is missing, not asked for, of another corpus or not to be
            opened; captions without words, or images without pictures or features, where they have
            to be compared.
    """
    return Filters(plan, corpus, guides=guides, device=device)


def check_encoder(plan: FilterPlan) -> None:
    """Whether a sentence encoder is named where one is asked, and there alone.

    Raises:
        ValueError: it is not.
    """
    if plan.meanings is not None and not plan.encoder:
        raise ValueError(
            f"meanings={plan.meanings} needs a sentence encoder; set encoder to a folder or name, "
            "as in encoder=sentence-transformers/all-MiniLM-L6-v2"
        )
    if plan.meanings is None and plan.encoder:
        raise ValueError(
            f"encoder={plan.encoder} was named, but no filter asks it; set meanings=0.7"
        )


def _check_guides(plan: FilterPlan, corpus: Corpus, guides: Sequence[Member]) -> None:
    if plan.needs_guide and not guides:
        raise ValueError(f"guided={plan.guided} needs a guide model, and none was named")
    if guides and not plan.needs_guide:
        raise ValueError("a guide model was named, but no filter asks it; set guided=0.0")
    for guide in guides:
        found, wanted = (len(guide.images), len(guide.texts)), (len(corpus), len(corpus.texts))
        if found != wanted:
            raise ValueError(
                f"a guide has encoded {found[0]} images and {found[1]} texts, but {wanted[0]} and "
                f"{wanted[1]} are mined; encode the same split with it"
            )


def _exclusions(
    plan: FilterPlan, corpus: Corpus, device: torch.device | str | None
) -> Exclusions | None:
    pairs = []
    for name in ("captions", "meanings"):
        if getattr(plan, name) is not None and not any(corpus.texts):
            raise ValueError(
                f"{name}={getattr(plan, name)} compares words, but {corpus.name} has none; leave "
                "it off"
            )
    if plan.captions is not None:
        pairs.append(of_captions(near_captions(corpus.texts, least=plan.captions), corpus.relation))
    if plan.pictures is not None:
        near = near_pictures(corpus, least=plan.pictures, device=device)
        pairs.append(of_pictures(near, corpus.relation))
    if plan.meanings is not None:
        assert plan.encoder is not None
        vectors = Meanings(plan.encoder, device=device).vectors(corpus.texts).to(device or "cpu")
        alike = near_vectors("meanings", vectors, least=plan.meanings)
        pairs.append(of_captions(alike, corpus.relation))
    if corpus.also is not None:
        pairs.append((corpus.also.image, corpus.also.text))
    if not pairs:
        return None
    images, texts = (torch.cat(part) for part in zip(*pairs, strict=True))
    return Exclusions(images, texts, (len(corpus), len(corpus.texts)))
