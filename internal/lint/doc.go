// Package lint holds the rules of this repository that a machine can check, as ordinary tests. It has no code of its own: run it
// with `go test ./internal/lint`. Every failure names the file, the rule and the mend. A rule that is wrong in one place gets an
// entry with a reason in its table, so that exceptions are counted and read; none is switched off as a whole.
//
// The rules are in tree_test.go (how the tree is read), imports_test.go (who may import whom), comments_test.go (package
// comments, doc comments, unfinished marks), running_test.go (goroutines, sleeping in tests, fuzzing) and pages_test.go (dependencies
// and format pages).
package lint
