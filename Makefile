# `make demo` and `make test` need only Python 3.11+, make and a package index.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := $(VENV)/.demo-installed
CODE := src pretrain tests study benchmarks scripts .ci

.PHONY: setup demo test test-slow test-browser docs study-report study-tables release-check audit lint format clean

setup: $(STAMP)

# The constraints pin exact versions, so that every machine installs what the tests ran with.
$(STAMP): pyproject.toml .ci/constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed") if sys.version_info < (3, 11) else None'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c .ci/constraints.txt -e '.[dev]'
	# Reference libraries, without dependencies: torchvision names one build of torch, and any may be here already.
	$(BIN)/python -m pip install -q --no-deps -c .ci/constraints.txt open_clip_torch timm torchvision
	touch $(STAMP)

# What the demonstration needs is a small part of what the tests need.
$(DEMO): pyproject.toml .ci/constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -e $(STAMP) || $(BIN)/python -m pip install -q -c .ci/constraints.txt -e '.[report]'
	touch $(DEMO)

demo: $(DEMO)
	$(BIN)/dca demo --overwrite

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile

# The page in a real browser. Debian's chromium is used where it is installed, else one that playwright fetches.
CHROMIUM := $(or $(DCA_CHROMIUM),$(shell command -v chromium chromium-browser google-chrome 2>/dev/null | head -n 1))
test-browser: setup
	@if [ -n "$(CHROMIUM)" ]; then echo "browser: $(CHROMIUM)"; else $(BIN)/playwright install chromium || \
		echo "no Chromium: install Debian's chromium, or set DCA_CHROMIUM=PATH; these tests are skipped"; fi
	$(BIN)/python -m pytest tests/serve/test_page.py -rs

test-slow: setup
	$(BIN)/python -m pytest -m slow

# Warnings are errors; the variable silences only an advertisement of mkdocs-material.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The study's results as a report: one page with figures and LaTeX in build/study, or its tables, which are committed.
SPECIFICATIONS := few-shot base-to-new domain-shift components metric intra-loss prompts alpha-beta gamma published-options
REPORT := $(BIN)/dca study report study/results/study.jsonl --selection study/selection.json \
	$(foreach name,$(SPECIFICATIONS),--spec study/$(name).toml)
study-report: setup
	$(REPORT) -o build/study

# Everything that is made from study/results: the selection, the report's tables, measured.json, tables in docs/.
study-tables: setup
	$(BIN)/dca study select study/results/selection.jsonl -o study/selection.json
	$(REPORT) -o study/report --text-only
	$(BIN)/python scripts/method_table.py --results study/results/study.jsonl
	$(BIN)/python scripts/selection_table.py

# Builds sdist and wheel, checks them, and installs the wheel into an empty environment, where it runs `dca demo`.
release-check: setup
	$(BIN)/python -m pytest -m slow tests/test_release.py

# Two tools of their own, in an environment of their own. bandit looks for dangerous code, pip-audit for known flaws in
# the versions that the tests run with. It asks a service on the network, and lists packages that
# this does not know.
AUDIT := build/audit
audit: $(STAMP)
	test -x $(AUDIT)/bin/bandit || ($(PYTHON) -m venv $(AUDIT) && $(AUDIT)/bin/pip install -q 'bandit[toml]' pip-audit)
	$(AUDIT)/bin/bandit -q -c pyproject.toml -r src
	$(AUDIT)/bin/pip-audit --no-deps --disable-pip -r .ci/constraints.txt
	$(AUDIT)/bin/pip-audit --require-hashes --disable-pip -r .ci/build-requirements.txt

lint: setup
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

clean:
	rm -rf $(VENV) build .pytest_cache .mypy_cache .ruff_cache dca-demo
