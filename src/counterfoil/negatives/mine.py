"""Offline hard negatives, listed once over the whole corpus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from zlib import crc32

import torch
from torch import Tensor

from counterfoil.engine.identity import model_digest
from counterfoil.engine.kept import EVERY, Fact, Keeper
from counterfoil.engine.sweep import MEMORY, sweep
from counterfoil.engine.tiles import Member
from counterfoil.engine.topk import TopK
from counterfoil.negatives.filtered import Filtered
from counterfoil.negatives.filters import Filters
from counterfoil.negatives.lists import Lists


def mine(
    members: Sequence[Member],
    owner: Tensor,
    *,
    texts_per_image: int,
    images_per_text: int,
    memory: int = MEMORY,
    device: torch.device | str | None = None,
    tile: tuple[int, int] | None = None,
    filters: Filters | None = None,
    keep: Path | None = None,
    every: float = EVERY,
    stop: Callable[[], bool] | None = None,
    run: str = "",
) -> Lists:
    """The hardest wrong texts of every image and wrong images of every text, from one pass.

    AOQ (https://arxiv.org/abs/2003.03669), section 3.2. Departs from the authors' code in: float32
    scores of any matcher instead of float16 cosines; equal scores go to the lower row. The lists
    are the same, bit for bit, for any number of processes and however often it was stopped.

    Args:
        members: matchers with what they encoded; several are an ensemble.
        owner: (T,) image of each text, -1 for none; true pairs are left out.
        texts_per_image: length of an image's list, at most the number of texts.
        images_per_text: length of a text's list, at most the number of images.
        memory: bytes, see `sweep`.
        device: where to compute, see `sweep`.
        tile: images and texts scored together, see `sweep`.
        filters: what else to leave out of the lists.
        keep: folder that all processes share, where each saves how far it is; what is there is
            taken up. Whoever saves the lists removes it.
        every: seconds between two saves.
        stop: asked now and then; when it answers True on any process, all of them stop.
        run: digest of what else the lists depend on: the data, guides.

    Raises:
        ValueError: a list shorter than 1, or `keep` holds something else.
        WorkStopped: `stop` asked for it.
    """
    for name, given in (("texts", texts_per_image), ("images", images_per_text)):
        if given < 1:
            raise ValueError(f"{name}={given}: a list of negatives has at least 1")
    images, texts = (len(members[0].images), len(members[0].texts)) if members else (0, 0)
    hard_texts = TopK("image", images, max(1, min(texts_per_image, texts)), owner)
    hard_images = TopK("text", texts, max(1, min(images_per_text, images)), owner)
    lists = hard_texts, hard_images
    seen = seen_by(hard_texts, filters), seen_by(hard_images, filters)
    keeper = None
    if keep or stop:
        facts = {"run": run, "precision": "float32", **facts_of(members, owner, lists, filters)}
        kept = dict(zip(("texts", "images"), seen))
        keeper = Keeper(kept, facts, folder=keep, every=every, stop=stop)
    sweep(members, seen, memory=memory, device=device, tile=tile, keeper=keeper)
    return Lists(
        hard_texts.rows.cpu(),
        hard_images.rows.cpu(),
        half(hard_texts.scores),
        half(hard_images.scores),
    )


def facts_of(
    members: Sequence[Member], owner: Tensor, lists: tuple[TopK, TopK], filters: Filters | None
) -> dict[str, Fact]:
    """What lists depend on, in words.

    Args:
        members: matchers with what they encoded.
        owner: (T,) image of each text.
        lists: those of images, and those of texts.
        filters: what else is left out.
    """
    return {
        "models": ", ".join(model_digest(member.matcher) for member in members),
        "images and texts": ", ".join(f"{len(m.images)} x {len(m.texts)}" for m in members),
        "true pairs": crc32(owner.cpu().contiguous().numpy().tobytes()),
        "texts of an image": lists[0].k,
        "images of a text": lists[1].k,
        "filters": "; ".join(filters.plan.in_words()) if filters else "",
    }


def seen_by(lists: TopK, filters: Filters | None) -> TopK | Filtered:
    """What sees the tiles in place of the lists."""
    if filters is None:
        return lists
    seen = filters.on(lists.query, lists)
    assert isinstance(seen, TopK | Filtered)
    return seen


def half(scores: Tensor) -> Tensor:
    """float16 on the CPU; a finite score stays finite."""
    largest = torch.finfo(torch.half).max
    finite = scores.clamp(-largest, largest).half()
    return torch.where(scores.isinf(), scores.half(), finite).cpu().contiguous()
