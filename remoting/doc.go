// Package remoting is RocketMQ's Remoting protocol: frames, both header codecs, and the connections that carry them. It
// knows codes and fields as numbers and strings; what they mean is the business of the packages above.
//
// A frame, integers big-endian:
//
//	0            4       5              8          8+h
//	| length 4   | codec | header len 3 | header h | body b |      length = 4 + h + b, at most MaxFrame with itself
//
// codec is 0 for a JSON header and 1 for ROCKETMQ's binary one; an answer is in the codec of its request.
//
// Guarantees of a connection:
//   - The Handler runs on the connection's one reader goroutine, in the order of arrival. A panic in it is answered with
//     code 1, logged, and harms nobody else.
//   - A one-way request gets no answer, whatever happens. A request gets at most one.
//   - Answers go out in the order in which they were appended. Who appends writes too; a goroutine writes only while the
//     socket is full. Nobody ever waits for a slow reader: over MaxOutput the connection is closed.
//   - A frame that cannot be read (too long, lying lengths, unknown codec, bad header) closes its connection with one log
//     line.
//
// Queues and their bounds: bytes of requests that wait for an answer, per connection (InFlightPerConn) and together
// (InFlightTotal): over it the answer is SYSTEM_BUSY at once; bytes of answers that wait for the socket, per connection
// (MaxOutput) and together (OutputTotal): over it the connection is closed; jobs of Server.Go (Workers, WorkerQueue): Go
// returns false.
//
// Concurrency: a request *Command belongs to its handler call. Conn, Server, Client may be used from any goroutine; a
// Pending by one at a time. docs/format/remoting.md shows the golden bytes.
//
// Read first: command.go, then conn.go, server.go.
package remoting
