package lint

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/ledgermq/ledgermq"

// source is one parsed Go file.
type source struct {
	path      string // from the root, with slashes
	dir       string
	test      bool // _test.go
	generated bool
	ast       *ast.File
}

func (s *source) imports() []string {
	var list []string
	for _, i := range s.ast.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err == nil {
			list = append(list, p)
		}
	}
	return list
}

// tree is everything that the rules look at.
type tree struct {
	fsys  fs.FS // the root of the repository
	fset  *token.FileSet
	files []*source
	texts []string // other text files that people write, from the root
}

// at gives the place of a node for a failure.
func (t *tree) at(p token.Pos) string {
	pos := t.fset.Position(p)
	return fmt.Sprintf("%s:%d", pos.Filename, pos.Line)
}

// glob returns the names that match a pattern from the root.
func (t *tree) glob(pattern string) []string {
	names, err := fs.Glob(t.fsys, pattern)
	if err != nil {
		return nil // a bad pattern matches nothing, which the rules report
	}
	return names
}

// text returns a whole file, "" when it is not there.
func (t *tree) text(name string) string {
	b, err := fs.ReadFile(t.fsys, name)
	if err != nil {
		return ""
	}
	return string(b)
}

// packages returns the directories that have Go files which pass keep, sorted.
func (t *tree) packages(keep func(*source) bool) map[string][]*source {
	m := make(map[string][]*source)
	for _, f := range t.files {
		if keep(f) {
			m[f.dir] = append(m[f.dir], f)
		}
	}
	return m
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func handwritten(s *source) bool { return !s.test && !s.generated }

// loadTree reads everything below the root of fsys.
func loadTree(fsys fs.FS) (*tree, error) {
	t := &tree{fsys: fsys, fset: token.NewFileSet()}
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() {
			if name != "." && (base == "testdata" || base == "bin" || base == "target" || strings.HasPrefix(base, ".") && base != ".ci") {
				return fs.SkipDir
			}
			return nil
		}
		switch ext := path.Ext(name); {
		case ext == ".go":
			text, err := fs.ReadFile(fsys, name)
			if err != nil {
				return err
			}
			f, err := parser.ParseFile(t.fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
			if err != nil {
				return fmt.Errorf("%s does not parse: %w", name, err)
			}
			t.files = append(t.files, &source{path: name, dir: path.Dir(name), test: strings.HasSuffix(name, "_test.go"), generated: ast.IsGenerated(f), ast: f})
		case textExts[ext] || base == "Makefile" || strings.HasPrefix(name, ".ci/"):
			t.texts = append(t.texts, name)
		}
		return nil
	})
	return t, err
}

// textExts are the endings of other files that people write.
var textExts = map[string]bool{".md": true, ".sh": true, ".proto": true, ".java": true, ".yaml": true, ".yml": true}

// repository returns this repository, parsed once for all tests.
var repository = sync.OnceValues(func() (*tree, error) {
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	for {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			return loadTree(os.DirFS(root))
		}
		if root == filepath.Dir(root) {
			return nil, errors.New("no go.mod above the working directory")
		}
		root = filepath.Dir(root)
	}
})

// report collects what a rule finds.
type report struct{ found []string }

func (r *report) bad(format string, args ...any) {
	r.found = append(r.found, fmt.Sprintf(format, args...))
}

// rule looks at a tree. It is run on this repository, and on a small tree that breaks every rule once.
type rule func(tr *tree, r *report)

// holds runs a rule on this repository.
func holds(t *testing.T, check rule) {
	t.Helper()
	t.Parallel()
	tr, err := repository()
	if err != nil {
		t.Fatal(err)
	}
	if len(tr.files) < 50 {
		t.Fatalf("only %d Go files were found", len(tr.files))
	}
	var r report
	check(tr, &r)
	for _, f := range r.found {
		t.Error(f)
	}
}
