"""A model of the user: a function under a registered name, which returns a `counterfoil.Model`."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

from counterfoil.core import registry
from counterfoil.core.config import Config, from_data
from counterfoil.data.processor import ProcessorConfig
from counterfoil.loading import Pretrained, refuse_large


@final
@dataclass(frozen=True)
class RegisteredModel(Pretrained):
    """A model that a registered factory builds; the factory gives it its processor, too."""

    name: str

    @cached_property
    def spec(self) -> Config[Any]:
        """The call of the factory with its defaults."""
        return Config(registry.find("model", self.name), {})

    @property
    def processor(self) -> ProcessorConfig:
        """What it reads of the data; the processor itself comes from the factory."""
        model: Any = self.spec.build()
        return ProcessorConfig(images="features" if model.reads_features else "pixels")

    def trained(self, *, frozen: bool, lora: int) -> Config[Any]:
        """The call that builds it for training; a folder of it is opened with pretrained=False."""
        if frozen or lora:
            raise ValueError(
                f"{self.name} is trained as a whole; leave --tune out, or let its factory freeze "
                "parameters and add adapters"
            )
        known = inspect.signature(self.spec.make).parameters
        fresh = {"pretrained": from_data("pretrained")} if "pretrained" in known else {}
        return Config(self.spec.make, fresh)


def load_registered(name: str, **options: Any) -> RegisteredModel:
    """The model of a registered name.

    Raises:
        ValueError: there is none, or an option is not for it.
    """
    refuse_large(name, options)
    if options:
        raise ValueError(f"{name} has the text positions of its factory; leave long_captions out")
    return RegisteredModel(name)
