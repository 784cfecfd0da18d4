package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"gitopsd.dev/cmd/devcluster/internal/kubelet"
)

func TestCommandLine(t *testing.T) {
	t.Parallel()
	none := filepath.Join(t.TempDir(), "none")
	for _, tt := range []struct {
		name   string
		args   []string
		status int
		stdout string
		stderr string
	}{
		{name: "help", args: []string{"--help"}, stdout: kubelet.FailAnnotation},
		{name: "help of up", args: []string{"up", "--help"}, stdout: "--foreground"},
		{name: "version", args: []string{"version"}, stdout: "kubernetes v1."},
		{name: "unknown command", args: []string{"begin"}, status: 1, stderr: `"begin"`},
		{name: "no directory", args: []string{"up", "--clusters", "hub"}, status: 1, stderr: "--dir"},
		{name: "no clusters", args: []string{"up", "--dir", none}, status: 1, stderr: "--clusters"},
		{name: "bad name", args: []string{"up", "--dir", none, "--clusters", "Hub"}, status: 1, stderr: `"Hub"`},
		{name: "add to nothing", args: []string{"add", "--dir", none, "hub"}, status: 1, stderr: none},
		{name: "stop nothing", args: []string{"stop", "--dir", none, "hub"}, status: 1, stderr: none},
		{name: "start nothing", args: []string{"start", "--dir", none, "hub"}, status: 1, stderr: none},
		{name: "stop whom", args: []string{"stop", "--dir", none}, status: 1, stderr: "arg"},
		{name: "image of which cluster", args: []string{"image", "--dir", none}, status: 1, stderr: "which cluster"},
		{name: "image without command", args: []string{"image", "--dir", none, "hub", "nginx"}, status: 1, stderr: "which command stands for nginx"},
		{name: "image with a tag", args: []string{"image", "--dir", none, "hub", "nginx:1", "sh"}, status: 1, stderr: "leave tag and digest out"},
		{name: "image for a program that is not there", args: []string{"image", "--dir", none, "hub", "nginx", "no-such-program"}, status: 1, stderr: "no-such-program"},
		{name: "image in nothing", args: []string{"image", "--dir", none, "hub", "nginx", "sh", "-c", "--dir"}, status: 1, stderr: none},
		{name: "logs of nothing", args: []string{"logs", "--dir", none, "hub"}, status: 1, stderr: none},
		{name: "logs of a path", args: []string{"logs", "--dir", none, "hub", "../.."}, status: 1, stderr: "want NAMESPACE/NAME"},
		{name: "down, nothing up", args: []string{"down", "--dir", none}, stdout: "nothing to bring down"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr bytes.Buffer
			status := run(t.Context(), tt.args, &stdout, &stderr)
			if status != tt.status || !strings.Contains(stdout.String(), tt.stdout) || !strings.Contains(stderr.String(), tt.stderr) {
				t.Errorf("status %d\nstdout: %s\nstderr: %s", status, &stdout, &stderr)
			}
		})
	}
}
