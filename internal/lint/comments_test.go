package lint

import (
	"go/ast"
	"go/token"
	"regexp"
	"strings"
	"testing"
)

// minSentences is how much a package says before its first line of code: what it is, what it guarantees, who may call it.
const minSentences = 3

var sentenceEnd = regexp.MustCompile(`[.!?]["')]*(\s|$)`)

func TestPackageComments(t *testing.T) { holds(t, checkPackageComments) }

func checkPackageComments(tr *tree, r *report) {
	pkgs := tr.packages(handwritten)
	for _, dir := range sortedKeys(pkgs) {
		best, where := 0, ""
		for _, f := range pkgs[dir] {
			if f.ast.Doc == nil {
				continue
			}
			if where != "" {
				r.bad("%s and %s both carry a package comment: keep one, in doc.go or in the file to read first", where, f.path)
			}
			best, where = len(sentenceEnd.FindAllString(f.ast.Doc.Text(), -1)), f.path
		}
		if best < minSentences {
			r.bad("%s: the package comment has %d sentences, want at least %d: what it is, what it guarantees, who may call it concurrently, its format or states, where to read first", dir, best, minSentences)
		}
	}
}

// plain are methods whose meaning is fixed by the standard library.
var plain = map[string]bool{
	"String": true, "Error": true, "Unwrap": true, "Is": true, "As": true, "Len": true, "Less": true, "Swap": true,
	"Write": true, "Read": true, "Close": true, "MarshalJSON": true, "UnmarshalJSON": true, "MarshalText": true, "UnmarshalText": true,
}

func TestExportedNamesAreDocumented(t *testing.T) { holds(t, checkExportedNamesAreDocumented) }

func checkExportedNamesAreDocumented(tr *tree, r *report) {
	for _, f := range tr.files {
		if !handwritten(f) || f.ast.Name.Name == "main" {
			continue
		}
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && d.Doc == nil && exportedReceiver(d) && !(d.Recv != nil && plain[d.Name.Name]) {
					r.bad("%s: %s is exported and has no comment: say what it gives, units, and which errors when", tr.at(d.Pos()), d.Name.Name)
				}
			case *ast.GenDecl:
				checkSpecs(r, tr, d)
			}
		}
	}
}

func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	x := d.Recv.List[0].Type
	for {
		switch v := x.(type) {
		case *ast.StarExpr:
			x = v.X
		case *ast.IndexExpr:
			x = v.X
		case *ast.IndexListExpr:
			x = v.X
		case *ast.Ident:
			return v.IsExported()
		default:
			return true
		}
	}
}

// checkSpecs accepts a comment on the group, above the name, or behind it on its line.
func checkSpecs(r *report, tr *tree, d *ast.GenDecl) {
	if d.Tok == token.IMPORT || d.Doc != nil && d.Tok != token.TYPE {
		return
	}
	for _, spec := range d.Specs {
		switch s := spec.(type) {
		case *ast.TypeSpec:
			if s.Name.IsExported() && s.Doc == nil && d.Doc == nil {
				r.bad("%s: type %s is exported and has no comment: say what it is, and its invariants", tr.at(s.Pos()), s.Name.Name)
			}
		case *ast.ValueSpec:
			for _, name := range s.Names {
				if name.IsExported() && s.Doc == nil && s.Comment == nil {
					r.bad("%s: %s is exported and has no comment: say what it means and its unit, or give its group one", tr.at(name.Pos()), name.Name)
				}
			}
		}
	}
}

// unfinished is put together so that this file does not find itself.
var unfinished = regexp.MustCompile(`\b(` + strings.Join([]string{"TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"}, "|") + `)\b`)

// TestNothingUnfinished: what is known to be missing is said in words where a reader looks for it, not left as a mark.
func TestNothingUnfinished(t *testing.T) { holds(t, checkNothingUnfinished) }

func checkNothingUnfinished(tr *tree, r *report) {
	for _, f := range tr.files {
		if f.generated {
			continue
		}
		for _, group := range f.ast.Comments {
			for _, c := range group.List {
				if m := unfinished.FindString(c.Text); m != "" {
					r.bad("%s: %s in a comment: finish it, or say in words what is not there and why", tr.at(c.Pos()), m)
				}
			}
		}
	}
	for _, name := range tr.texts {
		if m := unfinished.FindString(tr.text(name)); m != "" {
			r.bad("%s: %s: finish it, or say in words what is not there and why", name, m)
		}
	}
}

// maxLines is the length at which a file holds more than one type or stage.
const maxLines = 700

// longFiles may be longer.
var longFiles = map[string]string{}

func TestFilesAreShort(t *testing.T) { holds(t, checkFilesAreShort) }

func checkFilesAreShort(tr *tree, r *report) {
	for _, f := range tr.files {
		lines := tr.fset.File(f.ast.FileStart).LineCount()
		limit := maxLines
		if f.test {
			limit = 2 * maxLines // a table of cases is one thing however long it is
		}
		if lines > limit && !f.generated && longFiles[f.path] == "" {
			r.bad("%s has %d lines, at most %d: split it by type or stage", f.path, lines, limit)
		}
	}
}
