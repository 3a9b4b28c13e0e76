"""How fluent written captions are beside those that they were made of (TAGS-DC, Table 3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch

from counterfoil import world
from counterfoil.evaluate.analysis_page import AnalysisPage, Rows
from counterfoil.evaluate.causal import CausalLM
from counterfoil.evaluate.fluency import Fluency, Spoken, fluency, spoken_by_ngrams
from counterfoil.evaluate.ngrams import NGrams
from counterfoil.evaluate.result_figures import Point, bars
from counterfoil.evaluation.bootstrap import Share
from counterfoil.evaluation.explain import (
    DOUBT_THRESHOLD,
    ExplainConfig,
    describe_missing_heads,
    explain_dataset,
    has_correction_head,
    has_doubt_head,
)
from counterfoil.recipes.analyses.results import check_out, publish
from counterfoil.recipes.analyses.stores import Stored, open_stores
from counterfoil.recipes.model import Model, open_model
from counterfoil.recipes.provenance import made_now
from counterfoil.recipes.run import Source

Speaks = Callable[[Sequence[str]], Spoken]
HEAD = "", "captions", "perplexity", "mean of captions", "of all tokens", "times the captions"
_NOTE = (
    "Lower is more fluent. Perplexity: exp of the mean, over captions, of the mean negative log "
    "probability of a token; beside it the mean of the captions' own perplexities, and that of all "
    "tokens together. Times: the first, divided by that of the captions that these were made of. "
    "In brackets 95 % intervals: pictures drawn anew with all their captions, 1,000 times."
)
_PAPER = "captions 51.13, TAGS-DC, written 87.63, TAGS-DC, corrected 70.87, VSE-C, rules 292.76"


@final
@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """One folder of written captions.

    Attributes:
        name: of the folder.
        captions: that they were made of, each as often as one was made of it.
        written: the written ones.
        corrected: these as a model corrects them; None where none was named.
        kinds: the written ones by kind of change, where there are several.
    """

    name: str
    captions: Fluency
    written: Fluency
    corrected: Fluency | None
    kinds: tuple[tuple[str, Fluency], ...]

    def plain(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "name": self.name,
            "captions": self.captions.plain(),
            "written": self.written.plain(),
            "corrected": self.corrected.plain() if self.corrected else None,
            "kinds": {kind: found.plain() for kind, found in self.kinds},
        }


@final
@dataclass(frozen=True, slots=True, eq=False)
class _Measured:
    """What is measured of a folder.

    Attributes:
        stored: all of it.
        rows: which of its captions.
        corrected: these as a model corrects them; empty where none was named.
    """

    stored: Stored
    rows: tuple[int, ...]
    corrected: tuple[str, ...]


def fluent(
    folders: Sequence[Path],
    source: Source,
    out: Path,
    *,
    lm: str | None = None,
    each: int | None = None,
    corrector: str | None = None,
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
        corrector: a model that corrects the words that it doubts, after which they are measured
            again; None for none.
        seed: of the intervals.

    Raises:
        ValueError: the page exists, data and captions do not fit, there is no such model, nothing
            is left to train one on, or the corrector corrects nothing.
    """
    check_out(out)
    world.join()
    stored = open_stores(folders, source)
    model = _corrector(corrector) if corrector else None
    measured = [_measured(one, each, model) for one in stored]
    speaks, who = _causal(lm) if lm else _ngrams(measured, source)
    found = tuple(_line(one, speaks, seed) for one in measured)
    few = f"the first {each} of each caption; " if each else ""
    few += (
        f"words that {corrector} doubts with {DOUBT_THRESHOLD:g} or more corrected; "
        if model
        else ""
    )
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
    numbers = {"seed": seed, "lm": lm, "corrector": corrector}
    publish(page, {**numbers, "sets": [line.plain() for line in found]}, out)
    return found


def _corrector(name: str) -> Model:
    """A model that doubts words and corrects them.

    Raises:
        ValueError: there is none of this name, or it does not.
    """
    model = open_model(name)
    if not (has_doubt_head(model.matcher) and has_correction_head(model.matcher)):
        raise ValueError(
            f"{describe_missing_heads(model)}; name one that has both with --corrector"
        )
    return model


def _measured(one: Stored, each: int | None, model: Model | None) -> _Measured:
    """The first of each caption, and these corrected."""
    rows = _first(one, each)
    if model is None:
        return _Measured(one, rows, ())
    told = replace(
        one.corpus,
        texts=[one.foils[row].foil for row in rows],
        text_ids=[f"written {row}" for row in rows],
        owner=torch.tensor([one.images[row] for row in rows]),
        text_features=None,
    )
    found = [explained for _, explained in explain_dataset(model, told, ExplainConfig())]
    better = (one.corrected.text if one.corrected else one.caption for one in found)
    return _Measured(one, rows, tuple(better))


def _causal(name: str) -> tuple[Speaks, str]:
    model = CausalLM(name, world.device())
    begin = f"behind {model.begins}" if model.begins else "first tokens not counted"
    return model.spoken, f"language model {name}, captions {begin}"


def _ngrams(measured: Sequence[_Measured], source: Source) -> tuple[Speaks, str]:
    """N-grams of training captions, none of a measured picture or equal to a measured caption."""
    train = source.split("train")
    foils = [foil for one in measured for foil in one.stored.foils]
    pictures = {foil.image for foil in foils}
    asked = {text for foil in foils for text in (foil.caption, foil.foil)}
    asked |= {text for one in measured for text in one.corrected}
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


def _line(one: _Measured, speaks: Speaks, seed: int) -> Line:
    foils = [one.stored.foils[row] for row in one.rows]
    images = torch.tensor([one.stored.images[row] for row in one.rows])
    texts = [*(foil.caption for foil in foils), *(foil.foil for foil in foils), *one.corrected]
    said, many = speaks(texts), len(foils)
    old, new = (said.rows(torch.arange(many) + start) for start in (0, many))
    better = None
    if one.corrected:
        last = said.rows(torch.arange(2 * many, 3 * many))
        better = fluency(last, images, made_of=old, seed=seed)
    kinds = list(dict.fromkeys(foil.kind for foil in foils))
    parts = []
    for kind in kinds if len(kinds) > 1 else ():
        at = torch.tensor([place for place, foil in enumerate(foils) if foil.kind == kind])
        part = fluency(new.rows(at), images[at], made_of=old.rows(at), seed=seed)
        parts.append((kind, part))
    return Line(
        one.stored.name,
        fluency(old, images, seed=seed),
        fluency(new, images, made_of=old, seed=seed),
        better,
        tuple(parts),
    )


def _first(one: Stored, each: int | None) -> tuple[int, ...]:
    """Rows of the first that were made of each caption."""
    seen: Counter[int] = Counter()
    rows = []
    for row, text in enumerate(one.texts):
        seen[text] += 1
        if each is None or seen[text] <= each:
            rows.append(row)
    return tuple(rows)


def _points(found: Sequence[Line]) -> list[Point]:
    return [
        Point(series, one.typical.value, one.typical.interval, group=line.name)
        for line in found
        for series, one in (
            ("captions", line.captions),
            ("written", line.written),
            ("corrected", line.corrected),
        )
        if one
    ]


def _rows(found: Sequence[Line]) -> Rows:
    rows = []
    for line in found:
        rows.append((f"{line.name}: captions", *_cells(line.captions)))
        rows.append((f"{line.name}: written", *_cells(line.written)))
        if line.corrected:
            rows.append((f"{line.name}: corrected", *_cells(line.corrected)))
        rows += [(f"{line.name}: {kind}", *_cells(one)) for kind, one in line.kinds]
    note = f"{_NOTE}\nTable 3 of TAGS-DC has, by GPT-2 and in a way not said: {_PAPER}."
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
    told = (
        f"{line.name}: captions have perplexity {line.captions.typical.value:,.1f}, what was "
        f"written {line.written.typical.value:,.1f}, {_shown(times, 2)} times as much"
    )
    if line.corrected:
        told += f"; corrected {line.corrected.typical.value:,.1f}"
    return f"{told}."
