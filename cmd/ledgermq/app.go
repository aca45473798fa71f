package main

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// newApp builds the tree of commands. With explain, a command prints its settings and where they come from instead of running.
func newApp(s streams, explain bool) *cli.App {
	t := &tool{streams: s, explain: explain}
	app := &cli.App{
		Name:  "ledgermq",
		Usage: "a replicated message broker for the clients of Apache RocketMQ",
		Description: "Start with `ledgermq dev`: a replicated cluster of three nodes on this machine.\n" +
			"Every flag, but for those that confirm a loss, can also be set by an environment variable,\n" +
			"LEDGERMQ_ and its name in capitals, or in one YAML file named by --config. `ledgermq config COMMAND` shows what is in force and why.",
		HideHelpCommand: true,
		HideVersion:     true,
		Writer:          s.out,
		ErrWriter:       s.err,
		ExitErrHandler:  func(*cli.Context, error) {}, // run turns errors into exit codes
		Commands: []*cli.Command{
			t.devCommand(),
			t.serverCommand(), t.brokerCommand(), t.controllerCommand(), t.namesrvCommand(),
			t.adminCommand(), t.produceCommand(), t.consumeCommand(), t.logCommand(), t.benchCommand(),
			t.jepsenCommand(),
			t.configCommand(), t.versionCommand(),
		},
	}
	app.Action = unknownCommand
	app.OnUsageError = badUsage
	prepare(app.Commands)
	return app
}

// tool carries what the commands share.
type tool struct {
	streams
	explain bool
}

// prepare gives every command of the tree the same treatment of usage errors and the same note on its environment variables.
func prepare(commands []*cli.Command) {
	for _, c := range commands {
		c.OnUsageError = badUsage
		c.HideHelpCommand = true
		if c.Action == nil {
			c.Action = unknownCommand
		}
		prepare(c.Subcommands)
	}
}

func badUsage(c *cli.Context, err error, _ bool) error {
	text := usageText(c.Command.Flags, err)
	if c.Command.HelpName == "" || c.Command.HelpName == c.App.Name {
		return usagef("%s; see --help", text)
	}
	return usagef("%s: %s; see --help", c.Command.HelpName, text)
}

// What the flag parser says of a command line, which it has no types for. It names a flag with one dash, however it was given.
var (
	unknownFlag = regexp.MustCompile(`^flag provided but not defined: -(.*)$`)
	emptyFlag   = regexp.MustCompile(`^flag needs an argument: -(.*)$`)
	badFlag     = regexp.MustCompile(`(?s)^invalid (?:boolean )?value (".*") for (?:flag )?-([a-z-]+): (.*)$`)
	absentFlags = regexp.MustCompile(`^Required flags? "(.*)" not set$`)
)

// usageText is the flag parser's error in the words of who typed the command.
func usageText(flags []cli.Flag, err error) string {
	text := strings.TrimSpace(err.Error())
	if m := unknownFlag.FindStringSubmatch(text); m != nil {
		return "there is no flag " + dashed(m[1])
	}
	if m := emptyFlag.FindStringSubmatch(text); m != nil {
		return dashed(m[1]) + " needs a value"
	}
	if m := badFlag.FindStringSubmatch(text); m != nil {
		return fmt.Sprintf("%s %s: %s", dashed(m[2]), m[1], wanted(flagOf(flags, m[2]), errors.New(m[3])))
	}
	if m := absentFlags.FindStringSubmatch(text); m != nil {
		names := strings.Split(m[1], ", ")
		for i := range names {
			names[i] = dashed(names[i])
		}
		return "give " + strings.Join(names, " and ")
	}
	return text
}

// dashed is a flag as it is typed.
func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + strings.TrimLeft(name, "-")
}

// flagOf returns the flag of that name, or nil.
func flagOf(flags []cli.Flag, name string) cli.Flag {
	for _, f := range flags {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

// wanted says which values a flag takes, when one was not taken because of err.
func wanted(f cli.Flag, err error) string {
	switch f.(type) {
	case *cli.IntFlag, *cli.Int64Flag, *cli.Uint64Flag:
		return "want a whole number"
	case *cli.Uint64SliceFlag:
		return "want whole numbers, comma separated"
	case *cli.DurationFlag:
		return "want a duration, such as 30s"
	case *cli.BoolFlag:
		return "want true or false"
	}
	return err.Error()
}

// unknownCommand is the action of a command that only has subcommands.
func unknownCommand(c *cli.Context) error {
	name := c.App.Name
	if c.Command != nil && c.Command.HelpName != "" {
		name = c.Command.HelpName
	}
	root := name == c.App.Name
	switch {
	case c.Args().Present() && root:
		return usagef("no command %q; see %s --help", c.Args().First(), name)
	case c.Args().Present():
		return usagef("%s has no command %q; see %s --help", name, c.Args().First(), name)
	}
	var err error
	if c.Command == nil || c.Command.Name == "" || c.Command.Name == c.App.Name {
		err = cli.ShowAppHelp(c)
	} else {
		err = cli.ShowSubcommandHelp(c)
	}
	if err != nil {
		return err
	}
	if root {
		return usagef("which command?")
	}
	return usagef("%s: which command?", name)
}

// flagsFirst moves the flags of a command line before its other arguments, which is where the flag parser wants them, so that
// `group create NAME --mode 2-3` means what it says. What follows "--" stays as it is.
func flagsFirst(app *cli.App, args []string) []string {
	if len(args) == 0 {
		return args
	}
	out := args[:1:1]
	rest := args[1:]
	commands, flags := app.Commands, app.Flags
	for len(rest) > 0 {
		i := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(rest[0]) })
		if i < 0 {
			break
		}
		c := commands[i]
		out = append(out, rest[0])
		rest = rest[1:]
		if c.SkipFlagParsing {
			return append(out, rest...)
		}
		commands, flags = c.Subcommands, c.Flags
	}
	var plain []string
	for i := 0; i < len(rest); i++ {
		arg := rest[i]
		if arg == "--" {
			plain = append(plain, rest[i+1:]...)
			break
		}
		if len(arg) < 2 || arg[0] != '-' {
			plain = append(plain, arg)
			continue
		}
		out = append(out, arg)
		if takesValue(flags, arg) {
			if i++; i == len(rest) {
				return out // the parser says that it needs a value
			}
			out = append(out, rest[i])
		}
	}
	if len(plain) > 0 {
		out = append(append(out, "--"), plain...)
	}
	return out
}

func takesValue(flags []cli.Flag, arg string) bool {
	name := strings.TrimLeft(arg, "-")
	if strings.Contains(name, "=") {
		return false
	}
	for _, f := range flags {
		if slices.Contains(f.Names(), name) {
			d, ok := f.(cli.DocGenerationFlag)
			return ok && d.TakesValue()
		}
	}
	return false
}

// wantArgs checks the number of plain arguments; names are shown when it is wrong.
func wantArgs(c *cli.Context, least, most int, names string) error {
	n := c.NArg()
	if n >= least && (most < 0 || n <= most) {
		return nil
	}
	return usagef("%s: want %s, got %s; see --help", c.Command.HelpName, names, countOf(n, "argument"))
}

func countOf(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
