"""Region features of scenes are bit for bit the same on every CPU."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import numpy as np
import torch
from numpy._core._multiarray_umath import __cpu_dispatch__ as simd

from counterfoil.data.scenes import scenes
from counterfoil.data.scenes.world import _normal

OLD_CPU = {  # without AVX: other kernels of BLAS, of torch, of numpy's logarithms and cosines
    "OPENBLAS_CORETYPE": "Prescott",
    "MKL_CBWR": "COMPATIBLE",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "ATEN_CPU_CAPABILITY": "default",
    "NPY_DISABLE_CPU_FEATURES": " ".join(simd),
}
PRINT_DIGESTS = """
import hashlib
import numpy as np
from counterfoil.data.scenes import scenes
from counterfoil.pipelines.pipeline import data_contents
corpus = scenes(images=60, features="regions")
digest = hashlib.sha256(corpus.features.values.tobytes() + corpus.features.boxes.tobytes())
print(digest.hexdigest(), corpus.fingerprint, data_contents(corpus))
rows = np.random.default_rng(0).standard_normal((64, 999)).astype(np.float32)
print((np.log(np.abs(rows)) @ rows.T).sum(dtype=np.float64).hex())
"""


def digests(environment: dict[str, str]) -> list[str]:
    command = [sys.executable, "-c", PRINT_DIGESTS]
    done = subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_features_are_the_same_under_other_kernels():
    here, old = digests({}), digests(OLD_CPU)
    if here[1] == old[1]:  # printed, for a CPU that has no other kernels
        print("a float32 product is the same under both here, so this shows little")
    assert here[0] == old[0]


def test_features_never_change():
    dataset = scenes(images=60, features="regions")
    digest = hashlib.sha256(dataset.features.values.tobytes()).hexdigest()[:16]
    assert digest == "44b0dec85005d2a9"


def test_normal_draws_are_those_of_torch():
    ours = _normal(5, 128, torch.Generator().manual_seed(3))
    theirs = torch.randn(5, 128, generator=torch.Generator().manual_seed(3)).numpy()
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
