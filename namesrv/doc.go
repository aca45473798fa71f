// Package namesrv is the name server: it tells clients which topics there are and where the brokers of a topic listen.
//
// It guarantees that it never goes back: what a broker of a lower term says never overwrites, removes, unregisters or, by a
// closed connection, hides what a higher term said about the same address or the same place in a broker group. Name servers
// keep everything in memory, know nothing of each other and may start and stop at any time. While a name server is young it
// says "not ready" for a topic it has not heard of, and never "no such topic".
//
// The package has two halves. Routes is a pure table: each event comes with its time and returns its effect; no clock, lock,
// goroutine or socket is in it. Server puts it behind the remoting protocol, with one lock and two goroutines: one expires
// silent brokers, one finds out when the server is ready. All methods of Server may be called from any goroutine. Routes
// belongs to one caller at a time.
//
//	broker ── 103 register ──▶ Server ── Registration, now ──▶ Routes: groups ─▶ places ─▶ address, term, connection
//	       ── 104, close ────▶                                        topics ─▶ groups
//	client ◀─ 105 route ─────        ◀── TopicRoute ──────────
//
// The bodies of registrations are shown in docs/format/namesrv.md. Read routes.go first.
package namesrv
