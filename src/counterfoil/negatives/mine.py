"""Offline hard negatives, listed once over the whole corpus."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from counterfoil.engine.sweep import MEMORY, sweep
from counterfoil.engine.tiles import Member
from counterfoil.engine.topk import TopK
from counterfoil.negatives.lists import Lists


def mine(
    members: Sequence[Member],
    owner: Tensor,
    *,
    texts_per_image: int,
    images_per_text: int,
    memory: int = MEMORY,
    device: torch.device | str | None = None,
) -> Lists:
    """The hardest wrong texts of every image and wrong images of every text, from one pass.

    AOQ (https://arxiv.org/abs/2003.03669), section 3.2. Departs from the authors' code in: float32
    scores of any matcher instead of float16 cosines; equal scores go to the lower row.

    Args:
        members: matchers with what they encoded; several are an ensemble.
        owner: (T,) image of each text, -1 for none; true pairs are left out.
        texts_per_image: length of an image's list, at most the number of texts.
        images_per_text: length of a text's list, at most the number of images.
        memory: bytes, see `sweep`.
        device: where to compute, see `sweep`.

    Raises:
        ValueError: a list shorter than 1.
    """
    for name, given in (("texts", texts_per_image), ("images", images_per_text)):
        if given < 1:
            raise ValueError(f"{name}={given}: a list of negatives has at least 1")
    images, texts = (len(members[0].images), len(members[0].texts)) if members else (0, 0)
    hard_texts = TopK("image", images, max(1, min(texts_per_image, texts)), owner)
    hard_images = TopK("text", texts, max(1, min(images_per_text, images)), owner)
    sweep(members, [hard_texts, hard_images], memory=memory, device=device)
    return Lists(
        hard_texts.rows.cpu(),
        hard_images.rows.cpu(),
        _half(hard_texts.scores),
        _half(hard_images.scores),
    )


def _half(scores: Tensor) -> Tensor:
    """float16 on the CPU; a finite score stays finite."""
    largest = torch.finfo(torch.half).max
    finite = scores.clamp(-largest, largest).half()
    return torch.where(scores.isinf(), scores.half(), finite).cpu()
