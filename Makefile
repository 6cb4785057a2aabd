# The only door: "make help" lists what there is.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help demo test faults check bench engines image build clean

help: ## list these targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | while IFS=$$'\t' read -r name what; do printf '  make %-7s %s\n' "$$name" "$$what"; done

demo: ## from nothing to a workflow in a real sandbox: installs what is missing (Debian, Ubuntu)
	@scripts/engine.sh with scripts/demo.sh

test: ## every test, with the race detector, on a real engine; installs and starts one where there is none
	@scripts/engine.sh with scripts/test.sh

faults: ## real faults against sandboxes, COUNT times in a row (default 1)
	@scripts/engine.sh with scripts/faults.sh

check: ## formatting, vet, staticcheck, import rules, tidy modules, examples; needs no engine
	@scripts/check.sh

bench: build ## measure capyrun beside the engine's own way, see BENCHMARKS.md
	@scripts/engine.sh with bash -c 'scripts/image.sh && go run ./docker/bench'

engines: ## the conformance suite on the Docker Engines of newer Debian releases: 26 and 28
	@scripts/engines.sh

image: ## get the default image: pulled, or built where no registry answers
	@scripts/engine.sh with scripts/image.sh

build: ## bin/capyrun, one static binary
	@. scripts/lib.sh && need_go
	CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o bin/capyrun ./cmd/capyrun

clean: ## remove what was built here; images and caches stay
	rm -rf bin build
