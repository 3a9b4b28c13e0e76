"""Fifty steps of UNITER's matching and of TAGS beside the authors' step, written out in loops.

Theirs is written from the papers and from what is known of their code: one pair at a time, without
padding; their AdamW, their decay by names, their schedule. What their program would draw (wrong
pairs, masks, refilled words) is taken from ours. All is in double precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import pretrain_cases
import tailored_cases
from counterfoil.core.config import config
from counterfoil.core.types import Batch, ModalityBatch, Role
from counterfoil.data.phrases import RulePhraseParser
from counterfoil.data.processor import ProcessedDataset, ProcessorConfig
from counterfoil.model import Model
from counterfoil.negatives.online import TopScoringMiner
from counterfoil.negatives.sampling import CandidateConfig
from counterfoil.papers.models.uniter import UNITER
from counterfoil.papers.pretraining.pretrain import (
    PretrainBatch,
    PretrainStep,
    PretrainTasks,
    pretrain,
)
from counterfoil.papers.pretraining.stage import pretrain_config
from counterfoil.papers.systems import TagsNumbers
from counterfoil.papers.tags.generation import MaskedInputs, MaskRefill, TagsGenerator
from counterfoil.papers.tags.inputs import CandidateFilter
from counterfoil.papers.tags.recipe import ALL_TASKS, OUTPUTS, tags_loss, tags_train_config
from counterfoil.training.callbacks import Callback
from counterfoil.training.trainer import Trainer

pytestmark = pytest.mark.slow
STEPS, RATE, LAYERS, WIDTH, HEADS = 50, 1e-3, 2, 16, 2
FOUND = 1e-7
# what decays beside matrices, as no "bias" and no "LayerNorm" is in its name in their code
DECAYING = {
    "image.fc_norm.weight",
    "image.place_norm.weight",
    "text.kind",
    "image.kind",
    "image.veil",
    "says.regress.enter.2.weight",
    "says.classify.enter.2.weight",
}

Parameters = dict[str, Tensor]


def body(**options: Any) -> Any:
    return config(
        UNITER,
        layers=LAYERS,
        width=WIDTH,
        heads=HEADS,
        inner=24,
        positions=40,
        dropout=0.0,
        spread=0.3,
        **options,
    )


def parameters(model: torch.nn.Module) -> Parameters:
    return {n: p.detach().clone() for n, p in model.named_parameters()}


# Their optimiser.


def follow(
    start: Parameters,
    losses: Sequence[Callable[[Parameters], Tensor]],
    *,
    warmup: int,
    clip: float,
) -> list[float]:
    """The losses of one step after another, with decay 0.01, betas 0.9 and 0.98, epsilon 1e-6."""
    weights = {n: p.clone().requires_grad_() for n, p in start.items()}
    moments: dict[str, tuple[int, Tensor, Tensor]] = {}
    found = []
    for number, loss in enumerate(losses, 1):
        total = loss(weights)
        found.append(total.item())
        every = torch.autograd.grad(total, list(weights.values()), allow_unused=True)
        gradients = {n: g for n, g in zip(weights, every, strict=True) if g is not None}
        norm = math.sqrt(sum(g.pow(2).sum().item() for g in gradients.values()))
        share = number / warmup if number < warmup else (STEPS - number) / (STEPS - warmup)
        rate = RATE * share
        for name, gradient in gradients.items():
            clipped = gradient * min(1.0, clip / (norm + 1e-6))
            steps, mean, square = moments.get(name, (0, 0 * clipped, 0 * clipped))
            steps += 1
            mean, square = 0.9 * mean + 0.1 * clipped, 0.98 * square + 0.02 * clipped**2
            moments[name] = steps, mean, square
            size = rate * math.sqrt(1 - 0.98**steps) / (1 - 0.9**steps)
            with torch.no_grad():
                new = weights[name] - size * mean / (square.sqrt() + 1e-6)
                if new.ndim > 1 or name in DECAYING:
                    new = new - rate * 0.01 * new
                weights[name].copy_(new)
    return found


def same(ours: Sequence[float], found: Sequence[float]) -> None:
    assert len(ours) == STEPS
    assert ours[0] > 1.02 * min(ours) > 0
    apart = [abs(a - b) / abs(b) for a, b in zip(ours, found, strict=True)]
    assert max(apart) < FOUND, [f"{x:.1e}" for x in apart]


# Their model, one pair at a time.


def linear(p: Parameters, name: str, x: Tensor) -> Tensor:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def norm(p: Parameters, name: str, x: Tensor) -> Tensor:
    mean, spread = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
    return (x - mean) / (spread + 1e-12).sqrt() * p[f"{name}.weight"] + p[f"{name}.bias"]


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def read(p: Parameters, words: Tensor, regions: Tensor, boxes: Tensor) -> Tensor:
    """States (L + R, D) of the words (L,) and regions (R, F) of a pair."""
    places = p["text.position_embeddings.weight"][: len(words)]
    text = p["text.word_embeddings.weight"][words] + places + p["text.kind"]
    rows = []
    for region, (left, top, right, bottom) in zip(regions, boxes, strict=True):
        wide, high = right - left, bottom - top
        place = torch.stack([left, top, right, bottom, wide, high, wide * high])
        seen = norm(p, "image.fc_norm", linear(p, "image.fc", region))
        seen = seen + norm(p, "image.place_norm", linear(p, "image.place", place))
        rows.append(norm(p, "image.norm", seen + p["image.kind"]))
    x = torch.cat([norm(p, "text.norm", text), torch.stack(rows)])
    for layer in (f"body.layers.{number}" for number in range(LAYERS)):
        query, key, value = linear(p, f"{layer}.enter", x).chunk(3, 1)
        heads = []
        for head in range(HEADS):
            part = slice(head * WIDTH // HEADS, (head + 1) * WIDTH // HEADS)
            chances = query[:, part] @ key[:, part].T / math.sqrt(WIDTH // HEADS)
            heads.append(chances.softmax(1) @ value[:, part])
        x = norm(p, f"{layer}.norm", x + linear(p, f"{layer}.leave", torch.cat(heads, 1)))
        inner = gelu(linear(p, f"{layer}.wide", x))
        x = norm(p, f"{layer}.last_norm", x + linear(p, f"{layer}.narrow", inner))
    return x


def pooled(p: Parameters, states: Tensor) -> Tensor:
    return linear(p, "pooler", states[0]).tanh()


def guessed(p: Parameters, head: str, states: Tensor) -> Tensor:
    """(n, V) logits of a word at each state, through the matrix of the word embeddings."""
    inner = norm(p, f"says.{head}.enter.2", gelu(linear(p, f"says.{head}.enter.0", states)))
    return inner @ p["text.word_embeddings.weight"].T + p[f"says.{head}.bias"]


def image_of(items: ModalityBatch, row: int) -> tuple[Tensor, Tensor]:
    assert items.boxes is not None
    mask = items.mask[row]
    return items.values[row][mask].double(), items.boxes[row][mask].double()


def text_of(items: ModalityBatch, row: int) -> Tensor:
    return items.values[row][items.mask[row]]


# UNITER's matching: is this the pair, and how far are the words from the regions.


def transport(words: Tensor, regions: Tensor) -> Tensor:
    """The cost of moving words onto regions, by 50 proximal steps; the plan has no gradient."""

    def unit(x: Tensor) -> Tensor:
        return x / x.pow(2).sum(1, keepdim=True).sqrt().clamp(min=1e-5)

    cost = 1 - unit(words) @ unit(regions).T
    with torch.no_grad():
        kernel, plan = (-cost / 0.5).exp(), torch.ones_like(cost)
        by_word = torch.full_like(cost[:, 0], 1 / len(words))
        for _ in range(50):
            step = kernel * plan
            by_region = 1 / (len(regions) * (step.T @ by_word))
            by_word = 1 / (len(words) * (step @ by_region))
            plan = by_word[:, None] * step * by_region
    return (cost * plan).sum()


def test_matching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = pretrain_cases.processor(captions=3)
    assert data.processor.tokenizer is not None
    torch.manual_seed(0)
    model = body(
        vocabulary=data.processor.tokenizer.size,
        features=pretrain_cases.train_cases.WIDTH,
        classes=pretrain_cases.CLASSES,
        outputs=pretrain_cases.OUTPUTS,
    ).build()
    start, batches, ours = parameters(model.double()), list[PretrainBatch](), list[float]()
    real = PretrainStep.forward

    def seen(step: PretrainStep, batch: PretrainBatch) -> dict[str, Tensor]:
        losses = real(step, batch)
        batches.append(batch)
        ours.append(sum(loss.item() for loss in losses.values()))
        return losses

    monkeypatch.setattr(PretrainStep, "forward", seen)
    plan = pretrain_config(epochs=99, batch=6, rate=RATE, released=True)
    plan = replace(plan, steps=STEPS, schedule=replace(plan.schedule, warmup=5))
    tasks = PretrainTasks(mlm=0, mrfr=0, mrc=0, mrckl=0, itm=1)
    pretrain(plan, model, tasks, data, folder=tmp_path)

    def loss(p: Parameters, batch: PretrainBatch) -> Tensor:
        total = torch.zeros((), dtype=torch.double)
        for row, matches in enumerate(batch.matching.tolist()):
            words = text_of(batch.texts, row)
            states = read(p, words, *image_of(batch.images, row))
            logits = linear(p, "says.match", pooled(p, states))
            total = total - logits.log_softmax(0)[int(matches)]
            moved = transport(states[: len(words)], states[len(words) :])
            total = total + (0.1 if matches else -0.1) * moved
        return total / len(batch.matching)

    steps = [lambda p, batch=batch: loss(p, batch) for batch in batches]
    same(ours, follow(start, steps, warmup=5, clip=5.0))


# TAGS, both steps.


@pytest.mark.parametrize("number", [1, 2])
def test_tags(number: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tailored_cases.dataset(images=8, captions=3).with_positives("id")
    processor = ProcessorConfig().fit(data)
    assert processor.tokenizer is not None
    torch.manual_seed(0)
    words = processor.tokenizer.size
    spec = body(vocabulary=words, features=tailored_cases.WIDTH, outputs=OUTPUTS[number])
    model = Model(spec.build().double(), processor, "uniter", spec)
    start = parameters(model.model)
    numbers = TagsNumbers(
        steps=STEPS, rate=RATE, masked=0.1, written=0.2, words=0.05, offered=5, keep=2, masks=2,
        refills=4, temperature=2.0,
    )  # fmt: skip
    offered = CandidateConfig(texts=numbers.offered, images=numbers.offered)
    generator = TagsGenerator(
        parser=RulePhraseParser(),
        masks=numbers.masks,
        refills=numbers.refills,
        keep=numbers.keep,
        temperature=numbers.temperature,
        words=("masked",) if number == 1 else ALL_TASKS,
        candidate_filter=CandidateFilter(
            rules=(), choice="lowered logits" if number == 1 else "lowered scores"
        ),
        specials=True,
    )
    groups, ours = list[Sequence[Batch]](), list[float]()
    masked, generated = list[MaskedInputs](), list[Tensor]()

    class Seen(Callback):
        def on_step_end(self, loop: Any, group: Any, means: Any) -> None:
            groups.append(tuple(group))
            ours.append(means["loss"].item())

    def kept(name: str, into: list[Any]) -> None:
        real = getattr(MaskRefill, name)

        def call(*given: Any, **named: Any) -> Any:
            into.append(real(*given, **named))
            return into[-1]

        monkeypatch.setattr(MaskRefill, name, call)

    kept("mask", masked)
    kept("refill", generated)
    plan = replace(
        tags_train_config(replace(numbers, batch=8), "flickr30k"),
        epochs=99, batch=2, accumulate=2,
    )  # fmt: skip
    Trainer(
        model,
        loss=tags_loss(numbers, number).build(),
        train=data,
        sources=[TopScoringMiner(keep=numbers.keep, candidates=offered), generator],
        output=tmp_path,
        config=plan,
        callbacks=[Seen()],
    ).train()
    theirs = Theirs(model.process(data), numbers, number)
    drawn = list(zip(masked, generated, strict=True))

    def total(p: Parameters, place: int) -> Tensor:
        group = groups[place]
        parts = [theirs.loss(p, b, *drawn[2 * place + n]) for n, b in enumerate(group)]
        return sum(parts, torch.zeros((), dtype=torch.double)) / len(group)

    steps = [lambda p, place=place: total(p, place) for place in range(STEPS)]
    same(ours, follow(start, steps, warmup=5, clip=2.0))


class Theirs:
    """The loss of a batch, pair by pair."""

    def __init__(self, data: ProcessedDataset, numbers: TagsNumbers, step: int) -> None:
        rows = len(data.dataset), len(data.dataset.texts)
        self.images, self.texts = (
            data.images(torch.arange(rows[0])),
            data.texts(torch.arange(rows[1])),
        )
        self.numbers, self.step = numbers, step

    def loss(self, p: Parameters, batch: Batch, masked: MaskedInputs, generated: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.double)
        anchors = zip(batch.anchors.image.tolist(), batch.anchors.text.tolist(), strict=True)
        for anchor, (image, text) in enumerate(anchors):
            rows = int(batch.image_rows[image]), int(batch.text_rows[text])
            total = total + self.retrieved(p, batch, anchor, *rows)
            total = total + self.written(p, anchor, *rows, masked, generated[anchor])
        return total / len(batch.anchors.image)

    def logit(self, p: Parameters, words: Tensor, image: int) -> Tensor:
        states = read(p, words, *image_of(self.images, image))
        return linear(p, "says.rank", pooled(p, states))[0]

    def hinge(self, p: Parameters, true: tuple[Tensor, int], wrong: Sequence[Any]) -> Tensor:
        """The mean over wrong pairs of how far they come near to the true one."""
        right = self.logit(p, *true).sigmoid()
        costs = [(0.2 - right + self.logit(p, *pair).sigmoid()).clamp(min=0) for pair in wrong]
        return torch.stack(costs).mean()

    def retrieved(self, p: Parameters, batch: Batch, anchor: int, image: int, text: int) -> Tensor:
        """The hardest of the wrong texts and of the wrong images that were offered."""
        words = text_of(self.texts, text)
        texts = batch.candidates[Role.HARD_TEXT].text[anchor].tolist()
        images = batch.candidates[Role.HARD_IMAGE].image[anchor].tolist()
        pairs = [
            [(text_of(self.texts, other), image) for other in dict.fromkeys(texts)],
            [(words, other) for other in dict.fromkeys(images)],
        ]
        total = torch.zeros((), dtype=torch.double)
        for wrong in pairs:
            with torch.no_grad():
                scores = [self.logit(p, *pair).item() for pair in wrong]
            order = sorted(range(len(wrong)), key=lambda n: -scores[n])[: self.numbers.keep]
            total = total + self.hinge(p, (words, image), [wrong[n] for n in order])
        return total

    def written(
        self, p: Parameters, anchor: int, image: int, text: int, masked: MaskedInputs, new: Tensor
    ) -> Tensor:
        """Hidden words guessed; the hardest generated captions ranked, doubted and corrected."""
        words, numbers = text_of(self.texts, text), self.numbers
        seen, long = image_of(self.images, image), len(words)
        costs = []
        for number in range(numbers.masks):
            hidden = masked.masked.texts.values[anchor * numbers.masks + number][:long]
            places = masked.slots[anchor, number].nonzero()[:, 0]
            guesses = guessed(p, "fill", read(p, hidden, *seen)[places]).log_softmax(1)
            costs += [-row[word] for row, word in zip(guesses, words[places], strict=True)]
        total = numbers.masked * torch.stack(costs).mean()
        captions = [caption[:long] for caption in new]
        scores = []
        for number, caption in enumerate(captions):
            with torch.no_grad():
                score = self.logit(p, caption, image)
            score = score.sigmoid() if self.step == 2 else score
            twice = any(torch.equal(caption, other) for other in captions[number + 1 :])
            scores.append(score.item() - 3.0 * torch.equal(caption, words) - 2.0 * twice)
        order = sorted(range(len(captions)), key=lambda n: -scores[n])[: numbers.keep]
        chosen = [(captions[n], image) for n in order]
        total = total + numbers.written * self.hinge(p, (words, image), chosen)
        if self.step == 1:
            return total
        doubts, corrections = [], []
        for number in order:
            states = read(p, captions[number], *seen)
            places = masked.slots[anchor, number // numbers.refills].nonzero()[:, 0]
            right = (captions[number] == words).tolist()
            for row, equal in zip(linear(p, "says.doubt", states[:long]), right, strict=True):
                doubts.append(-(0.11 if equal else 1.0) * row.log_softmax(0)[int(equal)])
            guesses = guessed(p, "correct", states[places]).log_softmax(1)
            corrections += [-row[word] for row, word in zip(guesses, words[places], strict=True)]
        for costs in (doubts, corrections):
            total = total + numbers.words * torch.stack(costs).mean()
        return total
