from __future__ import annotations

from typing import Any

import pytest
import torch

import hub_cases
import processes
import train_cases
from counterfoil.core.types import Batch, ModalityBatch
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.triplet import HardestTripletLoss, SumTripletLoss
from counterfoil.models.layers.pretrained import BertTextTower
from counterfoil.models.layers.towers import GRU, MLPRegions, Regions
from counterfoil.papers.compared.losses import SelfExpandingLoss
from counterfoil.papers.models.esa import ESA, EXPANDED
from counterfoil.training.step import TrainingStep

WORDS, WIDTH = 40, 8
ANCHORS = [0, 1, 5, 7, 9, 12, 30]  # captions 0 and 1 share an image


def model(*, quiet: bool = False, **options: Any) -> ESA:
    """In training mode; quiet: nothing is drawn and nothing depends on the batch."""
    torch.manual_seed(0)
    more = {} if quiet else {"dropout": 0.1, "word_drop": 0.2}
    image = Regions if quiet else MLPRegions
    parts = {
        "image": image(features=train_cases.WIDTH, width=WIDTH),
        "text": GRU(words=WORDS, word_width=6, width=WIDTH, **more),
    }
    return ESA(**(parts | ({"region_drop": 0.0} if quiet else {}) | options))


def batch(anchors: list[int] = ANCHORS, *, offline: bool = False) -> Batch:
    return train_cases.batch_of(train_cases.processor(), anchors, offline=offline)


def vectors(bag: Any) -> torch.Tensor:
    return bag.tokens[:, 0].detach()


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_in_training_every_item_stands_there_several_times(copies):
    made = batch(offline=True)
    views = model(copies=copies)(made).views
    expanded, inference = views[EXPANDED], views["inference"]
    assert expanded.repeats == copies
    assert inference.repeats == 1
    for side, pool in (("images", made.image_rows), ("texts", made.text_rows)):
        several, one = getattr(expanded, side), getattr(inference, side)
        assert len(several) == copies * len(pool)
        assert torch.equal(several.tokens[::copies], one.tokens)
        torch.testing.assert_close(vectors(several).norm(dim=1), torch.ones(len(several)))


def test_copies_of_an_item_differ():
    expanded = model(region_drop=0.5)(batch()).views[EXPANDED]
    for bag in (expanded.images, expanded.texts):
        first, second = bag.tokens[::2, 0], bag.tokens[1::2, 0]
        assert (first - second).abs().amax(1).gt(1e-4).float().mean() > 0.5


def test_copies_of_an_image_differ_in_the_regions_that_are_pooled():
    host, made = model(), batch()
    host.image.eval()
    torch.manual_seed(3)
    found = vectors(host(made).views[EXPANDED].images)
    bag = host.image(made.images)
    torch.manual_seed(3)
    keep = torch.rand(len(bag), 2, bag.mask.shape[1]) >= 0.2
    torch.testing.assert_close(found, vectors(host.pooled(bag, keep)))
    torch.testing.assert_close(vectors(host.pooled(bag)), vectors(host.encode_images(made.images)))


def test_where_nothing_is_dropped_copies_are_what_is_used():
    host, made = model(quiet=True, copies=3), batch()
    expanded = host(made).views[EXPANDED]
    for bag, used in (
        (expanded.images, host.eval().encode_images(made.images)),
        (expanded.texts, host.encode_texts(made.texts)),
    ):
        torch.testing.assert_close(vectors(bag), vectors(used).repeat_interleave(3, 0))


def test_in_evaluation_there_is_one_clean_copy():
    host, made = model().eval(), batch()
    views = host(made).views
    assert {name: view.repeats for name, view in views.items()} == {"inference": 1, EXPANDED: 1}
    for view in views.values():
        torch.testing.assert_close(
            host.score_matrix(view.images, view.texts),
            host.score_matrix(host.encode_images(made.images), host.encode_texts(made.texts)),
        )


def test_an_image_is_read_once_whatever_its_copies():
    host, made = model(copies=3), batch()
    seen = []
    host.image.register_forward_hook(lambda _, items, __: seen.append(len(items[0])))
    host(made)
    assert seen == [len(made.images)]
    assert host.image.norm.num_batches_tracked == 1


def test_each_term_judges_its_view():
    """Copies of equals: the loss over copies is the plain one, twice."""
    terms = {"copies": (1.0, SelfExpandingLoss()), "plain": (1.0, HardestTripletLoss())}
    step = TrainingStep(model(quiet=True), WeightedSum(terms=terms))
    losses = step(batch())
    assert losses["plain"] > 0
    torch.testing.assert_close(losses["copies"], 2 * losses["plain"])


def test_the_level_of_equal_scores_counts_the_copies():
    step, made = (
        TrainingStep(model(), WeightedSum(terms={"copies": (1.0, SelfExpandingLoss(margin=0.3))})),
        batch(),
    )
    step(made)
    assert step.level(made).item() == pytest.approx(4 * len(ANCHORS) * 0.3)


def test_pieces_of_a_batch_give_the_gradient_of_the_whole():
    steps = [
        TrainingStep(model(quiet=True), WeightedSum(terms={"a": (1.0, SelfExpandingLoss())}))
        for _ in "ab"
    ]
    made = batch()
    steps[0](made)["a"].backward()
    train_cases.cached_backward(steps[1], made, 3)
    whole, pieces = (train_cases.gradients(step) for step in steps)
    for name, wanted in whole.items():
        torch.testing.assert_close(pieces[name], wanted, rtol=1e-4, atol=1e-6)


def shared() -> dict[str, Any]:
    terms = {"copies": (1.0, SelfExpandingLoss(against="all")), "plain": (0.5, SumTripletLoss())}
    step = torch.nn.parallel.DistributedDataParallel(
        TrainingStep(model(quiet=True), WeightedSum(terms=terms))
    )
    losses = step(batch())
    sum(losses.values()).backward()
    found = {name: loss.item() for name, loss in losses.items()}
    return found | {n: g.numpy() for n, g in train_cases.gradients(step.module).items()}


def test_two_processes_give_the_loss_and_gradient_of_one():
    (one,) = processes.run(shared, 1)
    for found in processes.run(shared, 2):
        assert found.keys() == one.keys()
        for name, wanted in one.items():
            torch.testing.assert_close(found[name], wanted, rtol=1e-4, atol=1e-5)


def test_an_image_without_regions_scores_zero():
    items = ModalityBatch(
        torch.arange(2), torch.zeros(2, 3, 6), torch.zeros(2, 3, dtype=torch.bool)
    )
    assert not model().eval().encode_images(items).tokens.any()


def test_words_of_a_pretrained_model_are_pooled(tmp_path):
    text = BertTextTower(name=hub_cases.bert(tmp_path), width=WIDTH, dropout=0.5)
    host, items = model(text=text), batch([0, 1, 5]).texts
    dropped = vectors(host.encode_texts(items))
    alone = vectors(host.eval().encode_texts(items.rows(slice(1, 2))))
    torch.testing.assert_close(vectors(host.encode_texts(items))[1:2], alone)
    assert not torch.allclose(dropped, vectors(host.encode_texts(items)))


def test_it_learns():
    step = TrainingStep(
        model(), WeightedSum(terms={"copies": (1.0, SelfExpandingLoss(reduction="mean"))})
    )
    made = batch([0, 5, 10, 15])
    first, *told = train_cases.learnt(step, lambda: step(made), rate=0.02, steps=40)
    assert sum(losses["copies"] for losses in told[-5:]) / 5 < 0.5 * first["copies"]
