package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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
	// One fixed place outside the module: the go command's cache makes a second build cheap, and no run leaves a new file.
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("ledgermq-test-bin-%d", os.Getuid()))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	path := filepath.Join(dir, fmt.Sprintf("ledgermq-%d", os.Getpid()))
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

// RemoveBinary deletes what Binary built. TestMain calls it last.
func RemoveBinary() {
	if os.Getenv("LEDGERMQ_TEST_BINARY") != "" {
		return
	}
	if path, err := Binary(); err == nil {
		os.Remove(path)
	}
}

// Root returns the module's folder.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}
