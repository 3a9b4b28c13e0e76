# Everything installs into .venv; nothing but Python >= 3.11 and make is needed beforehand.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
MINIMUM := .venv-minimum/.installed

# many processes read the same hundreds of modules, so their bytecode is kept
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all test-minimum test-devices test-kernels lint bench docs clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(STAMP)

# the oldest versions that pyproject.toml allows, beside the same torch
$(MINIMUM): pyproject.toml constraints-minimum.txt
	$(PYTHON) -m venv .venv-minimum
	.venv-minimum/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-minimum.txt -e ".[hf,web,index,tune,uniter,stem,test]"
	touch $(MINIMUM)

demo: $(STAMP)
	$(BIN)/counterfoil demo --output runs/demo

# the library's tests on a copy of the package without the papers, then what these left out
test: $(STAMP)
	rm -rf build/library build/done && mkdir -p build/library
	cp -Rp src/counterfoil build/library/ && rm -rf build/library/counterfoil/papers
	COUNTERFOIL_TESTS_DONE=$(CURDIR)/build/done COUNTERFOIL_TESTS=library PYTHONPATH=$(CURDIR)/build/library \
		OMP_NUM_THREADS=1 PYTHONHASHSEED=0 $(BIN)/python -m pytest -n auto --dist loadscope --durations=10 tests
	COUNTERFOIL_TESTS_DONE=$(CURDIR)/build/done \
		OMP_NUM_THREADS=1 PYTHONHASHSEED=0 $(BIN)/python -m pytest -n auto --dist loadscope --durations=10

test-all: $(STAMP) test-minimum test-devices test-kernels
	OMP_NUM_THREADS=1 PYTHONHASHSEED=0 $(BIN)/python -m pytest -n auto --dist loadscope -m slow --durations=10

# on a device that computes on the CPU but refuses to be mixed with it, as a GPU does
test-devices: $(STAMP)
	COUNTERFOIL_PRETEND=1 OMP_NUM_THREADS=1 PYTHONHASHSEED=0 $(BIN)/python -m pytest -n auto --dist loadscope tests/devices --durations=5

# Triton kernels in its interpreter, and compiled for GPUs that are not here
test-kernels: $(STAMP)
	TRITON_INTERPRET=1 OMP_NUM_THREADS=1 PYTHONHASHSEED=0 $(BIN)/python -m pytest -n auto --dist loadscope tests/kernels --durations=5

# old versions warn of each other; only failures matter here
test-minimum: $(MINIMUM)
	OMP_NUM_THREADS=1 PYTHONHASHSEED=0 .venv-minimum/bin/python -m pytest -n auto --dist loadscope -W ignore tests/examples tests/core tests/search tests/report \
		tests/papers/cli/test_help.py tests/papers/cli/test_verbs.py tests/serve/test_app.py tests/papers/serve/test_start.py tests/data/test_images.py tests/export/test_models.py

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python -m benchmarks

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf .venv .venv-minimum build dist site runs .mypy_cache .ruff_cache
