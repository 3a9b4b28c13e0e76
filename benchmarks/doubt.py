"""Which word is wrong? Exchanges of words against leaving words out, and the heads of TAGS-DC.

``python -m benchmarks.doubt MODEL... --data scenes:...,features=regions`` fits noise and thresholds
on dev, for every rule so that it doubts 5 % of the content words of true captions, and measures on
test: true captions, and as many with one detail changed so that they are false of the picture. Both
are known exactly for scenes. Prints a row of each rule, averaged over models (seeds).

``python -m benchmarks.doubt MODEL... --data flickr8k/ --features F --foils sugarcrepe/ --images
val2017/ --foil-features G`` measures on a published foil set instead. Its wrong words are those
that the foil has and the caption has not; a correction is right where it gives the caption back.
"""

from __future__ import annotations

import argparse
import difflib
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
from counterfoil.evaluation.foils.sets import FoilSet, open_foil_set
from counterfoil.evaluation.word_heads import replace_words
from counterfoil.model import Model, load_model

WORD = re.compile(r"\w+(?:-\w+)*|[^\w\s]")


@dataclass(frozen=True)
class Word:
    """A content word of a caption, with a rule's suspicion."""

    start: int
    suspicion: float
    corrected: str = ""  # the caption with the rule's correction


Words = list[list[Word]]  # of each caption
Similar = dict[str, tuple[str, ...]]
Shares = dict[str, float]  # measures in percent


@dataclass(frozen=True)
class Item:
    """A caption of a picture; `wrong` are the starts of its wrong words.

    What is true of the picture is known from its scene, or from the one true caption.
    """

    caption: str
    row: int
    truth: Scene | str
    kind: str = ""
    wrong: frozenset[int] = frozenset()

    def is_right(self, corrected: str) -> bool:
        """Return True if a corrected caption is true of the picture."""
        if isinstance(self.truth, str):
            return WORD.findall(corrected.lower()) == WORD.findall(self.truth.lower())
        return bool(corrected) and is_true(corrected, self.truth)


def scene_items(part: ImageTextDataset, count: int) -> list[Item]:
    """True captions of scenes, each followed by a false one."""
    rng, made, scenes = torch.Generator().manual_seed(0), list[Item](), graphs(part)
    for row in torch.randperm(len(part.texts), generator=rng)[:count].tolist():
        caption, image = part.texts[row], int(part.text_to_image[row])
        scene = scenes[image]
        if not (false := foils(caption, scene, rng)):
            continue
        words = [match.start() for match in WORD.finditer(false[0].caption)]
        wrong = frozenset(words[at] for at in false[0].changed)
        foil = Item(false[0].caption, image, scene, false[0].kind, wrong)
        made += [Item(caption, image, scene), foil]
    return made


def foil_items(foil_set: FoilSet) -> list[Item]:
    """The true captions of a foil set, each followed by its foils that have a wrong word."""
    made, texts = list[Item](), foil_set.dataset.texts
    for item in foil_set.items:
        caption, *false = (texts[row] for row in item.texts)
        row = item.images[0]
        changed = [(foil, wrong) for foil in false if (wrong := new_words(caption, foil))]
        if changed:
            made.append(Item(caption, row, caption))
        made += [Item(foil, row, caption, item.category, wrong) for foil, wrong in changed]
    return made


def new_words(caption: str, foil: str) -> frozenset[int]:
    """Starts of the words of a foil that its caption does not have at their place."""
    true, false = (list(WORD.finditer(text.lower())) for text in (caption, foil))
    compared = difflib.SequenceMatcher(
        None, [word[0] for word in true], [word[0] for word in false], autojunk=False
    )
    return frozenset(
        word.start()
        for kind, _, _, start, stop in compared.get_opcodes()
        if kind in ("replace", "insert")
        for word in false[start:stop]
    )


def true_items(part: ImageTextDataset, count: int) -> list[Item]:
    """True captions of a split."""
    rows = torch.randperm(len(part.texts), generator=torch.Generator().manual_seed(0))[:count]
    owners = part.text_to_image[rows].tolist()
    texts = [part.texts[row] for row in rows.tolist()]
    return [Item(text, image, text) for text, image in zip(texts, owners, strict=True)]


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


def by_chance(model: Model, images: Embeddings, cases: Sequence[Item], similar: Similar) -> Words:
    """A random number for each word: what a rule that knows nothing reaches."""
    rng = np.random.default_rng(0)
    return [
        [Word(start, rng.random()) for start in sorted(content(case.caption, similar))]
        for case in cases
    ]


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


def measure(cases: Sequence[Item], words: Words, limit: float) -> Shares:
    """Shares in percent."""
    doubted = [[word for word in own if word.suspicion > limit] for own in words]
    foiled = [n for n, case in enumerate(cases) if case.kind]
    true = [n for n, case in enumerate(cases) if not case.kind]
    caught = {n: [w for w in doubted[n] if w.start in cases[n].wrong] for n in foiled}
    first = {n: max(doubted[n], key=lambda w: w.suspicion) for n in foiled if doubted[n]}
    corrected = [n for n, word in first.items() if cases[n].is_right(word.corrected)]
    shares = {
        "false doubts": sum(len(doubted[n]) for n in true) / sum(len(words[n]) for n in true),
        "precision": sum(map(len, caught.values())) / max(1, sum(map(len, doubted))),
        "recall": sum(map(bool, caught.values())) / len(foiled),
        "most doubted is wrong": sum(w.start in cases[n].wrong for n, w in first.items())
        / len(foiled),
        "corrected": len(corrected) / len(foiled),
    }
    for kind in sorted({cases[n].kind for n in foiled}):
        here = [n for n in foiled if cases[n].kind == kind]
        shares[f"{kind} ({len(here)})"] = sum(bool(caught[n]) for n in here) / len(here)
    return {name: 100 * share for name, share in shares.items()}


Side = tuple[ImageTextDataset, list[Item]]  # pictures, and captions of them


def rows_of(model: Model, data: ImageTextDataset, dev: Side, test: Side) -> dict[str, Shares]:
    """The measures of each rule on test, with the threshold of true captions of dev."""
    rules = {"word left out": by_occlusion, "exchange": by_exchange}
    if has_doubt_head(model.model):
        rules = {"doubt head": by_heads, "exchange": by_exchange}
    rules["chance"] = by_chance
    similar, measured = similar_words(list(data["train"].texts)), dict[str, Shares]()
    encoded = [encode_rows(model, part, torch.arange(len(part))) for part, _ in (dev, test)]
    for rule, words_of in rules.items():
        true, words = (
            words_of(model, images, cases, similar)
            for images, (_, cases) in zip(encoded, (dev, test), strict=True)
        )
        suspicions = [word.suspicion for own in true for word in own]
        limit = float(np.quantile(suspicions, 1 - FALSE_DOUBTS))
        measured[rule] = measure(test[1], words, limit)
    return measured


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--data", required=True)
    parser.add_argument("--features", type=Path)
    parser.add_argument("--captions", type=int, default=500)
    parser.add_argument("--foils", nargs="+", help="files of foil sets; by default foils of scenes")
    parser.add_argument("--images", type=Path, help="of the foil sets")
    parser.add_argument("--foil-features", type=Path)
    given = parser.parse_args()
    data = load_dataset(given.data, features=given.features)
    if given.foils:
        published = open_foil_set(given.foils, images=given.images, features=given.foil_features)
        dev: Side = (data["dev"], true_items(data["dev"], given.captions))
        test: Side = (published.dataset, foil_items(published))
        print(f"{published.name}: {sum(bool(case.kind) for case in test[1]):,} foils")
    else:
        cases = scene_items(data["dev"], given.captions)
        dev = (data["dev"], [case for case in cases if not case.kind])
        test = (data["test"], scene_items(data["test"], given.captions))
    tables = [rows_of(load_model(name), data, dev, test) for name in given.models]
    for rule, shares in tables[0].items():
        print(
            f"{rule}: " + " | ".join(cell([t[rule][name] for t in tables], name) for name in shares)
        )
    if len(tables) > 1:
        first, second, chance = tables[0]
        for better, worse in ((second, first), (first, chance), (second, chance)):
            for name in ("false doubts", "precision", "recall", "most doubted is wrong"):
                gains = [table[better][name] - table[worse][name] for table in tables]
                print(f"{better} less {worse}, {name}: {of_changes(gains)}")


def cell(values: Sequence[float], name: str) -> str:
    """Mean and deviation over models."""
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{name} {statistics.mean(values):.1f}{spread}"


if __name__ == "__main__":
    main()
