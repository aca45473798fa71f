package tests

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ledgermq/ledgermq/tests/cluster"
)

const modulePath = "github.com/ledgermq/ledgermq/"

// layers are the folders from the top to the bottom. A package may import what stands in a line below its own; packages of one
// line do not know each other. A folder counts with its sub-folders, which may import each other.
var layers = [][]string{
	{"cmd"},
	{"sim"},
	{"broker"},
	{"controller"},
	{"namesrv"},
	{"client"},
	{"index"},
	{"raftlog"},
	{"commitlog"},
	{"remoting"},
	{"message"},
	{"internal"},
}

// forbidden are imports that the order alone would allow.
var forbidden = map[string][]string{
	"commitlog": {"message", "remoting"},
	"raftlog":   {"message", "remoting"},
	"client":    {"index", "raftlog", "commitlog"},
	"namesrv":   {"index", "raftlog", "commitlog"},
	"index":     {"raftlog", "remoting"},
}

type goPackage struct {
	ImportPath string
	Name       string
	Dir        string
	Doc        string
	GoFiles    []string
	Imports    []string
}

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Name,Dir,Doc,GoFiles,Imports", "./...")
	cmd.Dir = cluster.Root()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []goPackage
	for dec := json.NewDecoder(bytes.NewReader(out)); dec.More(); {
		var p goPackage
		if err := dec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		if len(p.GoFiles) > 0 {
			all = append(all, p)
		}
	}
	if len(all) < 5 {
		t.Fatalf("go list found %d packages", len(all))
	}
	return all
}

// top returns the first folder of an import path inside this module, "" for others.
func top(path string) string {
	rest, ok := strings.CutPrefix(path, modulePath)
	if !ok {
		return ""
	}
	folder, _, _ := strings.Cut(rest, "/")
	return folder
}

func layerOf(folder string) int {
	return slices.IndexFunc(layers, func(l []string) bool { return slices.Contains(l, folder) })
}

// TestImportsGoDown holds the order of the folders that ARCHITECTURE.md shows.
func TestImportsGoDown(t *testing.T) {
	t.Parallel()
	for _, p := range listPackages(t) {
		from := top(p.ImportPath)
		if from == "tests" {
			continue
		}
		if layerOf(from) < 0 {
			t.Errorf("%s: the folder %s has no place in the order: give it one in ARCHITECTURE.md and in this test", p.ImportPath, from)
			continue
		}
		for _, path := range p.Imports {
			to := top(path)
			switch {
			case to == "" || to == from:
			case layerOf(to) < 0:
				t.Errorf("%s imports %s, which product code must not", p.ImportPath, path)
			case layerOf(to) <= layerOf(from):
				t.Errorf("%s imports %s, which stands above it: declare an interface where it is used, or move the thing down", p.ImportPath, path)
			case slices.Contains(forbidden[from], to):
				t.Errorf("%s imports %s: %s must know nothing of %s", p.ImportPath, path, from, to)
			}
		}
	}
}

// TestPackagesIntroduceThemselves asks of each package a comment that says more than a sentence: what it is, what it
// guarantees, who may call it, where to read first.
func TestPackagesIntroduceThemselves(t *testing.T) {
	t.Parallel()
	for _, p := range listPackages(t) {
		doc := packageComment(t, p)
		if strings.HasSuffix(p.ImportPath, "pb") {
			continue // generated
		}
		if strings.HasPrefix(p.ImportPath, modulePath+"internal/") {
			if len(doc) < 60 {
				t.Errorf("%s: the package comment has %d characters: say what it is and what it guarantees", p.ImportPath, len(doc))
			}
			continue
		}
		if len(doc) < 200 {
			t.Errorf("%s: the package comment has %d characters: say what it is, what it guarantees and who may call it", p.ImportPath, len(doc))
		}
		lower := strings.ToLower(doc)
		if !strings.Contains(lower, "read") || !strings.Contains(lower, "first") && !strings.Contains(lower, "start") {
			t.Errorf("%s: the package comment does not say where to read first", p.ImportPath)
		}
	}
}

func packageComment(t *testing.T, p goPackage) string {
	t.Helper()
	var doc string
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if text := f.Doc.Text(); len(text) > len(doc) {
			doc = text
		}
	}
	return doc
}

// repoFiles returns the files of the repository that are or could be committed, as slash paths from its root.
func repoFiles(t *testing.T) []string {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard")
	cmd.Dir = cluster.Root()
	out, err := cmd.Output()
	if err == nil {
		return strings.Fields(string(out))
	}
	var files []string // a copy without git
	err = filepath.WalkDir(cluster.Root(), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == "bin" || d.Name() == "target" || d.Name() == ".git") {
			return filepath.SkipDir
		}
		if err == nil && !d.IsDir() {
			rel, _ := filepath.Rel(cluster.Root(), path)
			files = append(files, filepath.ToSlash(rel))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func readRepoFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(cluster.Root(), filepath.FromSlash(name)))
	if err != nil && !os.IsNotExist(err) { // removed but not committed yet
		t.Fatal(err)
	}
	return string(data)
}

// TestWordsThatAreNotThere looks for what the code must not hold: notes to oneself, names that say nothing, sleeping tests.
func TestWordsThatAreNotThere(t *testing.T) {
	t.Parallel()
	notes := regexp.MustCompile(`\b(TO` + `DO|FIX` + `ME|X` + `XX)\b`)
	sleep := regexp.MustCompile(`\btime\.Sl` + `eep\(`)
	for _, name := range repoFiles(t) {
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, ".pb.go") {
			continue
		}
		text := readRepoFile(t, name)
		for i, line := range strings.Split(text, "\n") {
			if notes.MatchString(line) && !strings.Contains(line, `"SCHEDULE_TOPIC_`) {
				t.Errorf("%s:%d: a note to oneself: do it, or file it", name, i+1)
			}
			if strings.HasSuffix(name, "_test.go") && sleep.MatchString(line) {
				t.Errorf("%s:%d: a test sleeps: wait for the condition", name, i+1)
			}
		}
		for _, part := range strings.Split(filepath.Dir(name), "/") {
			if slices.Contains([]string{"util", "utils", "common", "manager", "impl", "helper", "helpers"}, part) {
				t.Errorf("%s: a folder is a noun of the field; %q is none", name, part)
			}
		}
		if n := strings.Count(text, "\n"); n > 700 {
			t.Errorf("%s has %d lines: split it by type or stage", name, n)
		}
	}
}

// TestNamesOfInterfaces refuses the I- prefix and the words that mean nothing.
func TestNamesOfInterfaces(t *testing.T) {
	t.Parallel()
	for _, p := range listPackages(t) {
		if strings.HasSuffix(p.ImportPath, "pb") {
			continue
		}
		for _, name := range p.GoFiles {
			f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range f.Decls {
				g, ok := d.(*ast.GenDecl)
				if !ok || g.Tok != token.TYPE {
					continue
				}
				for _, s := range g.Specs {
					checkTypeName(t, p.ImportPath, s.(*ast.TypeSpec))
				}
			}
		}
	}
}

func checkTypeName(t *testing.T, path string, s *ast.TypeSpec) {
	name := s.Name.Name
	if _, ok := s.Type.(*ast.InterfaceType); ok && len(name) > 1 && name[0] == 'I' && name[1] >= 'A' && name[1] <= 'Z' {
		t.Errorf("%s.%s: an interface without the I", path, name)
	}
	for _, word := range []string{"Manager", "Impl", "Helper", "Util"} {
		if strings.HasSuffix(name, word) {
			t.Errorf("%s.%s: %s says nothing; say what it does", path, name, word)
		}
	}
}

// goldenFiles returns the golden bytes of all packages, as slash paths from the root.
func goldenFiles(t *testing.T) []string {
	var files []string
	for _, name := range repoFiles(t) {
		if strings.Contains(name, "/testdata/") && (strings.HasSuffix(name, ".hex") || strings.HasSuffix(name, ".golden")) {
			files = append(files, name)
		}
	}
	return files
}

// TestFormatsHaveFuzzTargets asks for a fuzz target in every package that has golden bytes: who reads a format reads what
// others wrote.
func TestFormatsHaveFuzzTargets(t *testing.T) {
	t.Parallel()
	for _, golden := range goldenFiles(t) {
		dir, _, _ := strings.Cut(golden, "/testdata/")
		tests, _ := filepath.Glob(filepath.Join(cluster.Root(), filepath.FromSlash(dir), "*_test.go"))
		if !slices.ContainsFunc(tests, func(name string) bool {
			data, err := os.ReadFile(name)
			return err == nil && bytes.Contains(data, []byte("\nfunc Fuzz"))
		}) {
			t.Errorf("%s has golden bytes and no fuzz target", dir)
		}
	}
}

// TestPagesShowGoldenBytes holds that docs/format shows the bytes that the tests use. A page may break lines where it likes and
// explain a line behind two spaces or a #.
func TestPagesShowGoldenBytes(t *testing.T) {
	t.Parallel()
	var pages []string
	for _, name := range repoFiles(t) {
		if strings.HasPrefix(name, "docs/format/") {
			pages = append(pages, hexDigits(readRepoFile(t, name)))
		}
	}
	for _, golden := range goldenFiles(t) {
		digits := hexDigits(readRepoFile(t, golden))
		if len(digits) < 8 {
			t.Errorf("%s has no hexadecimal bytes", golden)
			continue
		}
		if !slices.ContainsFunc(pages, func(page string) bool { return strings.Contains(page, digits) }) {
			t.Errorf("no page in docs/format shows the bytes of %s", golden)
		}
	}
}

var hexLine = regexp.MustCompile(`^\s*((?:(?:[0-9a-f]{2})+ ?)+)(?:\s*$|\s+#|  )`)

// hexDigits returns the bytes at the beginnings of lines, in hexadecimal.
func hexDigits(text string) string {
	var digits strings.Builder
	for _, line := range strings.Split(text, "\n") {
		if m := hexLine.FindStringSubmatch(line + "  "); m != nil {
			digits.WriteString(squeeze(m[1]))
		}
	}
	return digits.String()
}

// squeeze removes white space.
func squeeze(s string) string { return strings.Join(strings.Fields(s), "") }

// TestDirectDependenciesAreJustified asks CONTRIBUTING.md for one sentence per module that go.mod requires directly.
func TestDirectDependenciesAreJustified(t *testing.T) {
	t.Parallel()
	direct := directModules(t)
	page := readRepoFile(t, "CONTRIBUTING.md")
	for _, m := range direct {
		if !strings.Contains(page, "`"+m+"`") {
			t.Errorf("CONTRIBUTING.md does not say why %s is needed", m)
		}
	}
}

// directModules returns the modules whose packages this one imports itself, tests and tools included.
func directModules(t *testing.T) []string {
	t.Helper()
	cmd := exec.Command("go", "list", "-f", `{{range .Imports}}{{.}}{{"\n"}}{{end}}{{range .TestImports}}{{.}}{{"\n"}}{{end}}{{range .XTestImports}}{{.}}{{"\n"}}{{end}}`, "./...")
	cmd.Dir = cluster.Root()
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	modules := exec.Command("go", "list", "-m", "-f", "{{if not .Main}}{{.Path}}{{end}}", "all")
	modules.Dir = cluster.Root()
	list, err := modules.Output()
	if err != nil {
		t.Fatalf("go list -m: %v", err)
	}
	known := strings.Fields(string(list))
	var direct []string
	for _, path := range strings.Fields(string(out)) {
		best := ""
		for _, m := range known {
			if (path == m || strings.HasPrefix(path, m+"/")) && len(m) > len(best) {
				best = m
			}
		}
		if best != "" && !slices.Contains(direct, best) {
			direct = append(direct, best)
		}
	}
	slices.Sort(direct)
	return direct
}

// TestReadmeCodeIsTheTestedCode compares the code that README.md shows with the code that the tests run.
func TestReadmeCodeIsTheTestedCode(t *testing.T) {
	t.Parallel()
	readme := readRepoFile(t, "README.md")
	for _, name := range []string{"tests/firststeps_test.go", "tests/java/src/main/java/org/ledgermq/tests/FirstSteps.java"} {
		text := readRepoFile(t, name)
		_, after, ok := strings.Cut(text, "// README begin\n")
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
	if !strings.Contains(readRepoFile(t, "README.md"), "make test") {
		t.Error("README.md does not name make test")
	}
	if !strings.Contains(readRepoFile(t, ".ci/run"), "\nstep make test\n") {
		t.Error(".ci/run does not run make test")
	}
	if !strings.Contains(readRepoFile(t, ".ci/run"), "set -euo pipefail") {
		t.Error(".ci/run goes on after a failure")
	}
}
