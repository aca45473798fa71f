package lint

import (
	"io/fs"
	"regexp"
	"strings"
	"testing"
)

// TestDependenciesAreJustified: each library that code or tests import stands in CONTRIBUTING.md with a sentence.
func TestDependenciesAreJustified(t *testing.T) { holds(t, checkDependenciesAreJustified) }

func checkDependenciesAreJustified(tr *tree, r *report) {
	text := tr.text("CONTRIBUTING.md")
	if text == "" {
		r.bad("there is no CONTRIBUTING.md: it says how to work here, and why each dependency is there")
		return
	}
	var modules []string
	for line := range strings.Lines(tr.text("go.mod")) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(fields) >= 2 && strings.HasPrefix(fields[1], "v") && strings.Contains(fields[0], ".") {
			modules = append(modules, fields[0])
		}
	}
	if len(modules) == 0 {
		r.bad("no requirements were found in go.mod: this rule does not understand it any more")
	}
	used := make(map[string]string)
	for _, f := range tr.files {
		for _, imp := range f.imports() {
			best := ""
			for _, m := range modules {
				if under(imp, m) && len(m) > len(best) {
					best = m
				}
			}
			if best != "" {
				used[best] = f.path
			}
		}
	}
	for _, m := range sortedKeys(used) {
		if !justified(text, m) {
			r.bad("%s, imported by %s, has no sentence in CONTRIBUTING.md: add a line with `%s` and what it does that we should not write ourselves", m, used[m], m)
		}
	}
}

// justified finds the module in code quotes, on a line with some words that end as a sentence does. The words may go on on the
// next lines.
func justified(text, module string) bool {
	_, rest, ok := strings.Cut(text, "`"+module+"`")
	if !ok {
		return false
	}
	if end := strings.Index(rest, "\n\n"); end >= 0 {
		rest = rest[:end]
	}
	words, _, ok := strings.Cut(rest, ".")
	return ok && len(strings.Fields(words)) >= 4
}

var goldenPath = regexp.MustCompile(`([A-Za-z0-9_/]+/)?testdata(/[A-Za-z0-9_.*/-]*[A-Za-z0-9_*-])?`)

// TestFormatPagesHaveGoldenBytes: each page on a format names golden files that exist, and shows bytes.
func TestFormatPagesHaveGoldenBytes(t *testing.T) { holds(t, checkFormatPagesHaveGoldenBytes) }

func checkFormatPagesHaveGoldenBytes(tr *tree, r *report) {
	pages := tr.glob("docs/format/*.md")
	if len(pages) == 0 {
		r.bad("docs/format has no pages: each format on disk or on a wire has one")
	}
	for _, name := range pages {
		text := tr.text(name)
		paths := goldenPath.FindAllString(text, -1)
		if len(paths) == 0 {
			r.bad("%s names no golden file: say which file in testdata holds the bytes that it shows", name)
		}
		for _, p := range paths {
			found := tr.glob(p)
			if len(found) == 0 {
				r.bad("%s names %s, which does not exist: write the path from the root of the repository, and let a test compare the file", name, p)
				continue
			}
			if !hasFile(tr, found) {
				r.bad("%s names %s, which is empty", name, p)
			}
		}
		if !showsBytes.MatchString(text) {
			r.bad("%s shows no bytes: copy the golden bytes into it", name)
		}
	}
}

// showsBytes is a few hexadecimal bytes in a row.
var showsBytes = regexp.MustCompile(`(?i)\b([0-9a-f]{2} ?){4,}\b`)

func hasFile(tr *tree, names []string) bool {
	for _, name := range names {
		info, err := fs.Stat(tr.fsys, name)
		if err != nil {
			continue
		}
		if !info.IsDir() {
			if info.Size() > 0 {
				return true
			}
			continue
		}
		if inside, err := fs.ReadDir(tr.fsys, name); err == nil && len(inside) > 0 {
			return true
		}
	}
	return false
}

// TestGoldenBytesHavePages: golden bytes of a package are shown by a page.
func TestGoldenBytesHavePages(t *testing.T) { holds(t, checkGoldenBytesHavePages) }

func checkGoldenBytesHavePages(tr *tree, r *report) {
	var pages strings.Builder
	for _, name := range tr.glob("docs/format/*.md") {
		pages.WriteString(tr.text(name))
	}
	for dir := range tr.packages(handwritten) {
		if len(tr.glob(dir+"/testdata/*.hex")) > 0 && !strings.Contains(pages.String(), dir+"/testdata") {
			r.bad("%s/testdata has golden bytes, and no page in docs/format names them", dir)
		}
	}
}

// TestVersionsPage: each row of the table of formats in docs/versions.md names a test that is there.
func TestVersionsPage(t *testing.T) { holds(t, checkVersionsPage) }

var versionsTest = regexp.MustCompile("\\| `([A-Za-z]+)` in `([a-z/]+)` \\|$")

func checkVersionsPage(tr *tree, r *report) {
	inTable := false
	rows := 0
	for i, line := range strings.Split(tr.text("docs/versions.md"), "\n") {
		switch {
		case strings.HasSuffix(line, "| test |"):
			inTable = true
			continue
		case !inTable || strings.HasPrefix(line, "|---"):
			continue
		case !strings.HasPrefix(line, "|"):
			inTable = false
			continue
		}
		rows++
		named := versionsTest.FindStringSubmatch(line)
		if named == nil {
			r.bad("docs/versions.md:%d names no test: end the row with `TestX` in `folder`, where a program meets a version that it does not know", i+1)
			continue
		}
		found := false
		for _, name := range tr.glob(named[2] + "/*_test.go") {
			found = found || strings.Contains(tr.text(name), "\nfunc "+named[1]+"(")
		}
		if !found {
			r.bad("docs/versions.md:%d names %s in %s, which is not there", i+1, named[1], named[2])
		}
	}
	if rows == 0 {
		r.bad("docs/versions.md has no table of formats")
	}
}
