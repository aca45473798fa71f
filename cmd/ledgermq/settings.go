package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"sort"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"
)

// A setting comes from, in this order: the command line, the environment (LEDGERMQ_ and the flag's name in capitals with _ for
// -), the configuration file, the default. The file is YAML: at its top level the names of flags, which hold for every command
// that has them, and sections named after commands, whose values go before:
//
//	controllers: 127.0.0.1:9878
//	log-level: debug
//	broker:
//	  id: n1
//	  data: /var/lib/ledgermq
//
// A name that no command knows is an error: a setting with a typo would otherwise be a setting that is silently not there.

const configFlag = "config"

// spoken are the flags that confirm the loss of something, or name the replica that goes on or goes. Only the command line that does it may say them: a variable or a line of a
// file, made for another command or another day, would confirm it in silence.
var spoken = []string{"yes", "stopped", "give-up", "replica"}

// action wraps what a command does: settings first, then the deed.
func (t *tool) action(do func(c *cli.Context) error) cli.ActionFunc {
	return func(c *cli.Context) error {
		sources, err := applySettings(c)
		if err != nil {
			return err
		}
		if t.explain {
			return t.printSettings(c, sources)
		}
		return asGiven(do(c), sources)
	}
}

// flagsInText finds the flags that an error names.
var flagsInText = regexp.MustCompile(`--[a-z][a-z-]*`)

// asGiven names the settings of a usage error as they were given: --nodes that came from the environment is LEDGERMQ_NODES.
func asGiven(err error, sources map[string]string) error {
	usage, ok := err.(*usageError)
	if !ok {
		return err
	}
	return usagef("%s", flagsInText.ReplaceAllStringFunc(usage.text, func(flag string) string {
		name := strings.TrimPrefix(flag, "--")
		if _, found := strings.CutPrefix(sources[name], fromEnvironment); found {
			return envName(name)
		}
		if path, found := strings.CutPrefix(sources[name], fromFile); found {
			return name + " of " + path
		}
		return flag
	}))
}

// What the origin of a setting begins with.
const (
	fromEnvironment = "environment "
	fromFile        = "file "
)

func envName(flag string) string {
	return "LEDGERMQ_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// withEnv adds to each flag's help the environment variable that sets it, and the flag that names the configuration file.
func withEnv(flags ...cli.Flag) []cli.Flag {
	flags = append(flags, &cli.StringFlag{Name: configFlag, Usage: "YAML `FILE` with settings"})
	for _, f := range flags {
		if slices.Contains(spoken, f.Names()[0]) {
			continue
		}
		note := func(usage *string) { *usage += " [$" + envName(f.Names()[0]) + "]" }
		switch f := f.(type) {
		case *cli.StringFlag:
			note(&f.Usage)
		case *cli.IntFlag:
			note(&f.Usage)
		case *cli.Int64Flag:
			note(&f.Usage)
		case *cli.Uint64Flag:
			note(&f.Usage)
		case *cli.Float64Flag:
			note(&f.Usage)
		case *cli.BoolFlag:
			note(&f.Usage)
		case *cli.DurationFlag:
			note(&f.Usage)
		}
	}
	return flags
}

// applySettings completes the flags of c from the environment and the file, and returns where each value comes from.
func applySettings(c *cli.Context) (map[string]string, error) {
	sources := make(map[string]string)
	var names []string
	for _, f := range c.Command.Flags {
		name := f.Names()[0]
		if name == "help" {
			continue
		}
		names = append(names, name)
		sources[name] = "default"
		if c.IsSet(name) {
			sources[name] = "flag"
		} else if v, ok := os.LookupEnv(envName(name)); ok && !slices.Contains(spoken, name) {
			if err := c.Set(name, v); err != nil {
				return nil, usagef("%s=%q: %s", envName(name), v, wanted(f, err))
			}
			sources[name] = fromEnvironment + envName(name)
		}
	}
	path := c.String(configFlag)
	if path == "" {
		return sources, nil
	}
	values, err := readConfig(path, c.App, strings.Fields(c.Command.HelpName)[1:])
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		v, ok := values[name]
		if !ok || sources[name] != "default" {
			continue
		}
		if err := c.Set(name, v); err != nil {
			return nil, usagef("%s: %s: %q: %s", path, name, v, wanted(flagOf(c.Command.Flags, name), err))
		}
		sources[name] = fromFile + path
	}
	return sources, nil
}

// readConfig returns the values of the file that hold for one command, given as its path in the tree: admin, topic, create.
func readConfig(path string, app *cli.App, command []string) (map[string]string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, usagef("configuration file %s does not exist; mend --config", path)
	}
	if err != nil {
		return nil, err
	}
	var doc map[string]any
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, usagef("configuration file %s: %v", path, err)
	}
	values := make(map[string]string)
	var unknown []string
	var take func(section map[string]any, commands []*cli.Command, where []string, inForce bool)
	take = func(section map[string]any, commands []*cli.Command, where []string, inForce bool) {
		for _, key := range sortedKeys(section) {
			if _, isSection := section[key].(map[string]any); isSection {
				continue
			}
			text, ok := settingText(section[key])
			if !ok || !anyHasFlag(commands, key) {
				unknown = append(unknown, strings.Join(append(slices.Clone(where), key), "."))
			} else if inForce {
				values[key] = text
			}
		}
		for _, key := range sortedKeys(section) {
			nested, isSection := section[key].(map[string]any)
			if !isSection {
				continue
			}
			here := append(slices.Clone(where), key)
			i := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.Name == key })
			if i < 0 {
				unknown = append(unknown, strings.Join(here, "."))
				continue
			}
			on := inForce && len(command) >= len(here) && command[len(here)-1] == key
			own := *commands[i]
			own.Subcommands = nil
			// A section may name the flags of its command and of what is below it.
			take(nested, append([]*cli.Command{&own}, commands[i].Subcommands...), here, on)
		}
	}
	take(doc, app.Commands, nil, true)
	if len(unknown) > 0 {
		return nil, usagef("configuration file %s: no such setting: %s", path, strings.Join(unknown, ", "))
	}
	return values, nil
}

func settingText(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case bool, int, int64, uint64, float64:
		return fmt.Sprint(v), true
	case []any:
		parts := make([]string, len(v))
		for i, p := range v {
			text, ok := settingText(p)
			if !ok {
				return "", false
			}
			parts[i] = text
		}
		return strings.Join(parts, ","), true
	}
	return "", false
}

// anyHasFlag tells whether a file may set a flag of one of the commands.
func anyHasFlag(commands []*cli.Command, name string) bool {
	return !slices.Contains(spoken, name) && slices.ContainsFunc(commands, func(c *cli.Command) bool {
		return slices.ContainsFunc(c.Flags, func(f cli.Flag) bool { return f.Names()[0] == name }) || anyHasFlag(c.Subcommands, name)
	})
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// printSettings is what `ledgermq config COMMAND` shows. A secret is never printed.
func (t *tool) printSettings(c *cli.Context, sources map[string]string) error {
	w := tabwriter.NewWriter(t.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SETTING\tVALUE\tFROM")
	for _, name := range sortedKeys(sources) {
		value := fmt.Sprint(c.Value(name))
		if name == "secret" && value != "" {
			value = "(hidden)"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\n", name, value, sources[name])
	}
	return w.Flush()
}

func (t *tool) configCommand() *cli.Command {
	return &cli.Command{
		Name:            "config",
		Usage:           "print the settings of a command and where each comes from",
		UsageText:       "ledgermq config COMMAND [flags of COMMAND]",
		SkipFlagParsing: true,
		Action: func(c *cli.Context) error {
			if first := c.Args().First(); first == "--help" || first == "-h" {
				return cli.ShowSubcommandHelp(c)
			}
			if !c.Args().Present() || c.Args().First() == configFlag {
				return usagef("ledgermq config: which command's settings? For instance: ledgermq config broker --id n1")
			}
			app := newApp(t.streams, true)
			return app.RunContext(c.Context, flagsFirst(app, append([]string{"ledgermq"}, c.Args().Slice()...)))
		},
	}
}
