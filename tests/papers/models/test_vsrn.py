from __future__ import annotations

import pytest
import torch

import bag_cases
import train_cases
from counterfoil.core.types import Batch, ModalityBatch
from counterfoil.data.processor import ProcessorConfig
from counterfoil.data.readers import load_dataset
from counterfoil.losses.base import WeightedSum
from counterfoil.losses.triplet import SumTripletLoss
from counterfoil.models.layers.towers import GRU, Regions
from counterfoil.papers.models.configs import vsrn_config
from counterfoil.papers.models.vsrn import VSRN, Captioner
from counterfoil.training.step import TrainingStep

WORDS, WIDTH = 40, 8
ANCHORS = [0, 1, 5, 7, 9]  # captions 0 and 1 share an image


def model(**options) -> VSRN:
    torch.manual_seed(0)
    captioner = Captioner(words=WORDS, width=WIDTH, hidden=5, word_width=4)
    text = GRU(words=WORDS, word_width=6, width=WIDTH, bidirectional=False)
    image = Regions(features=train_cases.WIDTH, width=WIDTH)
    return VSRN(image=image, text=text, **({"captioner": captioner, "layers": 2} | options))


def batch(*, offline: bool = True) -> Batch:
    return train_cases.batch_of(train_cases.processor(), ANCHORS, offline=offline)


def test_the_caption_loss_is_the_mean_over_anchors_and_sees_no_negative():
    host, made = model().eval(), batch()
    assert len(made.image_rows) > made.block[0]
    processor = train_cases.processor()
    total = torch.zeros(())
    for anchor in ANCHORS:
        image = processor.images(processor.dataset.text_to_image[[anchor]])
        caption = processor.texts(torch.tensor([anchor]))
        total += host.captioner(host.regions(image), caption.values)
    told = host(made).auxiliary["caption"]
    torch.testing.assert_close(told, total / len(ANCHORS))
    torch.testing.assert_close(host(batch(offline=False)).auxiliary["caption"], told)


def test_the_weight_multiplies_and_at_zero_nothing_is_built():
    whole, half = model(layers=0).eval(), model(layers=0, caption_weight=0.5).eval()
    made = batch()
    expected = whole(made).auxiliary["caption"] / 2
    torch.testing.assert_close(half(made).auxiliary["caption"], expected)
    none = model(caption_weight=0)
    assert not none(made).auxiliary
    assert not [name for name in none.state_dict() if name.startswith("captioner")]


def test_the_branch_is_saved_and_never_asked_at_test_time(monkeypatch):
    host, items = model().eval(), batch().images
    assert "captioner.out.weight" in host.state_dict()
    monkeypatch.setattr(host, "captioner", None)
    assert host.encode_images(items).tokens.isfinite().all()


def test_relations_begin_as_the_identity():
    host, none = model(), model(layers=0)
    none.load_state_dict({n: v for n, v in host.state_dict().items() if "relations" not in n})
    items = batch().images
    assert torch.equal(host.encode_images(items).tokens, none.encode_images(items).tokens)


def test_the_order_of_regions_is_read():
    host = model().eval()
    items = bag_cases.whole(torch.randn(1, 4, 6))
    turned = ModalityBatch(items.ids, items.values.flip(1), items.mask)
    distance = host.encode_images(items).tokens - host.encode_images(turned).tokens
    assert distance.abs().max() > 1e-3


@pytest.mark.parametrize("norm", ["channel", "vector"])
@pytest.mark.parametrize("coco", [True, False])
def test_empty_images_give_no_nan(norm, coco):
    host = model(region_norm=norm, normalise_regions=coco, batch_norm=not coco)
    for training in (True, False):
        items = bag_cases.whole(torch.zeros(2, 3, 6))
        vectors = host.train(training).encode_images(items).tokens
        (vectors * torch.randn(WIDTH)).sum().backward()
        assert vectors.isfinite().all()
    assert all(p.grad.isfinite().all() for p in host.parameters() if p.grad is not None)


def test_one_image_can_be_trained_on():
    host = model(batch_norm=True)
    lonely = train_cases.batch_of(train_cases.processor(), [4])
    assert host(lonely).inference.images.tokens.isfinite().all()


def test_passes_of_their_own_keep_the_order_and_the_statistics_apart():
    together, separate = model(), model(bn_passes="separate")
    made = batch()
    trained = [host.eval()(made).inference.images.tokens for host in (together, separate)]
    torch.testing.assert_close(*trained)
    for host in (together, separate):
        torch.nn.init.ones_(host.relations[0].norm.weight)
        host.train()
    anchors = Batch(
        0,
        made.image_rows[: made.block[0]],
        made.text_rows,
        made.images.rows(slice(made.block[0])),
        made.texts,
        made.block,
        made.anchors,
    )
    alone = together(anchors).inference.images.tokens
    assert not torch.allclose(together(made).inference.images.tokens[: made.block[0]], alone)
    before = separate.relations[0].norm.num_batches_tracked.item()
    found = separate(made).inference.images.tokens[: made.block[0]]
    torch.testing.assert_close(found, alone)
    assert separate.relations[0].norm.num_batches_tracked == before + 2


@pytest.mark.parametrize("variant", ["f30k", "coco"])
def test_the_recipe_learns_scenes(variant):
    dataset = load_dataset("scenes:images=24").split("train")
    processor = ProcessorConfig(images="pixels", size=32).fit(dataset).process(dataset)
    spec = vsrn_config(width=16, word_width=8, images="pixels", variant=variant)
    torch.manual_seed(0)
    host = spec.fill({"words": processor.processor.tokenizer.size, "size": 32}).build()
    assert host.captioner.out.in_features == 4
    step = TrainingStep(
        host, WeightedSum(terms={"triplet": (1.0, SumTripletLoss(reduction="mean"))})
    )
    made = train_cases.batch_of(processor, list(range(0, 24, 2)))
    first, *_, losses = train_cases.learnt(step, lambda: step(made), rate=0.01, steps=30)
    assert losses["triplet"] < 0.7 * first["triplet"]
    assert losses["model_caption"] < 0.85 * first["model_caption"]


def test_the_recipe_without_captions():
    spec = vsrn_config(width=16).replace(captioner=None).fill({"words": 9, "features": 3})
    assert spec.build().captioner is None
