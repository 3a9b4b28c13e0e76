"""What people answered on a sheet, and how far they agree."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor

from counterfoil.corpus.lines import read_text
from counterfoil.evaluate.agreement import Agreement, agreements, wilson
from counterfoil.evaluation.bootstrap import Interval
from counterfoil.files import read_json
from counterfoil.recipes.analyses.sheet import FORMAT, KEY, Item, Key
from counterfoil.spec import unknown

ANSWERS = ("true", "false", "unsure")
FALSE = ANSWERS.index("false")


@final
class Answers(BaseModel):
    """What one annotator answered.

    Attributes:
        sheet: digest of the sheet.
        annotator: from 1.
        answers: by item; "" for none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    sheet: str
    annotator: int
    answers: dict[str, Literal["true", "false", "unsure", ""]]


@final
@dataclass(frozen=True, slots=True)
class Judgement:
    """How many sentences of a source were judged false.

    Attributes:
        source: of the sentences.
        by: whose judgement.
        answered: sentences.
        counts: sentences by answer, in the order of `ANSWERS`; "by all" has those on which all
            agree.
        false: percent of the answered ones.
        interval: Wilson's, with as many trials as there are sentences; 95 %.
    """

    source: str
    by: str
    answered: int
    counts: tuple[int, int, int]
    false: float
    interval: Interval

    def plain(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "source": self.source,
            "by": self.by,
            "answered": self.answered,
            "counts": dict(zip(ANSWERS, self.counts, strict=True)),
            "false": self.false,
            "interval": self.interval.plain(),
        }


@final
@dataclass(frozen=True, slots=True, eq=False)
class Judged:
    """A sheet with its answers.

    Attributes:
        key: what was asked.
        annotators: who answered.
        answers: (J, N) long, places in `ANSWERS`; -1 for none.
        judgements: source by source.
        agreements: of each two annotators, and of all where they are more.
    """

    key: Key
    annotators: tuple[int, ...]
    answers: Tensor
    judgements: tuple[Judgement, ...]
    agreements: tuple[Agreement, ...]

    def disagreements(self) -> Iterator[tuple[Item, tuple[str, ...]]]:
        """Sentences that not all who answered judged alike, with what each said."""
        for item, said in zip(self.key.items, self.answers.T.tolist(), strict=True):
            if len({answer for answer in said if answer >= 0}) > 1:
                yield item, tuple(ANSWERS[answer] if answer >= 0 else "–" for answer in said)


def read_key(folder: Path) -> Key:
    """What a sheet asked.

    Raises:
        ValueError: the folder holds no sheet, or its key is damaged or of a newer version.
    """
    plain = read_json(folder / KEY, "the key of a sheet")
    if isinstance(plain, dict) and isinstance(made := plain.get("format"), int) and made > FORMAT:
        raise ValueError(
            f"{folder} has format {made} and this version of counterfoil reads up to {FORMAT}; "
            "upgrade counterfoil"
        )
    try:
        return Key.model_validate(plain)
    except ValidationError as error:
        raise ValueError(f"{folder / KEY} is damaged: {_first(error)}; export again") from None


def read_answers(path: Path, key: Key) -> Answers:
    """What an annotator answered: JSON as the page saves it, or a table with commas or semicolons.

    Raises:
        ValueError: the file is missing or damaged, for another sheet or nobody of this one, or has
            sentences or answers that the sheet does not have.
    """
    plain = read_json(path, "answers") if path.suffix == ".json" else _table(path)
    try:
        found = Answers.model_validate(plain)
    except ValidationError as error:
        raise ValueError(f"{path} holds no answers: {_first(error)}") from None
    if found.sheet != key.sheet:
        raise ValueError(
            f"{path} answers sheet {found.sheet}, but this one is {key.sheet}; name the folder "
            "that it was exported to"
        )
    if not 1 <= found.annotator <= key.annotators:
        raise ValueError(
            f"{path} is of annotator {found.annotator}, and the sheet has {key.annotators}"
        )
    known = {item.id for item in key.items}
    if strange := [name for name in found.answers if name not in known]:
        raise ValueError(f"{path} answers {strange[0]!r}, which the sheet does not ask")
    return found


def judged(key: Key, given: Sequence[Answers], *, seed: int = 0) -> Judged:
    """Rates of sentences judged false, and agreement.

    Args:
        key: of the sheet.
        given: answers of at least one annotator.
        seed: of the intervals of agreement.

    Raises:
        ValueError: an annotator is there twice, or has answered nothing.
    """
    found = sorted(given, key=lambda one: one.annotator)
    annotators = tuple(one.annotator for one in found)
    if len(set(annotators)) < len(annotators):
        twice = next(n for n in annotators if annotators.count(n) > 1)
        raise ValueError(f"two files are of annotator {twice}; name the answers of each once")
    if empty := [one.annotator for one in found if not any(one.answers.values())]:
        raise ValueError(f"annotator {empty[0]} has answered nothing; leave that file out")
    place = {"": -1, **{answer: row for row, answer in enumerate(ANSWERS)}}
    answers = torch.tensor(
        [[place[one.answers.get(item.id, "")] for item in key.items] for one in found]
    )
    judgements = []
    for source in dict.fromkeys(item.source for item in key.items):
        columns = torch.tensor([item.source == source for item in key.items])
        judgements += list(_judgements(source, annotators, answers[:, columns]))
    return Judged(key, annotators, answers, tuple(judgements), agreements(answers, seed=seed))


def _judgements(source: str, annotators: Sequence[int], answers: Tensor) -> Iterator[Judgement]:
    for annotator, row in zip(annotators, answers, strict=True):
        yield from _rate(source, f"annotator {annotator}", row.unsqueeze(0), each=True)
    if len(annotators) > 1:
        yield from _rate(source, "all judgements", answers, each=True)
        yield from _rate(source, "by all", answers, each=False)


def _rate(source: str, by: str, answers: Tensor, *, each: bool) -> Iterator[Judgement]:
    """One rate, where there is one: of all answers, or of the sentences that all answered."""
    there = (answers >= 0).any(0) if each else (answers >= 0).all(0)
    items = int(there.sum())
    if not items:
        return
    if each:
        said = answers[answers >= 0]
    else:
        alike = (answers == answers[:1]).all(0)
        said = answers[0].where(alike, -1)[there]
    counts = [int((said == place).sum()) for place in range(len(ANSWERS))]
    false = 100 * counts[FALSE] / len(said)
    one, two, three = counts
    answered = len(said) if each else items
    yield Judgement(source, by, answered, (one, two, three), false, wilson(false, items))


def _table(path: Path) -> dict[str, Any]:
    """A table of answers as what the page saves."""
    text = read_text(path, "answers")
    first = text.split("\n", 1)[0]
    rows = list(csv.DictReader(io.StringIO(text), delimiter=";" if ";" in first else ","))
    for name in ("sheet", "annotator", "item", "answer"):
        if not rows or name not in rows[0]:
            raise ValueError(
                f"{path} has no column {name!r}; sheet, annotator, item and answer are needed, and "
                "at least one line"
            )
    owners = {(row["sheet"], row["annotator"]) for row in rows}
    if len(owners) > 1:
        raise ValueError(f"{path} mixes sheets or annotators; one file of each is needed")
    answers = {}
    for row in rows:
        said = (row["answer"] or "").strip().lower()
        if said and said not in ANSWERS:
            raise ValueError(
                f"{path}, item {row['item']}: {unknown(said, list(ANSWERS), 'an answer')}"
            )
        answers[str(row["item"]).strip()] = said
    [(sheet, annotator)] = owners
    return {"sheet": sheet, "annotator": annotator, "answers": answers}


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the whole'}: {first['msg'].lower()}"
