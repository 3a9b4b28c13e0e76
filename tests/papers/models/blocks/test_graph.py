from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

import bag_cases
from counterfoil.core.types import Embeddings
from counterfoil.papers.models.hrem import BatchGraph, match_fragments

I, T, WIDTH = 3, 5, bag_cases.WIDTH


def graph(**options: object) -> BatchGraph:
    torch.manual_seed(2)
    return BatchGraph(**({"width": WIDTH, "heads": 2, "best": 3} | options)).double().eval()


def batch(seed: int = 0) -> tuple[Tensor, Tensor, Embeddings, Embeddings]:
    rng = torch.Generator().manual_seed(seed)
    vectors = [
        normalize(torch.randn(n, WIDTH, generator=rng, dtype=torch.double), dim=-1) for n in (I, T)
    ]
    regions, words = bag_cases.bags(seed, images=I, texts=T)
    return vectors[0].requires_grad_(), vectors[1].requires_grad_(), regions, words


def test_relations_equal_a_loop_over_pairs():
    layer, (images, texts, regions, words) = graph(share=0.67).requires_grad_(False), batch()
    images, texts = images.detach(), texts.detach()
    relations = layer.relations(images, texts, regions, words)
    seen = dict(zip(("i2t", "t2i"), match_fragments(regions, words, 3), strict=True))
    judges = {"i2t": layer.by_images, "t2i": layer.by_texts}
    for name, left, right in (
        ("i2i", images, images),
        ("i2t", images, texts),
        ("t2i", texts, images),
        ("t2t", texts, texts),
    ):
        edges = getattr(relations, name)
        count = int(0.67 * len(right))
        for a in range(len(left)):
            near = (
                [float(left[a] @ right[b]) for b in range(len(right))]
                if name not in seen
                else seen[name].mean[a].tolist()
            )
            floor = sorted(near)[-count]
            assert edges.connected[a].tolist() == [value >= floor for value in near]
            for b in range(len(right)):
                wanted = (
                    math.exp(-float((left[a] - right[b]).norm()))
                    if name not in seen
                    else float(judges[name](seen[name].best[a, b])) + near[b]
                )
                assert edges.relevance[a, b].item() == pytest.approx(wanted)


def test_an_item_reads_only_along_its_edges():
    layer, made = graph(share=0.4), batch()
    told = layer(*made)
    kept = layer.relations(*made).bias(1.0) > -torch.inf
    for row, vector in enumerate(torch.cat([told.images, told.texts])):
        grads = torch.autograd.grad(vector.norm() + vector[0], made[:2], retain_graph=True)
        read = torch.cat(grads).abs().amax(1) > 1e-12
        assert (read <= (kept[row] | (torch.arange(I + T) == row))).all()
        assert read[row]


def test_the_penalty_equals_sums_over_rows():
    layer, (images, texts, regions, words) = graph(penalty=2.0), batch()
    layer.requires_grad_(False)
    images, texts = images.detach(), texts.detach()
    relations = layer.relations(images, texts, regions, words)
    total = 0.0
    for left, right, edges in (
        (images, texts, relations.i2t),
        (texts, images, relations.t2i),
    ):
        for a in range(len(left)):
            guide = torch.stack([(-(left[a] - other).norm()).exp() for other in right]).softmax(0)
            learnt = edges.relevance[a].softmax(0)
            p, q = guide, learnt
            total += float((p * (p / q).log()).sum()) / len(left)
    assert layer(images, texts, regions, words).penalty.item() == pytest.approx(2 * total)


def test_the_guide_of_the_penalty_has_no_gradient():
    layer, made = graph(), batch()
    layer(*made).penalty.backward()
    assert made[0].grad is None
    assert layer.by_texts[0].weight.grad.abs().max() > 0


def test_the_enhanced_vectors_teach_everything():
    layer, made = graph(), batch()
    told = layer(*made)
    (told.images[:, 0].sum() + told.texts[:, 1].sum()).backward()
    for parameter in (*layer.parameters(), *made[:2]):
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().max() > 0


def test_gradients_are_those_of_differences():
    layer, (images, texts, regions, words) = graph().requires_grad_(False), batch()

    def told(*vectors: Tensor) -> tuple[Tensor, Tensor]:
        out = layer(*(normalize(x, dim=-1) for x in vectors), regions, words)
        return out.images, out.texts

    assert torch.autograd.gradcheck(told, (images, texts))


def test_garbage_in_padding_and_more_of_it_changes_nothing():
    layer, (images, texts, regions, words) = graph(), batch()
    told = layer(images, texts, regions, words)
    zeros = [Embeddings(x.tokens.nan_to_num(0), x.mask) for x in (regions, words)]
    for bags in (zeros, [x.padded(9) for x in zeros]):
        again = layer(images, texts, *bags)
        torch.testing.assert_close(again.images, told.images)
        torch.testing.assert_close(again.penalty, told.penalty)


def test_one_image_and_one_text():
    layer, (images, texts, regions, words) = graph(), batch()
    one = slice(0, 1)
    told = layer(images[one], texts[one], regions.rows(one), words.rows(one))
    assert told.penalty.item() == 0
    torch.testing.assert_close(told.images.norm(dim=1), torch.ones(1).double())


def test_equal_vectors_have_a_finite_gradient():
    layer, (images, texts, regions, words) = graph(), batch()
    twins = images[:1].expand(I, WIDTH).detach().clone().requires_grad_()
    layer(twins, texts, regions, words).images.sum().backward()
    assert twins.grad.isfinite().all()


def test_half_precision_is_read_in_full():
    layer = graph().float()
    images, texts, regions, words = batch()
    bags = [Embeddings(x.tokens.nan_to_num(0).float(), x.mask) for x in (regions, words)]
    plain = layer(images.float(), texts.float(), *bags)
    with torch.autocast("cpu", torch.bfloat16):
        cast = layer(images.float(), texts.float(), *bags)
    assert torch.equal(cast.images, plain.images)
