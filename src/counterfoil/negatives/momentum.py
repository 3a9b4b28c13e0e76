"""Negatives from earlier batches, encoded by a slow copy of the model (USER, MoCo)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor, nn

from counterfoil.core.types import Batch, Embeddings, EncodedViews, Needs, Role
from counterfoil.data.processor import ProcessedDataset
from counterfoil.losses.base import WeightedSum
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.pooling import check_positive
from counterfoil.negatives.sources import MinedExtras, NegativeSource
from counterfoil.scoring.encode import evaluation_mode, gather_parts, gather_shards


@final
class KeyQueue(nn.Module):
    """The last encodings of one modality, overwritten in the order they came.

    Attributes:
        tokens: (K, L, D), widened when a longer item comes.
        mask: (K, L), False everywhere in places that are still empty.
        gram: (K, L, L) if the items have Gram matrices, else (K, 0, 0).
        rows: (K,) data set row of each item, -1 for none.
        pointer: (1,) the next place.
    """

    tokens: Tensor
    mask: Tensor
    gram: Tensor
    rows: Tensor
    pointer: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("tokens", torch.zeros(size, 0, 0))
        self.register_buffer("mask", torch.zeros(size, 0, dtype=torch.bool))
        self.register_buffer("gram", torch.zeros(size, 0, 0))
        self.register_buffer("rows", torch.full((size,), -1))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    def append(self, items: Embeddings, rows: Tensor) -> None:
        """Write B items, with their data set rows, from the pointer on; the last K stay."""
        size = len(self.rows)
        items, rows = items.rows(slice(-size, None)), rows[-size:]
        length = max(items.mask.shape[1], self.mask.shape[1])
        bag = items.padded(length)
        places = (self.pointer + torch.arange(len(rows), device=rows.device)) % size
        for name, new in (("tokens", bag.tokens), ("mask", bag.mask), ("gram", bag.gram)):
            if new is None:
                continue
            old = getattr(self, name)
            if old.shape[1:] != new.shape[1:]:
                wide = new.new_zeros(size, *new.shape[1:])
                corner = (slice(None), *(slice(n) for n in old.shape[1:]))
                wide[corner] = old.to(wide)
                setattr(self, name, wide)
            getattr(self, name)[places] = new
        self.rows[places] = rows
        self.pointer.copy_((self.pointer + len(rows)) % size)

    def embeddings(self) -> Embeddings:
        """Return the K items; an empty place has one zero vector."""
        mask = self.mask.clone()
        mask[:, :1] |= (self.rows < 0).unsqueeze(1)
        # copies, as the backward pass reads them after `append` has overwritten places
        return Embeddings(
            self.tokens.clone(), mask, self.gram.clone() if self.gram.shape[1] else None
        )

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any) -> None:
        for name in ("tokens", "mask", "gram"):  # the sizes that the saved training gave them
            if (saved := state_dict.get(prefix + name)) is not None:
                setattr(self, name, torch.empty_like(saved, device=self.rows.device))
        super()._load_from_state_dict(state_dict, prefix, *rest)


@final
class MomentumQueue(NegativeSource, nn.Module):
    """Scores anchors with the items of earlier batches, encoded by a slow copy of any model.

    USER (https://arxiv.org/abs/2301.06844) and MoCo: after each step the copy moves towards the
    model by 1 - `momentum`; it encodes the anchors' keys, which join the queue after the batch is
    judged. It provides the anchors' own keys too, which `counterfoil.losses.queue` reads as
    positives. Keys carry no gradient.

    Departs from the authors' code in: texts of the anchor's image in the queue are no negatives,
    nor are texts that say the same; the copy encodes in evaluation mode, with the model's own
    running statistics; the queue is empty at first instead of random; copy and queue are saved
    with the training.

    Args:
        size: K, places of the queue, for each modality; USER has 2,048 on Flickr30K and 4,096 on
            MS-COCO.
        momentum: of the copy.

    Raises:
        ValueError: a size below 1, or a momentum outside [0, 1).
    """

    gives = Needs(
        roles=frozenset({Role.QUEUE_TEXT, Role.QUEUE_IMAGE, Role.KEY_TEXT, Role.KEY_IMAGE})
    )
    saved = True
    anchors_only = True

    def __init__(self, *, size: int = 2048, momentum: float = 0.999) -> None:
        super().__init__()
        check_positive(size=size)
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum={momentum} is not possible; give a share from 0 to below 1")
        self.momentum = momentum
        self.images, self.texts = KeyQueue(size), KeyQueue(size)
        self.key: RetrievalModel | None = None

    def begin(
        self, model: RetrievalModel, data: ProcessedDataset, loss: WeightedSum, *, batches: int
    ) -> None:
        """Copy the model before its training begins."""
        self.key = copy.deepcopy(model).requires_grad_(False)

    def propose(
        self,
        model: RetrievalModel,
        batch: Batch,
        views: EncodedViews,
        scores: Tensor,
        rng: torch.Generator,
    ) -> MinedExtras:
        """Score the anchors with the queue and with their own keys, then queue these."""
        assert self.key is not None
        move_towards(self.key, model, self.momentum)
        for slow, fast in zip(self.key.buffers(), model.buffers(), strict=True):
            slow.copy_(fast)
        with evaluation_mode([self.key]):
            keys = (
                gather_parts(self.key.encode_images(batch.images), len(batch.image_rows)),
                gather_parts(self.key.encode_texts(batch.texts), len(batch.text_rows)),
            )
        image, text = batch.anchors.image, batch.anchors.text
        rows = batch.image_rows.to(image.device)[image]
        captions = batch.text_rows.to(text.device)[text]
        images, texts = views.inference.images.rows(image), views.inference.texts.rows(text)
        key_images, key_texts = keys[0].rows(image), keys[1].rows(text)

        def shared(score: Callable[[Tensor | slice], Tensor]) -> Tensor:
            return gather_shards(len(rows), score, rows.device)

        found = {
            Role.KEY_TEXT: shared(
                lambda share: model.score_pairs(images.rows(share), key_texts.rows(share))
            ).unsqueeze(1),
            Role.KEY_IMAGE: shared(
                lambda share: model.score_pairs(key_images.rows(share), texts.rows(share))
            ).unsqueeze(1),
        }
        if bool((self.rows < 0).all()):  # nothing is queued yet
            nothing = images.tokens.new_full((len(rows), 1), -torch.inf)
            found |= {Role.QUEUE_TEXT: nothing, Role.QUEUE_IMAGE: nothing}
        else:
            queue = self.images.embeddings(), self.texts.embeddings()
            by_text = shared(lambda share: model.score_matrix(images.rows(share), queue[1]))
            by_image = shared(lambda share: model.score_matrix(queue[0], texts.rows(share)).T)
            own = (self.rows.unsqueeze(0) == rows.unsqueeze(1)) | (self.rows < 0)
            same_texts, same_images = self._equal(batch, rows, captions, own)
            found[Role.QUEUE_TEXT] = by_text.masked_fill(same_texts, -torch.inf)
            found[Role.QUEUE_IMAGE] = by_image.masked_fill(same_images, -torch.inf)
        self.images.append(key_images, rows)
        self.texts.append(key_texts, captions)
        return MinedExtras(scores=found)

    def _equal(
        self, batch: Batch, rows: Tensor, captions: Tensor, own: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Add to (B, K) `own` places those of queued texts, and images, that are true as well."""
        if (equal := batch.equal) is None:
            return own, own
        images, texts = rows.cpu().unsqueeze(1), captions.cpu().unsqueeze(1)
        by_text = equal.contains(images, self.texts.rows.cpu())
        by_image = equal.contains(self.rows.cpu(), texts)
        return own | by_text.to(own.device), own | by_image.to(own.device)

    @property
    def rows(self) -> Tensor:
        """(K,) image of each place; its text is in the same place of the other queue."""
        return self.images.rows


@torch.no_grad()
def move_towards(key: nn.Module, model: nn.Module, momentum: float) -> None:
    """Move the parameters of a copy: key <- momentum key + (1 - momentum) model; buffers stay."""
    for slow, fast in zip(key.parameters(), model.parameters(), strict=True):
        slow.lerp_(fast.detach(), 1 - momentum)
