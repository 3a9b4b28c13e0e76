"""Lists of negatives for controls: random ones, and ones with a chosen share of true pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, final

import torch
from torch import Tensor

from counterfoil.core.console import info, progress
from counterfoil.data.dataset import ImageTextDataset
from counterfoil.data.scenes import scene
from counterfoil.data.scenes.grammar import parse
from counterfoil.data.scenes.truth import holds
from counterfoil.negatives.store import HardNegativeLists, NegativeStore
from counterfoil.pipelines.pipeline import Mine
from counterfoil.pipelines.state import RunContext

TRIES = 1000  # random items looked at, at most, where a mined list is too short


@dataclass(frozen=True, kw_only=True)
class RandomLists(Mine):
    """Lists of random wrong counterparts, in place of mined ones.

    Attributes:
        seed: of the lists.
    """

    kind: ClassVar[str] = "mine"
    using: tuple[str, ...] = ()
    seed: int = 0

    @property
    def lacks_inputs(self) -> bool:
        """No model is needed."""
        return False

    def run(self, context: RunContext, *, resume: bool) -> None:
        """Sample and save the lists."""
        dataset, rng = context.split(self.split), torch.Generator().manual_seed(self.seed)
        owner = dataset.text_to_image
        images = torch.arange(len(dataset)).unsqueeze(1)
        texts, pictures = (len(images), self.texts), (len(owner), self.images)
        lists = HardNegativeLists(
            texts=_wrong(texts, len(owner), lambda t: owner[t] == images, rng),
            images=_wrong(pictures, len(images), lambda i: i == owner.unsqueeze(1), rng),
        )
        _save(lists, dataset, context, self)


@final
@dataclass(frozen=True, kw_only=True)
class TrueShareLists(Mine):
    """Lists of another mining stage with a chosen share of pairs that are true (`scenes` only).

    The hardest false pairs stay in order; true ones of the longer mined list are put at random
    places. An entry for which the mined list has no true pair left stays false; the share that was
    reached is printed. Where the mined list has too few false pairs, as that of a caption that is
    true of many images, random false ones follow; a list without any false pair stays as mined.

    Attributes:
        lists: mining stage; its lists are longer than those made here.
        share: of true pairs; 0 for none.
        seed: of the places.
    """

    kind: ClassVar[str] = "mine"
    takes: ClassVar[Mapping[str, str]] = {"lists": "mine"}
    using: tuple[str, ...] = ()
    lists: str
    share: float
    seed: int = 0

    @property
    def lacks_inputs(self) -> bool:
        """No model is needed."""
        return False

    def run(self, context: RunContext, *, resume: bool) -> None:
        """Sort the mined pairs by their truth, and save lists with the share."""
        dataset, rng = context.split(self.split), torch.Generator().manual_seed(self.seed)
        mined = NegativeStore.open(context.place(self.lists), fingerprint=dataset.fingerprint).lists
        forms = cache(lambda row: (parsed := parse(dataset.texts[row])) and parsed.form)
        scenes = cache(lambda row: scene(dataset.image_ids[row]))

        def is_true(image: int, text: int) -> bool:
            form = forms(text)
            return form is not None and holds(form, scenes(image))

        lists = HardNegativeLists(
            texts=self._chosen(mined.texts, self.texts, len(dataset.texts), is_true, rng),
            images=self._chosen(
                mined.images, self.images, len(dataset), lambda t, i: is_true(i, t), rng
            ),
        )
        _save(lists, dataset, context, self)

    def _chosen(
        self,
        mined: Tensor,
        length: int,
        items: int,
        is_true: Callable[[int, int], bool],
        rng: torch.Generator,
    ) -> Tensor:
        chosen, reached = torch.full((len(mined), length), -1, dtype=torch.int32), 0
        wanted = round(self.share * length)
        with progress("lists sorted by truth", len(mined)) as advance:
            for anchor, row in enumerate(mined.tolist()):
                parts: dict[bool, list[int]] = {True: [], False: []}
                for item in row:
                    if item >= 0 and (len(parts[False]) < length or len(parts[True]) < wanted):
                        parts[is_true(anchor, item)].append(item)
                true = parts[True][:wanted]
                kept = parts[False][: length - len(true)]
                for _ in range(TRIES if len(kept) + len(true) < length else 0):
                    item = int(torch.randint(items, (), generator=rng))
                    if item not in kept and not is_true(anchor, item):
                        kept.append(item)
                    if len(kept) + len(true) == length:
                        break
                # a caption such as "Some objects." is true of every image: its mined list stays
                others = [item for item in row if item >= 0 and item not in true]
                kept = kept or others[: length - len(true)]
                for item in true:
                    kept.insert(int(torch.randint(len(kept) + 1, (), generator=rng)), item)
                chosen[anchor, : len(kept)] = torch.tensor(kept, dtype=torch.int32)
                reached += len(true)
                advance(1)
        info(f"{self.name}: {100 * reached / max(1, int((chosen >= 0).sum())):.1f} % are true")
        return chosen


def _wrong(
    shape: tuple[int, int],
    count: int,
    is_positive: Callable[[Tensor], Tensor],
    rng: torch.Generator,
) -> Tensor:
    """(Q, k) random rows below `count` that are no positives."""
    rows = torch.randint(count, shape, generator=rng)
    while bool((true := is_positive(rows)).any()):
        rows = torch.where(true, torch.randint(count, shape, generator=rng), rows)
    return rows.int()


def _save(
    lists: HardNegativeLists, dataset: ImageTextDataset, context: RunContext, stage: Mine
) -> None:
    store = NegativeStore.of(
        lists, dataset=dataset.fingerprint, split=stage.split, sources=(), seed=0
    )
    store.save(context.place(stage.name))
    info(f"{stage.name}: {lists.describe()}, {context.place(stage.name)}")
