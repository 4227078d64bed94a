# `make evolve` and `make test` each set up what they need, from a fresh clone on, and may be given again at any time.
# The environment is remade when the checkout has moved or Python has changed, and brought up to date when pyproject.toml
# has; its stamps carry these in their names, because times of files say nothing after a clone or a move.

ifndef PYTHON
PYTHON := $(shell for p in python3 python3.13 python3.12 python3.11; do command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' && echo $$p && break; done)
endif
BIN := .venv/bin
HERE := $(shell { pwd -P; $(or $(PYTHON),false) -VV; } 2>/dev/null | cksum | cut -d' ' -f1)
WANT := $(shell cksum < pyproject.toml | cut -d' ' -f1)
MADE := .venv/made-$(HERE)
READY := .venv/ready-$(HERE)-$(WANT)
LITELLM := .venv/litellm-$(HERE)-$(WANT)
TRACES := .venv/traces-$(HERE)-$(WANT)
RAY := .venv/ray-$(HERE)-$(WANT)
AGENTS := mini-swe-agent==2.4.6 smolagents[openai]==1.26.0
FOREIGN := .venv/foreign-$(HERE)-$(shell echo '$(AGENTS)' | cksum | cut -d' ' -f1)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# What `make evolve` takes: make evolve MODEL=openai/NAME API_BASE=http://127.0.0.1:8000/v1 BUDGET=2usd ...
HARNESS ?= runs/small
STARTER ?= small
ifeq ($(origin ENV),environment)  # shells keep the name of their start file in a variable of this name
ENV := $(filter-out /% ~% $$%,$(ENV))
endif
ENV := $(or $(ENV),household)
flag = $(if $($(1)),$(2) '$($(1))')
FLAGS = $(call flag,RECIPE,--recipe) $(call flag,BUDGET,--budget) $(call flag,MODEL,--model) $(call flag,GGUF,--gguf) \
  $(call flag,API_BASE,--api-base) $(call flag,API_KEY_ENV,--api-key-env) $(call flag,PROPOSER,--proposer) \
  $(call flag,PROPOSER_API_BASE,--proposer-api-base) $(call flag,PROPOSER_API_KEY_ENV,--proposer-api-key-env) \
  $(call flag,SEED,--seed) $(call flag,N,--n) $(call flag,CONCURRENCY,--concurrency) $(call flag,OUT,--out) $(ARGS)
# openai/ and local models need nothing more; any other PROVIDER/NAME goes through litellm
PROVIDERS := $(strip $(foreach spec,$(firstword $(MODEL)) $(firstword $(PROPOSER)),$(if $(findstring /,$(spec)),$(filter-out openai/% gguf:% scripted:%,$(spec)))))

.PHONY: evolve test lint bench setup litellm ray test-ray test-traces test-foreign clean
.DELETE_ON_ERROR:

evolve: $(READY) $(if $(PROVIDERS),$(LITELLM))  ## evolve an agent, print the evidence and write it down
	@test -f '$(HARNESS)/harness.toml' || $(BIN)/instar init '$(HARNESS)' --starter '$(STARTER)' >/dev/null
	@$(BIN)/instar evolve '$(HARNESS)' --env '$(ENV)' $(FLAGS)

test: lint  ## lint, then all tests
	$(BIN)/python -m pytest $(ARGS)

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## BENCH="runner memory" picks some, ARGS=--quick is quick
	@for name in $(or $(BENCH),runner memory envs evolver stats); do $(BIN)/python -m bench $$name $(ARGS) || exit 1; done

setup: $(READY)  ## only set up

litellm: $(LITELLM)  ## set up, with the litellm extra

ray: $(RAY)  ## set up, with the ray extra

test-ray: $(RAY)  ## set up, with the ray extra, and pass the tests that need it
	$(BIN)/python -m pytest tests/harness/test_ray.py tests/harness/test_engine.py tests/e2e/test_cli_ray.py tests/e2e/test_docs_scaling.py $(ARGS)

test-traces: $(TRACES)  ## set up, with the otel and mlflow extras, and pass the tests that need them
	$(BIN)/python -m pytest tests/evolve/test_traces_otlp.py tests/evolve/test_traces_mlflow.py tests/evolve/test_traces_spans.py $(ARGS)

test-foreign: $(READY) $(FOREIGN)  ## agents that others wrote, in an environment of their own, play through the proxy
	INSTAR_FOREIGN=.venv/foreign/bin $(BIN)/python -m pytest tests/e2e/test_foreign_agents.py $(ARGS)

clean:  ## remove what can be made again; runs/ stays
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(MADE):
	@test -n '$(PYTHON)' || { echo 'error: no Python 3.11 or newer was found. Cure: install one, or make PYTHON=/path/to/python3.11 ...' >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo 'error: $(PYTHON) is older than Python 3.11. Cure: make PYTHON=/path/to/python3.11 ...' >&2; exit 1; }
	@echo 'setting up .venv (once; a minute or two) ...' >&2
	@$(PYTHON) -m venv --clear .venv
	@touch $@

$(READY): $(MADE)
	@$(PIP) -e '.[dev]'
	@touch $@

$(LITELLM): $(READY)
	@$(PIP) -e '.[dev,litellm]'
	@touch $@

$(RAY): $(READY)
	@$(PIP) -e '.[dev,ray]'
	@touch $@

$(TRACES): $(READY)
	@$(PIP) -e '.[dev,otel,mlflow]'
	@touch $@

$(FOREIGN): $(MADE)
	@$(PYTHON) -m venv --clear .venv/foreign
	@.venv/foreign/bin/python -m pip install --quiet --disable-pip-version-check $(AGENTS)
	@touch $@
