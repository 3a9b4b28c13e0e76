"""Captions generated for a whole data set by a frozen model, in parts that survive any kill."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
from counterfoil.models.layers.pooling import check_positive
from counterfoil.negatives.generated import (
    ChangedSpan,
    GeneratedCaption,
    GeneratedStore,
    named_generator,
    normalise_for_comparison,
    read_generated,
)
from counterfoil.negatives.online import with_values
from counterfoil.papers.tags.generation import (
    MaskRefill,
    check_heads,
    mask_token_of,
)
from counterfoil.papers.tags.inputs import (
    CandidateFilter,
    GeneratedCandidates,
    GeneratorInputs,
)
from counterfoil.papers.tags.scoring import PairInputs, predict_words, score_in_parts
from counterfoil.scoring.encode import evaluation_mode

CAPTIONS = 32  # of a part, the most that a kill can cost
AT_ONCE = 8  # captions for which `ModelGenerator.items` generates together
GENERATOR = "tags"  # name in `GeneratedCaption.writer`
DECIMALS = 6  # of a stored score


def generate_in_parts(
    folder: Path,
    dataset: ImageTextDataset,
    generate: Callable[[Sequence[int]], Iterable[GeneratedCaption]],
    *,
    partial: Path,
    writer: str,
    settings: Mapping[str, Any],
    seed: int,
    stop: Callable[[], bool] = lambda: False,
) -> GeneratedStore:
    """Store foils of all captions that describe an image; a stopped run is resumed.

    Collective: the processes share the parts, and the first one joins them in data set order.

    Args:
        folder: of the store; must not exist yet.
        dataset: the split.
        generate: returns the foils of some captions; they may not depend on the other captions.
        partial: folder of the parts until all are there; the same for all processes.
        writer: description of the generator.
        settings: of the generator; plain values.
        seed: of random choices.
        stop: polled after every part; once it returns True on any process, all of them stop.

    Raises:
        ValueError: the partial folder is of another generator or other data.
        WorkStopped: `stop` returned True.
    """
    rows = dataset.relation.owned.tolist()
    parts = [rows[start : start + CAPTIONS] for start in range(0, len(rows), CAPTIONS)]
    parts_folder = PartsFolder(partial, suffix=".jsonl")
    facts = {"corpus": dataset.fingerprint, "split": dataset.split_name, "writer": writer}
    missing = parts_folder.begin({**facts, "seed": seed, **settings}, len(parts))

    def generate_part(number: int) -> None:
        lines = "".join(foil.line() for foil in generate(parts[number]))
        parts_folder.save(number, lambda path: path.write_text(lines, encoding="utf-8"))

    sizes = [len(part) for part in parts]
    work_through(missing, generate_part, sizes, description="captions rewritten", stop=stop)
    if distributed.rank() == 0:
        files = (parts_folder.path(number) for number in range(len(parts)))
        foils = itertools.chain.from_iterable(map(read_generated, files))
        GeneratedStore.write(folder, foils, dataset, writer=writer, settings=settings, seed=seed)
        parts_folder.remove()
    distributed.barrier()
    return GeneratedStore.open(folder, fingerprint=dataset.fingerprint)


@final
@dataclass(frozen=True, slots=True)
class GeneratedItems:
    """W generated captions, those of one caption side by side, the hardest first.

    Attributes:
        rows: (W,) data set rows of the original captions.
        place: (W,) rank among the captions generated from the same original, from 0.
        texts: the captions as inputs of the generator.
        original: (W, L) long, the original captions, token by token.
        slots: (W, L) bool, masked tokens.
        scores: (W,) scores by the generator.
        true_scores: (W,) its scores of the original captions.
    """

    rows: Tensor
    place: Tensor
    texts: ModalityBatch
    original: Tensor
    slots: Tensor
    scores: Tensor
    true_scores: Tensor

    def __len__(self) -> int:
        return len(self.rows)


@final
class ModelGenerator:
    """Generates what `TagsGenerator` would with a frozen filler, one caption after the other.

    TAGS (https://arxiv.org/abs/2111.03349), Algorithm 1. The random state of a caption depends on
    the seed and its id alone, so its foils depend neither on other captions, nor on their order,
    nor on the number of processes. Captions of the image and repeated wordings are left out, so
    there may be fewer than `keep`.
    """

    def __init__(
        self,
        *,
        inputs: GeneratorInputs,
        model: RetrievalModel,
        mask_refill: MaskRefill,
        keep: int = 10,
        candidate_filter: CandidateFilter | None = None,
        seed: int = 0,
    ) -> None:
        """Create a generator of at most `keep` foils of each caption, the hardest.

        The model computes on its device; without a `candidate_filter`, the paper's rule applies.

        Raises:
            ValueError: the model has no head for hidden words or no token that hides them, or
                `keep` is below 1.
        """
        check_positive(keep=keep)
        heads = {WordHead.FILL, WordHead.SCORE}
        check_heads(model, heads, "the generator", "name a model that does, as UNITER")
        mask_token_of(inputs, model)
        self.inputs, self.model, self.mask_refill, self.keep = inputs, model, mask_refill, keep
        self.candidate_filter, self.seed = candidate_filter or CandidateFilter(), seed

    def foils(self, rows: Sequence[int]) -> Iterator[GeneratedCaption]:
        """Yield the foils of these captions, which describe images; the hardest of each first."""
        dataset = self.inputs.processor.dataset
        device = next(self.model.parameters()).device
        image, encoded = -1, None
        with evaluation_mode([self.model]), distributed.solo():
            for row in rows:
                if encoded is None or image != int(dataset.text_to_image[row]):
                    image = int(dataset.text_to_image[row])
                    pixels = self.inputs.processor.images(torch.tensor([image]))
                    encoded = self.model.encode_images(pixels.to(device))
                items = self._generate(
                    torch.tensor([row]),
                    encoded,
                    torch.zeros(1, dtype=torch.long, device=device),
                    named_generator(f"{self.seed}/{dataset.text_ids[row]}"),
                )
                yield from self._as_text(row, image, items)

    def _as_text(self, row: int, image: int, items: GeneratedItems) -> Iterator[GeneratedCaption]:
        """Yield the generated captions of one caption, without captions of its image."""
        dataset, values = self.inputs.processor.dataset, items.texts.values
        caption = dataset.texts[row]
        captions, _ = dataset.relation.captions(torch.tensor([image]))
        wordings = {normalise_for_comparison(dataset.texts[text]) for text in captions.tolist()}
        rewritings = self.inputs.rewritings([row] * len(items), values)
        for number, rewriting in enumerate(rewritings):
            foil = rewriting.text
            wording = normalise_for_comparison(foil)
            if wording in wordings:
                continue
            wordings.add(wording)
            changed = (values[number] != items.original[number]).nonzero().flatten().tolist()
            scores = {"foil": items.scores[number], "caption": items.true_scores[number]}
            yield GeneratedCaption(
                image=dataset.image_ids[image],
                text=dataset.text_ids[row],
                caption=caption,
                foil=foil,
                kind=self.inputs.kind(row, changed),
                changed=tuple(
                    ChangedSpan(caption[start:stop], foil[begin:end], begin, end)
                    for (start, stop), (begin, end) in rewriting.changes
                ),
                scores={name: round(float(score), DECIMALS) for name, score in scores.items()},
                writer=GENERATOR,
            )

    def items(self, rows: Tensor) -> Iterator[GeneratedItems]:
        """Generate from (T,) captions, as token ids, a few at a time and from one random state."""
        device, rng = next(self.model.parameters()).device, torch.Generator().manual_seed(self.seed)
        processor = self.inputs.processor
        with progress("captions generated for", len(rows)) as advance:
            for part in torch.split(rows, AT_ONCE):
                image_rows = processor.dataset.text_to_image[part]
                unique, image = torch.unique(image_rows, return_inverse=True)
                with evaluation_mode([self.model]):
                    images = self.model.encode_images(processor.images(unique).to(device))
                    items = self._generate(part, images, image.to(device), rng)
                yield items
                advance(len(part))

    def _generate(
        self, rows: Tensor, images: Embeddings, image: Tensor, rng: torch.Generator
    ) -> GeneratedItems:
        """Generate captions for (B,) rows, `image` being the place of each among the images."""
        model, inputs, config = self.model, self.inputs, self.mask_refill
        mask = mask_token_of(inputs, model)
        masked = config.mask(inputs, rows, mask=mask, rng=rng, device=image.device)
        pairs = PairInputs(images, masked.masked.texts, image.repeat_interleave(config.masks))
        logits = predict_words(model, pairs, masked.masked.slots)
        generated = config.refill(inputs, masked, logits, rng)
        original = masked.texts.values
        image_rows = inputs.processor.dataset.text_to_image[rows]
        candidates = GeneratedCandidates(inputs, image_rows, rows, original, generated)
        allowed = self.candidate_filter.allowed(candidates)
        anchor, number = allowed.nonzero(as_tuple=True)
        # the originals first, then the captions that may be chosen
        rows_of_both = torch.cat([torch.arange(len(rows), device=anchor.device), anchor])
        values = torch.cat([original, generated[anchor, number]])
        texts = with_values(masked.texts.rows(rows_of_both), values)
        scores = score_in_parts(model, PairInputs(images, texts, image[rows_of_both]))
        true, scores = scores[: len(rows)], scores[len(rows) :]
        ranked = self.candidate_filter.read_scores(model, scores)
        best = self.candidate_filter.select(candidates, ranked, allowed, self.keep)
        return GeneratedItems(
            rows=rows[best.anchor.cpu()],
            place=best.rank.cpu(),
            texts=texts.rows(best.place + len(rows)),
            original=original[best.anchor],
            slots=masked.slots[best.anchor, best.number // config.refills],
            scores=scores[best.place].cpu(),
            true_scores=true[best.anchor].cpu(),
        )
