"""Tests of kernels in triton's interpreter, chosen before its import: `make test-kernels` only."""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["*"]
