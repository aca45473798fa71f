// Package client is LedgerMQ's own Go client. Our tools and tests send, read and administer with it; applications use the
// official RocketMQ clients.
//
// What it guarantees:
//   - A send has one of three outcomes. Without an error the message is stored as the cluster's mode says. With ErrNotStored it
//     is not stored and never will be. With ErrUnknown it may be stored or not; the client does not send it again, because
//     that could store it twice.
//   - A master that does not answer is waited for only as long as no name server names one of a higher term: then the send ends
//     as ErrUnknown, and the next one goes there.
//   - A message that was certainly not stored, or never left this process, is sent again, by a fresh route, until its context
//     ends.
//   - Messages with one OrderKey go to one queue. While the master of that queue is away they wait. That holds as long as
//     the number of queues of the topic stays the same.
//   - Of a broker group it never goes back to an address of a lower term, whichever name server names it.
//   - With every name server dead it goes on with the routes that it has.
//
// The flow of a send:
//
//	Send ─▶ route cache ─▶ choose a queue ─▶ connection of its master ─▶ OK: Receipt
//	  ▲        ▲ refresh from a name server                   │ refused, [NOT_STORED], never sent
//	  └────────┴──────────────────── wait a little ◀──────────┘ connection lost, time over, another master, [UNKNOWN]: ErrUnknown
//
// All methods of Client and Producer may be called from any goroutine. A Consumer has one caller at a time. Each goroutine
// that the package starts belongs to a Client or a Consumer and has ended when its Close returns.
//
// Read first: producer.go, then routes.go.
package client
