"""The views of a batch of which each process has made a share."""

from __future__ import annotations

from dataclasses import replace

from counterfoil import world
from counterfoil.engine.shares import gathered, mine, shared
from counterfoil.records import Batch, View, Views

__all__ = ["gathered", "mine", "shared", "whole"]


def whole(batch: Batch, share: Views) -> Views:
    """The views of the whole batch; the model's own losses are added up over processes."""
    views = {
        name: View(
            gathered(view.images, len(batch.image_rows) * view.copies),
            gathered(view.texts, len(batch.text_rows) * view.copies),
            view.copies,
        )
        for name, view in share.views.items()
    }
    auxiliary = {
        name: world.gather_rows(loss.reshape(1)).sum() for name, loss in share.auxiliary.items()
    }
    return replace(share, views=views, auxiliary=auxiliary)
