package cli

import (
	"encoding/json"
	"strings"
	"testing"
)

// A command that ends with an error before it has a result writes the error into the document
// that it was asked for, too.
func TestEarlyErrorsAreInDocuments(t *testing.T) {
	t.Parallel()
	fleet := func(files map[string]string) string {
		dir := t.TempDir()
		for name, text := range files {
			writeFile(t, dir, name, text)
		}
		return dir
	}
	for _, tt := range []struct {
		name, args, want string
		files            map[string]string
	}{
		{"a conflict in the lock", "plan", "clusters.lock:1: Git left a merge conflict", map[string]string{"clusters.yaml": "", "clusters.lock": "<<<<<<< HEAD\n"}},
		{"a garbled lock", "plan", "clusters.lock:1: ", map[string]string{"clusters.yaml": "", "clusters.lock": "what\n"}},
		{"no fleet", "plan", "is not in a fleet repository", map[string]string{".git": ""}},
		{"no such revision", "plan --against nowhere", "--against: ", map[string]string{"clusters.yaml": ""}},
		{"verify", "verify", "is not in a fleet repository", map[string]string{".git": ""}},
		{"outdated", "outdated", "clusters.lock:1: Git left a merge conflict", map[string]string{"clusters.yaml": "", "clusters.lock": "<<<<<<< HEAD\n"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, format := range []string{"json", "markdown", "text"} {
				args := append(strings.Fields(tt.args), "--repo", fleet(tt.files), "--cache-dir", t.TempDir(), "-o", format)
				code, out, errOut := gitopsd(t, nil, args...)
				if code != 1 || !strings.Contains(errOut, tt.want) {
					t.Errorf("%q: status %d, stderr %q", args, code, errOut)
				}
				var doc any
				switch {
				case format == "text" && out != "":
					t.Errorf("%q: %q", args, out)
				case format != "text" && !strings.Contains(out, tt.want):
					t.Errorf("%q: no %q in %q", args, tt.want, out)
				case format == "json" && json.Unmarshal([]byte(out), &doc) != nil:
					t.Errorf("%q: no JSON: %q", args, out)
				case format == "json" && strings.Contains(out, "null"):
					t.Errorf("%q: %q", args, out)
				}
			}
		})
	}
}
