# LedgerMQ. Plain `make` shows this help. Needs Go and make; nothing else.

SEEDS ?= 100
FIRST ?= 1
CRASHES ?= 300
FUZZTIME ?= 10s
RUNS ?= kill-22,kill-23,pause-22,pause-23,partition-22,partition-23
SEED ?= 1
DURATION ?= 15s
ROUNDS ?= 3
ARGS ?=

.PHONY: help build run test race lint sim sim-mutants crash fuzz jepsen failover java mqadmin conformance bench rates clean

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
	go test -timeout 25m ./...

race: ## run the tests of the packages that share memory under the race detector
	tests/ci/race

lint: ## gofmt, go vet, staticcheck
	tests/ci/lint

sim: ## simulate groups and controllers on a virtual clock, network and disk (SEEDS=100 FIRST=1)
	go test ./sim -count=1 -v -run TestSeeds -timeout 60m -args -seeds=$(SEEDS) -first=$(FIRST) -quiet

sim-mutants: ## break each rule of membership, identity and recovery, and print the table of what notices
	go test ./sim -count=1 -v -run 'TestMutants|TestRuleMutants' -timeout 60m -args -rules=.

crash: ## crash the commit log again and again (CRASHES=300)
	tests/ci/crash $(CRASHES)

fuzz: ## run every fuzz target for FUZZTIME=10s
	tests/ci/fuzz $(FUZZTIME)

jepsen: build ## kill, pause and cut off real processes, and judge what clients saw (RUNS=kill-22,… SEED=1 DURATION=15s)
	LEDGERMQ_TEST_BINARY=$(CURDIR)/bin/ledgermq go test ./jepsen -count=1 -run '^TestSuite$$' -timeout 30m -v \
		-args -names=$(RUNS) -seed=$(SEED) -duration=$(DURATION) -keep=$(CURDIR)/bin/jepsen

failover: build ## measure how long clients wait when a replica is lost or moves (ROUNDS=3 ARGS="-clients own,go,go*3,java,java*3")
	LEDGERMQ_TEST_BINARY=$(CURDIR)/bin/ledgermq go run ./tests/failover -rounds $(ROUNDS) $(ARGS)

java: ## run the official Java client's cases (needs Maven and a JDK)
	tests/ci/java

conformance: ## run the same cases against Apache RocketMQ and this binary, and compare (needs Maven and a JDK; ARGS="-short -run …")
	tests/ci/java conformance $(ARGS)

mqadmin: ## run each command of RocketMQ's mqadmin against a cluster (LEDGERMQ_TEST_WRITE=1 writes docs/mqadmin.md)
	mvn -q -B -f tests/java/pom.xml -pl admin package
	LEDGERMQ_TEST_JAVA=1 go test ./tests -count=1 -run '^TestJavaMqadmin$$' -timeout 10m -v

bench: build ## measure sends and pulls, beside the same load without replication and the bare disk
	go run ./tests/bench $(ARGS)

rates: build ## measure transactions and timers beside Apache RocketMQ (needs Maven and a JDK; ARGS=-timers for how late timers come)
	mvn -q -B -f tests/java/pom.xml -pl server -am package
	LEDGERMQ_TEST_BINARY=$(CURDIR)/bin/ledgermq go run ./tests/bench/rates $(ARGS)

clean: ## remove what was built
	rm -rf bin tests/java/*/target
