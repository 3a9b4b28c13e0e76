from __future__ import annotations

import re

import torch

from counterfoil.evaluate.share_figures import DRAWN, Dot, dots, doubts, scatter
from counterfoil.evaluate.triples import Triples
from counterfoil.evaluation.bootstrap import Counted, Interval, Share, shares


def triples(many: int, name: str = "batch", gap: float = 0.1) -> Triples:
    positive = torch.rand(many, generator=torch.Generator().manual_seed(0))
    return Triples(name, torch.arange(many), positive, positive + gap)


def test_scatter_tells_who_is_above():
    found = scatter([triples(30), triples(20, "written $x$", -0.1)], 0.05, "k", "Of one.")
    assert "batch: 100.0 % above" in found.alt
    assert "written $x$: 0.0 % above" in found.alt
    assert "0.05 below it." in found.caption[1]
    assert found.svg.count("var(--run-1)") >= 30
    assert found.svg.count("var(--run-2)") >= 20


def test_scatter_says_what_it_leaves_out():
    found = scatter([triples(DRAWN + 5)], 9.0, "k", "Of one.")
    assert "outside the frame" in found.caption[1]
    assert found.caption[2] == "1,000 of 1,005 triples of a source are drawn."


def test_scatter_of_one_point():
    assert scatter([triples(1, gap=0.0)], 0.05, "k", "Of one.").svg.startswith("<svg")


def test_dots():
    right = torch.rand(50, generator=torch.Generator().manual_seed(1)) < 0.5
    share = shares([Counted.where(right)], torch.arange(50), scale=100)[0]
    nothing = Share(float("nan"), Interval(0, 0), 0)
    some = [Dot("a", "one", share, 50.0), Dot("a", "two", nothing), Dot("b <c>", "one", share)]
    found = dots(some, "right, %", "k", "Who is right.", "guessing")
    assert found.alt == f"right, %: a, one: {share.value:.1f}; b <c>, one: {share.value:.1f}."
    assert "guessing" in found.svg
    assert "b &lt;c&gt;" in found.svg
    assert len(re.findall("var\\(--run-1\\)", found.svg)) >= 2


def test_doubts():
    right = torch.tensor([0.1, 0.5, 0.7, 0.9])
    same = torch.tensor([False, True, True, True])
    found = doubts(right, same, 0.5)
    assert "of 1 wrong words 100.0 % are doubted" in found.alt
    assert "of 3 right words 33.3 % are doubted" in found.alt
    assert "wrong" not in doubts(right, same | True, 0.5).caption[1]
