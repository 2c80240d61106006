# The LibTorch engine: the wheel without the parts of CUDA that only a GPU needs, and the shim that the server opens at
# the first TorchScript model. The Makefile includes this file and makes `.venv`.

TORCH_SHIM_DIR := .venv/millpond
TORCH_SHIM := $(TORCH_SHIM_DIR)/libmillpond_torch.so
TORCH_SOURCES := $(wildcard engines/torch/*.cc)
TORCH_HEADERS := $(wildcard engines/torch/*.h)
TORCH_CXX ?= g++
TORCH_CXXFLAGS := -std=c++20 -O2 -fPIC -fvisibility=hidden -Wall -Wextra -Wno-unused-parameter

.PHONY: torch
torch: .venv/torch-ready ## install the LibTorch engine in .venv (fetches 550 MB the first time)

.venv/torch-packages: requirements/torch.txt .venv/ready
	$(call say,LibTorch into .venv (550 MB the first time))
	@flock .venv/ready .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile \
		--requirement requirements/torch.txt
	@touch $@

.PHONY: torch-cuda
torch-cuda: .venv/torch-ready requirements/torch-cuda.txt ## install CUDA for `device = "cuda"` beside the LibTorch engine (3 GB in .venv)
	$(call say,CUDA libraries of LibTorch into .venv (3 GB))
	@.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-compile \
		--requirement requirements/torch-cuda.txt

# The sources are compiled as one file, since each alone would read the headers of LibTorch again, 20 s of a core.
$(TORCH_SHIM_DIR)/shim.o: $(TORCH_SOURCES) $(TORCH_HEADERS) .venv/torch-packages
	@mkdir -p $(TORCH_SHIM_DIR)
	@echo "$(TORCH_CXX) $(TORCH_SOURCES)"
	@torch=$$(echo .venv/lib/python3*/site-packages/torch); printf '#include "%s"\n' $(TORCH_SOURCES) | \
	$(TORCH_CXX) $(TORCH_CXXFLAGS) -I. -isystem "$$torch/include" -isystem "$$torch/include/torch/csrc/api/include" \
		-c -o $@ -x c++ -

# The wheel's libtorch.so is empty and needs all of CUDA. Compiled packages need a library of that name.
$(TORCH_SHIM): $(TORCH_SHIM_DIR)/shim.o
	@$(TORCH_CXX) -shared -Wl,-soname,libtorch.so -o $(TORCH_SHIM_DIR)/libtorch.so -x c /dev/null
	@torch=$$(echo .venv/lib/python3*/site-packages/torch); site=$${torch#.venv/}; \
	$(TORCH_CXX) -shared -o $@.tmp $^ -L"$$torch/lib" -ltorch_cpu -lc10 -Wl,--no-undefined,--allow-shlib-undefined \
		-Wl,-rpath,'$$ORIGIN:$$ORIGIN/../'"$$site/lib"
	@mv $@.tmp $@

.venv/torch-ready: $(TORCH_SHIM)
	@touch $@

# Pretended GPUs for tests on machines without one: a library with the name of LibTorch's CUDA library, in a directory
# where the server does not search.
PRETEND_GPU := $(CACHE)/pretend-gpu/libtorch_cuda.so
$(PRETEND_GPU): engines/torch/pretend/gpu.cc .venv/torch-packages
	$(call say,Pretended GPUs for tests: $@)
	@mkdir -p $(@D)
	@torch=$$(echo .venv/lib/python3*/site-packages/torch); \
	$(TORCH_CXX) $(TORCH_CXXFLAGS) -isystem "$$torch/include" -shared -o $@.tmp $< -L"$$torch/lib" -ltorch_cpu -lc10 \
		-Wl,--no-undefined,--allow-shlib-undefined
	@mv $@.tmp $@
