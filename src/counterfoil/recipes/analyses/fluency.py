"""How fluent written captions are beside those that they were made of (TAGS-DC, Table 3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch

from counterfoil import world
from counterfoil.evaluate.analysis_page import AnalysisPage, Rows
from counterfoil.evaluate.causal import CausalLM
from counterfoil.evaluate.fluency import Fluency, Spoken, fluency, spoken_by_ngrams
from counterfoil.evaluate.image_shares import Share
from counterfoil.evaluate.ngrams import NGrams
from counterfoil.evaluate.result_figures import Point, bars
from counterfoil.recipes.analyses.results import check_out, publish
from counterfoil.recipes.analyses.stores import Stored, open_stores
from counterfoil.recipes.provenance import made_now
from counterfoil.recipes.published_tags import PERPLEXITY
from counterfoil.recipes.run import Source

Speaks = Callable[[Sequence[str]], Spoken]
HEAD = "", "captions", "perplexity", "mean of captions", "of all tokens", "times the captions"
_NOTE = (
    "Lower is more fluent. Perplexity: exp of the mean, over captions, of the mean negative log "
    "probability of a token; beside it the mean of the captions' own perplexities, and that of all "
    "tokens together. Times: the first, divided by that of the captions that these were made of. "
    "In brackets 95 % intervals: pictures drawn anew with all their captions, 1,000 times."
)


@final
@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One folder of written captions.

    Attributes:
        name: of the folder.
        captions: that they were made of, each as often as one was made of it.
        written: the written ones.
        kinds: the same by kind of change, where there are several.
    """

    name: str
    captions: Fluency
    written: Fluency
    kinds: tuple[tuple[str, Fluency], ...]

    def plain(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "name": self.name,
            "captions": self.captions.plain(),
            "written": self.written.plain(),
            "kinds": {kind: found.plain() for kind, found in self.kinds},
        }


def fluent(
    folders: Sequence[Path],
    source: Source,
    out: Path,
    *,
    lm: str | None = None,
    each: int | None = None,
    seed: int = 0,
) -> tuple[Line, ...]:
    """Compare written captions with those that they were made of, by a language model.

    Args:
        folders: of captions written for one split of the data.
        source: the data.
        out: page to write; the numbers go beside it as JSON.
        lm: folder or name of a causal language model; None for n-grams of the training captions of
            all pictures but those that are measured.
        each: only so many of the first that were written of each caption; None for all.
        seed: of the intervals.

    Raises:
        ValueError: the page exists, data and captions do not fit, there is no such model, or
            nothing is left to train one on.
    """
    check_out(out)
    world.join()
    stored = open_stores(folders, source)
    speaks, who = _causal(lm) if lm else _ngrams(stored, source)
    found = tuple(_line(one, speaks, each, seed) for one in stored)
    few = f"the first {each} of each caption; " if each else ""
    protocol = (
        f"{stored[0].corpus.name} {stored[0].corpus.part}; {'; '.join(s.said() for s in stored)}; "
        f"{few}{who}; seed {seed}"
    )
    page = AnalysisPage(
        title="Fluency of written captions",
        headline=" ".join(map(_headline, found)),
        protocol=protocol,
        provenance=made_now(seed=seed),
        figures=(bars(_points(found), "perplexity", "fluency", "Lower is more fluent."),),
        tables=(_rows(found),),
    )
    publish(page, {"seed": seed, "lm": lm, "sets": [line.plain() for line in found]}, out)
    return found


def _causal(name: str) -> tuple[Speaks, str]:
    model = CausalLM(name, world.device())
    begin = f"behind {model.begins}" if model.begins else "first tokens not counted"
    return model.spoken, f"language model {name}, captions {begin}"


def _ngrams(stored: Sequence[Stored], source: Source) -> tuple[Speaks, str]:
    """N-grams of training captions, none of a measured picture or equal to a measured caption."""
    train = source.split("train")
    pictures = {foil.image for one in stored for foil in one.foils}
    asked = {text for one in stored for foil in one.foils for text in (foil.caption, foil.foil)}
    owner = [train.image_ids[row] if row >= 0 else "" for row in train.owner.tolist()]
    kept = [
        text
        for text, image in zip(train.texts, owner, strict=True)
        if image not in pictures and text not in asked
    ]
    if not kept:
        raise ValueError(
            "all training captions are of pictures that are measured, and a language model must "
            "not know these; name captions written for another split, or a model with --lm"
        )
    model = NGrams.of(kept)
    left = len(train.texts) - len(kept)
    return (
        lambda captions: spoken_by_ngrams(model, captions),
        f"language model: {model.order}-grams of {len(kept):,} training captions, {left:,} of "
        "measured pictures or like measured captions left out",
    )


def _line(one: Stored, speaks: Speaks, each: int | None, seed: int) -> Line:
    rows = _first(one, each)
    foils = [one.foils[row] for row in rows]
    images = torch.tensor([one.images[row] for row in rows])
    both = speaks([*(foil.caption for foil in foils), *(foil.foil for foil in foils)])
    old = both.rows(torch.arange(len(rows)))
    new = both.rows(torch.arange(len(rows), 2 * len(rows)))
    kinds = list(dict.fromkeys(foil.kind for foil in foils))
    parts = []
    for kind in kinds if len(kinds) > 1 else ():
        at = torch.tensor([place for place, foil in enumerate(foils) if foil.kind == kind])
        part = fluency(new.rows(at), images[at], made_of=old.rows(at), seed=seed)
        parts.append((kind, part))
    return Line(
        one.name,
        fluency(old, images, seed=seed),
        fluency(new, images, made_of=old, seed=seed),
        tuple(parts),
    )


def _first(one: Stored, each: int | None) -> list[int]:
    """Rows of the first that were made of each caption."""
    seen: Counter[int] = Counter()
    rows = []
    for row, text in enumerate(one.texts):
        seen[text] += 1
        if each is None or seen[text] <= each:
            rows.append(row)
    return rows


def _points(found: Sequence[Line]) -> list[Point]:
    return [
        Point(series, one.typical.value, one.typical.interval, group=line.name)
        for line in found
        for series, one in (("captions", line.captions), ("written", line.written))
    ]


def _rows(found: Sequence[Line]) -> Rows:
    rows = []
    for line in found:
        rows.append((f"{line.name}: captions", *_cells(line.captions)))
        rows.append((f"{line.name}: written", *_cells(line.written)))
        rows += [(f"{line.name}: {kind}", *_cells(one)) for kind, one in line.kinds]
    paper = ", ".join(f"{name} {value:.2f}" for name, value in PERPLEXITY)
    note = f"{_NOTE}\nTable 3 of TAGS-DC has, by GPT-2 and in a way not said: {paper}."
    return Rows("Perplexity", HEAD, tuple(rows), note)


def _cells(one: Fluency) -> tuple[str, ...]:
    numbers = (_shown(share) for share in (one.typical, one.mean, one.whole))
    return f"{one.captions:,}", *numbers, _shown(one.times, 2) if one.times else ""


def _shown(share: Share, places: int = 1) -> str:
    low, high = share.interval.low, share.interval.high
    return f"{share.value:,.{places}f} ({low:,.{places}f} to {high:,.{places}f})"


def _headline(line: Line) -> str:
    times = line.written.times
    assert times is not None
    return (
        f"{line.name}: captions have perplexity {line.captions.typical.value:,.1f}, what was "
        f"written {line.written.typical.value:,.1f}, {_shown(times, 2)} times as much."
    )
