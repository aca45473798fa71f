package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v2"

	"github.com/ledgermq/ledgermq/controller"
)

// protocolVersion is the RocketMQ version that answers on the wire carry: V5_5_0.
const protocolVersion = 479

type versionInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	Protocol int    `json:"protocol"`
	Levels   string `json:"levels"` // feature levels of a cluster that this program understands
}

func currentVersion() versionInfo {
	v := versionInfo{
		Version: "devel", Revision: "unknown", Go: runtime.Version(),
		Platform: runtime.GOOS + "/" + runtime.GOARCH, Protocol: protocolVersion,
		Levels: controller.OwnLevels().String(),
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		v.Version = info.Main.Version
	}
	dirty := false
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.modified":
			dirty = s.Value == "true"
		}
	}
	if dirty {
		v.Revision += "+changes"
	}
	return v
}

func (t *tool) versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "show the version of this binary",
		Flags: withEnv(jsonFlag()),
		Action: t.action(func(c *cli.Context) error {
			v := currentVersion()
			if c.Bool("json") {
				return json.NewEncoder(t.out).Encode(v)
			}
			_, err := fmt.Fprintf(t.out, "ledgermq %s (revision %s), %s, %s, RocketMQ protocol %d, feature levels %s\n",
				v.Version, v.Revision, v.Go, v.Platform, v.Protocol, v.Levels)
			return err
		}),
	}
}

func jsonFlag() cli.Flag {
	return &cli.BoolFlag{Name: "json", Usage: "print JSON, as docs/cli.md describes it"}
}
