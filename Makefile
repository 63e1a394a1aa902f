# make app    opens the Lab in a browser        make test   checks style, types and behaviour
# make bench  measures speed and memory         make lint   checks style and types alone
# Each first makes what it needs: an environment in .venv, once, and again when the requirements change.

PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
# A browser can be opened on a Mac and wherever there is a display; elsewhere the address is printed.
HEADLESS := $(if $(or $(filter Darwin,$(shell uname)),$(DISPLAY),$(WAYLAND_DISPLAY)),false,true)

.DELETE_ON_ERROR:
.PHONY: app test bench lint clean

app: $(VENV)/app.stamp
	$(BIN)/streamlit run app.py --server.headless=$(HEADLESS) --server.showEmailPrompt=false

test: lint
	$(BIN)/pytest

bench: $(VENV)/dev.stamp
	$(BIN)/python -m benchmarks

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .lab .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/app.stamp: requirements.txt | $(VENV)/pyvenv.cfg
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	touch $@

$(VENV)/dev.stamp: requirements.txt requirements-frameworks.txt requirements-dev.txt | $(VENV)/pyvenv.cfg
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	touch $(VENV)/app.stamp $@

$(VENV)/pyvenv.cfg:
	@command -v $(PYTHON) > /dev/null || { echo "$(PYTHON) was not found: install Python 3.11," \
	"or name yours with make PYTHON=/path/to/python3.11."; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "$(PYTHON) is not" \
	"Python 3.11: name one that is with make PYTHON=/path/to/python3.11."; exit 1; }
	@echo "Making the environment in $(VENV): a few minutes, about 6 GB with PyTorch."
	$(PYTHON) -m venv $(VENV)
