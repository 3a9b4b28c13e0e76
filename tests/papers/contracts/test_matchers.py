"""Every matcher of the papers keeps every promise of `Matcher`; classes are abstract or final."""

from __future__ import annotations

import inspect

import pytest

import counterfoil.papers.models
from contracts_cases import models_of
from counterfoil.models.base import RetrievalModel
from matcher_promises import PROMISES
from papers_matcher_cases import CASES

KINDS = models_of(counterfoil.papers.models)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_promise(promise, case):
    promise(case)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__qualname__)
def test_a_class_is_abstract_or_final(kind):
    assert inspect.isabstract(kind) != getattr(kind, "__final__", False)


def test_every_matcher_has_a_case():
    final = {kind for kind in KINDS if not inspect.isabstract(kind)}
    own = {kind for kind in final if issubclass(kind, RetrievalModel)}
    assert own <= {case.spec.make for case in CASES}
