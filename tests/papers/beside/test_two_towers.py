"""Fifty steps of a training beside the authors' training step, written out in loops.

Theirs is written from the papers and from what is known of their code: one image and one caption at
a time, no padding but where theirs has some, PyTorch's optimisers over all parameters. Ours is a
`Trainer` with the optimiser of the recipe. Both have the same initial weights and the same batches
and compute in double precision, so that nothing but a difference of rules is left.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

import train_cases
from counterfoil.core.config import Config, config, lazy
from counterfoil.core.types import Batch
from counterfoil.data.processor import ProcessorConfig
from counterfoil.losses.base import Loss
from counterfoil.losses.schedules import SwitchAfter
from counterfoil.losses.triplet import HardestTripletLoss, SumTripletLoss
from counterfoil.model import Model
from counterfoil.models.layers.towers import GRU, MLPRegions, Regions
from counterfoil.models.vsepp import VSEPP
from counterfoil.papers.models.bfan import BFAN
from counterfoil.papers.models.chan import CHAN
from counterfoil.papers.models.gpo import GPO
from counterfoil.papers.models.scan import SCAN
from counterfoil.papers.systems import training_config
from counterfoil.training.callbacks import Callback
from counterfoil.training.config import OptimizerConfig, StepDecayLR
from counterfoil.training.trainer import Trainer

pytestmark = pytest.mark.slow
STEPS, BATCH, DROP = 50, 6, 3  # epochs before the rate falls to a tenth
WIDTH, WORD_WIDTH, HEADS = 16, 8, 2
WARMUP = 6  # steps against all negatives, of the newer models
FOUND = 1e-7

Parameters = dict[str, Tensor]


@dataclass(frozen=True)
class Training:
    """What was trained, from what, on which batches, and the loss of each step."""

    start: Parameters
    optimiser: OptimizerConfig
    batches: list[Batch]
    per_epoch: int
    losses: list[float]


def ours(name: str, spec: Config[Any], loss: Loss, folder: Path) -> Training:
    """Train a model with the optimiser of its recipe for Flickr30K."""
    data = train_cases.dataset(images=12, captions=5).with_positives("diagonal")
    processor = ProcessorConfig().fit(data)
    assert processor.tokenizer is not None
    text = spec.arguments["text"].replace(words=processor.tokenizer.size)
    spec = spec.replace(text=text)
    torch.manual_seed(0)
    model = Model(spec.build().double(), processor, name, spec)
    start = {n: p.detach().clone() for n, p in model.model.named_parameters()}
    batches: list[Batch] = []
    losses: list[float] = []

    class Seen(Callback):
        def on_step_end(self, loop: Any, group: Any, means: Any) -> None:
            batches.extend(group)
            losses.append(means["loss"].item())

    plan = replace(
        training_config(name, "flickr30k"),
        epochs=99,
        batch=BATCH,
        steps=STEPS,
        schedule=StepDecayLR(at=(DROP,)),
    )
    trainer = Trainer(model, loss=loss, train=data, output=folder, config=plan, callbacks=[Seen()])
    trainer.train()
    per_epoch = -(-len(data.texts) // BATCH)
    if plan.drop_last:
        per_epoch = len(data.texts) // BATCH
    assert len(batches) == STEPS
    return Training(start, plan.optimiser, batches, per_epoch, losses)


def theirs(training: Training, loss: Callable[[Parameters, Batch, int], Tensor]) -> list[float]:
    """The losses of their training on the same batches."""
    weights = {n: p.clone().requires_grad_() for n, p in training.start.items()}
    settings = training.optimiser
    assert not settings.groups
    rule = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[settings.rule]
    optimiser = rule(list(weights.values()), lr=settings.rate, weight_decay=settings.decay)
    found = []
    for step, batch in enumerate(training.batches):
        rate = settings.rate * (0.1 if step // training.per_epoch >= DROP else 1.0)
        for group in optimiser.param_groups:
            group["lr"] = rate
        total = loss(weights, batch, step)
        optimiser.zero_grad()
        total.backward()
        nn.utils.clip_grad_norm_(list(weights.values()), 2.0)
        optimiser.step()
        found.append(total.item())
    return found


def same(training: Training, found: Sequence[float]) -> None:
    """Every loss is equal, the rate fell, and something was learnt."""
    assert training.losses[0] > 1.1 * min(training.losses) > 0
    apart = [abs(a - b) / abs(b) for a, b in zip(training.losses, found, strict=True)]
    assert max(apart) < FOUND, [f"{x:.1e}" for x in apart]


# Their encoders: one item at a time.


def items(batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
    """The anchors' regions, (R, F) each, and word ids, (L,) each, pair by pair."""
    images, texts = [], []
    for image, text in zip(batch.anchors.image.tolist(), batch.anchors.text.tolist(), strict=True):
        images.append(batch.images.values[image][batch.images.mask[image]].double())
        texts.append(batch.texts.values[text][batch.texts.mask[text]])
    return images, texts


def linear(p: Parameters, name: str, x: Tensor) -> Tensor:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def unit(x: Tensor, epsilon: float = 0.0) -> Tensor:
    """Rows of length 1, as the code of VSE++ has it, or of SCAN, which adds 1e-8 to the length."""
    return x / (x.pow(2).sum(-1, keepdim=True).sqrt() + epsilon)


def one_way(p: Parameters, name: str, inputs: Tensor, suffix: str = "") -> Tensor:
    """States of a GRU, gate by gate."""
    weights = [
        p[f"{name}.{kind}_l0{suffix}"] for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    ]
    width = weights[1].shape[1]
    state, states = inputs.new_zeros(width), []
    for x in inputs:
        by_input, by_state = weights[0] @ x + weights[2], weights[1] @ state + weights[3]
        reset, update = (
            (by_input[part] + by_state[part]).sigmoid()
            for part in (slice(width), slice(width, 2 * width))
        )
        new = (by_input[2 * width :] + reset * by_state[2 * width :]).tanh()
        state = (1 - update) * new + update * state
        states.append(state)
    return torch.stack(states)


def both_ways(p: Parameters, name: str, inputs: Tensor) -> Tensor:
    """Its two directions, averaged."""
    back = one_way(p, name, inputs.flip(0), "_reverse").flip(0)
    return (one_way(p, name, inputs) + back) / 2


def words_of(p: Parameters, text: Tensor) -> Tensor:
    return both_ways(p, "text.rnn", p["text.embed.weight"][text])


def triplet(scores: Tensor, margin: float, *, hardest: bool) -> Tensor:
    """A sum over both directions; only the diagonal is no negative."""
    total = scores.new_zeros(())
    for anchor in range(len(scores)):
        others = [n for n in range(len(scores)) if n != anchor]
        for row in (scores[anchor], scores[:, anchor]):
            costs = [(margin + row[n] - row[anchor]).clamp(min=0) for n in others]
            total = total + (max(costs) if hardest else sum(costs))
    return total


def matrix(images: Sequence[Any], texts: Sequence[Any], score: Callable[..., Tensor]) -> Tensor:
    return torch.stack([torch.stack([score(image, text) for text in texts]) for image in images])


# VSE++.


def test_vsepp(tmp_path: Path) -> None:
    spec = config(
        VSEPP,
        image=lazy(Regions, features=train_cases.WIDTH, width=WIDTH),
        text=lazy(GRU, words=0, width=WIDTH, word_width=WORD_WIDTH, bidirectional=False),
    )

    def loss(p: Parameters, batch: Batch, step: int) -> Tensor:
        images, texts = items(batch)
        seen = [unit(linear(p, "image.fc", regions.mean(0))) for regions in images]
        read = [unit(one_way(p, "text.rnn", p["text.embed.weight"][words])[-1]) for words in texts]
        return triplet(matrix(seen, read, torch.dot), 0.2, hardest=True)

    training = ours("vsepp", spec, HardestTripletLoss(), tmp_path)
    same(training, theirs(training, loss))


# SCAN and BFAN.


def attention(query: Tensor, context: Tensor, sharpness: float) -> Tensor:
    """(c, q) weights of the context of each query: LeakyReLU, norm over the queries, softmax."""
    raw = leaky_relu(context @ query.T, 0.1)
    rows = [row / (row.pow(2).sum().sqrt() + 1e-8) for row in raw]
    return torch.stack([(sharpness * column).softmax(0) for column in torch.stack(rows).T], 1)


def cosines(query: Tensor, context: Tensor, weights: Tensor) -> Tensor:
    """(q,) cosines of each query with what it attends to."""
    found = []
    for q, column in zip(query, weights.T, strict=True):
        attended = sum(weight * c for weight, c in zip(column, context, strict=True))
        assert isinstance(attended, Tensor)
        lengths = q.pow(2).sum().sqrt() * attended.pow(2).sum().sqrt()
        found.append((q @ attended) / lengths.clamp(min=1e-8))
    return torch.stack(found)


def bags(p: Parameters, batch: Batch) -> tuple[list[Tensor], list[Tensor]]:
    images, texts = items(batch)
    return (
        [unit(linear(p, "image.fc", regions), 1e-8) for regions in images],
        [unit(words_of(p, words), 1e-8) for words in texts],
    )


def attending(kind: type[SCAN | BFAN], **options: Any) -> Config[Any]:
    return config(
        kind,
        image=lazy(Regions, features=train_cases.WIDTH, width=WIDTH),
        text=lazy(GRU, words=0, width=WIDTH, word_width=WORD_WIDTH),
        **options,
    )


@pytest.mark.parametrize(
    ("name", "sharpness", "lse"), [("scan-t2i", 9.0, 6.0), ("scan-i2t", 4.0, 5.0)]
)
def test_scan(name: str, sharpness: float, lse: float, tmp_path: Path) -> None:
    direction = name.removeprefix("scan-")
    spec = attending(SCAN, direction=direction, lambda_softmax=sharpness, lambda_lse=lse)

    def score(regions: Tensor, words: Tensor) -> Tensor:
        query, context = (words, regions) if direction == "t2i" else (regions, words)
        rows = cosines(query, context, attention(query, context, sharpness))
        return (lse * rows).exp().sum().log() / lse

    def loss(p: Parameters, batch: Batch, step: int) -> Tensor:
        return triplet(matrix(*bags(p, batch), score), 0.2, hardest=True)

    training = ours(name, spec, HardestTripletLoss(), tmp_path)
    same(training, theirs(training, loss))


def focused(weights: Tensor, focus: str) -> Tensor:
    """BFAN's rule with its sums written out, then the rest is divided by its sum."""
    columns = []
    for column in weights.T:
        row = column.tolist()
        if focus == "equal":
            kept = [x * len(row) - sum(row) > 0 for x in row]
        else:
            kept = [sum((x - y) * math.sqrt(y) for y in row) > 0 for x in row]
        part = column * column.new_tensor(kept)
        columns.append(part / part.sum())
    return torch.stack(columns, 1)


@pytest.mark.parametrize("focus", ["equal", "prob"])
def test_bfan(focus: str, tmp_path: Path) -> None:
    spec = attending(BFAN, focus=focus)

    def score(regions: Tensor, words: Tensor) -> Tensor:
        total = words.new_zeros(())
        for query, context in ((words, regions), (regions, words)):
            weights = focused(attention(query, context, 20.0), focus)
            total = total + cosines(query, context, weights).mean()
        return total

    def loss(p: Parameters, batch: Batch, step: int) -> Tensor:
        return triplet(matrix(*bags(p, batch), score), 0.2, hardest=True)

    training = ours(f"bfan-{focus}", spec, HardestTripletLoss(), tmp_path)
    same(training, theirs(training, loss))


# CHAN and GPO, which begin with a sum over all negatives.


def warmed(margin: float) -> Loss:
    return SwitchAfter(
        first=SumTripletLoss(margin=margin), second=HardestTripletLoss(margin=margin), steps=WARMUP
    )


def padded(images: list[Tensor], most: int) -> list[Tensor]:
    """Regions of zeros behind the others."""
    return [torch.cat([x, x.new_zeros(most - len(x), x.shape[1])]) for x in images]


def among_regions(p: Parameters, x: Tensor) -> Tensor:
    """x + attention(norm(x)), of all of the rows, padding too."""
    mean, spread = x.mean(1, keepdim=True), x.var(1, correction=0, keepdim=True)
    normal = (x - mean) / (spread + 1e-5).sqrt() * p["block.norm.weight"] + p["block.norm.bias"]
    weight, bias = p["block.attention.in_proj_weight"], p["block.attention.in_proj_bias"]
    query, key, value = (normal @ weight.T + bias).chunk(3, 1)
    each = x.shape[1] // HEADS
    heads = []
    for head in range(HEADS):
        part = slice(head * each, (head + 1) * each)
        chances = (query[:, part] @ key[:, part].T / math.sqrt(each)).softmax(1)
        heads.append(chances @ value[:, part])
    return x + linear(p, "block.attention.out_proj", torch.cat(heads, 1))


def test_chan(tmp_path: Path) -> None:
    """Every parameter decays, as in their AdamW; padded regions are attended to."""
    spec = config(
        CHAN,
        image=lazy(Regions, features=train_cases.WIDTH, width=WIDTH),
        text=lazy(GRU, words=0, width=WIDTH, word_width=WORD_WIDTH),
        block="selfattention",
        pooling="LSE",
        heads=HEADS,
        sees="padding",
    )

    def score(regions: Tensor, words: Tensor) -> Tensor:
        best = torch.stack([max(region @ word for region in regions) for word in words])
        return (best / 0.1).exp().sum().log()

    def loss(p: Parameters, batch: Batch, step: int) -> Tensor:
        images, texts = items(batch)
        seen = [
            unit(among_regions(p, linear(p, "image.fc", regions))[: len(real)], 1e-8)
            for regions, real in zip(
                padded(images, batch.images.mask.shape[1]), images, strict=True
            )
        ]
        read = [unit(words_of(p, words), 1e-8) for words in texts]
        return triplet(matrix(seen, read, score), 0.05, hardest=step >= WARMUP)

    training = ours("chan", spec, warmed(0.05), tmp_path)
    same(training, theirs(training, loss))


def ranked(p: Parameters, name: str, x: Tensor) -> Tensor:
    """GPO's pooling of (N, D): each feature's values in descending order, with learnt weights."""
    width = p[f"{name}.rnn.weight_ih_l0"].shape[1]
    codes = torch.zeros(len(x), width, dtype=x.dtype)
    for place in range(len(x)):
        for even in range(0, width, 2):
            angle = place / 10_000 ** (even / width)
            codes[place, even], codes[place, even + 1] = math.sin(angle), math.cos(angle)
    heights = both_ways(p, f"{name}.rnn", codes) @ p[f"{name}.score.weight"][0]
    theta = (heights / 0.1).softmax(0)
    return sum(weight * value for weight, value in zip(theta, x.sort(0, True).values, strict=True))


def test_gpo(tmp_path: Path) -> None:
    """Padded regions count in the batch norm; every parameter decays."""
    spec = config(
        GPO,
        image=lazy(MLPRegions, features=train_cases.WIDTH, width=WIDTH, released_padding=True),
        text=lazy(GRU, words=0, width=WIDTH, word_width=WORD_WIDTH),
        positions=8,
        hidden=4,
    )

    def regions_of(p: Parameters, images: list[Tensor], most: int) -> list[Tensor]:
        rows = torch.cat(padded(images, most))
        inner = linear(p, "image.enter", rows)
        mean, spread = inner.mean(0), inner.var(0, correction=0)
        normal = (inner - mean) / (spread + 1e-5).sqrt()
        normal = normal * p["image.norm.weight"] + p["image.norm.bias"]
        out = linear(p, "image.fc", rows) + linear(p, "image.leave", normal.clamp(min=0))
        return [out[n * most : n * most + len(real)] for n, real in enumerate(images)]

    def loss(p: Parameters, batch: Batch, step: int) -> Tensor:
        images, texts = items(batch)
        regions = regions_of(p, images, batch.images.mask.shape[1])
        seen = [unit(ranked(p, "image_pool", x), 1e-8) for x in regions]
        read = [unit(ranked(p, "text_pool", words_of(p, words)), 1e-8) for words in texts]
        return triplet(matrix(seen, read, torch.dot), 0.2, hardest=step >= WARMUP)

    training = ours("gpo", spec, warmed(0.2), tmp_path)
    same(training, theirs(training, loss))
