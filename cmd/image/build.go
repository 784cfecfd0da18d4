package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// platforms are those that the image is for.
var platforms = []v1.Platform{{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"}}

// program is a static binary for one platform.
type program struct {
	platform v1.Platform
	content  []byte
	// info is what Go has recorded in it: its modules, the commit and how it was built.
	info *debug.BuildInfo
}

// fixed is the environment that decides what Go compiles. Whoever builds the image
// may have other values, which would make another image of the same commit.
var fixed = []string{
	"CGO_ENABLED=0", // so that the binary is static
	"GO111MODULE=on", "GOWORK=off",
	"GOAMD64=v1", "GOARM64=v8.0", "GOFIPS140=off",
	// Not empty: an empty variable leaves what `go env -w` has kept. The flag is given
	// anyway, and the experiment is off anyway.
	"GOFLAGS=-trimpath", "GOEXPERIMENT=nofieldtrack",
}

// build compiles a package of the module in a directory for a platform. Its output is
// below scratch.
func build(ctx context.Context, module, source, scratch string, p v1.Platform) (*program, error) {
	file := filepath.Join(scratch, p.OS+"-"+p.Architecture)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=auto", "-ldflags=-s -w", "-o", file, source)
	cmd.Dir = module
	cmd.Env = append(append(os.Environ(), fixed...), "GOOS="+p.OS, "GOARCH="+p.Architecture)
	if out, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fmt.Errorf("go build %s for %s: %w\n%s", source, p, err, bytes.TrimSpace(out))
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	info, err := buildinfo.Read(bytes.NewReader(content))
	if err != nil {
		return nil, fmt.Errorf("what go build recorded in %s for %s: %w", source, p, err)
	}
	return &program{platform: p, content: content, info: info}, nil
}

// name returns the name of the command.
func (p *program) name() string {
	return p.info.Path[strings.LastIndexByte(p.info.Path, '/')+1:]
}

// version returns the version of the program, which Go makes of the commit and its tags;
// "" where it is not known.
func (p *program) version() string {
	if v := p.info.Main.Version; v != "(devel)" {
		return v
	}
	return ""
}

// setting returns what Go recorded under a key, such as vcs.revision; "" if nothing.
func (p *program) setting(key string) string {
	for _, s := range p.info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// committed returns the time of the commit that the program was built from. Without
// one it is that of Unix' first second, as good a time as any that does not change.
func (p *program) committed() time.Time {
	at, err := time.Parse(time.RFC3339, p.setting("vcs.time"))
	if err != nil {
		return time.Unix(0, 0).UTC()
	}
	return at.UTC()
}
