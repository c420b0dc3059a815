# The vocabulary of this project. Everything works on a fresh machine: the environment is made once and reused.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test test-all check format bench bench-compare docs clean

help:            ## Show this list.
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: .venv/installed      ## Train several methods on built-in scenes, print a table, write a report.
	$(BIN)/tertium demo --out runs/demo

test: .venv/installed      ## Run the tests (under 8 minutes on two cores).
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-all: .venv/installed  ## Run the long tests too.
	$(BIN)/python -m pytest -n 2 --dist worksteal -m ''

check: .venv/installed     ## Check format, lint, types and import layers.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/installed    ## Format the code.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: .venv/installed     ## Measure speed and memory against the targets; write bench/results.json.
	$(BIN)/python -m bench

bench-compare: .venv/installed ## Show two results side by side: A=old.json B=new.json.
	$(BIN)/python -m bench.compare $(A) $(B)

docs: .venv/installed      ## Write the generated table of docs/methods.md anew.
	$(BIN)/python -m docs.generate

clean:                     ## Remove what was built; the environment stays.
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
