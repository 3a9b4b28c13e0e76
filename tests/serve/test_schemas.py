"""Request models, without a server."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ValidationError

from counterfoil.serve.schemas import (
    ExplainRequest,
    ImageRequest,
    SearchRequest,
    SimilarRequest,
    error_sentence,
)


def test_defaults_and_values():
    assert SearchRequest(text="a dog").model_dump() == {
        "text": "a dog",
        "picture": None,
        "top": None,
        "find": "images",
    }
    assert SimilarRequest.model_validate({"id": "a", "top": "5", "find": "captions"}).top == 5
    assert ExplainRequest(caption="a dog", picture=b"x").id is None


@pytest.mark.parametrize(
    ("model", "values", "sentence"),
    [
        (SearchRequest, {}, "nothing was sent; send 'text' or 'picture', just one"),
        (SearchRequest, {"text": "a", "picture": b"x"}, "'text' and 'picture' was sent; send"),
        (SearchRequest, {"text": " "}, "the caption is empty; describe the picture"),
        (SearchRequest, {"text": b"a"}, "text is \"b'a'\"; input should be a valid string"),
        (SearchRequest, {"picture": "a.png"}, "the picture is not a file"),
        (SearchRequest, {"text": "a", "top": True}, "top is 'True'; give a whole number"),
        (SearchRequest, {"text": "a", "top": 0}, "top is '0'; input should be greater than"),
        (SearchRequest, {"text": "a", "find": "dogs"}, "find is 'dogs'; input should be 'images'"),
        (SimilarRequest, {}, "no 'id' was sent; /openapi.json lists the fields"),
        (SimilarRequest, {"name": "a"}, "'name' is not a field of this request"),
        (ImageRequest, {"id": ""}, "id is ''; string should have at least 1 character"),
        (ExplainRequest, {"caption": "a"}, "nothing was sent; send 'id' or 'picture'"),
        (SearchRequest, [], "the body is not a JSON object"),
    ],
)
def test_errors_are_one_sentence(model: type[BaseModel], values: object, sentence: str):
    with pytest.raises(ValidationError) as error:
        model.model_validate(values)
    assert error_sentence(error.value.errors()).startswith(sentence)
