"""Words doubted and corrected in written captions, in every reading (TAGS-DC, section 4.4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from counterfoil import world
from counterfoil.corpus.corpus import Corpus
from counterfoil.corpus.lens import CorpusLens
from counterfoil.engine.modes import evaluating
from counterfoil.evaluate.analysis_page import AnalysisPage, Rows
from counterfoil.evaluate.figures import Figure
from counterfoil.evaluate.share_figures import Dot, dots, doubts
from counterfoil.evaluation.bootstrap import Share, shares
from counterfoil.evaluation.word_accuracy import THRESHOLD, Task, WordsRead, joined, readings
from counterfoil.negatives.candidates import Sieve
from counterfoil.negatives.desk import Desk
from counterfoil.negatives.hand import able
from counterfoil.negatives.readings import Shown, read
from counterfoil.negatives.written_items import WrittenItems, write_items
from counterfoil.reading import ReadsWords, Slots, Want
from counterfoil.recipes.analyses.asking import (
    INTERVALS,
    Pen,
    check_reads,
    desk_of,
    drawn_captions,
    single,
)
from counterfoil.recipes.analyses.results import check_out, publish
from counterfoil.recipes.analyses.scorers import Scorer, open_scorers
from counterfoil.recipes.model import Model
from counterfoil.recipes.provenance import made_now
from counterfoil.recipes.run import Source

ALL, HARDEST = "all", "hardest"
TITLES: dict[Task, str] = {"doubt": "Words doubted", "correct": "Words corrected"}
PAPER: dict[Task, str] = {"doubt": "66.5 %", "correct": "87.3 %"}
INSTEAD = "name a model with heads for words, such as one trained with tags-dc/uniter-scenes"


@final
@dataclass(frozen=True, slots=True)
class Accuracy:
    """One reading.

    Attributes:
        task: "doubt" or "correct".
        of: what is counted.
        every: over all written captions.
        hardest: over the hardest of each caption.
        idle: percent of all that a model gets right which doubts and changes nothing.
    """

    task: Task
    of: str
    every: Share
    hardest: Share
    idle: float

    def plain(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "task": self.task,
            "of": self.of,
            ALL: self.every.plain(),
            HARDEST: self.hardest.plain(),
            "idle": self.idle if self.every.count else None,
        }


def words(
    name: str,
    source: Source,
    out: Path,
    *,
    split: str = "test",
    anchors: int = 200,
    writer: str | None = None,
    pen: Pen | None = None,
    seed: int = 0,
) -> tuple[Accuracy, ...]:
    """Let a model write false captions, and ask it which words are wrong and what they ought to be.

    Args:
        name: of the model.
        source: the data.
        out: page to write; the numbers go beside it as JSON.
        split: which split.
        anchors: how many images, a caption of each.
        writer: another model that writes, which reads the same tokens; None for the model itself.
        pen: how it writes.
        seed: of the captions, of what is written, and of the intervals.

    Returns:
        Every reading that the model has heads for.

    Raises:
        ValueError: the page exists, the model has no head for doubts and none for corrections, it
            and the writer read different tokens, or model and data do not fit.
    """
    check_out(out)
    world.join()
    corpus, pen = source.split(split), pen or Pen()
    scorers = open_scorers([name] if writer in (None, name) else [name, writer or name])
    check_reads(scorers)
    model, author = single(scorers[0]), single(scorers[-1])
    _check_same(model, author)
    rng = torch.Generator().manual_seed(seed)
    rows = drawn_captions(corpus, anchors, rng)
    seen = _seen(model, author, corpus, rows, pen, seed)
    found = tuple(_accuracies(seen, corpus.owner, seed))
    about = f"{len(seen.rows):,} captions written for {len(rows):,} captions"
    page = AnalysisPage(
        title="Words doubted and corrected",
        headline=_headline(found),
        protocol=_protocol(corpus, about, scorers, pen, seed),
        provenance=made_now(seed=seed),
        figures=tuple(_figures(found, seen.read)),
        tables=tuple(_rows(found, task) for task in TITLES if any(a.task == task for a in found)),
    )
    numbers = {"model": name, "writer": writer or name, "readings": [a.plain() for a in found]}
    publish(page, numbers, out)
    return found


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """What a model says of written captions.

    Attributes:
        read: word by word.
        rows: (W,) rows of the captions that they were made of.
        place: (W,) of each among those of its caption, the hardest first.
    """

    read: WordsRead
    rows: Tensor
    place: Tensor


def _check_same(model: Model, author: Model) -> None:
    """Whether one can judge the words of the other.

    Raises:
        ValueError: it has no head for that, or they read different tokens.
    """
    matcher = model.matcher
    if not (isinstance(matcher, ReadsWords) and matcher.wants & {Want.DOUBT, Want.CORRECT}):
        able(matcher, {Want.DOUBT, Want.CORRECT}, f"{model.name}, a", INSTEAD)
    ours, theirs = (one.lens.tokenizer for one in (model, author) if one.lens)
    assert ours is not None
    assert theirs is not None
    if ours.digest != theirs.digest:
        raise ValueError(
            f"{model.name} and {author.name} read different tokens, so that one cannot say which "
            "of the other's are wrong; let the model write itself"
        )


def _seen(model: Model, author: Model, corpus: Corpus, rows: Tensor, pen: Pen, seed: int) -> _Seen:
    """Written captions of some captions, read by the model.

    Raises:
        ValueError: nothing was written.
    """
    desk, lens, parts, said = desk_of(author, corpus), model.on(corpus), [], []
    for part in write_items(
        author.matcher, desk, rows, hand=pen.hand, sieve=Sieve(), keep=pen.keep, seed=seed
    ):
        if len(part):
            parts.append(part)
            said.append(_answers(model, lens, desk, part))
    if not parts:
        raise ValueError(
            f"nothing that may be false was written for {len(rows):,} captions of {corpus.name} "
            f"{corpus.part}; ask for more with --anchors"
        )
    made_of = torch.cat([part.rows for part in parts])
    return _Seen(joined(said), made_of, torch.cat([part.place for part in parts]))


def _answers(model: Model, lens: CorpusLens, desk: Desk, items: WrittenItems) -> WordsRead:
    """What the model says of every word of some written captions, on the CPU."""
    matcher, texts = model.matcher, items.texts
    assert isinstance(matcher, ReadsWords)
    owner, image = torch.unique(lens.corpus.owner[items.rows], return_inverse=True)
    device = texts.values.device
    said = texts.mask & ~desk.banned.to(device)[items.original]
    pair, place = said.nonzero(as_tuple=True)
    want = matcher.wants & {Want.DOUBT, Want.CORRECT}
    with evaluating([matcher]):
        images = matcher.encode_images(lens.images(owner).to(device))
        shown = Shown(images, texts, image.to(device))
        found = read(matcher, shown, want, Slots(pair, place))
    better = None
    if found.correct is not None:
        best = found.correct.argmax(1)
        better = texts.values.index_put((pair, place), best).cpu()
    return WordsRead(
        original=items.original.cpu(),
        written=texts.values.cpu(),
        mask=texts.mask.cpu(),
        said=said.cpu(),
        slots=items.slots.cpu(),
        right=None if found.doubt is None else found.doubt.float().softmax(2)[..., 1].cpu(),
        better=better,
        words=None if texts.words is None else texts.words.cpu(),
    )


def _accuracies(seen: _Seen, owner: Tensor, seed: int) -> Iterator[Accuracy]:
    """All readings, each over all captions and over the hardest of each."""
    first = (seen.place == 0).nonzero().squeeze(1)
    every, hardest = readings(seen.read), readings(seen.read.rows(first))
    images = owner[seen.rows]
    idle = shares([one.idle for one in every], images, scale=100, resamples=1)
    sides = [
        shares([one.found for one in side], rows, scale=100, seed=seed)
        for side, rows in ((every, images), (hardest, images[first]))
    ]
    for one, lazy, all_of_them, best in zip(every, idle, *sides, strict=True):
        yield Accuracy(one.task, one.of, all_of_them, best, lazy.value)


def _protocol(corpus: Corpus, about: str, scorers: Sequence[Scorer], pen: Pen, seed: int) -> str:
    author = f", written by {scorers[1].name}: {scorers[1].said()}" if len(scorers) > 1 else ""
    return (
        f"{corpus.name} {corpus.part}: {about} of different images ({pen.said()}{author}); a word "
        f"is doubted that is right with {THRESHOLD:g} or less; {scorers[0].said()}; sampling seed "
        f"{seed}; {INTERVALS}"
    )


def _figures(found: Sequence[Accuracy], seen: WordsRead) -> Iterator[Figure]:
    if seen.right is not None:
        same = seen.written == seen.original
        yield doubts(seen.right[seen.said], same[seen.said], THRESHOLD)
    for task, title in TITLES.items():
        lines = [
            Dot(a.of, name, share, a.idle)
            for a in found
            for name, share in (("all", a.every), ("hardest of each caption", a.hardest))
            if a.task == task
        ]
        if lines:
            yield dots(lines, "right, %", task, f"{title}.", "nothing doubted")


def _rows(found: Sequence[Accuracy], task: Task) -> Rows:
    head = "of", "count", "right, %", "95 %", "hardest, %", "95 %", "nothing doubted, %"
    cells = tuple(
        (a.of, f"{a.every.count:,}", *_cells(a.every), *_cells(a.hardest), f"{a.idle:.1f}")
        for a in found
        if a.task == task
    )
    note = (
        "Tokens: no special ones, unless that is said. Hardest: what the writer scores highest of "
        "each caption. Nothing doubted: what is right where no word is doubted or changed.\n"
        f"The paper reports {PAPER[task]} on Flickr30K and does not say in which reading."
    )
    return Rows(TITLES[task], head, cells, note)


def _cells(share: Share) -> tuple[str, str]:
    if not share.count:
        return "–", "–"
    return f"{share.value:.1f}", f"{share.interval.low:.1f} to {share.interval.high:.1f}"


def _headline(found: Sequence[Accuracy]) -> str:
    shown = {(a.task, a.of): a.every for a in found}
    words = []
    if ("doubt", "wrong tokens") in shown:
        wrong, right = (shown[("doubt", f"{side} tokens")] for side in ("wrong", "right"))
        words.append(f"{wrong.value:.1f} % of the wrong words are doubted")
        words.append(f"{right.value:.1f} % of the right ones are not")
    if ("correct", "wrong tokens") in shown:
        words.append(f"{shown[('correct', 'wrong tokens')].value:.1f} % of the wrong are put right")
    return f"{', '.join(words)}."
