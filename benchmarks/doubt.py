"""Which word is wrong? Exchanges of words against leaving words out, and the heads of TAGS-DC.

``python -m benchmarks.doubt MODEL... --data scenes:...,features=regions`` fits noise and thresholds
on dev, for every rule so that it doubts 5 % of the content words of true captions, and measures on
test: true captions, and as many with one detail changed so that they are false of the picture. Both
are known exactly for scenes. Prints a row of each rule, averaged over models (seeds).
"""

from __future__ import annotations

import argparse
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from benchmarks.experiments.summary import of_changes
from counterfoil.core.types import Embeddings
from counterfoil.data.caption_edits import TextChange
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.readers import load_dataset
from counterfoil.data.scenes import graphs
from counterfoil.data.scenes.truth import foils, is_true
from counterfoil.data.scenes.world import Scene
from counterfoil.evaluation.exchanges import (
    FALSE_DOUBTS,
    best_exchanges,
    encode_rows,
    exchanged_captions,
    similar_words,
)
from counterfoil.evaluation.explain import (
    ExplainConfig,
    explain_by_heads,
    explain_by_occlusion,
    has_doubt_head,
)
from counterfoil.evaluation.word_heads import replace_words
from counterfoil.model import Model, load_model

KINDS = ("colour", "object", "pattern", "size", "number", "relation", "swap")


@dataclass(frozen=True)
class Word:
    """A content word of a caption, with a rule's suspicion."""

    start: int
    suspicion: float
    corrected: str = ""  # the caption with the rule's correction


Words = list[list[Word]]  # of each caption
Similar = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Item:
    """A caption of a picture; `wrong` are the starts of its wrong words."""

    caption: str
    row: int
    kind: str = ""
    wrong: frozenset[int] = frozenset()


def items(part: ImageTextDataset, scenes: Sequence[Scene], count: int) -> list[Item]:
    """True captions, each followed by a false one."""
    rng, made = torch.Generator().manual_seed(0), list[Item]()
    for row in torch.randperm(len(part.texts), generator=rng)[:count].tolist():
        caption, image = part.texts[row], int(part.text_to_image[row])
        false = foils(caption, scenes[image], rng)
        if not false:
            continue
        words = [match.start() for match in re.finditer(r"\w+(?:-\w+)*|[^\w\s]", false[0].caption)]
        wrong = frozenset(words[at] for at in false[0].changed)
        made += [Item(caption, image), Item(false[0].caption, image, false[0].kind, wrong)]
    return made


def by_occlusion(
    model: Model, images: Embeddings, cases: Sequence[Item], similar: Similar
) -> Words:
    """The gain in score without a word."""
    rows = torch.tensor([case.row for case in cases])
    texts = [case.caption for case in cases]
    explained = explain_by_occlusion(
        model.model, model.processor.process_texts, images, texts, rows
    )
    results: Words = []
    for one in explained:
        starts = content(one.caption, similar)
        results.append(
            [Word(word.start, word.gain or 0.0) for word in one.words if word.start in starts]
        )
    return results


def by_exchange(model: Model, images: Embeddings, cases: Sequence[Item], similar: Similar) -> Words:
    """The gain in score of the best exchange."""
    results: Words = []
    for start in range(0, len(cases), 32):
        part = cases[start : start + 32]
        rows, texts = torch.tensor([case.row for case in part]), [case.caption for case in part]
        read = model.processor.process_texts
        for _, words in best_exchanges(model.model, read, images, texts, rows, similar):
            results.append(
                [Word(w.start, best.gain, best.variant.caption) for w, (best, *_) in words]
            )
    return results


def by_heads(model: Model, images: Embeddings, cases: Sequence[Item], similar: Similar) -> Words:
    """The doubt head, and the first word of the correction head."""
    rows, texts = torch.tensor([case.row for case in cases]), [case.caption for case in cases]
    tokenizer = model.processor.tokenizer
    config = ExplainConfig(threshold=0.0, corrections=1)
    explained = explain_by_heads(model.model, tokenizer, images, texts, rows, config=config)
    results: Words = []
    for one in explained:
        starts, words = content(one.caption, similar), list[Word]()
        for word in one.words:
            if word.start in starts:
                changes = [TextChange(word.start, word.stop, new.text) for new in word.corrections]
                new = replace_words(one.caption, changes)[0] if changes else ""
                words.append(Word(word.start, word.doubt or 0.0, new))
        results.append(words)
    return results


def content(caption: str, similar: Similar) -> set[int]:
    """Starts of the words that can be exchanged."""
    return {word.start for word, _ in exchanged_captions(caption, similar)}


def measure(
    cases: Sequence[Item], words: Words, limit: float, scenes: Sequence[Scene]
) -> dict[str, float]:
    """Shares in percent."""
    doubted = [[word for word in own if word.suspicion > limit] for own in words]
    foiled = [n for n, case in enumerate(cases) if case.kind]
    true = [n for n, case in enumerate(cases) if not case.kind]
    caught = {n: [w for w in doubted[n] if w.start in cases[n].wrong] for n in foiled}
    first = {n: max(doubted[n], key=lambda w: w.suspicion) for n in foiled if doubted[n]}
    corrected = [
        n for n, w in first.items() if w.corrected and is_true(w.corrected, scenes[cases[n].row])
    ]
    shares = {
        "false doubts": sum(len(doubted[n]) for n in true) / sum(len(words[n]) for n in true),
        "precision": sum(map(len, caught.values())) / max(1, sum(map(len, doubted))),
        "recall": sum(map(bool, caught.values())) / len(foiled),
        "most doubted is wrong": sum(w.start in cases[n].wrong for n, w in first.items())
        / len(foiled),
        "corrected": len(corrected) / len(foiled),
    }
    for kind in KINDS:
        here = [n for n in foiled if cases[n].kind == kind]
        if here:
            shares[f"{kind} ({len(here)})"] = sum(bool(caught[n]) for n in here) / len(here)
    return {name: 100 * share for name, share in shares.items()}


def rows_of(model: Model, data: ImageTextDataset, count: int) -> dict[str, dict[str, float]]:
    """The measures of each rule on test."""
    rules = {"word left out": by_occlusion, "exchange": by_exchange}
    if has_doubt_head(model.model):
        rules = {"doubt head": by_heads, "exchange": by_exchange}
    similar, measured = similar_words(list(data["train"].texts)), {}
    sides = {}
    for name in ("dev", "test"):
        part, scenes = data[name], graphs(data[name])
        images = encode_rows(model, part, torch.arange(len(part)))
        sides[name] = (scenes, images, items(part, scenes, count))
    for rule, words_of in rules.items():
        scenes, images, cases = sides["dev"]
        dev = words_of(model, images, [case for case in cases if not case.kind], similar)
        scenes, images, cases = sides["test"]
        test = words_of(model, images, cases, similar)
        suspicions = [word.suspicion for own in dev for word in own]
        limit = float(np.quantile(suspicions, 1 - FALSE_DOUBTS))
        measured[rule] = measure(cases, test, limit, scenes)
    return measured


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--data", required=True)
    parser.add_argument("--captions", type=int, default=500)
    given = parser.parse_args()
    data = load_dataset(given.data)
    tables = [rows_of(load_model(name), data, given.captions) for name in given.models]
    for rule, shares in tables[0].items():
        print(
            f"{rule}: " + " | ".join(cell([t[rule][name] for t in tables], name) for name in shares)
        )
    if len(tables) > 1:
        first, second = list(tables[0])[:2]
        for name in ("false doubts", "precision", "recall", "most doubted is wrong"):
            gains = [table[second][name] - table[first][name] for table in tables]
            print(f"{second} less {first}, {name}: {of_changes(gains)}")


def cell(values: Sequence[float], name: str) -> str:
    """Mean and deviation over models."""
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{name} {statistics.mean(values):.1f}{spread}"


if __name__ == "__main__":
    main()
