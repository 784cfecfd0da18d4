package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime/debug"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// platforms are the platforms of the image.
var platforms = []v1.Platform{{OS: "linux", Architecture: "amd64"}, {OS: "linux", Architecture: "arm64"}}

// program is a static binary for one platform.
type program struct {
	platform v1.Platform
	content  []byte
	// info is Go's record in the binary: its modules, the commit and build settings.
	info *debug.BuildInfo
}

// fixed is the part of the environment that affects compilation. Other values on a machine
// would make another image of the same commit.
var fixed = []string{
	"CGO_ENABLED=0", // so that the binary is static
	"GO111MODULE=on", "GOWORK=off",
	"GOAMD64=v1", "GOARM64=v8.0", "GOFIPS140=off",
	// Not empty: for an empty variable, values from `go env -w` count. The flag is also on
	// the command line, and the experiment is off by default.
	"GOFLAGS=-trimpath", "GOEXPERIMENT=nofieldtrack",
}

// build compiles a package of the module in a directory for a platform. It writes below
// scratch.
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
		return nil, fmt.Errorf("build information of %s for %s: %w", source, p, err)
	}
	return &program{platform: p, content: content, info: info}, nil
}

// name returns the name of the command.
func (p *program) name() string { return path.Base(p.info.Path) }

// version returns the version of the program, which Go derives from the commit and its tags,
// or "" if it is not known.
func (p *program) version() string {
	if v := p.info.Main.Version; v != "(devel)" {
		return v
	}
	return ""
}

// setting returns Go's record under a key, such as vcs.revision, or "".
func (p *program) setting(key string) string {
	for _, s := range p.info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// committed returns the time of the commit that the program was built from, or the Unix
// epoch without a commit.
func (p *program) committed() time.Time {
	at, err := time.Parse(time.RFC3339, p.setting("vcs.time"))
	if err != nil {
		return time.Unix(0, 0).UTC()
	}
	return at.UTC()
}
