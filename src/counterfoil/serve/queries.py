"""What is asked of an index, and what is found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias, final

from PIL import Image

from counterfoil.engine.tiles import Side
from counterfoil.search.index import TARGET_SIDES, SearchTarget

About: TypeAlias = str | Image.Image | int


@final
@dataclass(frozen=True, slots=True)
class Query:
    """What a query asks for.

    Attributes:
        about: a caption, a picture, or the row of an image of the index.
        top: how many results.
        find: images or captions.
    """

    about: About
    top: int
    find: SearchTarget = "images"

    @property
    def side(self) -> Side:
        """What is looked for."""
        return TARGET_SIDES[self.find]

    @property
    def crosses(self) -> bool:
        """Whether images are compared with captions, and not one with its like."""
        return isinstance(self.about, str) == (self.find == "images")

    @property
    def itself(self) -> int | None:
        """The row that is not looked for, as it is what is asked about; None for none."""
        return self.about if isinstance(self.about, int) and not self.crosses else None


@final
@dataclass(frozen=True, slots=True)
class Hit:
    """An image or a caption that was found.

    Attributes:
        id: its own name.
        score: higher is better.
        caption: of an image what the index knows to be said of it; "" for nothing.
        image: id of the image, or of the one that the caption describes; "" where the index has
            none.
    """

    id: str
    score: float
    caption: str
    image: str


@final
@dataclass(frozen=True, slots=True)
class Shortlist:
    """What an index found, to be put in order.

    Attributes:
        query: what was asked.
        hits: best first.
    """

    query: Query
    hits: tuple[Hit, ...]
