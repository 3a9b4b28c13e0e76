"""Every matcher keeps every promise of `Matcher`; classes are abstract or final."""

from __future__ import annotations

import importlib
import inspect
import pkgutil

import pytest
from torch import nn

import counterfoil.models
import matcher_cases
from counterfoil.models.base import RetrievalModel
from matcher_cases import CASES
from matcher_promises import PROMISES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.__name__)
def test_promise(promise, case):
    promise(case)


def modules():
    found = pkgutil.walk_packages(counterfoil.models.__path__, "counterfoil.models.")
    for module in (importlib.import_module(info.name) for info in found):
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, nn.Module) and kind.__module__ == module.__name__:
                yield kind


@pytest.mark.parametrize("kind", sorted(modules(), key=lambda kind: kind.__qualname__))
def test_a_class_is_abstract_or_final(kind):
    assert inspect.isabstract(kind) != getattr(kind, "__final__", False)


def test_every_matcher_has_a_case():
    known = {case.spec.make for case in CASES} | matcher_cases.ELSEWHERE
    final = {kind for kind in modules() if not inspect.isabstract(kind)}
    assert {kind for kind in final if issubclass(kind, RetrievalModel)} <= known
