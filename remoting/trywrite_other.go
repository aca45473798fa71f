//go:build !unix

package remoting

import "syscall"

// tryWriter takes nothing where a write without waiting is not known: the connection's goroutine does it all.
type tryWriter struct{}

func (t *tryWriter) init() {}

func (t *tryWriter) write(raw syscall.RawConn, p []byte) (int, error) { return 0, nil }
