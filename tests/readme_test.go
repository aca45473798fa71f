package tests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

func readRepoFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(cluster.Root(), filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// squeeze removes white space.
func squeeze(s string) string { return strings.Join(strings.Fields(s), "") }

// TestReadmeCodeIsTheTestedCode compares the code that README.md shows with the code that the tests run.
func TestReadmeCodeIsTheTestedCode(t *testing.T) {
	t.Parallel()
	readme := readRepoFile(t, "README.md")
	for _, name := range []string{"tests/firststeps_test.go", "tests/java/src/main/java/org/ledgermq/tests/FirstSteps.java"} {
		_, after, ok := strings.Cut(readRepoFile(t, name), "// README begin\n")
		code, _, end := strings.Cut(after, "// README end")
		if !ok || !end {
			t.Fatalf("%s has no marks", name)
		}
		if !strings.Contains(squeeze(readme), squeeze(code)) {
			t.Errorf("README.md does not show the code between the marks in %s:\n%s", name, code)
		}
	}
}

// TestReadmeTestCommandIsWhatCIRuns holds that CI runs exactly what README.md tells a reader to run.
func TestReadmeTestCommandIsWhatCIRuns(t *testing.T) {
	t.Parallel()
	if !strings.Contains(readRepoFile(t, "README.md"), "\nmake test ") {
		t.Error("README.md does not name make test")
	}
	ci := readRepoFile(t, ".ci/run")
	if !strings.Contains(ci, "\nstep make test\n") {
		t.Error(".ci/run does not run make test")
	}
	if !strings.Contains(ci, "set -euo pipefail") {
		t.Error(".ci/run goes on after a failure")
	}
}
