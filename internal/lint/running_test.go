package lint

import (
	"go/ast"
	"strings"
	"testing"
)

// goroutines says how many bare go statements each package has, and who ends them. Elsewhere goroutines are started by
// something that waits for them, sync.WaitGroup.Go mostly. Whoever adds one names its owner and its end here.
var goroutines = map[string]struct {
	most   int
	reason string
}{
	"broker":         {4, "Node owns them all: each belongs to a replica or to the node, and Close waits for it"},
	"client":         {5, "Client and Consumer own them: Close cancels their context and waits"},
	"cmd/ledgermq":   {6, "they end with the process, the command or the member that they watch"},
	"namesrv":        {2, "Server owns both: Close cancels their context and waits"},
	"raftlog":        {3, "Group owns its loop, its log writer and the filler: Close waits for the three"},
	"raftlog/peer":   {1, "Transport.spawn, the only one: Close waits for its wait group"},
	"remoting":       {5, "Server and Client own an acceptor, a reader per connection, a writer while a socket is full, and a bounded pool"},
	"tests/cluster":  {2, "they end with the process that they started"},
	"tests/rocketmq": {1, "it ends with the process that it started"},
}

func TestGoroutinesHaveOwners(t *testing.T) { holds(t, checkGoroutinesHaveOwners) }

func checkGoroutinesHaveOwners(tr *tree, r *report) {
	found := make(map[string][]string)
	for _, f := range tr.files {
		if !handwritten(f) {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if g, ok := n.(*ast.GoStmt); ok {
				found[f.dir] = append(found[f.dir], tr.at(g.Pos()))
			}
			return true
		})
	}
	for _, dir := range sortedKeys(found) {
		if n := len(found[dir]); n > goroutines[dir].most {
			r.bad("%s has %d go statements, %d are allowed: %s.\nStart it where its owner can wait for it (sync.WaitGroup.Go), or raise the number in internal/lint/running_test.go and name its owner and end",
				dir, n, goroutines[dir].most, strings.Join(found[dir], ", "))
		}
	}
	for _, dir := range sortedKeys(goroutines) {
		if goroutines[dir].reason == "" {
			r.bad("%s: the allowance for go statements has no reason", dir)
		}
	}
}

// TestNoSleepInTests: a test that sleeps is slow on a fast machine and fails on a slow one.
func TestNoSleepInTests(t *testing.T) { holds(t, checkNoSleepInTests) }

func checkNoSleepInTests(tr *tree, r *report) {
	for _, f := range tr.files {
		if !f.test && folderOf(f.dir) != "tests" {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if isSelector(n, "time", "Sleep") {
				r.bad("%s: time.Sleep in a test: poll for the condition with a deadline, or use testing/synctest", tr.at(n.Pos()))
			}
			return true
		})
	}
}

func isSelector(n ast.Node, pkg, name string) bool {
	s, ok := n.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != name {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name == pkg
}

// TestSkipsSayWhy: a test that is skipped without a word is a test that is not there.
func TestSkipsSayWhy(t *testing.T) { holds(t, checkSkipsSayWhy) }

func checkSkipsSayWhy(tr *tree, r *report) {
	for _, f := range tr.files {
		if !f.test {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			s, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if s.Sel.Name == "SkipNow" || (s.Sel.Name == "Skip" || s.Sel.Name == "Skipf") && len(call.Args) == 0 {
				r.bad("%s: a skip without a reason: say what is missing and where the test does run", tr.at(n.Pos()))
			}
			return true
		})
	}
}

// TestDecodersAreFuzzed: a package that turns bytes into values has a fuzz test.
func TestDecodersAreFuzzed(t *testing.T) { holds(t, checkDecodersAreFuzzed) }

func checkDecodersAreFuzzed(tr *tree, r *report) {
	decoders, fuzzed := make(map[string]string), make(map[string]bool)
	for _, f := range tr.files {
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			if f.test && strings.HasPrefix(fn.Name.Name, "Fuzz") {
				fuzzed[f.dir] = true
			}
			if handwritten(f) && decodes(fn) {
				decoders[f.dir] = tr.at(fn.Pos()) + " " + fn.Name.Name
			}
		}
	}
	for _, dir := range sortedKeys(decoders) {
		if !fuzzed[dir] {
			r.bad("%s: %s takes bytes from outside, and the package has no fuzz test: add FuzzXxx with a seed from its golden bytes", dir, decoders[dir])
		}
	}
}

// decodes tells whether fn looks like a decoder: named so, and its first parameter is []byte.
func decodes(fn *ast.FuncDecl) bool {
	name := strings.ToLower(fn.Name.Name)
	if !strings.HasPrefix(name, "decode") && !strings.HasPrefix(name, "parse") {
		return false
	}
	params := fn.Type.Params.List
	if len(params) == 0 {
		return false
	}
	a, ok := params[0].Type.(*ast.ArrayType)
	if !ok || a.Len != nil {
		return false
	}
	elem, ok := a.Elt.(*ast.Ident)
	return ok && elem.Name == "byte"
}
