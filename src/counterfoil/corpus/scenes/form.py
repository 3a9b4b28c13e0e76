"""What a caption claims, apart from its wording.

>>> red_circle, stars = Phrase(colour="red", shape="circle"), Phrase(count=2, shape="star")
>>> print(Form((red_circle, stars), (Link("above", 0, 1),)))
a red circle; 2 star; 0 above 1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from counterfoil.corpus.scenes.world import OPPOSITE, Thing


@final
@dataclass(frozen=True, slots=True)
class Phrase:
    """A noun phrase; what is None is not said.

    Attributes:
        count: None for "a": at least one thing fits. A number: exactly so many things of the scene
            fit, and the phrase stands for all of them.
        size: one of the sizes.
        pattern: one of the patterns.
        colour: one of the colours.
        shape: one of the shapes, None for "a shape".
    """

    count: int | None = None
    size: str | None = None
    pattern: str | None = None
    colour: str | None = None
    shape: str | None = None

    def fits(self, thing: Thing) -> bool:
        """Whether the words other than the number are true of a thing."""
        return (
            self.shape in (None, thing.shape)
            and self.colour in (None, thing.colour)
            and self.pattern in (None, thing.pattern)
            and self.size in (None, thing.size)
        )

    def __str__(self) -> str:
        said = (self.size, self.pattern, self.colour, self.shape or "shape")
        return " ".join([str(self.count or "a"), *(word for word in said if word)])


@final
@dataclass(frozen=True, slots=True)
class Link:
    """A relation claimed between the things of two phrases.

    Attributes:
        relation: one of the relations.
        subject: place of the phrase whose things stand in the relation.
        object: place of the phrase they stand in the relation to.
    """

    relation: str
    subject: int
    object: int

    def turned(self) -> Link:
        """The same claim, seen from the other side."""
        return Link(OPPOSITE[self.relation], self.object, self.subject)


@final
@dataclass(frozen=True, slots=True)
class Form:
    """A claim about a scene: its logical form.

    There are things that the phrases stand for, no thing for two phrases; every thing of a link's
    subject stands in its relation to every thing of its object; and, where the claim is complete,
    there is no thing besides.

    Attributes:
        phrases: in order of mention.
        links: between phrases, by place.
        complete: "nothing else".
    """

    phrases: tuple[Phrase, ...]
    links: tuple[Link, ...] = ()
    complete: bool = False

    def __str__(self) -> str:
        links = (f"{link.subject} {link.relation} {link.object}" for link in self.links)
        end = ["nothing else"] if self.complete else []
        return "; ".join([*map(str, self.phrases), *links, *end])
