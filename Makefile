# Everything installs into .venv; nothing but Python >= 3.11 and make is needed beforehand.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: demo test test-all lint bench docs clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/counterfoil demo --output runs/demo

test: $(STAMP)
	OMP_NUM_THREADS=1 PYTHONHASHSEED=0 $(BIN)/python -m pytest -n auto --dist loadscope --durations=10

test-all: $(STAMP)
	OMP_NUM_THREADS=1 PYTHONHASHSEED=0 $(BIN)/python -m pytest -n auto --dist loadscope -m slow --durations=10

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
	rm -rf .venv build dist site runs .mypy_cache .ruff_cache
