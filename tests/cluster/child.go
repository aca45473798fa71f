package cluster

import (
	"os/exec"
	"runtime"
	"sync"
)

// Spawn starts a long-lived process that ends with this program, however this one ends: a test run that panics or is killed leaves none
// behind. It has Linux do so; elsewhere the process stays. wait is cmd.Wait, may be called more than once, and must be called at last.
func Spawn(cmd *exec.Cmd) (wait func() error, err error) {
	endsWithParent(cmd)
	started, asked, ended := make(chan error), make(chan struct{}), make(chan error)
	go func() { // ends with wait
		// The kernel ends the process when the thread that started it is gone: so that thread is kept.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			<-asked
			ended <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return sync.OnceValue(func() error { close(asked); return <-ended }), nil
}
