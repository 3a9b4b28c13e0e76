"""The classes of models of a package."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType

from torch import nn


def models_of(package: ModuleType) -> list[type[nn.Module]]:
    """Modules of torch that the package defines, by name."""
    found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    modules = [importlib.import_module(info.name) for info in found]
    kinds = [
        kind
        for module in modules
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, nn.Module) and kind.__module__ == module.__name__
    ]
    return sorted(kinds, key=lambda kind: kind.__qualname__)
