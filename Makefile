# Two commands matter: `make demo` runs Neve, `make test` checks it. Each does all of its own set-up.
.PHONY: help demo test long setup setup-test lint typecheck unit format proto lock fuzz mutants bench clean

PYTEST_ARGS ?=
BENCH_ARGS ?=
MUTANTS_ARGS ?=
export PYTHON

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

demo: setup  ## run Neve on this machine and show what it does
	@.venv/bin/python examples/demo.py

test: setup-test lint typecheck unit  ## all checks and tests, but for those of `make long`

long: setup-test  ## the checks that take long: the models' large configurations, and every deliberate bug is found
	.venv/bin/python -m pytest -n 3 --dist loadscope -m long
	.venv/bin/python -m tests.sim --bugs

setup:  ## .venv with what a local cluster needs
	@scripts/setup run

setup-test:
	@scripts/setup test

lint: setup-test
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

typecheck: setup-test
	scripts/typecheck

unit: setup-test  ## the tests alone; PYTEST_ARGS="-k wire -x" narrows them
	.venv/bin/python -m pytest -n 3 --dist loadscope -m "not long" $(PYTEST_ARGS)

format: setup-test  ## format the code, and fix what can be fixed
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

proto: setup-test  ## generate the Python for the .proto files
	.venv/bin/python proto/generate.py

lock: setup-test  ## write the lock files anew from pyproject.toml
	scripts/lock

fuzz: setup-test  ## fuzz the frame decoder for a minute
	.venv/bin/python -m pip install --quiet --disable-pip-version-check 'atheris>=2.3'
	.venv/bin/python -m tests.fuzz.frames -max_total_time=60

mutants: setup-test  ## change the decision cores in small ways: their tests should notice; MUTANTS_ARGS=meta/core_retry for one
	.venv/bin/python -m pip install --quiet --disable-pip-version-check 'mutmut>=3.8,<4'
	.venv/bin/python -m tests.mutants $(MUTANTS_ARGS)

bench: setup-test  ## measure transports and node beside the machine's limits; BENCH_ARGS=--quick for a short look
	.venv/bin/python -m tests.bench.rpc $(BENCH_ARGS)
	.venv/bin/python -m tests.bench.node $(BENCH_ARGS)

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
