from typing import Literal

import pytest

from counterfoil.core.config import parse_choice, parse_literal

Tie = Literal["row", "optimistic"]


def test_a_value_is_itself_and_anything_else_is_refused_with_the_nearest():
    assert parse_literal(Tie, "row", "a tie rule") == "row"
    assert parse_choice({"a": 1}, "a", "a letter") == "a"
    with pytest.raises(ValueError, match="'rows' is not a tie rule; did you mean 'row'"):
        parse_literal(Tie, "rows", "a tie rule")
    with pytest.raises(ValueError, match="'3' is not a letter; known: a"):
        parse_choice(["a"], 3, "a letter")
