// Package conformance runs the same cases against Apache RocketMQ and against the built LedgerMQ binary and compares what they print. It
// is a test with nothing else in it: `make conformance`.
//
// A case is data: a name and a program, which prints lines, a key and a value each, of what a client sees: codes, properties, counts,
// order, the fields of answers. A program does not judge; two systems that print the same are alike. What may differ from run to run
// (addresses, times, ids) it does not print, or prints as a word. A difference is a failure unless the case names the key and the id of the
// row of docs/divergence.md that says why; and a difference that a case names and that is not there is a failure too.
//
// Programs are Go functions, which send bare requests (wire.go, later.go, endings.go) or have the official Go client (official.go), and
// cases of the Java programs in tests/java, which keep one JVM for each client and system: the official clients of two generations in
// org.ledgermq.tests.Conformance, and RocketMQ's own mqadmin and admin client in org.ledgermq.admin.Mqadmin. A case with Failover stops
// in its middle: then the master of our group is killed, and the case goes on with another one. RocketMQ, which has one broker here, is
// left alone.
//
// Continuous integration runs what is neither Long nor has a Failover; the whole is run by hand, or those of one client through a
// failover: `make conformance ARGS="-run TestConformance/failovers/go"`. Who writes cases lets both systems run and tries one case after
// the other: `LEDGERMQ_TEST_CONFORMANCE=1 go test ./tests/conformance -run TestConformance/cases/go/recalls -there ADDR -here ADDR`.
//
// Read case.go first, then conformance_test.go.
package conformance
