"""Filters of search by columns of the data: ``album=holiday``, ``year>=2020``, ``camera~canon``.

A condition compares the column of an image with a value, and a filter is several conditions that
must all hold. What holds is decided once for each distinct value of a column, not for each image.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from counterfoil.core.config import unknown_name
from counterfoil.data.dataset import ColumnValue, column_number, column_value

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
OPERATORS = (*_COMPARE, "~")
_OPERATOR = re.compile(r"!=|<=|>=|==?|<|>|~")  # "==" is what programmers type for "="
_AS_IN = "as in `album=holiday` or `year>=2020`"


@final
@dataclass(frozen=True, slots=True)
class Condition:
    """A column compared with a value.

    Equal are equal numbers, and texts letter by letter; ``~`` is "contains", whatever the capitals.
    Numbers are ordered as numbers and other values as texts, such as dates as 2024-05-31. An image
    without a value has the empty text, which is neither before nor behind any other.

    Attributes:
        column: its name.
        operator: one of `OPERATORS`.
        value: to compare with.
    """

    column: str
    operator: str
    value: ColumnValue

    def __post_init__(self) -> None:
        if self.operator not in OPERATORS:
            raise ValueError(f"{self.operator!r} is no operator; known: {' '.join(OPERATORS)}")

    def __str__(self) -> str:
        return f"{self.column}{self.operator}{self.value}"

    def holds(self, values: Sequence[ColumnValue | None]) -> list[bool]:
        """For each distinct value of a column, whether the condition holds; None is no value."""
        own = column_number(self.value)
        numbers = [column_number(value) for value in values]
        texts = ["" if value is None else str(value) for value in values]
        if self.operator == "~":
            wanted = str(self.value).casefold()
            return [wanted in text.casefold() for text in texts]
        compare = _COMPARE[self.operator]
        if self.operator in ("=", "!="):
            return [
                compare(str(self.value), text) if None in (own, number) else compare(number, own)
                for text, number in zip(texts, numbers, strict=True)
            ]
        # `date>=2024` compares texts, as dates are no numbers; "unknown" is no year after 2024
        if own is not None and any(number is not None for number in numbers):
            return [number is not None and compare(number, own) for number in numbers]
        return [text != "" and compare(text, str(self.value)) for text in texts]


Where: TypeAlias = str | Condition | Sequence[str | Condition] | Mapping[str, ColumnValue]


@final
@dataclass(frozen=True, eq=False)
class Column:
    """A column of the images of an index.

    Attributes:
        values: its distinct values in order of first appearance; None for no value.
        codes: (R,) long, the place of each row's value in them.
    """

    values: tuple[ColumnValue | None, ...]
    codes: Tensor

    @property
    def numeric(self) -> bool:
        """True if its values are numbers."""
        return all(column_number(value) is not None for value in self.values if value is not None)


def columns_of(rows: Iterable[Mapping[str, ColumnValue]]) -> dict[str, Column]:
    """The columns of rows by name, in order of first appearance."""
    places: dict[str, dict[ColumnValue | None, int]] = {}
    codes: dict[str, dict[int, int]] = {}
    count = 0
    for row in rows:
        for name, value in row.items():
            known = places.setdefault(name, {None: 0})
            codes.setdefault(name, {})[count] = known.setdefault(value, len(known))
        count += 1
    columns = {}
    for name, known in places.items():
        own = torch.zeros(count, dtype=torch.long)
        own[torch.tensor([*codes[name]])] = torch.tensor([*codes[name].values()])
        columns[name] = Column(tuple(known), own)
    return columns


def parse_where(where: Where | None, columns: Sequence[str]) -> tuple[Condition, ...]:
    """The conditions of a filter, all of which must hold.

    Args:
        where: texts such as ``album=holiday``, with one of `OPERATORS`, or conditions; or a mapping
            from columns to the values that they equal; None for no filter.
        columns: that exist.

    Raises:
        ValueError: a text has no operator, or there is no such column; the error names those that
            exist.

    >>> [str(one) for one in parse_where(["album = holiday", "year>=2020"], ["album", "year"])]
    ['album=holiday', 'year>=2020']
    """
    if isinstance(where, Mapping):
        # as the data hold it: a truth value is the text "true" there
        plain = ((name, column_value(value)) for name, value in where.items())
        conditions = [Condition(name, "=", "" if value is None else value) for name, value in plain]
    else:
        texts = [where] if isinstance(where, str | Condition) else where or ()
        conditions = [one if isinstance(one, Condition) else _parse(one, columns) for one in texts]
    for condition in conditions:
        if condition.column not in columns:
            problem = unknown_name(condition.column, list(columns), "a column of the images")
            if not columns:
                problem += (
                    " The data of the index had no columns but image, caption and id, or an "
                    "earlier version made it; add data that have them: `counterfoil index --add`"
                )
            raise ValueError(problem)
    return tuple(conditions)


def _parse(text: str, columns: Sequence[str]) -> Condition:
    column, sign, value = _split(text.strip(), columns)
    if not column:
        raise ValueError(
            f"{text!r} is no condition; write a column, one of {' '.join(OPERATORS)} and a value, "
            f"{_AS_IN}"
        )
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = value[1:-1]
    elif value[:1] in tuple("=<>!~"):
        raise ValueError(
            f"{text!r} has an operator that does not exist; known: {' '.join(OPERATORS)}, {_AS_IN}"
            '; a value that begins so goes in quotes, as in `album="~2019"`'
        )
    return Condition(column, "=" if sign == "==" else sign, value)


def _split(text: str, columns: Sequence[str]) -> tuple[str, str, str]:
    """Column, operator and value of a condition; empty where there are none."""
    for column in sorted(columns, key=len, reverse=True):  # a name may hold an operator
        rest = text[len(column) :].lstrip()
        if text.startswith(column) and (sign := _OPERATOR.match(rest)):
            return column, sign[0], rest[sign.end() :].strip()
    if sign := _OPERATOR.search(text):
        return text[: sign.start()].rstrip(), sign[0], text[sign.end() :].strip()
    return "", "", ""


def matching(conditions: Sequence[Condition], columns: Mapping[str, Column], rows: int) -> Tensor:
    """(R,) bool, the rows for which all conditions hold."""
    mask = torch.ones(rows, dtype=torch.bool)
    for condition in conditions:
        column = columns[condition.column]
        mask &= torch.tensor(condition.holds(column.values))[column.codes]
    return mask
