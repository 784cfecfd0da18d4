package cli

import (
	"slices"
	"strings"
	"testing"
)

// A GitHub App needs an ID, a key and a repository of GitHub's, and goes with no other credentials.
func TestGitHubApp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := writeFile(t, dir, "file", "text")
	for _, tt := range []struct {
		args        []string
		environment map[string]string
		want        string
	}{
		{[]string{"--github-app-id", "1"}, nil, "--github-app-id and --github-app-key-file go together: set both"},
		{[]string{"--github-app-key-file", file}, nil, "--github-app-id and --github-app-key-file go together: set both"},
		{[]string{"--github-app-id", "1", "--github-app-key-file", file, "--git-password-file", file}, nil, "--github-app-id makes its own tokens: leave out --git-username, --git-password-file"},
		{[]string{"--github-app-id", "1", "--github-app-key-file", file}, map[string]string{"GITOPSD_GIT_PASSWORD": "secret"}, "and GITOPSD_GIT_PASSWORD\n"},
		{[]string{"--github-app-id", "1", "--github-app-key-file", file}, nil, "--github-app-id: " + file + " holds no RSA private key in PEM, as GitHub makes one for an app"},
		{[]string{"--github-app-id", "1", "--github-app-key-file", file, "--repo", "git@github.com:acme/fleet"}, nil, "--github-app-id: an app needs a repository by https"},
	} {
		args := slices.Concat([]string{"run", "--once", "--cache-dir", dir, "--repo", "https://github.com/acme/fleet"}, tt.args)
		code, _, stderr := gitopsd(t, tt.environment, args...)
		if code != 1 || !strings.Contains(stderr, tt.want) || strings.Contains(stderr, "secret") {
			t.Errorf("%q: %d %q, want %s", tt.args, code, stderr, tt.want)
		}
	}
}
