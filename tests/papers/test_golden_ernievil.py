"""ERNIE-ViL (https://github.com/PaddlePaddle/ERNIE, branch repro, 5846cc3). Every key is run."""

from __future__ import annotations

import json
import re
import shutil

import pytest
import torch
from torch import Tensor

import golden_scores
import golden_vectors
from counterfoil.core.types import Embeddings, ModalityBatch, Pairs, Role, ScoreMatrix, Scores
from counterfoil.papers.compared.losses import CircleLoss
from counterfoil.papers.models.convert import convert_checkpoint
from counterfoil.papers.models.ernievil import (
    KINDS,
    ErnieViL,
    ernievil_from_checkpoint,
    ernievil_name,
)

SYSTEM = "ernievil"
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]


def golden() -> golden_vectors.Golden:
    return golden_scores.load(SYSTEM)


def setting() -> dict:
    return golden().meta["config"]


def model(score: str = "probability") -> ErnieViL:
    found = ernievil_from_checkpoint(golden_scores.checkpoint(SYSTEM, **setting()))
    built = found.build()
    assert isinstance(built, ErnieViL)
    built.score = score
    return built


def images(rows: Tensor) -> ModalityBatch:
    inputs = golden().inputs
    counts = inputs["num_bb"][rows]
    mask = torch.arange(int(counts.max())) < counts.unsqueeze(1)
    values, boxes = (inputs[name][rows][:, : mask.shape[1]] for name in ("features", "boxes"))
    size = inputs["sizes"][rows].to(boxes.dtype).repeat(1, 2).unsqueeze(1)
    return ModalityBatch(rows, values, mask, boxes / size)


def captions(rows: Tensor) -> ModalityBatch:
    """[CLS] words [SEP], as long as the longest."""
    inputs = golden().inputs
    lengths = inputs["caption_lens"][rows]
    long = int(lengths.max())
    full = torch.zeros(len(rows), long + 2, dtype=torch.long)
    full[:, 0], full[:, 1:-1] = setting()["CLS"], inputs["caption_ids"][rows][:, :long]
    full[torch.arange(len(rows)), lengths + 1] = setting()["SEP"]
    mask = torch.arange(long + 2) < (lengths + 2).unsqueeze(1)
    return ModalityBatch(rows, full.masked_fill(~mask, 0), mask)


def pairs() -> tuple[Tensor, Tensor]:
    return golden().inputs["pairs/image"], golden().inputs["pairs/caption"]


def batch(what: str) -> Tensor:
    """Their collated batch, from our items."""
    seen, read = images(pairs()[0]), captions(pairs()[1])
    features, place, real = model().image.rows(seen)
    position = torch.arange(read.mask.shape[1]).expand(read.mask.shape)
    return {
        "src": read.values,
        "pos": position.masked_fill(~read.mask, 0),
        "sent": torch.zeros_like(read.values),
        "mask": read.mask.float(),
        "emb": features,
        "loc": place,
        "imask": real.float(),
        "labels": torch.zeros(len(seen), dtype=torch.long),
        "ids": torch.stack(pairs(), 1),
    }[what]


def zeroed(states: Embeddings) -> Tensor:
    return states.tokens.masked_fill(~states.mask.unsqueeze(2), 0)


def forward(what: str) -> Tensor:
    host, seen, read = model(), images(pairs()[0]), captions(pairs()[1])
    if what.endswith("_embeddings"):
        return zeroed(host.text(read) if what.startswith("text") else host.image(seen))
    encoded = host.encode_images(seen), host.encode_texts(read)
    if what == "score":
        return host.score_pairs(*encoded)
    texts, regions = host.read_pairs(*encoded)
    pooled = host.pool(texts, regions)
    return {
        "text_hidden": zeroed(texts),
        "image_hidden": zeroed(regions),
        "text_pooled": pooled[0],
        "image_pooled": pooled[1],
    }[what]


def evaluated() -> Tensor:
    host, inputs = model(), golden().inputs
    rows = [torch.arange(len(inputs[name])) for name in ("num_bb", "caption_lens")]
    return host.score_matrix(
        host.encode_images(images(rows[0])), host.encode_texts(captions(rows[1]))
    ).T


def train(what: str) -> Tensor:
    """A training step: each pair, its wrong images, its wrong captions."""
    host, inputs = model(), {k.removeprefix("train/"): v for k, v in golden().inputs.items()}
    caption, image = inputs["caption"], inputs["image"]
    wrong_images, wrong_captions = inputs["negative_images"], inputs["negative_captions"]
    count = wrong_images.shape[1]
    listed = Pairs(
        torch.cat([image[:, None], wrong_images, image[:, None].expand(-1, count)], 1),
        torch.cat([caption[:, None], caption[:, None].expand(-1, count), wrong_captions], 1),
    )
    rows = [torch.arange(len(golden().inputs[name])) for name in ("num_bb", "caption_lens")]
    encoded = host.encode_images(images(rows[0])), host.encode_texts(captions(rows[1]))
    scores = host.loss_scores(host.score_indices(*encoded, listed.flatten())).view(listed.shape)
    if what == "scores":
        return scores
    parts = {Role.HARD_IMAGE: scores[:, 1 : 1 + count], Role.HARD_TEXT: scores[:, 1 + count :]}
    empty = torch.zeros(0, 0)
    record = Scores({"inference": ScoreMatrix(empty, empty.bool(), scores[:, 0])}, pairs=parts)
    sizes = {"margin": setting()["margin"], "scale": setting()["scale_circle"]}
    losses = {
        role: CircleLoss(role=role.value, reduction="mean", **sizes)(record) for role in parts
    }
    named = {"loss_images": Role.HARD_IMAGE, "loss_captions": Role.HARD_TEXT}
    if what in named:
        return losses[named[what]]
    loss = sum(losses.values()) / 2
    if what == "loss":
        return loss
    loss.backward()
    theirs = what.removeprefix("grad/")
    if theirs == KINDS:
        table = torch.zeros_like(golden_scores.checkpoint(SYSTEM).state[KINDS])
        table[0] = host.text.kind.grad
        return table
    grad = dict(host.named_parameters())[ernievil_name(theirs)].grad
    return grad.T if theirs.endswith(".w_0") else grad


def ours(key: str) -> Tensor:
    """Our value for an authors' output, by its name; an unknown name is an error."""
    room, _, what = key.partition("/")
    if key == "eval/scores":
        return evaluated()
    rooms = {"batch": batch, "forward": forward, "train": train}
    assert room in rooms, f"the golden folder has {key!r}, which no test understands"
    return rooms[room](what)


@pytest.mark.parametrize("key", golden_vectors.keys(SYSTEM))
def test_agrees_with_the_authors(key):
    found = ours(key)
    assert re.fullmatch(r"[\w/.]+", key)
    golden_scores.agrees(golden(), key, found.reshape(golden().outputs[key].shape))


def test_one_pair_at_a_time_is_the_same(monkeypatch):
    whole = evaluated()
    monkeypatch.setattr("counterfoil.papers.models.ernievil.tokens_at_once", lambda device: 1)
    torch.testing.assert_close(evaluated(), whole)


@pytest.mark.skipif(
    golden_vectors.folder(SYSTEM) is None
    or not (golden_vectors.folder(SYSTEM).parent / "extra" / "ernievil_params").is_dir(),
    reason="no files of Paddle",
)
def test_files_of_paddle_are_the_same_model(tmp_path):
    """As Paddle 1.8.5 wrote them, beside those of an optimiser and the options."""
    folder = golden_vectors.folder(SYSTEM)
    if folder.name != SYSTEM:
        pytest.skip("the files are those of the first folder")
    files = tmp_path / "params"
    shutil.copytree(folder.parent / "extra" / "ernievil_params", files)
    (files / "word_embedding_moment1_0").write_bytes(b"not read")
    (tmp_path / "ernie_vil.json").write_text(json.dumps(setting()))
    found = convert_checkpoint(files, "ernievil")
    assert found.options == setting()
    for name, value in model().state_dict().items():
        assert torch.equal(found.state[name], value), name
    assert found.build().meets == tuple(
        zip(setting()["t_biattention_id"], setting()["v_biattention_id"], strict=True)
    )
