"""Request and response models of the HTTP interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, final

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictStr,
    model_validator,
)

from counterfoil.data.dataset import ColumnValue
from counterfoil.evaluation.caption_check import Verdict
from counterfoil.evaluation.explain import CorrectedCaption, ExplainedWord
from counterfoil.search.index import SearchTarget

MOST_EXAMPLES = 20  # images that refine a query, of either kind
MOST_CONDITIONS = 20
MOST_CHOICES = 20  # values of a column that are listed


def _not_blank(caption: str) -> str:
    if not caption.strip():
        raise ValueError("the caption is empty; describe the picture")
    return caption


def _not_boolean(value: object) -> object:
    if isinstance(value, bool):  # pydantic reads true as 1
        raise ValueError(f"top is {str(value)!r}; give a whole number")
    return value


def _uploaded_file(value: object) -> object:
    if not isinstance(value, bytes):
        raise ValueError("the picture is not a file; send it in a multipart/form-data body")
    return value


# StrictStr: pydantic would decode an uploaded file to a string otherwise. Constraints stand before
# validators that change the value: the schema has no others
Caption = Annotated[
    StrictStr,
    AfterValidator(_not_blank),
    Field(json_schema_extra={"minLength": 1, "pattern": r"\S"}),
]
ImageId = Annotated[StrictStr, Field(min_length=1, max_length=1000)]
Picture = Annotated[
    bytes, BeforeValidator(_uploaded_file), Field(json_schema_extra={"minLength": 1})
]
Top = Annotated[int, Field(ge=1), BeforeValidator(_not_boolean)]


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


Conditions = Annotated[
    tuple[Annotated[StrictStr, Field(min_length=1, max_length=1000)], ...],
    Field(max_length=MOST_CONDITIONS),
    BeforeValidator(_listed),
]
ImageIds = Annotated[tuple[ImageId, ...], Field(max_length=MOST_EXAMPLES), BeforeValidator(_listed)]


class RequestFields(BaseModel):
    """The fields of a request; exactly one of its `alternatives` is sent, where there are some."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    alternatives: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        fields = [name for name in self.alternatives if getattr(self, name) is not None]
        if self.alternatives and len(fields) != 1:
            sent = " and ".join(map(repr, fields)) or "nothing"
            wanted = " or ".join(map(repr, self.alternatives))
            raise ValueError(f"{sent} was sent; send {wanted}, just one")
        return self


class SearchOptions(RequestFields):
    """Number and kind of results."""

    top: Top | None = Field(None, description="Number of results; 20 by default.")
    find: SearchTarget = "images"
    more: ImageIds = Field((), description="Images of the index: more like these, without them.")
    less: ImageIds = Field((), description="Images of the index: less like these, without them.")
    where: Conditions = Field(
        (),
        description="Conditions on columns of the images, as album=holiday, year>=2020 or "
        "camera~canon (contains); all must hold. /about lists the columns.",
    )


@final
class SearchRequest(SearchOptions):
    """Search by a caption or an uploaded picture."""

    alternatives = "text", "picture"
    text: Caption | None = None
    picture: Picture | None = None
    min_probability: float | None = Field(
        None, ge=0, le=1, description="Leaves out images less probable to match the text."
    )


@final
class SimilarRequest(SearchOptions):
    """Search by an image of the index."""

    id: ImageId


@final
class ExplainRequest(RequestFields):
    """A caption to check against an image of the index or an uploaded picture."""

    alternatives = "id", "picture"
    caption: Caption
    id: ImageId | None = None
    picture: Picture | None = None


@final
class ImageRequest(RequestFields):
    """An image of the index."""

    id: ImageId
    full: bool = Field(default=False, description="A JPEG of up to 2,048 pixels, else of 448.")


@final
class SearchResult(BaseModel):
    """A result: an image or a caption of the index."""

    model_config = ConfigDict(frozen=True)
    id: str
    score: float = Field(description="Higher is better.")
    caption: str = Field(description='Caption, for an image its first; "" for none.')
    image: str = Field(description='Id of the image, or of the described one; "" for none.')
    probability: float | None = Field(
        default=None,
        description="That the image matches the text; null if not calibrated.",
    )
    columns: dict[str, ColumnValue] = Field(
        default={}, description="Values of the image in the columns of the data, as album or year."
    )
    missing: bool = Field(default=False, description="Whether the file of the image is gone.")
    same: tuple[str, ...] = Field(
        default=(), description="Ids of other images with equal contents, which are no results."
    )


@final
class SearchResponse(BaseModel):
    """The answer to a search: its results, best first."""

    find: SearchTarget
    reranker: str | None = Field(description="Model that ordered the results; null for none.")
    note: str | None = Field(
        description="What the model does not read of the query; null for nothing."
    )
    results: tuple[SearchResult, ...]


@final
class ExplanationResponse(BaseModel):
    """Judgement of a caption, as a whole and word by word."""

    caption: str
    verdict: Verdict = Field(description="Whether the caption fits the picture.")
    told: str = Field(description="The verdict as a sentence.")
    mistakes: float | None = Field(
        description="Share of such verdicts that is expected to be wrong, at most, where every "
        "second caption is right; null if it cannot be told."
    )
    basis: str = Field(description="What the verdict rests on.")
    score: float
    words: tuple[ExplainedWord, ...]
    corrected: CorrectedCaption | None
    unread: int | None
    doubts: bool = Field(description="Whether the words have a probability of being wrong.")
    threshold: float = Field(description="Words at or above this probability are doubted.")
    explainer: str


@final
class RequestLimits(BaseModel):
    """Limits of a request: bytes, characters and results."""

    upload: int
    caption: int
    top: int


@final
class ColumnInfo(BaseModel):
    """A column of the images, by which results are filtered."""

    name: str
    numeric: bool = Field(description="Whether its values are numbers.")
    date: bool = Field(description="Whether its values begin with a date, as 2024-05-31.")
    values: tuple[ColumnValue, ...] = Field(description="Its values, sorted; empty if many.")


@final
class ServerInfo(BaseModel):
    """Size of the index, its columns, models and limits."""

    version: str
    images: int
    captions: int
    sees_pictures: bool
    explains_pictures: bool
    limits: RequestLimits
    model: str
    reranker: str | None
    explainer: str
    basis: str = Field(description="What verdicts on captions rest on.")
    columns: tuple[ColumnInfo, ...]


@final
class Health(BaseModel):
    """Liveness; the models are listed only by a server without a key."""

    status: Literal["ok"] = "ok"
    model: str | None = None
    reranker: str | None = None


@final
class ErrorMessage(BaseModel):
    """Body of every error."""

    error: str


def error_sentence(errors: Sequence[Any]) -> str:
    """One sentence for the validation errors of pydantic."""
    # a misspelt field is missing as well: name what was sent
    error = min(errors, key=lambda error: error["type"] != "extra_forbidden")
    # places in a list are numbers
    name = next((part for part in reversed(error["loc"]) if isinstance(part, str)), "")
    kind = error["type"]
    if kind == "value_error":
        return str(error["ctx"]["error"])
    if kind == "missing":
        return f"no {name!r} was sent; /openapi.json lists the fields"
    if kind == "extra_forbidden":
        return f"{name[:40]!r} is not a field of this request; /openapi.json lists the fields"
    if not name:
        return 'the body is not a JSON object such as {"text": "a dog"}'
    message: str = error["msg"]
    return f"{name} is {str(error['input'])[:20]!r}; {message[0].lower()}{message[1:]}"
