"""The figure of a sweep."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from counterfoil.evaluate.sweep_figures import Tried, parallel

AXES = [("rate", ("1e-4", "2e-4", "3e-4")), ("batch", ("8",))]


def test_the_best_line_goes_through_its_values() -> None:
    points = [Tried(("1e-4", "8"), 10.0), Tried(("3e-4", "8"), 30.5), Tried(("2e-4", "8"), 20.0)]
    figure = parallel(AXES, points, "dev RSum", "grid")
    assert figure.alt == "dev RSum of 3 points from 10.0 to 30.5; the best has rate 3e-4, batch 8."
    drawn = ElementTree.fromstring(figure.svg)
    lines = [e for e in drawn.iter() if "stroke-width: 2.6" in e.get("style", "")]
    assert len(lines) == 1
    assert "var(--run-1)" in lines[0].get("style")
    heights = [float(pair.split()[1]) for pair in lines[0].get("d").strip("ML ").split("L")]
    top, middle, end = heights
    assert top == pytest.approx(end)  # the highest value, and the highest figure
    assert middle > top  # the only value of its axis, halfway down
    words = "".join(drawn.itertext())
    assert all(text in words for text in ("1e-4", "2e-4", "30.5", "10.0", "batch", "dev RSum"))


@pytest.mark.parametrize("many", [1, 2, 300])
def test_few_and_many_and_equal_points(many: int) -> None:
    values = [AXES[0][1][n % 3] for n in range(many)]
    figure = parallel(AXES, [Tried((v, "8"), 5.0) for v in values], "dev RSum", "grid")
    assert "5.0" in figure.alt
    assert ElementTree.fromstring(figure.svg) is not None


def test_names_are_not_read_as_formulas() -> None:
    figure = parallel([("a$x$", ("$1_2$",))], [Tried(("$1_2$",), 1.0)], "dev <b>", "grid")
    words = "".join(ElementTree.fromstring(figure.svg).itertext())
    assert "$1_2$" in words
    assert "dev <b>" in words
