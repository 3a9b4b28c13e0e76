"""What every matcher promises, as functions of a case: see
`counterfoil.models.base.RetrievalModel`."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from counterfoil.core.config import config_from_dict
from counterfoil.core.types import Batch, Embeddings, ModalityBatch, Pairs
from counterfoil.models.base import RetrievalModel
from matcher_cases import Case, poisoned, trained

I, T = 5, 7


def encoded(case: Case, model: RetrievalModel) -> tuple[Embeddings, Embeddings]:
    rng = torch.Generator().manual_seed(1)
    return (
        model.encode_images(case.images(I, rng)),
        model.encode_texts(case.texts(T, rng)),
    )


def same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=2e-6)


def product(images: Embeddings, texts: Embeddings) -> tuple[Embeddings, Embeddings]:
    i, t = torch.meshgrid(torch.arange(len(images)), torch.arange(len(texts)), indexing="ij")
    return images.rows(i.flatten()), texts.rows(t.flatten())


def poisoned_items(items: ModalityBatch) -> ModalityBatch:
    """The same with garbage in padding; pixels have none."""
    if items.values.dim() == 4:
        return items
    boxes = None if items.boxes is None else poisoned(items.boxes, items.mask)
    return replace(items, values=poisoned(items.values, items.mask), boxes=boxes)


def grid_equals_pairs_on_the_product(case: Case) -> None:
    model = case.build()
    images, texts = encoded(case, model)
    grid = model.score_matrix(images, texts)
    assert grid.shape == (I, T)
    assert grid.isfinite().all()
    assert grid.std() > 0
    same(model.score_pairs(*product(images, texts)).view(I, T), grid)


def listed_pairs_are_entries_of_the_grid(case: Case) -> None:
    model = case.build()
    images, texts = encoded(case, model)
    listed = Pairs(torch.tensor([4, 0, 0, 2, 4]), torch.tensor([1, 6, 0, 3, 1]))
    scores = model.score_indices(images, texts, listed)
    same(scores, model.score_matrix(images, texts)[listed.image, listed.text])


def numbers_of_images_and_texts_may_differ(case: Case) -> None:
    model = case.build()
    images, texts = encoded(case, model)
    for i, t in ((1, 1), (1, 4), (4, 1), (2, 6)):
        part = model.score_matrix(images.rows(slice(i)), texts.rows(slice(t)))
        same(part, model.score_matrix(images, texts)[:i, :t])


def one_region_and_one_word_keep_their_shape(case: Case) -> None:
    model = case.build()
    images, texts = encoded(case, model)
    short = [Embeddings(x.tokens[:, :1], x.mask[:, :1]) for x in (images, texts)]
    grid = model.score_matrix(*short)
    assert grid.shape == (I, T)
    same(model.score_pairs(*product(*short)).view(I, T), grid)


def garbage_in_padding_of_items_changes_nothing(case: Case) -> None:
    model = case.build()
    rng = torch.Generator().manual_seed(1)
    images, texts = case.images(I, rng), case.texts(T, rng)
    clean = model.score_matrix(model.encode_images(images), model.encode_texts(texts))
    dirty = [poisoned_items(x) for x in (images, texts)]
    again = model.score_matrix(model.encode_images(dirty[0]), model.encode_texts(dirty[1]))
    assert torch.equal(again, clean)


def garbage_in_padding_reaches_no_gradient(case: Case) -> None:
    model = case.build()
    rng = torch.Generator().manual_seed(1)
    items = [poisoned_items(x) for x in (case.images(I, rng), case.texts(T, rng))]
    scores = model.score_matrix(model.encode_images(items[0]), model.encode_texts(items[1]))
    if not scores.requires_grad:
        assert not list(model.parameters())
        return
    scores.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def garbage_in_padding_of_encodings_changes_nothing(case: Case) -> None:
    model = case.build()
    images, texts = encoded(case, model)
    grid = model.score_matrix(images, texts)
    dirty = [Embeddings(poisoned(x.tokens, x.mask), x.mask) for x in (images, texts)]
    same(model.score_matrix(*dirty), grid)
    same(model.score_pairs(*product(*dirty)).view(I, T), grid)


def room_for_more_tokens_changes_nothing(case: Case) -> None:
    model = case.build()
    images, texts = encoded(case, model)
    more = [x.padded(x.tokens.shape[1] + 2) for x in (images, texts)]
    same(model.score_matrix(*more), model.score_matrix(images, texts))


def an_encoding_does_not_depend_on_the_batch(case: Case) -> None:
    model = case.build()
    rng = torch.Generator().manual_seed(1)
    images, texts = case.images(I, rng), case.texts(T, rng)
    for items, encode in ((images, model.encode_images), (texts, model.encode_texts)):
        whole = encode(items)
        for row in range(len(items)):
            alone = encode(items.rows(slice(row, row + 1)))
            mask = alone.mask[0]
            same(alone.tokens[0][mask], whole.tokens[row][whole.mask[row]])


def order_of_the_texts_is_kept(case: Case) -> None:
    model = case.build()
    images, texts = encoded(case, model)
    order = torch.randperm(T, generator=torch.Generator().manual_seed(2))
    same(model.score_matrix(images, texts.rows(order)), model.score_matrix(images, texts)[:, order])


def weights_make_the_model(case: Case) -> None:
    model, other = case.build(), case.build()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    other.load_state_dict(model.state_dict())
    assert torch.equal(
        other.score_matrix(*encoded(case, other)), model.score_matrix(*encoded(case, model))
    )


def a_written_call_makes_the_same_model(case: Case) -> None:
    again = config_from_dict(case.spec.to_dict())
    assert again == case.spec
    torch.manual_seed(0)
    other = trained(again.build()).eval()
    same(
        other.score_matrix(*encoded(case, other)),
        case.build().score_matrix(*encoded(case, case.build())),
    )


def evaluation_is_deterministic(case: Case) -> None:
    model = case.build()
    first, second = (model.score_matrix(*encoded(case, model)) for _ in range(2))
    assert torch.equal(first, second)


def training_sees_what_inference_sees(case: Case) -> None:
    model = case.build()
    rng = torch.Generator().manual_seed(1)
    images, texts = case.images(4, rng), case.texts(4, rng)
    rows = torch.arange(4)
    batch = Batch(0, rows, rows, images, texts, (4, 4), Pairs(rows, rows))
    view = model(batch).inference
    assert len(view.images) == len(view.texts) == 4
    expected = model.score_matrix(model.encode_images(images), model.encode_texts(texts))
    same(model.score_matrix(view.images, view.texts), expected)


def scores_have_the_gradient_of_pairs(case: Case) -> None:
    model = case.build().double()
    images, texts = encoded(case, case.build())
    leaves = [x.tokens.detach().double().requires_grad_() for x in (images, texts)]
    bags = [Embeddings(leaf, x.mask) for leaf, x in zip(leaves, (images, texts), strict=True)]
    weights = torch.randn(I, T, dtype=torch.double, generator=torch.Generator().manual_seed(3))
    by_grid = torch.autograd.grad((model.score_matrix(*bags) * weights).sum(), leaves)
    scores = model.score_pairs(*product(*bags)).view(I, T)
    by_pairs = torch.autograd.grad((scores * weights).sum(), leaves)
    for ours, theirs in zip(by_grid, by_pairs, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


def scores_keep_single_precision_under_autocast(case: Case) -> None:
    model = case.build()
    with torch.autocast("cpu", torch.bfloat16):
        images, texts = encoded(case, model)
        grid = model.score_matrix(images, texts)
        pairs = model.score_pairs(*product(images, texts)).view(I, T)
    assert grid.dtype == pairs.dtype == torch.float32
    torch.testing.assert_close(grid, pairs, rtol=0.05, atol=0.05)
    if grid.requires_grad:
        grid.sum().backward()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


UNREAD = ("captioner.", "graph.", "says.", "image.veil", "image.embed.regions.veil")


def every_parameter_takes_part(case: Case) -> None:
    """But for what is asked in training alone, of a batch or for words."""
    model = case.build()
    scores = model.score_matrix(*encoded(case, model))
    if not scores.requires_grad:
        return
    scores.square().sum().backward()
    idle = {n for n, p in model.named_parameters() if p.requires_grad and p.grad is None}
    assert not [n for n in idle if not n.startswith(UNREAD)]


def vectors_of_zeros_give_no_nan(case: Case) -> None:
    model = case.build()
    bags = [Embeddings(x.tokens.detach(), x.mask) for x in encoded(case, model)]
    for zero in bags:
        leaves = [(x.tokens * (x is not zero)).requires_grad_() for x in bags]
        both = (Embeddings(leaf, x.mask) for leaf, x in zip(leaves, bags, strict=True))
        scores = model.score_matrix(*both)
        assert scores.isfinite().all()
        assert all(g.isfinite().all() for g in torch.autograd.grad(scores.sum(), leaves))


def images_of_zeros_give_no_nan(case: Case) -> None:
    model = case.build()
    rng = torch.Generator().manual_seed(1)
    images, texts = case.images(I, rng), case.texts(T, rng)
    blank = replace(images, values=torch.zeros_like(images.values))
    scores = model.score_matrix(model.encode_images(blank), model.encode_texts(texts))
    assert scores.isfinite().all()
    if scores.requires_grad:
        scores.sum().backward()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


PROMISES = (
    every_parameter_takes_part,
    vectors_of_zeros_give_no_nan,
    images_of_zeros_give_no_nan,
    scores_keep_single_precision_under_autocast,
    grid_equals_pairs_on_the_product,
    listed_pairs_are_entries_of_the_grid,
    numbers_of_images_and_texts_may_differ,
    one_region_and_one_word_keep_their_shape,
    garbage_in_padding_of_items_changes_nothing,
    garbage_in_padding_reaches_no_gradient,
    garbage_in_padding_of_encodings_changes_nothing,
    room_for_more_tokens_changes_nothing,
    an_encoding_does_not_depend_on_the_batch,
    order_of_the_texts_is_kept,
    weights_make_the_model,
    a_written_call_makes_the_same_model,
    evaluation_is_deterministic,
    training_sees_what_inference_sees,
    scores_have_the_gradient_of_pairs,
)
