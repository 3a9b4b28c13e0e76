"""Counterfactual negatives: saliency, edits and the sampler."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig

import matcher_cases
import train_cases as cases
from counterfoil.core.types import (
    Batch,
    Embeddings,
    EncodedBatch,
    EncodedViews,
    ModalityBatch,
    Needs,
    Pairs,
    Role,
)
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.triplet import HardestTripletLoss
from counterfoil.models.base import RetrievalModel
from counterfoil.models.layers.pretrained import BertTextTower
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.models.vsepp import VSEPP
from counterfoil.negatives.sources import MinedExtras, NegativeSource
from counterfoil.papers.compared.counterfactual import (
    CounterfactualSampler,
    check_word_gradients,
    overwrite_tokens,
    region_saliency,
    token_saliency,
    without_regions,
    without_words,
    word_embeddings_of,
    word_saliency,
)
from counterfoil.papers.compared.losses import SelfAdjustedCFMLoss, SelfExploredCFMLoss
from counterfoil.papers.models.scan import SCAN
from counterfoil.training.step import TrainingStep

COUNTS = [5, 1, 3, 4]


def items(seed: int, *, words: bool, counts: list[int] = COUNTS) -> ModalityBatch:
    rng = torch.Generator().manual_seed(seed)
    mask = torch.arange(5) < torch.tensor(counts).unsqueeze(1)
    if words:
        values = torch.randint(4, 99, mask.shape, generator=rng)
        return ModalityBatch(torch.arange(len(counts)), values, mask)
    boxes = torch.rand(len(counts), 5, 4, generator=rng)
    values = torch.randn(len(counts), 5, 3, generator=rng)
    return ModalityBatch(
        torch.arange(len(counts)), values, mask, boxes, torch.zeros(len(counts), 1, 2)
    )


def rank(seed: int) -> Tensor:
    return torch.rand(len(COUNTS), 5, generator=torch.Generator().manual_seed(seed))


def most(ranks: list[float], may: list[bool]) -> list[int]:
    return sorted((n for n in range(len(ranks)) if may[n]), key=lambda n: -ranks[n])


def how_many(may: list[bool], share: float) -> int:
    return min(max(int(sum(may) * share), 1), sum(may))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("words", [True, False])
def test_overwritten_rank_by_rank(share: float, words: bool) -> None:
    into, source = items(0, words=words), items(1, words=words, counts=[2, 4, 3, 1])
    ranks, may = (rank(0), rank(1)), (into.mask, source.mask)
    found = overwrite_tokens(into, source, ranks, may, share=share)
    wanted = into.values.clone()
    for n in range(len(COUNTS)):
        mine = most(ranks[0][n].tolist(), may[0][n].tolist())
        its = most(ranks[1][n].tolist(), may[1][n].tolist())
        for a, b in list(zip(mine, its))[: how_many(may[0][n].tolist(), share)]:
            wanted[n, a] = source.values[n, b]
    assert torch.equal(found.values, wanted)
    assert torch.equal(found.mask, into.mask)
    assert (found.ids == -1).all()
    assert found.targets is None
    if not words:
        moved = (found.values != into.values).all(2)
        assert moved.any()
        assert torch.equal(moved, (found.boxes != into.boxes).all(2))


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_hidden_regions_become_the_mean_of_the_rest(share: float) -> None:
    images, ranks = items(0, words=False), rank(2)
    garbage = images.values.masked_fill(~images.mask.unsqueeze(2), torch.nan)
    images = ModalityBatch(images.ids, garbage, images.mask)
    found = without_regions(images, ranks, share=share)
    for n, count in enumerate(COUNTS):
        out = most(ranks[n].tolist(), images.mask[n].tolist())
        out = out[: how_many(images.mask[n].tolist(), share)]
        rest = [images.values[n, r] for r in range(count) if r not in out]
        mean = torch.stack(rest).mean(0) if rest else torch.zeros(3)
        for r in range(count):
            wanted = mean if r in out else images.values[n, r]
            torch.testing.assert_close(found.values[n, r], wanted)


def test_hidden_words() -> None:
    texts, ranks = items(0, words=True), rank(3)
    may = texts.mask.clone()
    may[:, 0] = False
    found = without_words(texts, ranks, may, share=0.5, mask=2)
    for n in range(len(COUNTS)):
        out = most(ranks[n].tolist(), may[n].tolist())[: how_many(may[n].tolist(), 0.5)]
        wanted = [2 if w in out else int(texts.values[n, w]) for w in range(5)]
        assert found.values[n].tolist() == wanted
    assert torch.equal(found.values[1], texts.values[1]), "a text without words stays"


def test_equal_ranks_prefer_what_stands_first() -> None:
    texts = items(0, words=True)
    found = without_words(texts, torch.zeros(4, 5), texts.mask, share=0.4, mask=2)
    assert (found.values[0] == 2).tolist() == [True, True, False, False, False]


WEIGHT = torch.tensor([0.5, 1.0, -0.25, -2.0], dtype=torch.float64)


def saliency_model(kind: str, words: int = 20) -> RetrievalModel:
    torch.manual_seed(0)
    image, text = Regions(features=6, width=8), GRU(words=words, word_width=5, width=8, dropout=0.4)
    return (SCAN if kind == "scan" else VSEPP)(image=image, text=text).double()


def saliency_items() -> tuple[ModalityBatch, ModalityBatch]:
    rng = torch.Generator().manual_seed(1)
    images, texts = matcher_cases.regions(4, rng), matcher_cases.words(4, rng)
    texts.values[0] = texts.values[0, 0]  # one word over and over
    texts.mask[0] = True
    return replace(images, values=images.values.double()), texts


def total(model: RetrievalModel, images: ModalityBatch, texts: ModalityBatch) -> Tensor:
    model.eval()
    scores = model.score_pairs(model.encode_images(images), model.encode_texts(texts))
    return (WEIGHT * scores).sum()


@pytest.mark.parametrize("kind", ["scan", "vse"])
def test_regions_are_those_of_finite_differences(kind: str) -> None:
    model, (images, texts) = saliency_model(kind), saliency_items()
    found = region_saliency(model, images, model.eval().encode_texts(texts), WEIGHT)
    with torch.no_grad():
        for place in [(0, 0, 1), (1, 0, 5), (2, 0, 0), (3, 0, 2)]:
            step = torch.zeros_like(images.values)
            step[place] = 1e-6
            up, down = (
                total(model, replace(images, values=images.values + s), texts)
                for s in (step, -step)
            )
            assert found[place].item() == pytest.approx(float(up - down) / 2e-6, abs=1e-7)
    assert not found.masked_fill(images.mask.unsqueeze(2), 0).any()


def spread(model: RetrievalModel, texts: ModalityBatch) -> tuple[RetrievalModel, ModalityBatch]:
    """A model with a row for every occurrence of a word, so that its table tells them apart."""
    ids = texts.values.masked_fill(~texts.mask, 0)
    other = saliency_model("scan" if isinstance(model, SCAN) else "vse", words=ids.numel())
    state = model.state_dict()
    state["text.embed.weight"] = state["text.embed.weight"][ids.flatten()]
    other.load_state_dict(state)
    return other, replace(texts, values=torch.arange(ids.numel()).view(ids.shape))


@pytest.mark.parametrize("kind", ["scan", "vse"])
def test_words_are_those_of_a_table_of_occurrences(kind: str) -> None:
    model, (images, texts) = saliency_model(kind), saliency_items()
    found = word_saliency(model, texts, model.eval().encode_images(images), WEIGHT)
    other, alone = spread(model, texts)
    total(other, images, alone).backward()
    wanted = other.text.embed.weight.grad.view(found.shape)
    torch.testing.assert_close(found[texts.mask], wanted[texts.mask])
    assert found[0, 0].norm() != found[0, 1].norm()


def test_tokens_are_those_of_the_table_itself() -> None:
    model, (images, texts) = saliency_model("scan"), saliency_items()
    found = word_saliency(model, texts, model.eval().encode_images(images), WEIGHT)
    total(model, images, texts).backward()
    wanted = model.text.embed.weight.grad[texts.values]
    torch.testing.assert_close(token_saliency(found, texts)[texts.mask], wanted[texts.mask])


def test_the_model_is_left_as_it_was() -> None:
    model, (images, texts) = saliency_model("scan").train(), saliency_items()
    model.text.rnn.eval()
    seen = model.encode_images(images), model.encode_texts(texts)
    state = torch.get_rng_state()
    with torch.no_grad():
        one = word_saliency(model, texts, seen[0], WEIGHT)
        region_saliency(model, images, seen[1], WEIGHT)
    assert torch.equal(state, torch.get_rng_state()), "no dropout"
    torch.testing.assert_close(one, word_saliency(model, texts, seen[0], WEIGHT))
    assert model.training
    assert model.text.dropout.training
    assert not model.text.rnn.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not model.text.embed._forward_hooks
    assert not images.values.requires_grad


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16])
def test_features_in_half_precision(dtype: torch.dtype) -> None:
    model, (images, texts) = saliency_model("scan").float(), saliency_items()
    half = replace(images, values=images.values.to(dtype))
    seen = model.eval().encode_texts(texts)
    found = region_saliency(model, half, seen, WEIGHT.float())
    wanted = region_saliency(model, replace(half, values=half.values.float()), seen, WEIGHT.float())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted)


class TwoReaders(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.both = nn.ModuleList([GRU(words=5, width=8), GRU(words=5, width=8)])


def test_who_looks_words_up() -> None:
    model = saliency_model("scan")
    assert word_embeddings_of(model) is check_word_gradients(model) is model.text
    with pytest.raises(ValueError, match="Global has 0 text encoders that tell where they look"):
        word_embeddings_of(cases.host("global", cases.processor()))
    with pytest.raises(ValueError, match="TwoReaders has 2 text encoders"):
        word_embeddings_of(TwoReaders())  # type: ignore[arg-type]


def test_what_does_not_listen_to_its_words() -> None:
    model = saliency_model("scan")
    model.text.read = lambda vectors, mask: GRU.read(model.text, vectors.detach(), mask)
    with pytest.raises(ValueError, match="the text encoder GRU is not trained, so no gradient"):
        check_word_gradients(model)


def test_a_frozen_bert_is_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 9}
    BertConfig(**sizes, num_hidden_layers=1).save_pretrained(tmp_path)
    for trained in (True, False):
        text = BertTextTower(name=str(tmp_path), width=8, pretrained=False, trained=trained, mask=4)
        model = VSEPP(image=Regions(features=6, width=8), text=text, text_pool="mean")
        if trained:
            assert check_word_gradients(model).mask_word == 4
            continue
        with pytest.raises(ValueError, match="the text encoder BertTextTower is not trained"):
            check_word_gradients(model)


ANCHORS = [0, 1, 5, 7, 9, 13, 20, 30]  # captions 0 and 1 share an image
UNKNOWN = 3
ROLES = (Role.EDITED, Role.MASKED_POSITIVE, Role.MASKED_NEGATIVE)


def always(**options: Any) -> CounterfactualSampler:
    return CounterfactualSampler(
        **{"adjust": 1.0, "explore": 1.0, "mask": UNKNOWN, "margin": 0.05, **options}
    )


def scan_model() -> RetrievalModel:
    return cases.host("scan", cases.processor()).double().eval()


def batch_of(anchors: list[int] = ANCHORS) -> Batch:
    """In double precision, so that ranks do not depend on rounding; ends are no words."""
    batch = cases.batch_of(cases.processor(), anchors)
    images = replace(batch.images, values=batch.images.values.double())
    place = torch.arange(batch.texts.mask.shape[1])
    ends = (place == 0) | (place >= batch.texts.mask.sum(1, keepdim=True) - 1)
    texts = replace(batch.texts, words=place.masked_fill(ends, -1))
    return replace(batch, images=images, texts=texts)


def views_of(model: RetrievalModel, batch: Batch) -> EncodedViews:
    with torch.no_grad():
        return model(batch)


def proposed(
    source: CounterfactualSampler, batch: Batch, seed: int = 0
) -> tuple[RetrievalModel, EncodedViews, MinedExtras]:
    model = scan_model()
    views = views_of(model, batch)
    grid = model.score_matrix(views.inference.images, views.inference.texts)
    rng = torch.Generator().manual_seed(seed)
    return model, views, source.propose(model, batch, views, grid, rng)


def loop(
    model: RetrievalModel, batch: Batch, views: EncodedViews, margin: float
) -> dict[tuple[str, int], dict[Role, Tensor]]:
    """By side and anchor: what every role's edited item looks like, one anchor after the other."""
    seen, read = views.inference.images, views.inference.texts
    grid, found = model.score_matrix(seen, read), {}
    one = torch.ones(1, dtype=torch.float64)
    for b, (i, t) in enumerate(zip(batch.anchors.image.tolist(), batch.anchors.text.tolist())):
        texts = [u for u in range(batch.block[1]) if not batch.positive[i, u]]
        images = [j for j in range(batch.block[0]) if not batch.positive[j, t]]
        hard = max(texts, key=lambda u: float(grid[i, u]))
        other = max(images, key=lambda j: float(grid[j, t]))
        if margin + grid[i, hard] - grid[i, t] > 0:
            anchor = seen.rows(torch.tensor([i]))
            ranks = [
                word_saliency(model, batch.texts.rows(torch.tensor([u])), anchor, one)[0].norm(
                    dim=1
                )
                for u in (t, hard)
            ]
            found["text", b] = edited(batch.texts, t, hard, ranks)
        if margin + grid[other, t] - grid[i, t] > 0:
            anchor = read.rows(torch.tensor([t]))
            ranks = [
                region_saliency(model, batch.images.rows(torch.tensor([j])), anchor, one)[0].norm(
                    dim=1
                )
                for j in (i, other)
            ]
            found["image", b] = edited(batch.images, i, other, ranks)
    return found


def edited(items: ModalityBatch, true: int, wrong: int, ranks: list[Tensor]) -> dict[Role, Tensor]:
    may = [items.mask[n] if items.words is None else items.words[n] >= 0 for n in (true, wrong)]
    order = [
        most(rank.tolist(), (m & items.mask[n]).tolist())
        for rank, m, n in zip(ranks, may, (true, wrong), strict=True)
    ]
    made = [items.values[n].clone() for n in (true, true, wrong)]
    for a, b in list(zip(*order))[: max(int(0.8 * len(order[0])), 1)]:
        made[0][a] = items.values[wrong, b]
    for n in range(2):
        count = max(int(0.1 * len(order[n])), 1)
        rest = made[1 + n][order[n][count:]]
        made[1 + n][order[n][:count]] = UNKNOWN if rest.dim() == 1 else rest.mean(0)
    return dict(zip(ROLES, made))


@pytest.mark.parametrize("margin", [-0.1, 0.4])
def test_edits_are_those_of_a_loop(margin: float) -> None:
    batch = batch_of()
    model, views, proposal = proposed(always(margin=margin), batch)
    wanted = loop(model, batch, views, margin)
    sides = {side for side, _ in wanted}
    assert sides == {"text", "image"}
    assert margin > 0.1 or len(wanted) < 2 * len(ANCHORS), "some anchors have nothing to edit"
    pools = len(batch.text_rows), len(batch.image_rows)
    for role in ROLES:
        pairs = proposal.pairs[role]
        assert torch.equal(pairs.image[:, 0], batch.anchors.image)
        assert torch.equal(pairs.text[:, 1], batch.anchors.text)
        for b in range(len(ANCHORS)):
            places = (("text", pairs.text[b, 0], 0), ("image", pairs.image[b, 1], 1))
            for side, place, nth in places:
                if (side, b) not in wanted:
                    assert place == -1
                    continue
                items = proposal.texts if side == "text" else proposal.images
                assert items is not None
                got = items.rows((place - pools[nth]).view(1))
                want = wanted[side, b][role]
                mask = got.mask[0]
                torch.testing.assert_close(got.values[0][mask], want[: len(mask)][mask])


def test_special_tokens_stay() -> None:
    _, _, proposal = proposed(always(swapped=1.0, hidden=1.0), batch_of())
    assert proposal.texts is not None
    specials = proposal.texts.mask & (proposal.texts.words < 0)
    assert (proposal.texts.values[specials] < UNKNOWN).all()
    _, _, every = proposed(always(swapped=1.0, hidden=1.0, specials=True), batch_of())
    assert every.texts is not None
    assert (every.texts.values[specials] == UNKNOWN).any()


def test_steps_without_edits() -> None:
    source, counts = CounterfactualSampler(mask=UNKNOWN, margin=0.4), [0, 0, 0, 0]
    batch, model = batch_of(), scan_model()
    views = views_of(model, batch)
    grid = model.score_matrix(views.inference.images, views.inference.texts)
    for seed in range(40):
        rng = torch.Generator().manual_seed(seed)
        proposal = source.propose(model, batch, views, grid, rng)
        there = [bool((proposal.pairs[role].text >= 0).all()) for role in ROLES]
        assert there[1] == there[2]
        counts[2 * there[0] + there[1]] += 1
        each = there[0] + 2 * there[1]
        assert (0 if proposal.images is None else len(proposal.images)) == each * len(ANCHORS)
    assert all(counts), "the two are drawn independently"
    assert counts[0] > counts[3]


def terms() -> WeightedSum:
    return WeightedSum(
        terms={
            "triplet": (1.0, HardestTripletLoss(margin=0.4)),
            "adjusted": (1.0, SelfAdjustedCFMLoss()),
            "explored": (1.0, SelfExploredCFMLoss()),
        }
    )


@pytest.mark.parametrize("kind", ["scan", "vsrn", "vse"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_any_host_of_regions_and_words(kind: str, precision: Any) -> None:
    processor = cases.processor()
    words = processor.processor.tokenizer.size
    if kind == "vse":
        image, text = Regions(features=6, width=8), GRU(words=words, width=8, word_drop=0.2)
        model: RetrievalModel = VSEPP(image=image, text=text)
    else:
        model = cases.host(kind, processor)
    source = always(margin=0.4, mask=None if kind == "vse" else UNKNOWN)
    step = TrainingStep(model, terms(), sources=[source], precision=precision)
    losses = step(cases.batch_of(processor, ANCHORS, step=1))
    assert losses["adjusted"] > 0
    assert losses["explored"] > 0
    grown = torch.autograd.grad(
        losses["adjusted"] + losses["explored"], list(model.parameters()), allow_unused=True
    )
    names = [name for name, _ in model.named_parameters()]
    still = {name for name, gradient in zip(names, grown) if gradient is None}
    assert all(name.startswith("captioner") for name in still)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("margin", "anchors"), [(-9.0, ANCHORS), (0.05, [0, 1])], ids=["far ahead", "of one image"]
)
def test_anchors_that_are_not_edited(margin: float, anchors: list[int]) -> None:
    _, _, proposal = proposed(always(margin=margin), batch_of(anchors))
    assert proposal.images is None
    assert proposal.texts is None
    assert all((proposal.pairs[role].text[:, 0] == -1).all() for role in ROLES)


def test_what_cannot_be() -> None:
    processor = cases.processor()
    with pytest.raises(ValueError, match=r"swapped=1\.5 is not possible"):
        CounterfactualSampler(swapped=1.5)
    with pytest.raises(ValueError, match="'word' is not a kind of gradients"):
        CounterfactualSampler(gradients="word")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="has no token that hides a word; give its id as mask"):
        CounterfactualSampler().check(cases.host("scan", processor), processor.dataset)
    with pytest.raises(ValueError, match="Global has 0 text encoders"):
        always().check(cases.host("global", processor), processor.dataset)


def test_images_without_regions() -> None:
    batch = batch_of()
    images = len(batch.images)
    nothing = Embeddings(torch.zeros(images, 1, 8), torch.ones(images, 1, dtype=torch.bool))
    views = EncodedViews({"inference": EncodedBatch(nothing, nothing)})
    grid, rng = torch.zeros(batch.block), torch.Generator()
    for values, words in (
        (torch.zeros(images, 1, 6), "images of one vector each have no regions to edit"),
        (torch.zeros(images, 3, 8, 8), r"images of shape \(7, 3, 8, 8\) .* cannot be edited"),
    ):
        pictures = ModalityBatch(batch.images.ids, values, nothing.mask)
        with pytest.raises(ValueError, match=words):
            always().propose(scan_model(), replace(batch, images=pictures), views, grid, rng)


def test_pairs_of_no_place_are_not_scored() -> None:
    batch, model = batch_of(), scan_model()

    class Half(NegativeSource):
        gives = Needs(roles=frozenset({Role.EDITED}))

        def propose(self, *given: Any) -> MinedExtras:
            place = torch.tensor([[0, -1], [-1, 2]])
            return MinedExtras(pairs={Role.EDITED: Pairs(place, torch.tensor([[1, 1], [1, 2]]))})

    loss = WeightedSum(terms={"t": (1.0, SelfAdjustedCFMLoss())})
    step = TrainingStep(model, loss, sources=[Half()])
    views = views_of(model, batch)
    proposal = step._proposal(batch, views, torch.zeros(batch.block))
    found = step._pairs(batch, views, proposal)[Role.EDITED]
    assert found.isneginf().tolist() == [[False, True], [True, False]]
    grid = model.score_matrix(views.inference.images, views.inference.texts)
    torch.testing.assert_close(found[0, 0], grid[0, 1])
    torch.testing.assert_close(found[1, 1], grid[2, 2])
