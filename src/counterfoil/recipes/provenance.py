"""What a page says of how it was made."""

from __future__ import annotations

import platform
import shlex
import sys
from pathlib import Path

import numpy as np
import torch

from counterfoil import __version__
from counterfoil.report.page import Provenance


def made_now(*, seed: int | None = None, recipe: str = "", digest: str = "") -> Provenance:
    """The command line of this process, the versions it runs with, and what else is known.

    Args:
        seed: of the run.
        recipe: its name.
        digest: of the recipe's content.
    """
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return Provenance(
        command=command,
        seed=seed,
        recipe=recipe,
        digest=digest,
        versions=(
            ("counterfoil", __version__),
            ("torch", torch.__version__),
            ("NumPy", np.__version__),
            ("Python", platform.python_version()),
            ("device", "CUDA" if torch.cuda.is_available() else f"CPU {platform.machine()}"),
        ),
        reproduce=(command,),
    )
