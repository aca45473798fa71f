package lint

import (
	"slices"
	"strings"
	"testing"
)

// order lists the folders from the top down. A folder imports only folders below it; sub-packages count as their folder. This
// is the picture in ARCHITECTURE.md: change both together.
var order = []string{
	"cmd", "jepsen", "sim", "broker", "controller", "namesrv", "client", "index", "timer", "raftlog", "commitlog", "remoting", "message", "internal",
}

// barred narrows order: what a folder may not import although it stands below.
var barred = map[string]struct {
	what   []string
	reason string
}{
	"broker/state": {[]string{module + "/raftlog", module + "/remoting", "go.etcd.io/raft"}, "the state machine is computed from log records alone"},
	"jepsen":       {[]string{module + "/sim", module + "/broker", module + "/controller", module + "/namesrv", module + "/index", module + "/raftlog", module + "/commitlog", module + "/remoting"}, "it judges the cluster from outside, by what clients see"},
	"client":       {[]string{module + "/index", module + "/raftlog", module + "/commitlog"}, "a client knows the wire, not how servers store"},
	"index":        {[]string{module + "/raftlog", module + "/commitlog", module + "/remoting", module + "/message"}, "an index maps queue offsets to places and knows nothing of logs or messages"},
	"timer":        {[]string{module + "/raftlog", module + "/commitlog", module + "/remoting", module + "/message"}, "the timer index maps times to places and knows nothing of logs or messages"},
	"controller":   {[]string{module + "/namesrv", module + "/client", module + "/index", module + "/commitlog", module + "/remoting", module + "/message"}, "the controller decides who belongs to a group and never sees a message"},
	"namesrv":      {[]string{module + "/client", module + "/index", module + "/raftlog", module + "/commitlog"}, "a name server only knows routes"},
	"raftlog":      {[]string{module + "/message", module + "/remoting"}, "a replicated log knows nothing of messages"},
	"commitlog":    {[]string{module + "/message", module + "/remoting", "go.etcd.io/raft"}, "a commit log knows nothing of Raft or of messages"},
	"remoting":     {[]string{module + "/message"}, "the wire protocol carries bodies that it does not look into"},
}

// only names the libraries that belong to few folders, and why.
var only = map[string]struct {
	folders []string
	reason  string
}{
	"go.etcd.io/raft":         {[]string{"raftlog", "controller", "sim"}, "consensus is an inside of raftlog and of the controller"},
	"go.etcd.io/bbolt":        {[]string{"controller"}, "the commit log is the only store of a broker"},
	"google.golang.org/grpc":  {[]string{"controller", "cmd"}, "gRPC is the control plane and costs too much on the path of a message"},
	"github.com/urfave/cli":   {[]string{"cmd"}, "flags are read in cmd only"},
	"go.yaml.in/yaml":         {[]string{"cmd"}, "configuration files are read in cmd only"},
	"flag":                    {[]string{"cmd", "tests"}, "flags are read in cmd only"},
	"github.com/apache":       {[]string{"tests"}, "the official clients are for tests: what we serve is our own"},
	"github.com/anishathalye": {nil, "the checker of histories is for tests"},
	"go.uber.org/goleak":      {nil, "it is for tests"},
	"testing":                 {[]string{"tests"}, "code that is not a test must not look like one"},
}

func folderOf(dir string) string {
	top, _, _ := strings.Cut(dir, "/")
	return top
}

func under(path, prefix string) bool { return path == prefix || strings.HasPrefix(path, prefix+"/") }

// TestImportsPointDown holds the direction of imports. Tests may import anything.
func TestImportsPointDown(t *testing.T) { holds(t, checkImportsPointDown) }

func checkImportsPointDown(tr *tree, r *report) {
	for _, f := range tr.files {
		if f.test || folderOf(f.dir) == "tests" {
			continue
		}
		from := slices.Index(order, folderOf(f.dir))
		if from < 0 {
			r.bad("%s: folder %q has no place in the order of imports: add it to order in internal/lint/imports_test.go and to ARCHITECTURE.md", f.path, folderOf(f.dir))
			continue
		}
		for _, imp := range f.imports() {
			rel, own := strings.CutPrefix(imp, module+"/")
			if !own {
				continue
			}
			to := slices.Index(order, folderOf(rel))
			switch {
			case to < 0:
				r.bad("%s imports %s, which has no place in the order of imports: code that is not a test may not need it", f.path, rel)
			case to < from:
				r.bad("%s imports %s, which stands above it: declare the interface that %s needs where it is used, and let the caller pass it in", f.path, rel, f.dir)
			case folderOf(f.dir) == "internal" && rel != f.dir && !under(rel, f.dir) && !leafOfLeaves[rel]:
				r.bad("%s imports %s: packages in internal are leaves, except for internal/ids", f.path, rel)
			}
		}
	}
}

// leafOfLeaves may be imported by other leaves.
var leafOfLeaves = map[string]bool{"internal/ids": true}

func TestBarredImports(t *testing.T) { holds(t, checkBarredImports) }

func checkBarredImports(tr *tree, r *report) {
	for _, f := range tr.files {
		if f.test {
			continue
		}
		for folder, rule := range barred {
			if !under(f.dir, folder) {
				continue
			}
			for _, imp := range f.imports() {
				for _, what := range rule.what {
					if under(imp, what) {
						r.bad("%s imports %s: %s. Move the code up, or pass in what it needs", f.path, imp, rule.reason)
					}
				}
			}
		}
	}
}

func TestLibrariesStayInTheirFolders(t *testing.T) { holds(t, checkLibrariesStayInTheirFolders) }

func checkLibrariesStayInTheirFolders(tr *tree, r *report) {
	for _, f := range tr.files {
		if f.test {
			continue
		}
		for _, imp := range f.imports() {
			for library, rule := range only {
				if under(imp, library) && !slices.Contains(rule.folders, folderOf(f.dir)) {
					r.bad("%s imports %s: %s. Use it in one of %v, or change the table in internal/lint/imports_test.go with a reason", f.path, imp, rule.reason, rule.folders)
				}
			}
		}
	}
}

// TestFolderNames: a folder is a noun of the field. These words mean that a decision is missing.
func TestFolderNames(t *testing.T) { holds(t, checkFolderNames) }

func checkFolderNames(tr *tree, r *report) {
	vague := []string{"util", "utils", "common", "manager", "impl", "helper", "helpers", "misc", "base", "shared", "core", "types"}
	for dir := range tr.packages(func(*source) bool { return true }) {
		for part := range strings.SplitSeq(dir, "/") {
			if slices.Contains(vague, part) {
				r.bad("%s: %q says nothing: name the folder after what it holds", dir, part)
			}
		}
	}
}
