"""A sheet on which people judge whether written captions are true (TAGS-DC, section 4.3)."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from pydantic import BaseModel, ConfigDict, Field

from counterfoil import __version__
from counterfoil.core.console import output
from counterfoil.evaluate.gallery import thumbnail
from counterfoil.evaluate.judge_page import Question, judge_page
from counterfoil.files import check_folder, check_new, replacing_folder, write_json, write_text
from counterfoil.recipes.analyses.stores import Stored, open_stores
from counterfoil.recipes.run import Source

FORMAT = 1
KEY = "key.json"
PICTURES = "pictures"
ORIGINAL = "(true captions)"
SIDE = 448  # pixels
COLUMNS = "sheet", "annotator", "item", "picture", "sentence", "answer"


@final
class Item(BaseModel):
    """A sentence of a sheet.

    Attributes:
        id: what the annotators see of it.
        image: the data set's name of the picture.
        text: the data set's name of the caption that the sentence was made of.
        caption: that caption.
        sentence: to be judged.
        source: the folder it is from, or `ORIGINAL` for a true caption.
        kind: of change.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    id: str
    image: str
    text: str
    caption: str
    sentence: str
    source: str
    kind: str


@final
class Key(BaseModel):
    """What a sheet asks, and where it is from; not for annotators.

    Attributes:
        format: version of this layout.
        sheet: digest of the items, which answers carry.
        annotators: how many.
        seed: of the choice and the orders.
        data: what the pictures are of.
        sources: how the sentences were written, in words.
        items: in the order of their ids.
        version: the counterfoil that wrote it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    format: int = Field(default=FORMAT, ge=1)
    sheet: str
    annotators: int = Field(ge=1)
    seed: int
    data: str
    sources: tuple[str, ...]
    items: tuple[Item, ...] = Field(min_length=1)
    version: str


@final
@dataclass(frozen=True, slots=True)
class SheetPlan:
    """What a sheet is to ask.

    Attributes:
        count: sentences of each folder, each about a picture of its own.
        originals: true captions among them, which show how strictly is judged.
        annotators: how many, each with an order of their own.
        seed: of the choice and the orders.
    """

    count: int = 200
    originals: int = 0
    annotators: int = 2
    seed: int = 0


def export(folders: Sequence[Path], source: Source, plan: SheetPlan, out: Path) -> Key:
    """Write a sheet: a page and a table for each annotator, pictures for the tables, and the key.

    Args:
        folders: of captions written for one split of the data.
        source: the data, with pictures.
        plan: what to ask.
        out: folder; must not exist yet.

    Raises:
        ValueError: `out` exists or cannot be written, there are too few pictures or none, or data
            and captions do not fit.
    """
    check_new(out, "a new folder with --out")
    check_folder(out)
    stored = open_stores(folders, source)
    corpus = stored[0].corpus
    if corpus.pictures is None:
        raise ValueError(
            f"{corpus.name} comes without pictures, which judges have to see; name their folder "
            "with --images"
        )
    items = _items(stored, plan)
    plain = json.dumps([item.model_dump() for item in items], sort_keys=True)
    digest = hashlib.sha256(f"{plan.seed}/{plain}".encode()).hexdigest()
    key = Key(
        sheet=f"s{digest[:16]}",  # which no spreadsheet takes for a number
        annotators=plan.annotators,
        seed=plan.seed,
        data=f"{corpus.name} {corpus.part}",
        sources=tuple(one.said() for one in stored),
        items=items,
        version=__version__,
    )
    rows = {name: row for row, name in enumerate(corpus.image_ids)}
    with replacing_folder(out) as folder:
        (folder / PICTURES).mkdir()
        questions = []
        for item in items:
            picture = corpus.pictures.open(rows[item.image]).convert("RGB")
            picture.save(folder / PICTURES / f"{item.id}.png")
            questions.append(Question(item.id, thumbnail(picture, SIDE), item.sentence))
        for annotator in range(1, plan.annotators + 1):
            _write(folder, key, annotator, questions)
        write_json(folder / KEY, key.model_dump(mode="json"))
    output(
        f"{len(items):,} sentences for {plan.annotators} annotators: {out}; give each their own "
        f"page or table, and keep {KEY}"
    )
    return key


def _items(stored: Sequence[Stored], plan: SheetPlan) -> tuple[Item, ...]:
    """Sentences drawn of all sources, no two about one picture, in random order."""
    rng = torch.Generator().manual_seed(plan.seed)
    used: set[str] = set()
    found: list[Item] = []
    wanted = [(one, plan.count, one.name) for one in stored]
    for one, count, name in [*wanted, (stored[0], plan.originals, ORIGINAL)]:
        drawn = _drawn(one, count, name, used, rng)
        if len(drawn) < count:
            raise ValueError(
                f"{one.name} has only {len(drawn):,} pictures left for {count:,} sentences, of "
                "which each has a picture of its own; lower --count or --originals"
            )
        found += drawn
    order = torch.randperm(len(found), generator=rng).tolist()
    width = len(str(len(found)))
    return tuple(
        found[row].model_copy(update={"id": f"s{place:0{width}d}"})
        for place, row in enumerate(order, 1)
    )


def _drawn(one: Stored, count: int, name: str, used: set[str], rng: torch.Generator) -> list[Item]:
    drawn: list[Item] = []
    for row in torch.randperm(len(one.foils), generator=rng).tolist():
        foil = one.foils[row]
        if len(drawn) == count:
            break
        if foil.image in used:
            continue
        used.add(foil.image)
        original = name == ORIGINAL
        drawn.append(
            Item(
                id="",
                image=foil.image,
                text=foil.text,
                caption=foil.caption,
                sentence=foil.caption if original else foil.foil,
                source=name,
                kind="" if original else foil.kind,
            )
        )
    return drawn


def _write(folder: Path, key: Key, annotator: int, questions: Sequence[Question]) -> None:
    """Page and table of one annotator, in an order of their own."""
    rng = torch.Generator().manual_seed(int(key.sheet[1:13], 16) + annotator)
    order = torch.randperm(len(questions), generator=rng).tolist()
    asked = [questions[row] for row in order]
    name = f"annotator-{annotator}.csv"
    page = judge_page(key.sheet, annotator, asked, name)
    write_text(folder / f"annotator-{annotator}.html", page)
    table = io.StringIO()
    rows = csv.writer(table, lineterminator="\n")
    rows.writerow(COLUMNS)
    for one in asked:
        picture = f"{PICTURES}/{one.id}.png"
        rows.writerow((key.sheet, annotator, one.id, picture, one.sentence, ""))
    write_text(folder / name, "\ufeff" + table.getvalue())  # by which spreadsheets know UTF-8
