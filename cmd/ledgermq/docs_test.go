package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/urfave/cli/v2"
)

// The pages that show command lines. docs/cli.md has all of them.
var pages = []string{"README.md", "docs/cli.md", "docs/operate.md"}

func readPage(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// walk calls see for every command that does something, with its path: admin topic create.
func walk(commands []*cli.Command, path []string, see func(path string, c *cli.Command)) {
	for _, c := range commands {
		here := append(slices.Clone(path), c.Name)
		if len(c.Subcommands) == 0 || len(c.Flags) > 0 {
			see(strings.Join(here, " "), c)
		}
		walk(c.Subcommands, here, see)
	}
}

// shown are the flags that --help shows, without those of the configuration, which every command has.
func shown(c *cli.Command) map[string]cli.DocGenerationFlag {
	flags := make(map[string]cli.DocGenerationFlag)
	for _, f := range c.Flags {
		doc, ok := f.(cli.DocGenerationFlag)
		if v, can := f.(cli.VisibleFlag); ok && can && v.IsVisible() && f.Names()[0] != configFlag && f.Names()[0] != "help" {
			flags[f.Names()[0]] = doc
		}
	}
	return flags
}

// TestDocsListEveryCommand holds that the table of docs/cli.md has the commands that there are, no other.
func TestDocsListEveryCommand(t *testing.T) {
	t.Parallel()
	var there, listed []string
	walk(newApp(streams{}, false).Commands, nil, func(path string, _ *cli.Command) { there = append(there, path) })
	// The first cell of a row: `admin group create\|list\|show`, `produce`, `consume`, `dev start ID`.
	for _, row := range regexp.MustCompile("(?m)^\\| (`[a-z].*?`) \\| .* \\|$").FindAllStringSubmatch(readPage(t, "docs/cli.md"), -1) {
		for _, cell := range strings.Split(row[1], ", ") {
			words := strings.Fields(strings.Trim(cell, "`"))
			words = slices.DeleteFunc(words, func(w string) bool { return w == strings.ToUpper(w) }) // arguments
			for _, last := range strings.Split(words[len(words)-1], `\|`) {
				listed = append(listed, strings.Join(append(slices.Clone(words[:len(words)-1]), last), " "))
			}
		}
	}
	slices.Sort(there)
	slices.Sort(listed)
	if !slices.Equal(there, listed) {
		t.Errorf("the commands are\n%s\ndocs/cli.md lists\n%s", strings.Join(there, "\n"), strings.Join(listed, "\n"))
	}
}

// TestDocsTellEveryFlag holds that the section of a command tells each of its flags, and that no page has one that is not there.
func TestDocsTellEveryFlag(t *testing.T) {
	t.Parallel()
	sections := make(map[string]string) // of docs/cli.md, by title
	for _, part := range strings.Split(readPage(t, "docs/cli.md"), "\n## ")[1:] {
		title, text, _ := strings.Cut(part, "\n")
		sections[title] = text
	}
	section := func(path string) string {
		switch first, _, _ := strings.Cut(path, " "); first {
		case "server", "broker", "controller", "namesrv":
			return "Roles"
		case "produce", "consume":
			return "produce and consume"
		case "config":
			return "Settings"
		default:
			return first
		}
	}
	mentions := func(text, flag string) bool {
		return regexp.MustCompile("--" + regexp.QuoteMeta(flag) + `([^\w-]|$)`).MatchString(text)
	}
	known := map[string]bool{configFlag: true, "help": true}
	walk(newApp(streams{}, false).Commands, nil, func(path string, c *cli.Command) {
		text, ok := sections[section(path)]
		if !ok {
			t.Errorf("docs/cli.md has no section %q", section(path))
		}
		for name, f := range shown(c) {
			known[name] = true
			plain := name
			if path == "server" { // its flags carry the role's name
				for _, role := range []string{"namesrv-", "controller-", "broker-"} {
					plain = strings.TrimPrefix(plain, role)
				}
			}
			if !mentions(text, plain) {
				t.Errorf("docs/cli.md, section %s, does not tell --%s of %s: %s", section(path), plain, path, f.GetUsage())
			}
		}
	})
	for _, page := range pages {
		for _, m := range regexp.MustCompile("(?:^|[ `\\[])--([a-z][a-z-]*)").FindAllStringSubmatch(readPage(t, page), -1) {
			if !known[m[1]] {
				t.Errorf("%s tells --%s, which no command has", page, m[1])
			}
		}
	}
}

// TestDocsTellDefaults compares the defaults in the tables of docs/cli.md with those in force.
func TestDocsTellDefaults(t *testing.T) {
	t.Parallel()
	defaults := make(map[string]map[string]string) // command → flag → default
	walk(newApp(streams{}, false).Commands, nil, func(path string, c *cli.Command) {
		defaults[path] = make(map[string]string)
		for name, f := range shown(c) {
			defaults[path][name] = f.GetValue()
		}
	})
	compared, command := 0, "dev"
	for _, line := range strings.Split(readPage(t, "docs/cli.md"), "\n") {
		if m := regexp.MustCompile("^\\| flag of `(.*)` \\|").FindStringSubmatch(line); m != nil {
			command = m[1]
		}
		m := regexp.MustCompile("^\\| (`--[^|]*`) \\| ([^| ]+) \\|").FindStringSubmatch(line)
		if m == nil {
			continue
		}
		for _, cell := range strings.Split(m[1], ", ") {
			name := strings.Trim(cell, "`-")
			is, ok := defaults[command][name]
			if !ok {
				t.Errorf("%s has no --%s", command, name)
			}
			if is != "" && is != m[2] && !sameDuration(is, m[2]) {
				t.Errorf("--%s of %s is %s by default, docs/cli.md says %s", name, command, is, m[2])
			}
			compared++
		}
	}
	if compared < 20 {
		t.Errorf("only %d defaults found", compared)
	}
}

func sameDuration(a, b string) bool {
	x, err1 := time.ParseDuration(a)
	y, err2 := time.ParseDuration(b)
	return err1 == nil && err2 == nil && x == y
}
