# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-fast test-long lint docs install clean constraints results torture help

help:
	@echo "make demo       install into $(VENV), run the quickstart study, print where its report is"
	@echo "make test       install, then formatting, lint, types, import arrows and all tests"
	@echo "make test-fast  the same without the slow tests"
	@echo "make results    docs/results.md and the README's table, from results/"
	@echo "make docs       build the documentation into site/; a broken link or name fails"
	@echo "make torture    kills, fuzzed and hostile input, bad places, with Ray; writes dev/reliability.md (twelve minutes)"
	@echo "make test-long  what takes minutes: studies at smoke, searches, Ray, notebooks, the site in a browser, torture"

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "steppe needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.11 demo"; exit 2; }
	@echo "Installing into $(VENV) (torch is 5 GB: about two minutes) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --upgrade pip
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --no-deps torchattacks # it asks for a requests of 2020
	@touch $@

$(VENV)/.ray: $(VENV)/.installed
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test,ray]'
	@touch $@

demo: install
	@$(BIN)/steppe study run quickstart
	@echo "next: $(BIN)/steppe fit FOLDER_OF_PHOTOS --budget 10m"

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not long" --numprocesses 2 --dist loadfile --no-loadscope-reorder

$(VENV)/.integrations: $(VENV)/.ray
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test,ray,integrations]'
	@touch $@

test-long: $(VENV)/.integrations
	$(BIN)/python -m pytest -m long --numprocesses 2 --dist load

torture: $(VENV)/.ray ## kills, fuzzed and hostile input, bad places; the counts go to dev/reliability.md
	OMP_NUM_THREADS=1 $(BIN)/python -m torture --out dev/reliability.md

test-fast: lint
	$(BIN)/python -m pytest -m "not slow and not long" --numprocesses 2 --dist loadfile --no-loadscope-reorder

results: install ## docs/results.md and the README's table, from results/
	$(BIN)/steppe study publish results --out docs/results.md --readme README.md
	$(BIN)/python docs/hooks.py

docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "documentation: site/index.html"

constraints: ## pin what is installed now, for CI
	$(BIN)/python -m pip freeze --exclude-editable | sort -f > constraints.txt

clean:
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
