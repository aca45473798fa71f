package ids

import (
	"strings"
	"testing"
)

func TestNodeID(t *testing.T) {
	t.Parallel()
	for id, good := range map[string]bool{
		"n1": true, "A-Z.a_9": true, strings.Repeat("n", MaxNodeID): true,
		"": false, strings.Repeat("n", MaxNodeID+1): false, "n 1": false, "n\n": false, "n/1": false, "ñ": false, "n\xff": false, "n\x00": false,
	} {
		if err := NodeID(id).Check(); (err == nil) != good {
			t.Errorf("node id %q: %v", id, err)
		}
	}
}

func TestSegmentSize(t *testing.T) {
	t.Parallel()
	for n, good := range map[int64]bool{
		MinSegmentSize: true, DefaultSegmentSize: true, MaxSegmentSize: true,
		MinSegmentSize - 1: false, MinSegmentSize / 2: false, MinSegmentSize + 1: false, 3 * MinSegmentSize: false,
		MaxSegmentSize * 2: false, 0: false, -MinSegmentSize: false, -1 << 63: false,
	} {
		if err := CheckSegmentSize(n, MinSegmentSize); (err == nil) != good {
			t.Errorf("segment size %d: %v", n, err)
		}
	}
}
