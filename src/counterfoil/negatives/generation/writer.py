"""Written captions in the making: part by part, by any number of processes, through any kill."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from counterfoil.core import distributed
from counterfoil.core.console import progress
from counterfoil.core.resumable import PartsFolder, work_through
from counterfoil.core.types import Embeddings, ModalityBatch, WordHead
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.models.base import RetrievalModel
from counterfoil.negatives.generation.inputs import (
    CandidateFilter,
    GeneratedCandidates,
    GeneratorInputs,
    PairInputs,
    read_in_parts,
    score_in_parts,
)
from counterfoil.negatives.generation.store import (
    ChangedSpan,
    GeneratedCaption,
    GeneratedStore,
    named_generator,
    normalise_for_comparison,
    read_generated,
)
from counterfoil.negatives.generation.tags import (
    MaskedInputs,
    MaskRefill,
    at_least_one,
    check_heads,
    mask_token_of,
)
from counterfoil.scoring.encode import evaluation_mode

CAPTIONS = 32  # of a part, which is all that a kill can cost

Write = Callable[[Sequence[int]], Iterable[GeneratedCaption]]


def generate_in_parts(
    folder: Path,
    dataset: ImageTextDataset,
    write: Write,
    *,
    partial: Path,
    writer: str,
    settings: Mapping[str, Any],
    seed: int,
    stop: Callable[[], bool] = lambda: False,
) -> GeneratedStore:
    """Write foils of all captions that describe an image, from where it was stopped on.

    Every process of a group calls this; each writes every so many parts, the first one puts them
    together in the order of the data set.

    Args:
        folder: of the written captions; must not exist yet.
        dataset: the split.
        write: foils of some captions of it; they may not depend on which others there are.
        partial: where the parts lie until all are there; the same for all processes.
        writer: who writes, in words.
        settings: of the writer; plain values.
        seed: of what is drawn.
        stop: asked after every part; when it answers True on any process, all of them stop.

    Raises:
        ValueError: what was begun there is of another writer or other data.
        WorkStopped: a process was asked to stop.
    """
    rows = (dataset.text_to_image >= 0).nonzero().flatten().tolist()
    parts = [rows[start : start + CAPTIONS] for start in range(0, len(rows), CAPTIONS)]
    parts_folder = PartsFolder(partial, suffix=".jsonl")
    facts = {
        "corpus": dataset.fingerprint,
        "split": dataset.split_name,
        "writer": writer,
        "seed": seed,
    }
    missing = parts_folder.begin({**facts, **settings}, len(parts))

    def write_part(number: int) -> None:
        lines = (foil.line() for foil in write(parts[number]))
        parts_folder.save(number, lambda path: _write_lines(path, lines))

    sizes = [len(part) for part in parts]
    work_through(missing, write_part, sizes, description="captions rewritten", stop=stop)
    if distributed.rank() == 0:
        files = (parts_folder.path(number) for number in range(len(parts)))
        foils = itertools.chain.from_iterable(map(read_generated, files))
        GeneratedStore.write(folder, foils, dataset, writer=writer, settings=settings, seed=seed)
        parts_folder.remove()
    distributed.barrier()
    return GeneratedStore.open(folder, fingerprint=dataset.fingerprint)


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(lines)


# A frozen model that sees the image and changes phrases of every caption.


WRITER = "tags"
PLACES = 6  # decimal places of a stored score


@final
class ModelGenerator:
    """Writes what `TagsGenerator` would write if it were frozen, one caption after the other.

    TAGS (https://arxiv.org/abs/2111.03349), Algorithm 1. Each caption is read by itself, with a
    random state that depends on the seed and its name alone: what is written of it depends neither
    on the captions beside it, nor on their order, nor on the number of processes. What is itself a
    caption of the image, or the same words as another foil, is left out, so that there may be fewer
    than `keep`.
    """

    def __init__(
        self,
        *,
        desk: GeneratorInputs,
        model: RetrievalModel,
        hand: MaskRefill,
        keep: int = 10,
        sieve: CandidateFilter | None = None,
        seed: int = 0,
    ) -> None:
        """Keyword arguments.

        Args:
            desk: what the model reads.
            model: the model, on the device it is to run on.
            hand: how it writes.
            keep: m, hardest foils that are kept of each caption, at most.
            sieve: which of them may be kept; None for the paper's rule.
            seed: of what is hidden and drawn.

        Raises:
            ValueError: the model has no head for hidden words or nothing that hides them, or
                `keep` is below 1.
        """
        at_least_one({"keep": keep})
        check_heads(
            model,
            {WordHead.FILL, WordHead.SCORE},
            "the writer",
            "name a model that does, as UNITER",
        )
        self.desk, self.model, self.hand, self.keep = desk, model, hand, keep
        self.sieve, self.seed = sieve or CandidateFilter(), seed
        self._mask = mask_token_of(desk, model)
        self._device = next(model.parameters()).device

    def foils(self, rows: Sequence[int]) -> Iterator[GeneratedCaption]:
        """Foils of these captions of the data set, each an image's, the hardest of each first."""
        image, seen = -1, None
        text_to_image = self.desk.processor.dataset.text_to_image
        with evaluation_mode([self.model]), distributed.solo():
            for row in rows:
                if seen is None or image != int(text_to_image[row]):
                    image = int(text_to_image[row])
                    some = self.desk.processor.images(torch.tensor([image])).to(self._device)
                    seen = self.model.encode_images(some)
                yield from self._of(row, image, seen)

    def _of(self, row: int, image: int, seen: Embeddings) -> list[GeneratedCaption]:
        """Foils of one caption."""
        rng = named_generator(f"{self.seed}/{self.desk.processor.dataset.text_ids[row]}")
        rows = torch.tensor([row])
        draft = self.hand.hidden(self.desk, rows, mask=self._mask, rng=rng, device=self._device)
        if not len(draft.masked.labels):
            return []  # no word of it is known
        written = self.hand.written(self.desk, draft, self._guessed(draft, seen), rng)
        values = draft.texts.values
        found = GeneratedCandidates(self.desk, torch.tensor([image]), rows, values, written)
        may = self.sieve.may(found)
        scores = self._scores(draft, written[may], seen)
        best = self.sieve.picked(found, scores[1:], may, self.keep)
        values = written[0, best.number]
        return self._told(row, image, values, scores[1:][best.place].tolist(), float(scores[0]))

    def _guessed(self, draft: MaskedInputs, seen: Embeddings) -> Tensor:
        """(M, V) logits at the slots."""
        texts, slots = draft.masked.texts, draft.masked.slots
        image = torch.zeros(len(texts), dtype=torch.long, device=self._device)
        logits = read_in_parts(
            self.model, PairInputs(seen, texts, image), frozenset({WordHead.FILL}), slots
        ).fill
        assert logits is not None
        return logits

    def _scores(self, draft: MaskedInputs, values: Tensor, seen: Embeddings) -> Tensor:
        """(1 + P,) of the caption, and of P that were written of it."""
        values = torch.cat([draft.texts.values, values])
        image = torch.zeros(len(values), dtype=torch.long, device=self._device)
        texts = replace(draft.texts.rows(image), ids=torch.full_like(image, -1), values=values)
        return score_in_parts(self.model, PairInputs(seen, texts, image))

    def _told(
        self, row: int, image: int, values: Tensor, scores: list[float], true: float
    ) -> list[GeneratedCaption]:
        """What is kept of a caption, as text."""
        dataset = self.desk.processor.dataset
        caption, before = dataset.texts[row], self.desk.texts(torch.tensor([row])).values[0]
        captions, _ = dataset.relation.captions(torch.tensor([image]))
        said = {normalise_for_comparison(dataset.texts[one]) for one in captions.tolist()}
        out = []
        for ids, made, score in zip(
            values.cpu(), self.desk.rewritings([row] * len(values), values), scores, strict=True
        ):
            if normalise_for_comparison(made.text) in said:
                continue
            said.add(normalise_for_comparison(made.text))
            changed = tuple(
                ChangedSpan(caption[start:stop], made.text[begin:end], begin, end)
                for (start, stop), (begin, end) in made.changes
            )
            out.append(
                GeneratedCaption(
                    image=dataset.image_ids[image],
                    text=dataset.text_ids[row],
                    caption=caption,
                    foil=made.text,
                    kind=self.desk.kind(row, (ids != before).nonzero().flatten().tolist()),
                    changed=changed,
                    scores={"foil": round(score, PLACES), "caption": round(true, PLACES)},
                    writer=WRITER,
                )
            )
        return out


# Captions generated for a data set, with their provenance.


AT_ONCE = 8  # captions
INSTEAD = "name a model that does, such as one trained with tags-dc/uniter-scenes"


@final
@dataclass(frozen=True, slots=True)
class GeneratedItems:
    """W written captions, those of one caption side by side, the hardest first.

    Attributes:
        rows: (W,) data set rows of the captions that they were made of.
        place: (W,) of each among those of its caption, from 0.
        texts: the captions as the writer reads them.
        original: (W, L) long, what each was made of, token by token.
        slots: (W, L) bool, tokens that were hidden when it was written.
        scores: (W,) what the writer thinks of it.
    """

    rows: Tensor
    place: Tensor
    texts: ModalityBatch
    original: Tensor
    slots: Tensor
    scores: Tensor

    def __len__(self) -> int:
        return len(self.rows)


def generate_items(
    writer: RetrievalModel,
    desk: GeneratorInputs,
    rows: Tensor,
    *,
    hand: MaskRefill,
    sieve: CandidateFilter,
    keep: int,
    seed: int,
) -> Iterator[GeneratedItems]:
    """Captions for some captions, a few at a time; a caption for which nothing is left has none.

    Args:
        writer: hides words, fills them and scores what came of it, in evaluation mode.
        desk: the data set as the writer reads it.
        rows: (T,) captions that describe an image.
        hand: how to write.
        sieve: which written captions may be kept.
        keep: how many of each caption, at most; the hardest.
        seed: of what is hidden and of the words that are drawn.

    Raises:
        ValueError: the writer cannot fill hidden words.
    """
    check_heads(writer, {WordHead.FILL}, "the writer", INSTEAD)
    mask, rng = mask_token_of(desk, writer), torch.Generator().manual_seed(seed)
    with progress("captions written for", len(rows)) as advance:
        for part in torch.split(rows, AT_ONCE):
            with evaluation_mode([writer]):
                found = _written(writer, desk, part, hand, sieve, keep, mask, rng)
            yield found
            advance(len(part))


def _written(
    writer: RetrievalModel,
    desk: GeneratorInputs,
    rows: Tensor,
    hand: MaskRefill,
    sieve: CandidateFilter,
    keep: int,
    mask: int,
    rng: torch.Generator,
) -> GeneratedItems:
    device = next(writer.parameters()).device
    text_to_image = desk.processor.dataset.text_to_image[rows]
    seen, at = torch.unique(text_to_image, return_inverse=True)
    images, at = writer.encode_images(desk.processor.images(seen).to(device)), at.to(device)
    hidden = hand.hidden(desk, rows, mask=mask, rng=rng, device=device)
    shown = PairInputs(images, hidden.masked.texts, at.repeat_interleave(hand.masks))
    logits = read_in_parts(writer, shown, frozenset({WordHead.FILL}), hidden.masked.slots).fill
    assert logits is not None
    written = hand.written(desk, hidden, logits, rng)
    found = GeneratedCandidates(desk, text_to_image, rows, hidden.texts.values, written)
    may = sieve.may(found)
    row, number = may.nonzero(as_tuple=True)
    texts = _with(hidden.texts, row, written[row, number])
    scores = score_in_parts(writer, PairInputs(images, texts, at[row]))
    best = sieve.picked(found, scores, may, keep)
    return GeneratedItems(
        rows=rows[best.anchor.cpu()],
        place=best.column.cpu(),
        texts=texts.rows(best.place),
        original=hidden.texts.values[best.anchor],
        slots=hidden.slots[best.anchor, best.number // hand.refills],
        scores=scores[best.place].cpu(),
    )


def _with(texts: ModalityBatch, row: Tensor, values: Tensor) -> ModalityBatch:
    """Captions of these rows with other words."""
    some = texts.rows(row)
    return replace(some, ids=torch.full_like(some.ids, -1), values=values)
