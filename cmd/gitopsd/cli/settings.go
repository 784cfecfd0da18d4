package cli

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// indifferent are the flags of run that do not affect the desired state.
var indifferent = []string{"once", "wait", "timeout", "interval", "listen", "status-token-file", "status-open", "push-secret-file", "lease", "lease-duration", "pod-name", "package-timeout", "cluster-timeout", "migrate-rate", "migrate-settle", "cache-dir", "log-format", "verbose",
	"etcd-servers", "etcd-cafile", "etcd-certfile", "etcd-keyfile", "etcd-client-ca-cert", "etcd-client-ca-key", "etcd-embedded", "etcd-listen", "etcd-advertise", "etcd-compact", "etcd-allow-prefixes"}

// settings identifies all inputs of the desired state except the repository: this program,
// its flags, and the files that these name. Files are identified by size and time, so the
// result reveals no content.
func (o *runOptions) settings(flags *pflag.FlagSet) string {
	var all []string
	put := func(path string, info fs.FileInfo, err error) {
		if err != nil {
			all = append(all, err.Error())
			return
		}
		all = append(all, fmt.Sprintf("%s %d %s", path, info.Size(), info.ModTime()))
	}
	all = append(all, version())
	program, _ := os.Executable() // where that fails, so does this
	info, err := os.Stat(program)
	put(program, info, err)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed && !slices.Contains(indifferent, f.Name) {
			all = append(all, f.Name+"="+f.Value.String())
		}
	})
	if o.registry.trustRoot != "" {
		info, err := os.Stat(o.registry.trustRoot)
		put(o.registry.trustRoot, info, err)
	}
	if o.registry.secretsDir != "" {
		_ = filepath.WalkDir(o.registry.secretsDir, func(path string, d fs.DirEntry, err error) error {
			var info fs.FileInfo
			if err == nil {
				info, err = d.Info()
			}
			put(path, info, err) // an error is a setting of its own
			return nil
		})
	}
	return strings.Join(all, "\n")
}
