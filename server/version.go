package server

import (
	"runtime/debug"
	"strings"
)

const modulePath = "github.com/kvoracle/kvoracle"

// Version is the version of this module in the running program: a tag, or "devel" with the revision it was built from
// where that is known.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	return versionOf(info)
}

func versionOf(info *debug.BuildInfo) string {
	for _, dep := range info.Deps {
		if dep.Path == modulePath { // inside somebody else's program
			return dep.Version
		}
	}
	if v := info.Main.Version; info.Main.Path == modulePath && strings.HasPrefix(v, "v") {
		return v
	}
	revision, dirty := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+dirty"
		}
	}
	if revision == "" || info.Main.Path != modulePath {
		return "devel"
	}
	return "devel-" + revision[:min(12, len(revision))] + dirty
}
