# LedgerMQ. Plain `make` shows this help. Needs Go and make; nothing else.

SEEDS ?= 100
FIRST ?= 1
CRASHES ?= 300
FUZZTIME ?= 10s
ARGS ?=

.PHONY: help build run test race lint sim sim-mutants crash fuzz java bench clean

help: ## show this help
	@echo 'LedgerMQ: a replicated message broker for the clients of Apache RocketMQ.'
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo 'Start here: make run. Then README.md, and ARCHITECTURE.md for the way of one message through the folders.'

build: ## build bin/ledgermq
	go build -o bin/ledgermq ./cmd/ledgermq

run: build ## run a replicated cluster of three nodes on this machine (ARGS="--groups 1 …")
	bin/ledgermq dev $(ARGS)

test: ## run the tests, the black-box ones against the built binary included
	go test ./...

race: ## run the tests of the packages that share memory under the race detector
	tests/ci/race

lint: ## gofmt, go vet, staticcheck
	tests/ci/lint

sim: ## simulate groups and controllers on a virtual clock, network and disk (SEEDS=100 FIRST=1)
	go test ./sim -count=1 -v -run TestSeeds -timeout 60m -args -seeds=$(SEEDS) -first=$(FIRST) -quiet

sim-mutants: ## break each rule of membership, and print the table of what notices
	go test ./sim -count=1 -v -run 'TestMutants|TestRuleMutants' -timeout 60m -args -rules

crash: ## crash the commit log again and again (CRASHES=300)
	tests/ci/crash $(CRASHES)

fuzz: ## run every fuzz target for FUZZTIME=10s
	tests/ci/fuzz $(FUZZTIME)

java: ## run the official Java client's cases (needs Maven and a JDK)
	tests/ci/java

bench: build ## measure sends and pulls, beside the same load without replication and the bare disk
	go run ./tests/bench $(ARGS)

clean: ## remove what was built
	rm -rf bin tests/java/*/target
