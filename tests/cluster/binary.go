package cluster

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
)

var binary = sync.OnceValues(buildBinary)

// Binary builds cmd/ledgermq once per process and returns the path of the result. LEDGERMQ_TEST_BINARY names one that is
// there already; with LEDGERMQ_TEST_RACE=1 it is built with the race detector.
func Binary() (string, error) { return binary() }

func buildBinary() (string, error) {
	if path := os.Getenv("LEDGERMQ_TEST_BINARY"); path != "" {
		return filepath.Abs(path)
	}
	if err := lookAtSources(); err != nil {
		return "", err
	}
	path := binaryPath()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	args := []string{"build", "-o", path}
	if os.Getenv("LEDGERMQ_TEST_RACE") == "1" {
		args = append(args, "-race")
	}
	build := exec.Command("go", append(args, "github.com/ledgermq/ledgermq/cmd/ledgermq")...)
	build.Dir = Root()
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the binary: %w\n%s", err, out)
	}
	return path, nil
}

// lookAtSources looks at what the binary is built from. The go command takes a result of a test out of its cache while the files that
// the test looked at are the same, and of what another process reads it knows nothing.
func lookAtSources() error {
	return filepath.WalkDir(Root(), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != Root() && (strings.HasPrefix(d.Name(), ".") || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if name := d.Name(); strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") || name == "go.mod" || name == "go.sum" {
			_, err = os.Stat(path)
		}
		return err
	})
}

// binaryPath is outside the module: the go command's cache makes a second build cheap.
func binaryPath() string {
	dir := fmt.Sprintf("ledgermq-test-bin-%d", os.Getuid())
	return filepath.Join(os.TempDir(), dir, fmt.Sprintf("ledgermq-%d", os.Getpid()))
}

// RemoveBinary deletes what Binary built. TestMain calls it last.
func RemoveBinary() {
	if os.Getenv("LEDGERMQ_TEST_BINARY") != "" {
		return
	}
	os.Remove(binaryPath())               // if it was built at all
	os.Remove(filepath.Dir(binaryPath())) // if no other run has one there
}

// Root returns the module's folder.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}
