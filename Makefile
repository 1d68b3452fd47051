# SPDX-License-Identifier: Apache-2.0
# Names for the scripts. PYTHON=/path/python3 [WHEELS=dir] uses that interpreter and offline wheels instead of a .venv.
export PYTHON WHEELS TORCH_VERSION BUILD_TYPE CMAKE_ARGS PYTEST_ARGS BENCH_ARGS

.PHONY: all build cuda hip setup quickstart test bench lint wheel clean
all: build
setup:
	@scripts/setup.sh
build: setup
	@scripts/build.sh
cuda: setup
	@scripts/cuda.sh
hip: setup
	@scripts/hip.sh
quickstart: build
	@if nvidia-smi -L >/dev/null 2>&1 && command -v nvcc >/dev/null; then scripts/cuda.sh te_cuda; fi
	@scripts/python.sh examples/quickstart.py
test: build
	@scripts/test.sh
bench: build
	@scripts/bench.sh
lint: build
	@scripts/lint.sh
wheel: setup
	@scripts/wheel.sh
clean:
	rm -rf build dist bindings/python/libte/_generated bindings/python/libte/lib
