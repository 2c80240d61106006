# Environments and tests of examples/. The Makefile includes this file.

$(CACHE)/examples/venv/ready: requirements/examples.txt | system
	$(call say,Python environment of the examples: $(@D) (100 MB of it are a sentence encoder))
	@scripts/make_venv.sh $(@D) $(PYTHON) requirements/examples.txt
	@touch $@

$(CACHE)/examples/paddle/ready: requirements/paddle.txt | system
	$(call say,Paddle: $(@D) (fetches 260 MB the first time))
	@scripts/make_venv.sh $(@D) $(PYTHON) requirements/paddle.txt
	@touch $@

EXAMPLES_NEED := $(CACHE)/examples/venv/ready .venv-test/ready .venv/torch-ready .venv/tensorflow-ready recognisers images-model

test-examples test-examples-all: export MILLPOND_PROGRAM = $(TESTED)

.PHONY: test-examples
test-examples: tests-built $(EXAMPLES_NEED) ## run the examples and compare their output with examples/README.md
	$(call say,examples)
	.venv-test/bin/python -m pytest -c tests/examples/pytest.ini tests/examples -m "not large"

.PHONY: test-examples-all
test-examples-all: tests-built $(EXAMPLES_NEED) $(CACHE)/examples/paddle/ready ## also run the examples with large packages: Paddle
	$(call say,all examples)
	.venv-test/bin/python -m pytest -c tests/examples/pytest.ini tests/examples
