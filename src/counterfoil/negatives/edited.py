"""Counterfactual negatives: what a score hangs on is swapped or hidden (CFM)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, final

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.matcher import Matcher
from counterfoil.negatives.edits import (
    editable,
    overwritten,
    stacked,
    without_regions,
    without_words,
)
from counterfoil.negatives.proposal import Proposal
from counterfoil.negatives.saliency import at_regions, at_words, by_token, check_words, words_of
from counterfoil.negatives.triplets import Triplets, broken, pools
from counterfoil.records import Batch, Encoded, Items, Pairs, Role, Views
from counterfoil.spec import unknown

Gradients = Literal["occurrence", "token"]
ADJUSTED = (Role.EDITED,)
EXPLORED = (Role.MASKED_POSITIVE, Role.MASKED_NEGATIVE)


@final
class Edited:
    """Edits the counterparts of anchors where they count most.

    CFM (Wei et al., "Synthesizing counterfactual samples for effective image-text matching", MM
    2022). Where the hardest negative of an anchor breaks the margin, the gradient of the score says
    which regions or words of the positive and of that negative count. *Self-adjustment* overwrites
    the most important ones of the positive by those of the negative: a new negative.
    *Self-exploration* hides the most important ones of both: a pair whose order should stand. Each
    has two columns: the edited text of an image anchor, and the edited image of a text anchor; -1
    where an anchor has none. Nothing is edited in steps where neither is drawn.

    Departs from the authors' code in: images of any number of regions; the gradient of every
    occurrence of a word ("token" sums those of all, over positives and negatives, as theirs does);
    special tokens stay, where they are known; the model is asked in evaluation mode, and its
    parameters get no gradient.
    """

    provides = frozenset({*ADJUSTED, *EXPLORED})
    provides_words = frozenset[str]()

    def __init__(
        self,
        *,
        margin: float = 0.2,
        adjust: float = 0.33,
        explore: float = 0.33,
        swapped: float = 0.8,
        hidden: float = 0.1,
        mask: int | None = None,
        gradients: Gradients = "occurrence",
        specials: bool = False,
    ) -> None:
        """Keyword arguments.

        Args:
            margin: of the hinge that an anchor has to break, in units of a score.
            adjust: how likely a step has self-adjustment.
            explore: how likely a step has self-exploration.
            swapped: share of regions or words that are overwritten.
            hidden: share of regions or words that are hidden.
            mask: id of the token that hides a word; None for the text encoder's own.
            gradients: of the "occurrence" of a word, or of the "token" everywhere.
            specials: edit special tokens too, as the authors do.

        Raises:
            ValueError: a share or probability that is none, or unknown gradients.
        """
        for name, value in (
            ("adjust", adjust),
            ("explore", explore),
            ("swapped", swapped),
            ("hidden", hidden),
        ):
            if not 0 <= value <= 1:
                raise ValueError(f"{name}={value} is not possible; it must be from 0 to 1")
        if gradients not in ("occurrence", "token"):
            raise ValueError(unknown(gradients, ["occurrence", "token"], "a kind of gradients"))
        self.margin, self.chances = margin, (adjust, explore)
        self.swapped, self.hidden, self.mask = swapped, hidden, mask
        self.gradients, self.specials = gradients, specials

    def check(self, matcher: Matcher) -> None:
        """Whether a model's words can be asked and hidden.

        Raises:
            ValueError: they cannot.
        """
        if check_words(matcher).mask_word is None and self.mask is None:
            raise ValueError(
                "the text encoder has no token that hides a word; give its id as mask, such as 3 "
                "for <unk>"
            )

    def propose(
        self, matcher: Matcher, batch: Batch, views: Views, grid: Tensor, rng: torch.Generator
    ) -> Proposal:
        """Edited items of the anchors that break the margin, the same on every process.

        Raises:
            ValueError: images or texts are not made of parts that can be edited.
        """
        chance = torch.rand(2, generator=rng) < torch.tensor(self.chances)
        adjust, explore = chance.tolist()
        roles = (ADJUSTED if adjust else ()) + (EXPLORED if explore else ())
        by_image, by_text = broken(batch, grid.detach().float(), self.margin)
        if not roles:
            return Proposal(pairs=_paired(batch, roles, by_image, by_text))
        images, texts = pools(batch)
        made = self._texts(matcher, texts, views.inference.images, by_image)
        seen = self._images(matcher, images, views.inference.texts, by_text)
        return Proposal(
            images=stacked([seen[role] for role in roles]) if len(by_text) else None,
            texts=stacked([made[role] for role in roles]) if len(by_image) else None,
            pairs=_paired(batch, roles, by_image, by_text),
        )

    def _texts(
        self, matcher: Matcher, pool: Items, images: Encoded, found: Triplets
    ) -> dict[Role, Items]:
        """Edited texts of image anchors."""
        if not len(found):
            return {}
        true, wrong = pool.rows(found.positive), pool.rows(found.negative)

        def gradient(rows: Tensor) -> Tensor:
            some = stacked([true.rows(rows), wrong.rows(rows)])
            anchor = images.rows(found.anchor[rows].repeat(2))
            vectors = at_words(matcher, some, anchor, _signs(len(rows), len(found), anchor))
            return vectors if self.gradients == "token" else _lengths(vectors)

        asked = _asked(found, gradient)
        if self.gradients == "token":
            asked = _lengths(by_token(asked, stacked([true, wrong])))
        rank, other = asked.chunk(2)
        may, its = (editable(some, specials=self.specials) for some in (true, wrong))
        mask = self._mask(matcher)
        return {
            Role.EDITED: overwritten(true, wrong, (rank, other), (may, its), share=self.swapped),
            Role.MASKED_POSITIVE: without_words(true, rank, may, share=self.hidden, mask=mask),
            Role.MASKED_NEGATIVE: without_words(wrong, other, its, share=self.hidden, mask=mask),
        }

    def _images(
        self, matcher: Matcher, pool: Items, texts: Encoded, found: Triplets
    ) -> dict[Role, Items]:
        """Edited images of text anchors."""
        if not len(found):
            return {}
        true, wrong = pool.rows(found.positive), pool.rows(found.negative)

        def length(rows: Tensor) -> Tensor:
            some = stacked([true.rows(rows), wrong.rows(rows)])
            anchor = texts.rows(found.anchor[rows].repeat(2))
            signs = _signs(len(rows), len(found), anchor)
            return _lengths(at_regions(matcher, some, anchor, signs))

        rank, other = _asked(found, length).chunk(2)
        may = true.mask, wrong.mask
        return {
            Role.EDITED: overwritten(true, wrong, (rank, other), may, share=self.swapped),
            Role.MASKED_POSITIVE: without_regions(true, rank, share=self.hidden),
            Role.MASKED_NEGATIVE: without_regions(wrong, other, share=self.hidden),
        }

    def _mask(self, matcher: Matcher) -> int:
        mask = words_of(matcher).mask_word if self.mask is None else self.mask
        assert mask is not None, "the step checks that there is one"
        return mask


def _paired(
    batch: Batch, roles: tuple[Role, ...], by_image: Triplets, by_text: Triplets
) -> dict[Role, Pairs]:
    """(B, 2) pairs of each role: with an edited text, and with an edited image."""
    anchors, pairs = batch.anchors, {}
    for role in (*ADJUSTED, *EXPLORED):
        text, image = torch.full_like(anchors.text, -1), torch.full_like(anchors.image, -1)
        if role in roles:
            nth = roles.index(role)
            text[by_image.number] = _behind(len(batch.text_rows), nth, by_image)
            image[by_text.number] = _behind(len(batch.image_rows), nth, by_text)
        pairs[role] = Pairs(
            torch.stack([anchors.image, image], 1), torch.stack([text, anchors.text], 1)
        )
    return pairs


def _behind(pool: int, nth: int, found: Triplets) -> Tensor:
    """Places of the nth edited items behind a pool."""
    return pool + nth * len(found) + torch.arange(len(found), device=found.number.device)


def _signs(rows: int, count: int, anchor: Encoded) -> Tensor:
    """(2 rows,) weights of the true scores and the wrong ones in the mean of their difference."""
    one = anchor.tokens.new_full((rows,), 1 / count)
    return torch.cat([one, -one])


def _lengths(vectors: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    return lengths


def _asked(found: Triplets, ask: Callable[[Tensor], Tensor]) -> Tensor:
    """(2 K, L, ...) of all positives, then all negatives, of which each process asks a share."""
    mine = world.share(len(found))
    rows = torch.arange(mine.start, mine.stop, device=found.number.device)
    true, wrong = ask(rows.clamp(max=len(found) - 1)).chunk(2)
    both = (world.gather(part).flatten(0, 1)[: len(found)] for part in (true, wrong))
    return torch.cat(list(both))
