"""CGMN (https://github.com/cyh-sj/CGMN, de50e44) against vectors of the authors' code, every key.

Left out by nothing: outputs of training mode whose names say compat_padding need the padding that
leaks into the batch norm of the words, `CGMN(released_padding=True)`.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import golden_scores
import golden_vectors
from corpus_cases import write_split
from counterfoil.core.types import Embeddings, ModalityBatch, ScoreMatrix, Scores
from counterfoil.data.batching import collate
from counterfoil.data.readers import load_dataset
from counterfoil.data.tokenizers import SPECIAL
from counterfoil.evaluation.evaluate import evaluate
from counterfoil.losses.triplet import HardestTripletLoss, SumTripletLoss
from counterfoil.model import Model, load_model
from counterfoil.models.layers.pooling import unit_vectors
from counterfoil.papers.cli.convert import convert as convert_command
from counterfoil.papers.models import cgmn
from counterfoil.papers.models.cgmn import (
    CGMN,
    MATCHING,
    box_overlap,
    cgmn_from_checkpoint,
    convert_cgmn,
    dependency_graph,
    matching_scores,
    relation_weights,
)
from counterfoil.papers.models.vsrn import normalise_by

SYSTEM = "cgmn"
pytestmark = [pytest.mark.golden, golden_vectors.needs(SYSTEM)]


def golden() -> golden_vectors.Golden:
    return golden_scores.load(SYSTEM)


def inputs() -> dict[str, Tensor]:
    return golden().inputs


def model(*, overlap: bool = True, training: bool = False, leaks: bool = False) -> CGMN:
    graph = any("relationGCN" in name for name in golden_scores.checkpoint(SYSTEM).state)
    found = cgmn_from_checkpoint(golden_scores.checkpoint(SYSTEM, if_IOU=overlap and graph))
    built = found.build()
    assert isinstance(built, CGMN)
    built.released_padding = leaks
    built.least_overlap = golden().meta["config"]["iou_threshold"]
    return built.train(training)


def images(kind: str = "") -> ModalityBatch:
    values, boxes = inputs()[f"{kind}images"].clone(), inputs()[f"{kind}boxes"]
    mask = torch.ones(values.shape[:2], dtype=torch.bool)
    return ModalityBatch(torch.arange(len(values)), values.requires_grad_(), mask, boxes)


def captions(kind: str = "") -> ModalityBatch:
    names = ("captions", "lengths", "depends")
    ids, lengths, pairs = (inputs()[f"{kind}{name}"] for name in names)
    mask = torch.arange(ids.shape[1]) < lengths.unsqueeze(1)
    return ModalityBatch(torch.arange(len(ids)), ids, mask, dependencies=pairs)


def gradient(host: CGMN, theirs: str) -> Tensor:
    """By the parameter that the authors call by this name, in their shape."""
    state = golden_scores.checkpoint(SYSTEM).state
    place = [*state].index(theirs)
    ours = [*convert_cgmn(dict(state))][place]
    grads = {name: p.grad for name, p in host.named_parameters()}
    return grads[ours].view_as(state[theirs])


def buffer(host: CGMN, theirs: str) -> Tensor:
    state = golden_scores.checkpoint(SYSTEM).state
    return host.state_dict()[[*convert_cgmn(dict(state))][[*state].index(theirs)]]


def seen(case: str, mode: str, what: str) -> Tensor:
    """The image encoder, with the graph of overlapping boxes or without."""
    host, items = model(overlap=case == "iou", training=mode == "train"), images()
    regions = host.regions(items)
    vectors = host.read_regions(regions).tokens[:, 0]
    if what in ("vec", "regions"):
        return vectors if what == "vec" else regions.tokens
    if what.startswith("after/"):
        return buffer(host, "img_enc." + what.removeprefix("after/"))
    (vectors * inputs()["weights_image"]).sum().backward()
    if what == "grad_images":
        return items.values.grad
    return gradient(host, "img_enc." + what.removeprefix("grad/"))


def read(case: str, what: str) -> Tensor:
    """The text encoder."""
    host = model(training=case != "eval", leaks="compat" in case)
    words = host.word_nodes(captions("equal_" if "equal" in case else ""))
    vectors = host.read_words(words).tokens[:, 0]
    if what in ("vec", "words"):
        return vectors if what == "vec" else words.tokens
    if what.startswith("after/"):
        return buffer(host, "txt_enc." + what.removeprefix("after/"))
    (vectors * inputs()["weights_text"]).sum().backward()
    return gradient(host, "txt_enc." + what.removeprefix("grad/"))


def triplet(scores: Tensor, kind: str, margin: float) -> Tensor:
    term = {"sum": SumTripletLoss, "hardest": HardestTripletLoss}[kind](margin=margin)
    eye = torch.eye(len(scores), dtype=torch.bool)
    return term(Scores({"inference": ScoreMatrix(scores, eye, scores.diagonal())}))


def matching(regions: Embeddings, words: Embeddings) -> Tensor:
    return matching_scores(unit_vectors(regions), unit_vectors(words))


def matched(what: str) -> Tensor:
    """The matching loss, from nodes."""
    leaves = {
        name: inputs()[f"match_{name}"].clone().requires_grad_() for name in ("regions", "words")
    }
    full = torch.ones(leaves["regions"].shape[:2], dtype=torch.bool)
    regions = Embeddings(leaves["regions"], full)
    scores = matching(regions, Embeddings(leaves["words"], captions().mask))
    if what == "scores":
        return scores
    loss = triplet(scores, "sum", golden().meta["config"]["matching_margin"])
    if what == "loss":
        return loss
    loss.backward()
    return leaves[what.removeprefix("grad_")].grad


def loss(kind: str, what: str) -> Tensor:
    sides = {n: inputs()[f"loss_{n}"].clone().requires_grad_() for n in ("images", "texts")}
    scores = sides["images"] @ sides["texts"].T
    value = triplet(scores, kind, golden().meta["config"]["margin"])
    if what == "value":
        return value
    return torch.autograd.grad(value, sides[what.removeprefix("grad_")])[0]


def full(case: str, what: str) -> Tensor:
    """A training step of encoders and both losses."""
    host, config = model(training=True, leaks="compat" in case), golden().meta["config"]
    regions = host.regions(images("full_"))
    words = host.word_nodes(captions("equal_" if "equal" in case else ""))
    scores = host.score_matrix(host.read_regions(regions), host.read_words(words))
    retrieval = triplet(scores, "hardest", config["margin"])
    nodes = triplet(matching(regions, words), "sum", config["matching_margin"])
    if what != "loss" and not what.startswith("grad/"):
        return {"retrieval_loss": retrieval, "matching_loss": nodes}[what]
    total = retrieval + config["matching_weight"] * nodes
    if what == "loss":
        return total
    total.backward()
    return gradient(host, what.removeprefix("grad/"))


def part(what: str) -> Tensor:
    if what == "text_adjacency":
        texts = captions()
        return dependency_graph(texts.dependencies, texts.mask.shape[1])
    begun = normalise_by("channel", model().image(images()).tokens)
    return begun if what == "image_fc" else relation_weights("released", begun)


def evaluated(what: str) -> Tensor:
    host = model(overlap="noiou" not in what)
    return host.score_matrix(host.encode_images(images()), host.encode_texts(captions()))


def ours(key: str) -> Tensor:
    """Our value for an authors' output, by its name; an unknown name is an error."""
    if found := re.fullmatch(r"iou/(full_)?images", key):
        return box_overlap(
            inputs()[f"{found[1] or ''}boxes"], golden().meta["config"]["iou_threshold"]
        )
    if found := re.fullmatch(r"img/(noiou|iou)/(eval|train)/(.+)", key):
        return seen(*found.groups())
    if found := re.fullmatch(r"txt/(\w+)/(.+)", key):
        return read(*found.groups())
    if found := re.fullmatch(r"loss/(sum|hardest)/(\w+)", key):
        return loss(*found.groups())
    if found := re.fullmatch(r"full_(\w+?)/(.+)", key):
        return full(*found.groups())
    room, _, what = key.partition("/")
    rooms = {"match": matched, "part": part, "eval": evaluated}
    assert room in rooms, f"the golden folder has {key!r}, which no test understands"
    return rooms[room](what)


@pytest.mark.parametrize("key", golden_vectors.keys(SYSTEM))
def test_agrees_with_the_authors(key):
    golden_scores.agrees(golden(), key, ours(key).view(golden().outputs[key].shape))


def test_the_relation_of_the_paper_is_another_model():
    if (theirs := golden().outputs.get("img/iou/eval/vec")) is None:
        pytest.skip("this folder has no graph of overlapping boxes")
    host = model()
    host.relation = "cosine"
    assert (host.encode_images(images()).tokens[:, 0] - theirs).abs().max() > 1e-3


# From the authors' files: a checkpoint, its vocabulary and a precomp folder with a parser's pairs.

TEXTS = ["a dog runs", "two dogs", "a red ball lies there", "a", "the dog bites a ball", "snow"]
PAIRS = [
    [[0, 3], [3, 2], [2, 1]],
    [[0, 2], [2, 1]],
    [[0, 4], [3, 1], [3, 2], [4, 3], [4, 5], [0, 3]],  # two sentences have two roots
    [[0, 1]],
    [[0, 3], [2, 1], [3, 2], [5, 4], [3, 5], [3, 3]],
    [],
]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """``model_best.pth.tar``, ``vocab.json`` and the folder ``data``, as the authors have them."""
    sides: tuple[dict[str, Tensor], ...] = ({}, {})
    for name, value in golden_scores.checkpoint(SYSTEM).state.items():
        side, _, rest = name.partition(".")
        sides[side == "txt_enc"][rest] = value
    graph = any(name.startswith("relationGCN") for name in sides[0])
    best = {"epoch": 9, "best_rsum": 300.0, "opt": argparse.Namespace(if_IOU=graph), "Eiters": 7}
    torch.save({**best, "model": [*sides]}, tmp_path / "model_best.pth.tar")
    words = [*SPECIAL, *dict.fromkeys(" ".join(TEXTS).split())]
    if len(words) > len(sides[1]["embed.weight"]):
        pytest.skip("this folder's vocabulary is smaller than that of these captions")
    words += [f"word{n}" for n in range(len(sides[1]["embed.weight"]) - len(words))]
    index = {word: n for n, word in enumerate(words)}
    vocab = {"word2idx": index, "idx2word": {n: w for w, n in index.items()}, "idx": len(words)}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    rows = torch.arange(len(TEXTS)) % len(inputs()["images"])
    values, boxes = (inputs()[name][rows].numpy() for name in ("images", "boxes"))
    write_split(tmp_path / "data", "test", values, TEXTS)
    np.save(tmp_path / "data" / "test_boxes.npy", boxes)
    (tmp_path / "data" / "test_caps.json").write_text(json.dumps(PAIRS))
    return tmp_path


def converted(files: Path) -> Model:
    checkpoint, vocab = files / "model_best.pth.tar", files / "vocab.json"
    convert_command("cgmn", checkpoint, vocab, files / "model")
    return load_model(files / "model")


def test_a_converted_checkpoint_reads_the_pairs_of_a_precomp_folder(files, capsys):
    """Each caption's vector is that of its words and pairs alone, which vectors above check."""
    opened, data = converted(files), load_dataset(files / "data")["test"]
    evaluate(opened, data)
    found = opened.embed(data)
    assert "warning" not in capsys.readouterr().err
    host = model()
    host.least_overlap = cgmn.OVERLAP
    tokenizer = opened.processor.tokenizer
    alone = [
        ModalityBatch(
            torch.tensor([-1]),
            torch.tensor(tokenizer.encode([text])),
            torch.ones(1, len(text.split()) + 2, dtype=torch.bool),
            dependencies=torch.tensor([[[0, 0], *pairs[1:]]]),
        )
        for text, pairs in zip(TEXTS, PAIRS, strict=True)
    ]
    with torch.no_grad():
        texts = torch.cat([host.encode_texts(one).tokens for one in alone])
        rows = torch.arange(len(TEXTS)) % len(images())
        vectors = host.encode_images(images().rows(rows)).tokens
        scores = found.model.score_matrix(found.images, found.texts)
        plain = host.encode_texts(replace(alone[2], dependencies=-torch.ones(1, 1, 2).long()))
    torch.testing.assert_close(found.texts.tokens, texts, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(scores, vectors[:, 0] @ texts[:, 0].T, atol=1e-6, rtol=1e-5)
    assert (plain.tokens - texts[2]).abs().max() > 1e-3


def test_pairs_come_with_training_batches(files):
    """In a batch, and in the one that its process encodes."""
    opened, data = converted(files), load_dataset(files / "data")["test"]
    batch = collate(opened.process(data), torch.tensor([4, 0, 2]))
    nodes = opened.model(batch).views[MATCHING].texts
    alone = collate(opened.process(data), torch.tensor([2]))
    same = opened.model(alone).views[MATCHING].texts
    torch.testing.assert_close(nodes.tokens[2, :7], same.tokens[0, :7])
    bare = collate(opened.process(replace(data, dependencies=None)), torch.tensor([2]))
    assert (opened.model(bare).views[MATCHING].texts.tokens - same.tokens).abs().max() > 1e-3


def test_captions_without_pairs_are_told_once(files, capsys):
    (files / "data" / "test_caps.json").unlink()
    cgmn._warn_of_no_pairs.cache_clear()
    opened, data = converted(files), load_dataset(files / "data")["test"]
    assert "warning" not in capsys.readouterr().err
    for _ in range(2):
        opened.embed(data)
    said = " ".join(capsys.readouterr().err.split())
    assert said.count("these captions have no pairs of a parser") == 1


def test_pairs_of_pieces_are_refused():
    pieces = replace(captions(), words=torch.zeros_like(captions().values))
    with pytest.raises(ValueError, match="cuts words into pieces; give CGMN a tokenizer of words"):
        model().encode_texts(pieces)
