# make lab    the environment (first time), then JupyterLab on the first chapter
# make test   the environment (first time), then everything that needs no GPU
# make test-colab    the part of it that runs every chapter with the front end of Colab
# TORCH_INDEX=https://download.pytorch.org/whl/cpu make lab    the same with PyTorch's CPU build, without the CUDA libraries
# The plain commands behind the targets are in README.md. Written for GNU make 3.81, which macOS still ships.

PYTHON ?= python3 python3.13 python3.12 python3.11 python3.14 python
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --constraint constraints.txt
READY := $(VENV)/tensor-lab-ready
TRUSTED := $(VENV)/tensor-lab-trusted
COLAB := .venv-colab
COLAB_PIP := $(COLAB)/bin/python -m pip install --constraint $(COLAB)/others.txt
COLAB_READY := $(COLAB)/tensor-lab-ready

# Signatures, connection files, open tabs and history stay inside the checkout: tabs that the reader has open elsewhere are
# not opened here, and a start-up file of the reader's own IPython cannot change what a chapter shows.
JUPYTER := JUPYTER_DATA_DIR="$$PWD/$(VENV)/share/jupyter" IPYTHONDIR="$$PWD/$(VENV)/share/ipython" \
  JUPYTERLAB_WORKSPACES_DIR="$$PWD/$(VENV)/share/jupyter/lab/workspaces"
# Pictures of graphs must not depend on the version of the machine's `dot` where they are compared.
RENDERER := TENSOR_LAB_RENDERER=graphviz-pure
# Two workers, each with a thread for every core, would spend their time waiting for each other.
ALONE := OMP_NUM_THREADS=1

.PHONY: help lab test test-colab notebooks bench gpu-check clean env
help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

# What JupyterLab starts with in this environment; the reader's own settings still win. Controls are saved with a chapter:
# else who comes back to it finds "Error displaying widget" where a question was.
define LAB_DEFAULTS
{
  "@jupyter-widgets/jupyterlab-manager:plugin": {"saveState": true},
  "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": false},
  "@jupyterlab/docmanager-extension:plugin": {"defaultViewers": {"markdown": "Markdown Preview"}}
}
endef
export LAB_DEFAULTS

lab: $(TRUSTED)
	@mkdir -p $(VENV)/etc/jupyter/labconfig
	@printf '%s\n' "$$LAB_DEFAULTS" > $(VENV)/etc/jupyter/labconfig/default_setting_overrides.json
	@root=; [ "$$(id -u)" -ne 0 ] || root=--allow-root; \
	$(JUPYTER) exec $(PY) -m jupyterlab $$root --ServerApp.ip=127.0.0.1 --ServerApp.root_dir="$$PWD" \
	  --LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb $(LAB_ARGS)

# A fresh clone is untrusted, and JupyterLab hides the SVG pictures of untrusted notebooks.
# Chapters only: a notebook of the reader's own, whatever its name and state, is none of this rule's business.
CHAPTER_FILES := $(wildcard notebooks/[0-9][0-9]_*.ipynb)
$(TRUSTED): $(READY) $(CHAPTER_FILES)
	@$(JUPYTER) $(PY) -m nbformat.sign --log-level=ERROR $(CHAPTER_FILES) > /dev/null
	@touch $@

# One pytest run for unit tests, browser tests and chapters: they share two workers, and coverage is one number. Then the
# chapters once more, as on Colab.
test: $(READY)
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(JUPYTER) $(RENDERER) $(ALONE) $(PY) -m pytest tests notebooks -m 'not gpu and not colab' -n 2 --dist loadfile --no-loadscope-reorder \
	  --nbval --nbval-current-env --nbval-sanitize-with tests/nbval.cfg --nbval-cell-timeout 120 \
	  --cov=helpers --cov-report=term $(TEST_ARGS)
	@$(MAKE) --no-print-directory test-colab

# Graphs are drawn by what is there, as on Colab, which has `dot`.
test-colab: $(COLAB_READY)
	@$(JUPYTER) $(ALONE) $(PY) -m pytest tests/test_colab.py -m colab -n 2 --dist worksteal

# Runs every chapter and writes its outputs back: make notebooks CHAPTERS=notebooks/04_inplace_memory.ipynb for one.
notebooks: $(READY)
	@$(JUPYTER) $(RENDERER) $(PY) notebooks/_make.py $(CHAPTERS)

bench: $(READY)
	@for script in benchmarks/[!_]*.py; do echo "== $$script"; $(PY) $$script || exit 1; done

gpu-check: $(READY)
	@if $(PY) -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; \
	then $(JUPYTER) $(RENDERER) $(PY) -m pytest tests -m gpu; \
	else echo "gpu-check: PyTorch finds no CUDA device here, so nothing was checked"; fi

clean:
	rm -rf $(VENV) $(COLAB) .pytest_cache .ruff_cache .coverage .coverage.* build *.egg-info
	find helpers notebooks tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
	rm -rf notebooks/.ipynb_checkpoints

# The stamp is newer than both files while the environment is what they say, so a second call has nothing to do.
env: $(READY)
$(READY): pyproject.toml constraints.txt
	@found=; old=; bare=; \
	for p in $(PYTHON); do \
	  v=$$("$$p" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) || continue; \
	  "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { old="$${old:-$$p, which is Python $$v}"; continue; }; \
	  "$$p" -c 'import ensurepip, venv' 2>/dev/null || { bare="$${bare:-$$p (Python $$v)}"; continue; }; \
	  found=$$p; break; \
	done; \
	hint="or name another one: make $(firstword $(MAKECMDGOALS)) PYTHON=/path/to/python3"; \
	if [ -z "$$found" ]; then \
	  if [ -n "$$bare" ]; then echo "error: $$bare has no venv module; install it (Debian, Ubuntu: python3-venv), $$hint"; \
	  elif [ -n "$$old" ]; then echo "error: Python 3.11 or newer is needed and the only one found is $$old; install one, $$hint"; \
	  else echo "error: Python 3.11 or newer is needed and none was found (looked for: $(PYTHON)); install one, $$hint"; fi >&2; \
	  exit 1; \
	fi; \
	if $(PY) -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
	then echo "Updating the environment in $(VENV)"; \
	else echo "Making the environment in $(VENV) with $$found; PyTorch is the large part of the download"; \
	  "$$found" -m venv --clear $(VENV); fi
	@# First, and without its dependencies: that index need not have them in the versions that constraints.txt names.
	@if [ -n "$(TORCH_INDEX)" ]; then $(PIP) --index-url "$(TORCH_INDEX)" --no-deps torch; fi
	@$(PIP) --editable '.[lab,test,bench]'
	@touch $@

# PyTorch is installed a second time and not shared: the path that leads to it would lead to the rest of $(VENV) as well,
# and so to what Colab lacks. Both take what they do not name themselves from constraints.txt.
$(COLAB_READY): tests/colab/requirements.txt constraints.txt | $(READY)
	@echo "Making the environment with Colab's front end in $(COLAB)"
	@$(PY) -m venv --clear $(COLAB)
	@sed -n 's/^\([^#=]*==\).*/^\1/p' tests/colab/requirements.txt > $(COLAB)/named.txt
	@grep -v -i -f $(COLAB)/named.txt constraints.txt > $(COLAB)/others.txt
	@if [ -n "$(TORCH_INDEX)" ]; then $(COLAB_PIP) --index-url "$(TORCH_INDEX)" --no-deps torch; fi
	@$(COLAB_PIP) --requirement tests/colab/requirements.txt
	@touch $@
