"""Names in saved files: complete, and each leads to its class."""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from fractions import Fraction
from typing import Any

import pytest
from torch import nn

import counterfoil
from counterfoil.core.config import Config, config, config_from_dict
from counterfoil.core.registry import CALLED, SAVED, name_of, short_name
from counterfoil.core.shipped import SHIPPED
from counterfoil.recipes.catalogue import all_recipes

PLACES = {name: place for kind in CALLED for name, place in SHIPPED[kind].items()}
# modules of networks that no written call names: bases of others, and what trains
UNWRITTEN = {
    "_ImageGraph",  # of ONNX, in no file of ours
    "_TextGraph",
    "OwnEncoders",  # around a module of the user's, whose own name is saved
    "OwnScore",
    "OwnLoss",  # around a function or module, which is recorded itself
    "ForeignLoss",
    "VectorLoss",
    "RetrievalModel",
    "SingleVectorModel",
    "TwoTowerModel",
    "MaxSimModel",
    "SentenceTransformersModel",
    "LoRADualEncoder",
    "JointModel",
    "Loss",
    "ScoresModule",
    "TripletLoss",
    "OfflineHinges",
    "SmoothHingeLoss",
    "LossSchedule",
    "ImageTower",
    "TextTower",
    "WordTower",
    "PretrainedTower",
    "StatesTower",
    "GridTower",
    "AttentionModel",
    "PairModel",
    "TrainableModule",
    "PretrainStep",
    "TrainingStep",
}


def calls(value: Any) -> Iterator[Config[Any]]:
    if isinstance(value, Config):
        yield value
        yield from calls(value.arguments)
    elif is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            yield from calls(getattr(value, one.name))
    elif isinstance(value, Mapping):
        yield from calls(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for inner in value:
            yield from calls(inner)


def test_every_call_of_every_recipe_has_a_name_and_opens():
    seen: set[str] = set()
    for recipe in all_recipes():
        for call in calls(recipe.stages):
            text = json.dumps(call.to_dict(), sort_keys=True)
            if text not in seen:
                seen.add(text)
                assert name_of(call.make) in PLACES, call
                assert "counterfoil." not in text
                again = config_from_dict(json.loads(text))
                assert again == call
                assert again.make is call.make
    assert len(seen) > 100


def test_every_network_and_every_loss_has_a_name():
    lacking = []
    for found in pkgutil.walk_packages(counterfoil.__path__, "counterfoil."):
        if not found.name.endswith("__main__"):
            for name, kind in vars(importlib.import_module(found.name)).items():
                own = inspect.isclass(kind) and kind.__module__ == found.name
                if own and issubclass(kind, nn.Module) and name not in UNWRITTEN:
                    lacking += [] if name_of(kind) in PLACES else [f"{found.name}:{name}"]
    assert lacking == []


def test_a_name_is_of_one_kind():
    assert len(PLACES) == sum(len(SHIPPED[kind]) for kind in CALLED) == len({*PLACES.values()})


@pytest.mark.parametrize("name", PLACES)
def test_every_name_leads_to_a_class_that_is_called_so_in_files(name):
    module, _, qualname = PLACES[name].partition(":")
    assert name_of(getattr(importlib.import_module(module), qualname)) == name


def test_other_packages_keep_module_and_name():
    half = config(Fraction, numerator=1, denominator=2)
    assert half.to_dict()["call"] == "fractions:Fraction"
    assert short_name(Fraction) == "Fraction"
    with pytest.raises(ValueError, match="may call"):
        config_from_dict(half.to_dict())


def test_a_name_of_another_version_is_refused():
    with pytest.raises(ValueError, match="'Newest' does not exist in this version"):
        config_from_dict({"call": "Newest"})
    with pytest.raises(ValueError, match="'annotations' does not exist in this version"):
        config_from_dict({"call": "annotations"})
    with pytest.raises(ValueError, match="may call"):
        config_from_dict({"call": "InfoNCELoss"}, kinds=SAVED)
