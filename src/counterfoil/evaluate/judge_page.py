"""The page on which somebody judges sentences about pictures, blind to who wrote them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import final

from counterfoil.evaluate.report import template


@final
@dataclass(frozen=True, slots=True)
class Question:
    """A sentence about a picture.

    Attributes:
        id: says nothing of its source.
        picture: a `data:` address.
        sentence: to be judged.
    """

    id: str
    picture: str
    sentence: str


def judge_page(sheet: str, annotator: int, questions: Sequence[Question], csv: str) -> str:
    """The page as HTML, which needs nothing else and saves answers as JSON or CSV.

    Args:
        sheet: digest of the sheet, which the answers carry.
        annotator: whose page it is, from 1.
        questions: in the order to ask.
        csv: name of the file for those who cannot use the page.
    """
    plain = {
        "sheet": sheet,
        "annotator": annotator,
        "items": [asdict(question) for question in questions],
    }
    told = json.dumps(plain, ensure_ascii=False).replace("<", "\\u003c")  # ends no script
    page = template("judge.html.j2")
    return page.render(data=told, many=len(questions), csv=csv)
