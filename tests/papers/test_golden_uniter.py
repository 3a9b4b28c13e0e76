"""UNITER (https://github.com/ChenRocks/UNITER, 1dbfa62), as far as the model goes.

Hard negatives, transport and the losses of pre-training have tests of their own: see ELSEWHERE.
"""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

import golden_scores
import golden_vectors
import uniter_cases
from counterfoil.core.types import Embeddings, ModalityBatch, Pairs, WordHead, WordSlots
from counterfoil.models.layers import joint_encoder
from counterfoil.models.layers.joint_encoder import pack_pairs, with_derived_heads
from counterfoil.papers.models.uniter import UNITER, VEIL, box_features, convert_uniter, uniter_name

SYSTEM = "uniter"
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]
ELSEWHERE = re.compile(
    r"ot/.+|hn_(text|image)/.+|itm/(loss|ot_.+|wra_loss)|mlm/(loss|grad_.+)"
    r"|mrfr/(loss_.+|target|grad_.+)|mrc/(loss|label_.+)|mrckl/.+"
)


def keys() -> list[str]:
    return [key for key in golden_vectors.keys(SYSTEM) if not ELSEWHERE.fullmatch(key)]


@golden_vectors.cached
def model() -> UNITER:
    return uniter_cases.build(SYSTEM)


def inputs() -> dict[str, Tensor]:
    return golden_scores.load(SYSTEM).inputs


def items() -> tuple[ModalityBatch, ModalityBatch]:
    rows = inputs()
    return (
        uniter_cases.images(SYSTEM, rows["pairs/image"]),
        uniter_cases.captions(SYSTEM, rows["pairs/caption"]),
    )


def pools() -> tuple[Embeddings, Embeddings]:
    images, texts = items()
    return model().encode_images(images), model().encode_texts(texts)


def batch(what: str) -> Tensor:
    """Their joint batch, from our items and our packing."""
    images, texts = items()
    said, long = texts.mask.sum(1, keepdim=True), texts.mask.shape[1]
    mask = torch.cat([texts.mask, images.mask], 1)
    longest = int(mask.sum(1).max())
    place = torch.arange(longest).expand(len(mask), longest)
    if what == "gather_index":  # what is behind a sequence stands where it stands
        packing, _ = pack_pairs(*pools())
        index = place.flatten().index_copy(0, packing.at, packing.column)
        return index.view(place.shape)
    boxes = box_features(images.boxes)
    return {
        "input_ids": texts.values,
        "position_ids": torch.arange(long).unsqueeze(0),
        "img_feat": images.values,
        "img_pos_feat": boxes.masked_fill(~images.mask.unsqueeze(2), 0),
        "attn_masks": place < mask.sum(1, keepdim=True),
        "targets": inputs()["caption_image"][texts.ids] == images.ids,
        "ot_scatter": torch.where(place < said, place, place - said + long),
        "txt_pad": ~texts.mask,
        "img_pad": ~images.mask,
    }[what]


def layer(number: int) -> Tensor:
    """Output of a layer of the transformer, counted from 1; of what enters it, 0."""
    seen: list[Tensor] = []
    host, (packing, tokens) = model(), pack_pairs(*pools())
    hook = host.body.layers[number - 1].register_forward_hook(
        lambda module, given, out: seen.append(out)
    )
    with hook:
        host.body(tokens, packing)
    return packing.padded(tokens if number == 0 else seen[0])


def forward(what: str) -> Tensor:
    images, texts = pools()
    if what == "joint_embeddings":
        return layer(0)
    if number := re.fullmatch(r"hidden_layer(\d+)", what):
        return layer(int(number[1]))
    return {
        "text_embeddings": lambda: texts.tokens,
        "image_embeddings": lambda: images.tokens,
        "pooled": lambda: model().joint(images, texts).pooled,
        "text_only_hidden": lambda: model().joint(None, texts).texts.tokens,
        "image_only_hidden": lambda: model().joint(images, None).images.tokens,
    }[what]()


def ranked(what: str) -> Tensor:
    host, rows = model(), inputs()
    if what == "pair_scores":
        return host.score_pairs(*pools()).unsqueeze(1)
    caption, image, other = rows["rank/caption_negimage_negcaption"].unbind(1)
    own = rows["caption_image"][caption]
    probability = not what.startswith("scores")
    if probability:
        host = uniter_cases.build(SYSTEM)
        host.score = "probability"
    pairs = Pairs(torch.stack([own, image, own], 1), torch.stack([caption, caption, other], 1))
    pools_ = uniter_cases.encoded(
        host, SYSTEM, torch.arange(len(rows["num_bb"])), torch.arange(len(rows["caption_lens"]))
    )
    scores = host.score_indices(*pools_, pairs.flatten()).view(pairs.shape)
    if not probability:
        return scores
    scores = host.loss_scores(scores)
    margin = golden_scores.load(SYSTEM).meta["config"]["margin"]
    loss = (margin - scores[:, :1] + scores[:, 1:]).clamp(min=0)
    if what == "loss":
        return loss
    loss.mean().backward()
    grads = {theirs: p.grad for theirs, p in authors(host).items()}
    return grads[what.removeprefix("grad_mean_loss/")]


def authors(host: UNITER) -> dict[str, Tensor]:
    """Parameters by the authors' names, those that both have whole."""
    own = dict(host.named_parameters())
    theirs = golden_scores.checkpoint(SYSTEM).state
    return {name: own[uniter_name(name)] for name in theirs if uniter_name(name) in own}


def filled() -> Tensor:
    rows, (images, _) = inputs(), items()
    texts = uniter_cases.captions(SYSTEM, rows["pairs/caption"], rows["mlm/masked_ids"])
    at = (rows["mlm/labels"] >= 0).nonzero()
    host, slots = model(), WordSlots(at[:, 0], at[:, 1] + 1)  # behind [CLS]
    pools_ = host.encode_images(images), host.encode_texts(texts)
    return host.read(*pools_, frozenset({WordHead.FILL}), slots).fill


def veiled() -> Tensor:
    """(M, D) states of the masked regions."""
    images, texts = items()
    hidden = inputs()["mrm/region_mask"][:, : images.mask.shape[1]].bool()
    host = model()
    told = host.joint(host.embed_images(images, hidden), host.encode_texts(texts))
    return told.images.tokens[hidden]


def ours(key: str) -> Tensor:
    """Our value for an authors' output, by its name; an unknown name is an error."""
    room, _, what = key.partition("/")
    if room in ("batch", "forward", "rank"):
        return {"batch": batch, "forward": forward, "rank": ranked}[room](what)
    host = model()
    known = {
        "itm/logits": lambda: host.matched(host.joint(*pools()).pooled),
        "mlm/logits": filled,
        "mrfr/pred": lambda: host.regressed(veiled()),
        "mrc/logits": lambda: host.classified(veiled()),
        "eval/score_matrix": lambda: host.score_matrix(*every()).T,
    }
    assert key in known, f"the golden folder has {key!r}, which no test understands"
    return known[key]()


def every() -> tuple[Embeddings, Embeddings]:
    rows = inputs()
    counts = (torch.arange(len(rows[name])) for name in ("num_bb", "caption_lens"))
    return uniter_cases.encoded(model(), SYSTEM, *counts)


@pytest.mark.parametrize("key", keys())
def test_agrees_with_the_authors(key):
    golden, value = golden_scores.load(SYSTEM), ours(key)
    theirs = golden.outputs[key]
    if theirs.shape[0] == len(inputs()["pairs/caption"]) and theirs.dim() == 3:
        value = value.masked_fill((theirs == 0).all(2, keepdim=True), 0)  # stored as 0
    golden_scores.agrees(golden, key, value)


@pytest.mark.parametrize("key", ["rank/pair_scores", "mlm/logits", "mrc/logits"])
def test_one_pair_at_a_time_agrees_too(key, monkeypatch):
    monkeypatch.setitem(joint_encoder.TOKENS_AT_ONCE, "cpu", 1)
    test_agrees_with_the_authors(key)


def test_recall_counts_hits_once():
    """E5: theirs counts both coordinates of what it finds."""
    golden = golden_scores.load(SYSTEM)
    scores, text_to_image = ours("eval/score_matrix").detach(), inputs()["caption_image"]
    own = scores.gather(1, text_to_image.unsqueeze(1))
    rank = (scores > own).sum(1)
    by_text = golden.meta["itm_eval_image_retrieval_correct"]
    truth = text_to_image.unsqueeze(1) == torch.arange(scores.shape[1])
    best = scores.masked_fill(~truth, -torch.inf).amax(0)
    by_image = (scores > best).sum(0)
    for k in (1, 5, 10):
        assert (rank < k).float().mean().item() == pytest.approx(by_text[f"img_r{k}"])
        released = golden.meta["itm_eval_released"][f"txt_r{k}"]
        assert (by_image < k).float().mean().item() == pytest.approx(released)


def test_every_tensor_goes_back_as_it_came():
    theirs = golden_scores.checkpoint(SYSTEM).state
    back = uniter_cases.authors_state(model().state_dict())
    assert set(theirs) == set(back)
    for name, value in theirs.items():
        if name == VEIL:  # row 0 is never read
            assert torch.equal(back[name][1], value[1])
        else:
            assert torch.equal(back[name], value), name


@golden_vectors.needs("tags")
def test_heads_of_tags_begin_as_theirs_do():
    """Their `init_output`; those heads are there already, and are made new."""
    golden = golden_scores.load("tags")
    state = convert_uniter(golden_scores.checkpoint("tags").state)
    made = ("says.rank.", "says.doubt.", "says.correct.")
    new = with_derived_heads(
        {name: value for name, value in state.items() if not name.startswith(made)}
    )
    found = 0
    for key, value in golden.outputs.items():
        if key.startswith("init/"):
            assert torch.equal(new[uniter_name(key.removeprefix("init/"))], value), key
            found += 1
    assert found


@golden_vectors.needs("tags")
def test_tags_is_read_with_all_its_heads():
    host, golden = uniter_cases.build("tags"), golden_scores.load("tags")
    assert {WordHead.DOUBT, WordHead.CORRECT, WordHead.FILL} < host.word_heads
    back = uniter_cases.authors_state(host.state_dict())
    for name, value in golden_scores.checkpoint("tags").state.items():
        assert name == VEIL or torch.equal(back[name], value), name
    rows = golden.outputs["fill/candidates"]
    image = golden.inputs["caption_image"][golden.inputs["anchor/caption"]]
    images = host.encode_images(uniter_cases.images("tags", image.repeat(len(rows))))
    texts = host.encode_texts(
        ModalityBatch(torch.arange(len(rows)), rows, torch.ones_like(rows).bool())
    )
    doubt = host.read(images, texts, frozenset({WordHead.DOUBT})).doubt
    golden_scores.agrees(golden, "wod/logits", doubt)
