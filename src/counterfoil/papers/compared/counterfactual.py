"""Counterfactual negatives (CFM): the regions or words that matter most are swapped or hidden."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from torch import Tensor, nn

from counterfoil.core.config import parse_literal
from counterfoil.core.types import (
    Batch,
    Embeddings,
    EncodedViews,
    ModalityBatch,
    Needs,
    Pairs,
    Role,
)
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.models.base import RetrievalModel, WordEmbeddingModel
from counterfoil.models.layers.pooling import full_precision
from counterfoil.negatives.online import with_values
from counterfoil.negatives.sources import MinedExtras, NegativeSource, PlannedTraining
from counterfoil.scoring.encode import (
    concatenate_batches,
    evaluation_mode,
    gather_batches,
    gather_shards,
)


@final
@dataclass(frozen=True, slots=True)
class BatchTriplets:
    """Anchors of one side whose hardest negative breaks the margin; places in the pools.

    Attributes:
        number: (K,) index of the anchor pair.
        anchor: (K,) the image or text that is not edited.
        positive: (K,) its counterpart.
        negative: (K,) its hardest wrong counterpart.
    """

    number: Tensor
    anchor: Tensor
    positive: Tensor
    negative: Tensor

    def __len__(self) -> int:
        return len(self.number)


def violated_triplets(
    batch: Batch, matrix: Tensor, margin: float
) -> tuple[BatchTriplets, BatchTriplets]:
    """Return the image anchors, and the text anchors, whose hardest negative breaks the margin."""
    image, text = batch.anchors.image, batch.anchors.text
    wrong, true = matrix.masked_fill(batch.positive, -torch.inf), matrix[image, text]
    triplets = []
    for scores, anchor, positive in ((wrong, image, text), (wrong.T, text, image)):
        hardest, negative = scores.max(1)
        number = (margin + hardest[anchor] - true > 0).nonzero().squeeze(1)
        violated = anchor[number]
        triplets.append(BatchTriplets(number, violated, positive[number], negative[violated]))
    return triplets[0], triplets[1]


def triplet_pools(batch: Batch) -> tuple[ModalityBatch, ModalityBatch]:
    """Gather the images and texts of all processes.

    Raises:
        ValueError: they have no regions or words that can be edited.
    """
    if batch.images.values.dim() != 3 or batch.texts.values.is_floating_point():
        raise ValueError(
            f"images of shape {tuple(batch.images.values.shape)} and texts of shape "
            f"{tuple(batch.texts.values.shape)} cannot be edited; edited negatives need region "
            "features and words"
        )
    images = gather_batches(batch.images, len(batch.image_rows))
    if images.mask.shape[1] < 2:
        raise ValueError(
            "images of one vector each have no regions to edit; use region features, or train "
            "without edited negatives"
        )
    return images, gather_batches(batch.texts, len(batch.text_rows))


# Saliency: the length of the score's gradient at each region or word. The model is in evaluation
# mode, and no gradient reaches a parameter.


def region_saliency(
    model: RetrievalModel, images: ModalityBatch, texts: Embeddings, weight: Tensor
) -> Tensor:
    """Return the (P, L, F) gradient of the weighted sum of P scores at the images' regions."""
    values = images.values
    leaf = (values.float() if values.dtype in (torch.half, torch.bfloat16) else values).clone()
    with _differentiable(model):
        encoded = model.encode_images(replace(images, values=leaf.requires_grad_()))
        total = (weight * model.score_pairs(encoded, texts)).sum()
        (gradient,) = torch.autograd.grad(total, leaf)
    return gradient


def word_saliency(
    model: RetrievalModel, texts: ModalityBatch, images: Embeddings, weight: Tensor
) -> Tensor:
    """Return the (P, L, D) gradient of the weighted sum of P scores at the texts' word embeddings.

    Every occurrence of a word has its own. One part of the model has a word table, see
    `word_embeddings_of`.
    """
    table = word_embeddings_of(model).word_table()
    with _differentiable(model), _embeddings_as_leaves(table) as leaves:
        encoded = model.encode_texts(texts)
        total = (weight * model.score_pairs(images, encoded)).sum()
        (gradient,) = torch.autograd.grad(total, leaves)
    return gradient


def token_saliency(gradient: Tensor, texts: ModalityBatch) -> Tensor:
    """Sum the (N, L, D) gradients of all occurrences of a token, in all texts: (N, L, D)."""
    known, number = torch.unique(texts.values.masked_fill(~texts.mask, -1), return_inverse=True)
    real = gradient.masked_fill(~texts.mask.unsqueeze(2), 0).flatten(0, 1)
    total = real.new_zeros(len(known), real.shape[1]).index_add_(0, number.flatten(), real)
    return total[number]


def word_embeddings_of(model: RetrievalModel) -> WordEmbeddingModel:
    """Return the part of a model that has the word table.

    Raises:
        ValueError: there is none, or several.
    """
    parts = [part for part in model.modules() if isinstance(part, WordEmbeddingModel)]
    if len(parts) != 1:
        raise ValueError(
            f"{type(model).__name__} has {len(parts)} text encoders that tell where they look "
            "words up; edited negatives need one, such as a GRU or Bert"
        )
    return parts[0]


def check_word_gradients(model: RetrievalModel) -> WordEmbeddingModel:
    """Return the part of a model that has the word table, after a trial with two words.

    Raises:
        ValueError: there is no such part, or no gradient comes back to its words.
    """
    encoder = word_embeddings_of(model)
    device = next(model.parameters()).device
    none, two = torch.full((1,), -1, device=device), torch.zeros(1, 2, device=device).long()
    with _differentiable(model), _embeddings_as_leaves(encoder.word_table()) as leaves:
        encoded = model.encode_texts(ModalityBatch(none, two, two == 0))
        total = encoded.tokens.sum()
        gradient = torch.autograd.grad(total, leaves, allow_unused=True)[0] if leaves else None
    if gradient is None:
        raise ValueError(
            f"the text encoder {type(encoder).__name__} is not trained, so no gradient says which "
            "words count; train it, or train without edited negatives"
        )
    return encoder


@contextmanager
def _differentiable(model: RetrievalModel) -> Iterator[None]:
    """Evaluation mode with gradients; without cuDNN, whose recurrent networks have none there."""
    with (
        evaluation_mode([model], gradients=True),
        torch.backends.cudnn.flags(enabled=False),
    ):
        yield


@contextmanager
def _embeddings_as_leaves(table: nn.Module) -> Iterator[list[Tensor]]:
    """Replace the outputs of a word table by leaves of the graph, and collect them."""
    leaves: list[Tensor] = []

    def leaf(module: nn.Module, ids: tuple[Tensor, ...], vectors: Tensor) -> Tensor:
        leaves.append(vectors.detach().requires_grad_())
        return leaves[-1]

    handle = table.register_forward_hook(leaf)
    try:
        yield leaves
    finally:
        handle.remove()


# Edited items.


def editable(items: ModalityBatch, *, specials: bool) -> Tensor:
    """Return (N, L) bool, tokens that may be edited; all real ones with `specials`."""
    if specials or items.words is None:
        return items.mask
    return items.mask & (items.words >= 0)


def overwrite_tokens(
    into: ModalityBatch,
    source: ModalityBatch,
    ranks: tuple[Tensor, Tensor],
    may: tuple[Tensor, Tensor],
    *,
    share: float,
) -> ModalityBatch:
    """Overwrite the most important tokens of each item by those of another one, rank by rank.

    Their number is `share` of the tokens that may be edited, (N, L) bool of both, at least one, and
    at most the number of the other's. The `ranks`, (N, L) of both, are their importance.
    """
    count = torch.minimum(_count(may[0], share), may[1].sum(1))
    to, place = _places(ranks[0], may[0], count)
    _, other = _places(ranks[1], may[1], count)
    values = into.values.clone()
    values[to, place] = source.values[to, other]
    edited = with_values(into, values)
    if into.boxes is None or source.boxes is None:
        return edited
    boxes = into.boxes.clone()
    boxes[to, place] = source.boxes[to, other]
    return replace(edited, boxes=boxes)


def without_regions(items: ModalityBatch, rank: Tensor, *, share: float) -> ModalityBatch:
    """Replace a `share` of the regions, at least one, by the mean of all others.

    These are the most important ones, by their (N, L) rank.
    """
    row, place = _places(rank, items.mask, _count(items.mask, share))
    rest = items.mask.clone()
    rest[row, place] = False
    real = items.values.masked_fill(~rest.unsqueeze(2), 0)
    mean = real.sum(1) / rest.sum(1, keepdim=True).clamp(min=1)
    values = items.values.clone()
    values[row, place] = mean[row].to(values.dtype)
    return with_values(items, values)


def without_words(
    items: ModalityBatch, rank: Tensor, may: Tensor, *, share: float, mask: int
) -> ModalityBatch:
    """Replace a `share` of the words, at least one, by the token with the id `mask`.

    These are the most important ones, by their (N, L) rank, of those that may be hidden.
    """
    row, place = _places(rank, may, _count(may, share))
    values = items.values.clone()
    values[row, place] = mask
    return with_values(items, values)


def _count(may: Tensor, share: float) -> Tensor:
    """Return the (N,) number of tokens to edit."""
    allowed = may.sum(1)
    return torch.minimum((allowed.double() * share).long().clamp(min=1), allowed)


def _places(rank: Tensor, may: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Return row and place of the `count` highest ranks of each row, the highest first."""
    order = rank.masked_fill(~may, -torch.inf).sort(dim=1, descending=True, stable=True).indices
    taken = torch.arange(order.shape[1], device=order.device) < count.unsqueeze(1)
    row, nth = taken.nonzero(as_tuple=True)
    return row, order[row, nth]


Gradients = Literal["occurrence", "token"]
ADJUSTED = (Role.EDITED,)
EXPLORED = (Role.MASKED_POSITIVE, Role.MASKED_NEGATIVE)


@final
class CounterfactualSampler(NegativeSource):
    """Edits the counterparts of anchors at their most important regions or words.

    CFM (Wei et al., "Synthesizing counterfactual samples for effective image-text matching", MM
    2022). If the hardest negative of an anchor breaks the margin, the gradient of the score ranks
    the regions or words of the positive and of that negative. *Self-adjustment* overwrites the most
    important ones of the positive by those of the negative: a new negative. *Self-exploration*
    hides the most important ones of both: a pair whose order should not change. Each role has two
    columns: the edited text of an image anchor, and the edited image of a text anchor; -1 for none.
    Nothing is edited in steps where chance chooses neither.

    Departs from the authors' code in: images of any number of regions; the gradient of every
    occurrence of a word ("token" sums those of all, over positives and negatives, as theirs does);
    special tokens, where they are known, are not edited; the model is in evaluation mode, and its
    parameters get no gradient.
    """

    gives = Needs(roles=frozenset({*ADJUSTED, *EXPLORED}))
    seed_name = "propose"

    def check_plan(self, training: PlannedTraining) -> None:
        images, texts = training.images, training.texts
        if images != "regions" or texts == "vectors":
            raise ValueError(
                "edited negatives need images of several regions, and words, and the model sees "
                f"{images} and texts as {texts!r}; choose other features, or leave the source out"
            )

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
        """Create a sampler.

        Args:
            margin: of the hinge that an anchor has to break, in units of a score.
            adjust: probability of self-adjustment in a step.
            explore: probability of self-exploration in a step.
            swapped: share of regions or words that are overwritten.
            hidden: share of regions or words that are hidden.
            mask: id of the token that hides a word; None for the text encoder's own.
            gradients: of each "occurrence" of a word, or summed over all of a "token".
            specials: edit special tokens too, as the authors do.

        Raises:
            ValueError: a share or probability out of range, or unknown gradients.
        """
        shares = {"adjust": adjust, "explore": explore, "swapped": swapped, "hidden": hidden}
        for name, value in shares.items():
            if not 0 <= value <= 1:
                raise ValueError(f"{name}={value} is not possible; it must be from 0 to 1")
        parse_literal(Gradients, gradients, "a kind of gradients")
        self.margin, self.chances = margin, (adjust, explore)
        self.swapped, self.hidden, self.mask = swapped, hidden, mask
        self.gradients, self.specials = gradients, specials

    def check(self, model: RetrievalModel, data: ImageTextDataset) -> None:
        """Check that a model's words have gradients and can be hidden.

        Raises:
            ValueError: they do not, or cannot.
        """
        if check_word_gradients(model).mask_word is None and self.mask is None:
            raise ValueError(
                "the text encoder has no token that hides a word; give its id as mask, such as 3 "
                "for <unk>"
            )

    def propose(
        self,
        model: RetrievalModel,
        batch: Batch,
        views: EncodedViews,
        scores: Tensor,
        rng: torch.Generator,
    ) -> MinedExtras:
        """Return edited items for the anchors that break the margin, the same on every process.

        Raises:
            ValueError: images or texts have no regions or words that can be edited.
        """
        chance = torch.rand(2, generator=rng) < torch.tensor(self.chances)
        adjust, explore = chance.tolist()
        roles = (ADJUSTED if adjust else ()) + (EXPLORED if explore else ())
        by_image, by_text = violated_triplets(batch, full_precision(scores.detach()), self.margin)
        if not roles:
            return MinedExtras(pairs=_role_pairs(batch, roles, by_image, by_text))
        images, texts = triplet_pools(batch)

        def hide_words(items: ModalityBatch, rank: Tensor, may: Tensor) -> ModalityBatch:
            mask = word_embeddings_of(model).mask_word if self.mask is None else self.mask
            assert mask is not None, "`check` makes sure that there is one"
            return without_words(items, rank, may, share=self.hidden, mask=mask)

        def hide_regions(items: ModalityBatch, rank: Tensor, may: Tensor) -> ModalityBatch:
            return without_regions(items, rank, share=self.hidden)

        def stacked(edited: dict[Role, ModalityBatch]) -> ModalityBatch | None:
            return concatenate_batches([edited[role] for role in roles]) if edited else None

        others = views.inference
        edited_texts = self._edited(
            model, texts, others.images, by_image, word_saliency, hide_words
        )
        edited_images = self._edited(
            model, images, others.texts, by_text, region_saliency, hide_regions
        )
        return MinedExtras(
            images=stacked(edited_images),
            texts=stacked(edited_texts),
            pairs=_role_pairs(batch, roles, by_image, by_text),
        )

    def _edited(
        self,
        model: RetrievalModel,
        pool: ModalityBatch,
        others: Embeddings,
        triplets: BatchTriplets,
        gradient: Callable[[RetrievalModel, ModalityBatch, Embeddings, Tensor], Tensor],
        hide: Callable[[ModalityBatch, Tensor, Tensor], ModalityBatch],
    ) -> dict[Role, ModalityBatch]:
        """Return edited counterparts of anchors, by role.

        `pool` is the side that is edited and `others` the encoded other one, with the anchors.
        `gradient` is `region_saliency` or `word_saliency`; `hide` hides the most important tokens,
        given the items, ranks and editable tokens.
        """
        if not len(triplets):
            return {}
        true, wrong = pool.rows(triplets.positive), pool.rows(triplets.negative)
        words = not pool.values.is_floating_point()
        by_token = words and self.gradients == "token"

        def saliency(rows: Tensor | slice) -> Tensor:
            items = concatenate_batches([true.rows(rows), wrong.rows(rows)])
            anchor = others.rows(triplets.anchor[rows].repeat(2))
            # the mean of the true scores less that of the wrong ones
            weight = anchor.tokens.new_full((len(items) // 2,), 1 / len(triplets))
            vectors = gradient(model, items, anchor, torch.cat([weight, -weight]))
            return vectors if by_token else _lengths(vectors)

        both = gather_shards(
            len(triplets),
            lambda rows: torch.stack(saliency(rows).chunk(2), 1),
            triplets.number.device,
        )
        ranks = torch.cat(both.unbind(1))
        if by_token:
            ranks = _lengths(token_saliency(ranks, concatenate_batches([true, wrong])))
        rank, other = ranks.chunk(2)
        specials = self.specials or not words
        may, its = editable(true, specials=specials), editable(wrong, specials=specials)
        return {
            Role.EDITED: overwrite_tokens(
                true, wrong, (rank, other), (may, its), share=self.swapped
            ),
            Role.MASKED_POSITIVE: hide(true, rank, may),
            Role.MASKED_NEGATIVE: hide(wrong, other, its),
        }


def _role_pairs(
    batch: Batch, roles: tuple[Role, ...], by_image: BatchTriplets, by_text: BatchTriplets
) -> dict[Role, Pairs]:
    """Return the (B, 2) pairs of each role: with an edited text, and with an edited image."""
    anchors, pairs = batch.anchors, {}
    for role in (*ADJUSTED, *EXPLORED):
        text, image = torch.full_like(anchors.text, -1), torch.full_like(anchors.image, -1)
        if role in roles:
            nth, device = roles.index(role), text.device
            for places, pool, triplets in (
                (text, batch.text_rows, by_image),
                (image, batch.image_rows, by_text),
            ):
                new = torch.arange(len(triplets), device=device)  # among the items of the role
                places[triplets.number] = len(pool) + nth * len(triplets) + new
        pairs[role] = Pairs(
            torch.stack([anchors.image, image], 1), torch.stack([text, anchors.text], 1)
        )
    return pairs


def _lengths(vectors: Tensor) -> Tensor:
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    return lengths
