"""ViLT beside transformers' own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import hub_cases
from counterfoil.core.types import Embeddings, ModalityBatch, WordHead, WordSlots
from counterfoil.models.checkpoints import ConvertedModel
from counterfoil.models.layers import joint_encoder
from counterfoil.papers.models.vilt import ViLT, vilt_from_pretrained

SIZES = {"layers": 2, "width": 16, "heads": 2, "inner": 16, "positions": 12}
SIZES |= {"vocabulary": 40, "size": 16, "patch": 8}
ALL = ("rank", "match", "fill", "doubt", "correct")
EVERY = frozenset(WordHead)
LENGTHS = [5, 2, 7, 3]
GRIDS = [(3, 2), (1, 2), (2, 2), (1, 1)]  # patches of four pictures
KINDS = ("MaskedLM", "ImageAndTextRetrieval", "Model")


def model(outputs: tuple[str, ...] = ALL, **options) -> ViLT:
    torch.manual_seed(0)
    host = ViLT(outputs=outputs, **{**SIZES, **options})
    with torch.no_grad():
        for parameter in host.parameters():  # fresh ones are so small that nothing would show
            parameter.add_(torch.randn(parameter.shape) / 3)
    return host.eval()


def items() -> tuple[ModalityBatch, ModalityBatch]:
    """Pictures of several shapes in one room, and captions."""
    rng = torch.Generator().manual_seed(1)
    mask = torch.zeros(4, 3, 2, dtype=torch.bool)
    for row, (height, width) in enumerate(GRIDS):
        mask[row, :height, :width] = True
    texts = torch.randint(0, 40, (4, 7), generator=rng)
    return (
        ModalityBatch(torch.arange(4), torch.randn(4, 3, 24, 16, generator=rng), mask.flatten(1)),
        ModalityBatch(torch.arange(4), texts, torch.arange(7) < torch.tensor(LENGTHS).unsqueeze(1)),
    )


def encoded(host: ViLT) -> tuple[Embeddings, Embeddings]:
    images, texts = items()
    return host.encode_images(images), host.encode_texts(texts)


def asked(image: int, text: int) -> dict[str, Tensor]:
    """A pair alone, without padding, as transformers wants it."""
    images, texts = items()
    height, width = GRIDS[image]
    pixels = images.values[image : image + 1, :, : 8 * height, : 8 * width]
    ids = texts.values[text : text + 1, : LENGTHS[text]]
    return {
        "pixel_values": pixels,
        "pixel_mask": torch.ones_like(pixels[:, 0]).long(),
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
    }


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    return {kind: hub_cases.vilt(root / kind, kind) for kind in KINDS}


def theirs(folders: dict[str, str], kind: str) -> nn.Module:
    made = getattr(transformers, "ViltModel" if kind == "Model" else f"ViltFor{kind}")
    return made.from_pretrained(folders[kind]).eval()


@torch.no_grad()
@pytest.mark.parametrize("most", [1, 30, 10**6])
def test_scores_are_those_of_transformers(folders, monkeypatch, most):
    monkeypatch.setitem(joint_encoder.TOKENS_AT_ONCE, "cpu", most)
    found = vilt_from_pretrained(folders["ImageAndTextRetrieval"], mask=3)
    assert found.model.arguments["outputs"] == ("rank",)
    ours = replace(found, model=found.model.replace(score="logit")).build()
    grid = ours.score_matrix(*encoded(ours))
    own = theirs(folders, "ImageAndTextRetrieval")
    for i in range(4):
        for t in range(4):
            torch.testing.assert_close(
                grid[i, t], own(**asked(i, t)).logits[0, 0], atol=1e-5, rtol=1e-5
            )
    # not bit for bit: batches of other shapes may take other kernels on another CPU
    scores = found.build().score_matrix(*encoded(ours))
    torch.testing.assert_close(scores, grid, rtol=0, atol=1e-5)


@torch.no_grad()
def test_words_are_those_of_transformers(folders):
    ours, own = (
        vilt_from_pretrained(folders["MaskedLM"], mask=3).build(),
        theirs(folders, "MaskedLM"),
    )
    slots = WordSlots(torch.tensor([2, 0, 2, 3]), torch.tensor([6, 1, 3, 0]))
    found = ours.read(*encoded(ours), frozenset({WordHead.FILL}), slots).fill
    for row, pair, place in zip(found, slots.pair.tolist(), slots.place.tolist(), strict=True):
        logits = own(**asked(pair, pair)).logits[0, place]
        torch.testing.assert_close(row, logits, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_batch_of_many_shapes_is_read_as_transformers_reads_it(folders):
    """Whatever it draws, shuffles and fills up with."""
    own = theirs(folders, "Model")
    ours = vilt_from_pretrained(folders["Model"], mask=3).build()
    images, texts = items()
    wide = images.mask.view(4, 3, 2).repeat_interleave(8, 1).repeat_interleave(8, 2)
    for seed in range(3):
        torch.manual_seed(seed)
        out = own(
            pixel_values=images.values,
            pixel_mask=wide.long(),
            input_ids=texts.values,
            attention_mask=texts.mask.long(),
        )
        joint = ours.joint(*encoded(ours))
        torch.testing.assert_close(joint.pooled, out.pooler_output, atol=1e-5, rtol=1e-5)
        states = out.last_hidden_state[:, :7][texts.mask]
        found = joint.texts.tokens[texts.mask]
        torch.testing.assert_close(found, states, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_what_is_outside_of_a_picture_is_not_seen():
    host, (images, _) = model(), items()
    wide = images.mask.view(4, 1, 3, 2).repeat_interleave(8, 2).repeat_interleave(8, 3)
    dirty = replace(images, values=images.values.masked_fill(~wide, torch.nan))
    clean, again = host.encode_images(images), host.encode_images(dirty)
    assert torch.equal(clean.mask, again.mask)
    assert clean.mask.sum(1).tolist() == [1 + h * w for h, w in GRIDS]
    assert torch.equal(clean.tokens[clean.mask], again.tokens[again.mask])
    with torch.enable_grad():
        host.score_matrix(host.encode_images(dirty), host.encode_texts(items()[1])).sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in host.parameters())


@torch.no_grad()
def test_a_rest_narrower_than_a_patch_is_cut_off():
    host, (images, _) = model(), items()
    whole = ModalityBatch(images.ids, images.values, torch.ones(4, 1, dtype=torch.bool))
    more = replace(whole, values=nn.functional.pad(whole.values, (0, 5, 0, 7), value=9.0))
    assert torch.equal(host.encode_images(more).tokens, host.encode_images(whole).tokens)


@torch.no_grad()
def test_one_pass_answers_all_that_is_wanted():
    host = model()
    images, texts = encoded(host)
    slots = WordSlots(torch.tensor([2, 0, 2, 3]), torch.tensor([6, 1, 3, 0]))
    reading, joint = host.read(images, texts, EVERY, slots), host.joint(images, texts)
    torch.testing.assert_close(reading.score, host.score_pairs(images, texts))
    states = joint.texts.tokens
    torch.testing.assert_close(reading.doubt[texts.mask], host.says.doubt(states[texts.mask]))
    assert not reading.doubt[~texts.mask].any()
    at = states[slots.pair, slots.place]
    table = host.word_table().weight
    assert table.shape == (40 + 1, 16)
    for head, logits in ((host.says.fill, reading.fill), (host.says.correct, reading.correct)):
        torch.testing.assert_close(logits, head.enter(at) @ table.T + head.bias)
    assert not torch.equal(reading.fill, reading.correct)


def test_words_of_another_number_are_not_taken_over():
    with pytest.raises(ValueError, match=r"'vilt.*' is \(41, 16\), and in this model \(40, 16\)"):
        model(mask=3).adopted(model().state_dict())


def test_a_match_in_public_weights_becomes_the_rank(folders, tmp_path):
    """As in weights of which both tasks were pre-trained."""
    folder = hub_cases.vilt(tmp_path / "both", "MaskedLM")
    file = tmp_path / "both" / "model.safetensors"
    match = {"itm_score.fc.weight": torch.randn(2, 16), "itm_score.fc.bias": torch.randn(2)}
    save_file(load_file(file) | match, file, {"format": "pt"})
    found = vilt_from_pretrained(folder, mask=3)
    assert found.model.arguments["outputs"] == ("rank", "match", "fill")
    assert torch.equal(found.state["says.rank.weight"], match["itm_score.fc.weight"][1:])
    host = ViLT(**SIZES, outputs=("rank", "doubt"), mask=3, weights=folder, pretrained=True)
    assert torch.equal(host.says.doubt.weight, match["itm_score.fc.weight"])
    pools = encoded(found.build())
    torch.testing.assert_close(host.eval().score_pairs(*pools), found.build().score_pairs(*pools))


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_begun_with_only_where_that_is_asked(folders, kind):
    before = vilt_from_pretrained(folders[kind], mask=3).state
    begun = ViLT(**SIZES, weights=folders[kind], pretrained=True).state_dict()
    fresh = ViLT(**SIZES, weights="nobody/nothing").state_dict()
    words = "vilt.embeddings.text_embeddings.word_embeddings.weight"
    assert torch.equal(begun[words][:-1], before[words])
    assert torch.equal(begun[words][-1], before[words].mean(0))
    assert not torch.equal(fresh[words], begun[words])
    assert begun.keys() == fresh.keys()


def test_public_weights_are_built_the_same_every_time(folders):
    """Also a head that is not in them."""
    one, two = (vilt_from_pretrained(folders["MaskedLM"], mask=3) for _ in range(2))
    assert one.model == two.model
    assert isinstance(one, ConvertedModel)
    assert all(torch.equal(value, two.state[name]) for name, value in one.state.items())


def test_weights_in_the_older_form_of_a_file(folders, tmp_path):
    folder = tmp_path / "older"
    state = theirs(folders, "MaskedLM").state_dict()
    transformers.ViltConfig.from_pretrained(folders["MaskedLM"]).save_pretrained(folder)
    torch.save(state, folder / "pytorch_model.bin")
    newer = vilt_from_pretrained(folders["MaskedLM"], mask=3).state
    assert all(
        torch.equal(v, newer[name])
        for name, v in vilt_from_pretrained(str(folder), mask=3).state.items()
    )


def test_what_cannot_be_built_or_read(folders, tmp_path):
    for options, told in (
        ({"weights": "nobody/nothing", "pretrained": True}, "nobody/nothing has no model.safet"),
        ({"weights": folders["Model"], "pretrained": True, "patch": 4}, "another model cannot be"),
    ):
        with pytest.raises(ValueError, match=told):
            ViLT(**{**SIZES, **options})
    host, (images, _) = model(), items()
    with pytest.raises(ValueError, match=r"images of shape \(4, 5, 6\) do not fit"):
        host.encode_images(replace(images, values=torch.zeros(4, 5, 6)))
    with pytest.raises(ValueError, match="whose mask has 6 patches do not fit a model with"):
        model(patch=4).encode_images(images)
    with pytest.raises(ValueError, match="holds no weights of a ViLT"):
        ViLT(weights=hub_cases.bert(tmp_path / "bert"), pretrained=True)


def test_another_kind_of_vilt_is_told(tmp_path):
    folder = hub_cases.vilt(tmp_path)
    config = transformers.ViltConfig.from_pretrained(folder)
    config.hidden_act = "relu"
    config.save_pretrained(folder)
    with pytest.raises(ValueError, match=r"ViLT of another kind than the public ones: .*'relu'"):
        vilt_from_pretrained(folder, mask=3)
