package main

import (
	"cmp"
	"context"
	"flag"
	"runtime"
	"runtime/debug"

	"github.com/onlyonce/onlyonce/migrations"
)

func versionCommand() command {
	return command{
		name:    "version",
		args:    "[-json]",
		summary: "show the version of this program, for a ticket",
		help: `
Shows the version of this program: that of its module, or the revision that it was built from, with
"modified" if files had changed since; the Go version that built it; and the version of the schema
that it was written for. It works with that schema and with the next. It needs no database:
"onlyonce migrate -version" shows the version of the schema in one.

With -json, one object: version, revision, modified, go, os, arch, schema_version.`,
		setup: func(fs *flag.FlagSet) func(context.Context, *app) error {
			asJSON := jsonVar(fs)
			return func(_ context.Context, a *app) error {
				info, _ := debug.ReadBuildInfo()
				b := buildOf(info)
				if *asJSON {
					return a.writeJSON(b)
				}
				a.say("onlyonce %s, %s %s/%s, schema version %d", b.text(), b.Go, b.OS, b.Arch, b.Schema)
				return nil
			}
		},
	}
}

// build is what this program was built from.
type build struct {
	Version  string `json:"version"`  // of the module; "(devel)": not known
	Revision string `json:"revision"` // of the version control; empty: not known
	Modified bool   `json:"modified"` // files had changed since the revision
	Go       string `json:"go"`
	OS       string `json:"os"`
	Arch     string `json:"arch"`
	Schema   int    `json:"schema_version"` // that the program was written for
}

// release is the version that deploy/Dockerfile gives the linker.
var release string

// develVersion is the version of a program that was built in its repository, without a tag.
const develVersion = "(devel)"

// buildOf reads the build. info may be nil.
func buildOf(info *debug.BuildInfo) build {
	b := build{
		Version: develVersion,
		Go:      runtime.Version(),
		OS:      runtime.GOOS,
		Arch:    runtime.GOARCH,
		Schema:  migrations.Latest,
	}
	if info == nil {
		return b
	}
	b.Version = cmp.Or(release, info.Main.Version, b.Version)
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

// text is the version, or the revision if that says more.
func (b *build) text() string {
	s := b.Version
	if b.Revision != "" {
		s += ", revision " + b.Revision
	}
	if b.Modified {
		s += " (modified)"
	}
	return s
}
