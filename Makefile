# The one door: CI, the pre-commit hook and people call these targets.

RUN    := uv run
PYTEST := $(RUN) pytest
JOBS   ?= 2

SEEDS  ?= 200
SEED   ?=
FAULTS ?=
MUTANT ?=

.PHONY: help check format lint types imports unit test property sim long docs bench style ui ui-test

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1 — /'

check: lint types imports unit  ## format, lint, types, import contract, unit tests: under a minute

lint:
	$(RUN) ruff format --check .
	$(RUN) ruff check .

types:
	$(RUN) mypy

imports:
	$(RUN) lint-imports

unit:
	$(PYTEST) tests/unit -q -n $(JOBS) --dist loadfile

format:  ## rewrite what `make check` would complain of and a machine can mend
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

test:  ## every test but the long ones
	$(PYTEST) -q

property:  ## the hypothesis tests alone
	$(PYTEST) tests/property -q -n $(JOBS)

sim:  ## the simulator: SEEDS=2000, or SEED=7 to repeat one; FAULTS=... and MUTANT=... as `python -m tests.simulation --help` says
	$(RUN) python -m tests.simulation --jobs $(JOBS) $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(if $(FAULTS),--faults $(FAULTS)) $(if $(MUTANT),--mutant $(MUTANT))

long:  ## the tests that take minutes: every planted bug is found again, every crash point is passed twenty times
	$(PYTEST) -q -m long -n $(JOBS)

style:  ## figures of how readable the source is; NAMES=1 lists the names behind them
	$(RUN) python -m tests.style $(if $(NAMES),--names)

ui:  ## build the page that servers show in a browser, unless it is up to date
	$(RUN) python ui/build.py

ui-test: ui/node_modules/.for-tests  ## types and unit tests of the page
	$(RUN) python ui/build.py npm run types
	$(RUN) python ui/build.py npm test

# `npm ci` makes the folder again, so the mark is gone when packages for tests are.
ui/node_modules/.for-tests: ui/package-lock.json
	$(RUN) python ui/build.py npm ci
	touch $@

docs:  ## write the generated pages of docs/ again, build the site in build/site, check its links
	$(RUN) python -m docs.generate
	$(RUN) python -m docs.build_site

bench:  ## every measurement of bench/, as the README lists them
	$(RUN) python bench/blackbox.py
	$(RUN) python bench/engine.py
	$(RUN) python bench/append.py
	$(RUN) python bench/core.py
	$(RUN) --group browser python bench/ui.py
	$(RUN) python bench/trace.py
	$(RUN) python bench/data.py
	$(RUN) python bench/loops.py
	$(RUN) python bench/grown.py
	$(RUN) python bench/slices.py
	$(RUN) python bench/spark.py
	$(RUN) python bench/jobs.py
	$(RUN) python bench/patients.py A
	$(RUN) python bench/patients.py B
	$(RUN) python bench/patients.py C
