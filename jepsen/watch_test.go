package jepsen

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestLogTrouble holds that a panic or a race is found wherever it stands in a log, and that a log without one is not shown.
func TestLogTrouble(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	long := strings.Repeat(`{"message":"serving"}`+"\n", 1000)
	for name, text := range map[string]string{
		"n1.log": long + "panic: nobody expected this\n" + long,
		"n2.log": long,
		"n3.log": "WARNING: DATA RACE\nby two\n",
		"notes":  "panic: this is no log\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	trouble := LogTrouble(dir)
	if !strings.HasPrefix(trouble, "--- n1.log\npanic: nobody expected this\n") || !strings.HasSuffix(trouble, "--- n3.log\nWARNING: DATA RACE\nby two\n\n") {
		t.Errorf("the trouble is:\n%s", trouble)
	}
	if strings.Contains(trouble, "n2.log") || strings.Contains(trouble, "notes") {
		t.Errorf("trouble is seen where there is none:\n%s", trouble)
	}
	if ends := LogEnds(dir); strings.Count(ends, "--- ") != 3 || !strings.HasSuffix(ends, "by two\n\n") || strings.Contains(ends, "nobody expected") {
		t.Errorf("the ends of the logs are:\n%s", ends)
	}
}
