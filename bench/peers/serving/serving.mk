# Other model servers beside Millpond: bench/peers/serving.py. The Makefile includes this file.

SERVING_PEERS := $(CACHE)/serving-peers/tools

$(SERVING_PEERS)/ready: bench/peers/serving/tools.txt | system
	$(call say,Python environment of the comparison with other servers: $(@D))
	@scripts/make_venv.sh $(@D) $(PYTHON) bench/peers/serving/tools.txt
	@cp bench/peers/serving/tools.txt $@

.PHONY: wrk
wrk: system
	@scripts/command_packages.sh wrk=wrk

.PHONY: peers-serving
peers-serving: build-bench wrk $(SERVING_PEERS)/ready ## compare with mosec, LitServe, MLServer, BentoML, Ray Serve, PyTriton (15 min; JSON=OUT)
	@$(SERVING_PEERS)/bin/python bench/peers/serving.py --program $(MILLPOND) \
		--json $(or $(JSON),$(CACHE)/bench/serving-peers.json) \
		--chart $(basename $(or $(JSON),$(CACHE)/bench/serving-peers.json)).svg $(PEERS_FLAGS)
