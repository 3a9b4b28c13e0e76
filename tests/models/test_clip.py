from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

import bag_cases
import hub_cases
import matcher_cases
from counterfoil.core.config import config as config_
from counterfoil.core.types import ModalityBatch
from counterfoil.models.clip import DualEncoder, _unfolded, max_text_length
from counterfoil.models.layers.pretrained import load_hf_model
from matcher_promises import PROMISES

KINDS = ("clip", "siglip", "siglip2")


def ends(n: int, rng: torch.Generator) -> ModalityBatch:
    """Token ids that end with the end mark, as CLIP's tokenizer writes them."""
    items = matcher_cases.words(n, rng)
    last = items.mask.sum(1) - 1
    return ModalityBatch(
        items.ids, items.values.index_put((items.ids, last), torch.tensor(39)), items.mask
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    return {kind: getattr(hub_cases, kind)(root / kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_promise(promise, kind, folders):
    spec = config_(DualEncoder, name=folders[kind])
    promise(matcher_cases.Case(kind, spec, matcher_cases.pixels, ends))


def test_equals_the_library(folders):
    rng = torch.Generator().manual_seed(0)
    images, texts = matcher_cases.pixels(3, rng), ends(3, rng)
    ours = DualEncoder(name=folders["clip"]).eval()
    theirs = load_hf_model(folders["clip"], pretrained=True)
    out = theirs(
        pixel_values=images.values,
        input_ids=texts.values.masked_fill(~texts.mask, 39),
        attention_mask=texts.mask.long(),
    )
    expected = out.logits_per_image / theirs.logit_scale.exp()
    grid = ours.score_matrix(ours.encode_images(images), ours.encode_texts(texts))
    torch.testing.assert_close(grid, expected)


@pytest.mark.parametrize("kind", ["siglip", "siglip2"])
def test_texts_are_padded_to_their_full_length(kind, folders):
    ids = torch.tensor([[5, 6, 7]])
    items = bag_cases.whole(ids)
    ours = DualEncoder(name=folders[kind]).eval().encode_texts(items).tokens[0, 0]
    filler = 1 if kind == "siglip" else 0
    full = torch.full((1, 12), filler)
    full[:, :3] = ids
    theirs = (
        load_hf_model(folders[kind], pretrained=True)
        .get_text_features(input_ids=full)
        .pooler_output
    )
    torch.testing.assert_close(ours, normalize(theirs[0], dim=0))


def test_flexible_patches_go_by_row_column_and_channel(folders):
    picture = torch.randn(1, 3, 16, 16)
    config = load_hf_model(folders["siglip2"], pretrained=True).config.vision_config
    cut = _unfolded(picture, config)
    assert cut["spatial_shapes"].tolist() == [[2, 2]]
    for row, column, y, x, channel in [(0, 0, 0, 0, 0), (1, 0, 3, 5, 2), (0, 1, 7, 0, 1)]:
        found = cut["pixel_values"][0, 2 * row + column, (8 * y + x) * 3 + channel]
        assert found == picture[0, channel, 8 * row + y, 8 * column + x]


def test_a_text_that_is_too_long_is_refused(folders):
    items = bag_cases.whole(torch.ones(1, 13).long())
    with pytest.raises(ValueError, match="texts of 13 tokens do not fit a model that reads 12"):
        DualEncoder(name=folders["siglip"]).encode_texts(items)


def test_a_model_of_one_kind_only_is_refused(tmp_path):
    with pytest.raises(ValueError, match="BertModel, which does not encode images and texts"):
        DualEncoder(name=hub_cases.bert(tmp_path))


def test_longest_text(folders, tmp_path):
    assert max_text_length(folders["clip"]) == 12
    with pytest.raises(ValueError, match="how long its texts may be"):
        max_text_length(hub_cases.vit(tmp_path))
