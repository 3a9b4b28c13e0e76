from __future__ import annotations

import pytest
import torch

import bag_cases
import hub_cases
import matcher_cases
from counterfoil.core.config import config as config_
from counterfoil.core.config import lazy
from counterfoil.core.types import ModalityBatch
from counterfoil.models.clip import DualEncoder, vector_width
from counterfoil.models.embeddings import EmbeddingModel
from counterfoil.models.frozen import FrozenAdapters, FrozenWithAdapters
from counterfoil.models.layers.pretrained import read_config_json
from matcher_promises import PROMISES

WIDTH = matcher_cases.WIDTH


def frozen(folder: str, **more: object):
    body = lazy(DualEncoder, name=folder)
    return config_(FrozenWithAdapters, body=body, width=vector_width(folder), **more)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return hub_cases.clip(tmp_path_factory.mktemp("hub") / "clip")


def test_widths(clip, tmp_path):
    assert vector_width(clip) == 8
    assert vector_width(hub_cases.siglip(tmp_path / "siglip")) == 16
    assert vector_width(hub_cases.siglip2(tmp_path / "siglip2")) == 16
    with pytest.raises(ValueError, match="is a bert, which does not encode images and texts"):
        vector_width(hub_cases.bert(tmp_path / "bert"))


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_promises_of_the_head(promise):
    spec = config_(FrozenAdapters, width=WIDTH, hidden=4)
    promise(matcher_cases.Case("head", spec, matcher_cases.vectors, matcher_cases.vectors))


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_promises_of_the_whole(promise, clip):
    promise(matcher_cases.Case("whole", frozen(clip), matcher_cases.pixels, matcher_cases.words))


@pytest.mark.parametrize("hidden", [0, 4])
def test_an_untrained_head_scores_as_its_vectors(hidden):
    rng = torch.Generator().manual_seed(0)
    images, texts = matcher_cases.vectors(4, rng), matcher_cases.vectors(5, rng)
    head, plain = FrozenAdapters(width=WIDTH, hidden=hidden), EmbeddingModel()
    ours = head.score_matrix(head.encode_images(images), head.encode_texts(texts))
    theirs = plain.score_matrix(plain.encode_images(images), plain.encode_texts(texts))
    torch.testing.assert_close(ours, theirs)


def test_the_head_alone_gives_what_the_whole_gives(clip):
    whole = frozen(clip, hidden=4).build().eval()
    for parameter in whole.head.parameters():
        torch.nn.init.normal_(parameter)
    rng = torch.Generator().manual_seed(0)
    images, texts = matcher_cases.pixels(3, rng), matcher_cases.words(4, rng)
    seen, read = whole.body.encode_images(images), whole.body.encode_texts(texts)
    head = whole.head
    vectors = [ModalityBatch(torch.arange(len(e)), e.tokens.detach(), e.mask) for e in (seen, read)]
    alone = head.score_matrix(head.encode_images(vectors[0]), head.encode_texts(vectors[1]))
    ours = whole.score_matrix(whole.encode_images(images), whole.encode_texts(texts))
    torch.testing.assert_close(alone, ours)
    again = whole.score_matrix(whole.encode_images(vectors[0]), whole.encode_texts(vectors[1]))
    assert torch.equal(again, alone)
    assert not torch.allclose(ours, whole.body.score_matrix(seen, read))


def test_the_body_neither_learns_nor_drops(clip):
    whole = frozen(clip, hidden=4, dropout=0.5).build().train()
    assert whole.head.training
    assert not any(module.training for module in whole.body.modules())
    rng = torch.Generator().manual_seed(0)
    images, texts = matcher_cases.pixels(3, rng), matcher_cases.words(3, rng)
    whole.score_matrix(whole.encode_images(images), whole.encode_texts(texts)).sum().backward()
    learns = {name.split(".")[0] for name, p in whole.named_parameters() if p.grad is not None}
    assert learns == {"head"}
    assert not any(p.requires_grad for p in whole.body.parameters())


def test_begins_from_the_whole_or_from_its_body(clip):
    body = DualEncoder(name=clip)
    for parameter in body.parameters():
        torch.nn.init.normal_(parameter)
    config = read_config_json(clip)
    fresh = lazy(DualEncoder, name="nowhere", pretrained=False, config=config)
    whole = config_(FrozenWithAdapters, body=fresh, width=8, hidden=4).build()
    head = {name: t.clone() for name, t in whole.head.state_dict().items()}
    whole.load_state_dict(whole.adopted(body.state_dict()))
    assert all(torch.equal(t, body.state_dict()[n]) for n, t in whole.body.state_dict().items())
    assert all(torch.equal(t, head[n]) for n, t in whole.head.state_dict().items())
    state = whole.state_dict()
    assert whole.adopted(state).keys() == state.keys()


def test_what_is_no_single_vector_is_refused():
    bag = bag_cases.whole(torch.zeros(2, 3, WIDTH))
    with pytest.raises(ValueError, match=r"image vectors of shape \(2, 3, 8\) do not fit a head"):
        FrozenAdapters(width=WIDTH).encode_images(bag)
