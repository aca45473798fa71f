package broker

import (
	"runtime"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"github.com/ledgermq/ledgermq/broker/state"
)

// A request whose client is told of a reset goes when it was answered: what is noted of it must not keep its whole frame.
func TestResetsToldKeepNoRequest(t *testing.T) {
	t.Parallel()
	var told resetsTold
	gone := make(chan struct{})
	func() {
		frame := new([4096]byte)
		text := unsafe.String(&frame[0], copy(frame[:], "cg 127.0.0.1:1"))
		runtime.AddCleanup(frame, func(int) { close(gone) }, 0)
		if told.tell(state.Reset{Group: text[:2], Offset: 7}, text[3:]) {
			t.Error("the first one knew of it")
		}
	}()
	for end := time.Now().Add(20 * time.Second); ; {
		runtime.GC()
		select {
		case <-gone:
		default:
			if time.Now().After(end) {
				t.Fatal("the frame of the request is kept")
			}
			runtime.Gosched()
			continue
		}
		break
	}
	if !told.tell(state.Reset{Group: "cg", Offset: 7}, "127.0.0.1:1") {
		t.Error("it was not noted")
	}
}

// A reset that no member takes over must not gather clients for ever.
func TestResetsToldAreBounded(t *testing.T) {
	t.Parallel()
	var told resetsTold
	reset := state.Reset{Group: "cg"}
	for i := range 2*maxTold + 10 {
		told.tell(reset, strconv.Itoa(i))
	}
	if n := len(told.who[reset]); n == 0 || n > maxTold {
		t.Errorf("%d clients are noted, want at most %d", n, maxTold)
	}
	told.forget(reset)
	for i := range maxTold {
		told.tell(reset, strconv.Itoa(i))
	}
	if !told.tell(reset, "0") {
		t.Error("what was forgotten counts still")
	}
}
