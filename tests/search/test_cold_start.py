"""What a search from a fresh process imports."""

from __future__ import annotations

import subprocess
import sys

import recipes_cases
from counterfoil.data.readers import load_dataset
from counterfoil.model import load_model
from counterfoil.search.index import build_index

MOST = 120  # modules of ours

COUNTED = """
import gc
import sys
from counterfoil.cli import main
code = main(sys.argv[1:])
ours = [name for name in sys.modules if name.startswith("counterfoil")]
heavy = [name for name in ("faiss", "pymilvus", "sklearn", "matplotlib") if name in sys.modules]
print(gc.isenabled() and gc.get_freeze_count() > 100_000, code, len(ours), heavy)
"""


def test_a_search_loads_what_it_needs(tmp_path):
    model = load_model(recipes_cases.pixel_model(tmp_path / "model"))
    build_index(model, load_dataset("scenes:images=36"), tmp_path / "index").close()
    words = [sys.executable, "-c", COUNTED, "search", str(tmp_path / "index"), "a red circle"]
    done = subprocess.run([*words, "--json"], capture_output=True, text=True, check=True)
    unseen, code, count, heavy = done.stdout.splitlines()[-1].split(maxsplit=3)
    assert (code, heavy) == ("0", "[]")
    assert unseen == "True"  # by the garbage collector, which would take 0.5 s of modules
    assert int(count) < MOST
