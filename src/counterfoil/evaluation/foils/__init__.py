"""Foil sets: captions that differ from the true one by one detail.

`sets.open_foil_set` opens a published set, or makes one of rendered scenes;
`measures.evaluate_foils` computes its numbers from scores; `attack.evaluate_attack` ranks the foils
of an image's captions among all captions; `readers` has the published file
formats and finds the images.
"""

from __future__ import annotations
