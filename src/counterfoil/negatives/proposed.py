"""Coarse to fine: one model proposes negatives, another one keeps those it finds hardest."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from counterfoil.engine.rerank import Rescored
from counterfoil.engine.tiles import Member
from counterfoil.negatives.lists import Lists
from counterfoil.negatives.mine import half


def reranked(
    proposed: Lists,
    members: Sequence[Member],
    owner: Tensor,
    *,
    texts_per_image: int,
    images_per_text: int,
    device: torch.device | str | None = None,
) -> Lists:
    """The hardest of the negatives that another model has proposed, by these models' scores.

    An embedding model lists, with `mine`, more than is wanted; a model that is dear to ask scores
    those pairs only. What was not proposed cannot come back: with proposals as long as the corpus
    the lists are those of `mine`, but for scores that differ by less than 1e-6, because pairs are
    multiplied in another order. They are the same for any number of processes.

    Args:
        proposed: another model's lists of the same corpus.
        members: matchers with what they encoded; several are an ensemble.
        owner: (T,) image of each text, -1 for none; true pairs are left out.
        texts_per_image: length of an image's list, at most what was proposed.
        images_per_text: length of a text's list, at most what was proposed.
        device: where to compute, see `sweep`.

    Raises:
        ValueError: no model, a list shorter than 1 or longer than what was proposed, or proposals
            for another corpus.
    """
    texts, images = proposed.texts.cpu(), proposed.images.cpu()
    _check(members, texts, images)
    for name, given, many in (
        ("texts", texts_per_image, texts.shape[1]),
        ("images", images_per_text, images.shape[1]),
    ):
        if not 1 <= given <= many:
            raise ValueError(
                f"{name}={given}: 1 to {many} can be kept of {many} proposed; keep fewer, or "
                "propose more"
            )
    own = owner.cpu().int()
    rows = torch.arange(len(texts), dtype=torch.int32).unsqueeze(1)
    texts = texts.masked_fill(own[texts.long()] == rows, -1)
    images = images.masked_fill(images == own.unsqueeze(1), -1)
    rescored = Rescored(members, texts, images, device=device)
    hard_texts, text_scores = rescored.best("image", texts_per_image)
    hard_images, image_scores = rescored.best("text", images_per_text)
    return Lists(hard_texts, hard_images, half(text_scores), half(image_scores))


def _check(members: Sequence[Member], texts: Tensor, images: Tensor) -> None:
    have = len(texts), len(images)
    if not members:
        raise ValueError("no model is there to look at what was proposed; give at least one")
    for member in members:
        want = len(member.images), len(member.texts)
        if have != want:
            raise ValueError(
                f"the proposals are for {have[0]} images and {have[1]} texts, but {want[0]} and "
                f"{want[1]} were encoded; propose from the same split"
            )
    for what, rows, count in (("text", texts, have[1]), ("image", images, have[0])):
        if rows.numel() and int(rows.max()) >= count:
            raise ValueError(
                f"{what} row {int(rows.max())} was proposed, but there are {count}; propose from "
                "the same split"
            )
