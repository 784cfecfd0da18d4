package reconcile

import (
	"strconv"
	"strings"
	"testing"

	"gitopsd.dev/sources"
)

// Which of two commits is to be applied, as processes see it that heard of them at
// different times.
func TestSupersedes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file := func(text string) map[string]string { return map[string]string{"file": text} }
	c0 := w.commit("0", file("0"))
	c1 := w.commit("1", file("1"))
	c2 := w.commit("2", file("2"))
	c3 := w.commit("3", file("3"))
	reset := func(to string) {
		if _, err := w.repo.Git(t.Context(), "update-ref", "refs/heads/main", to); err != nil {
			t.Fatal(err)
		}
	}
	reset(c0)
	forced := w.commit("forced", file("forced"))
	reset(c3)
	var far []string
	for i := range maxLookBack + 2 {
		far = append(far, w.commit("far", file("far "+strconv.Itoa(i))))
	}
	late := far[len(far)-2]
	for _, tt := range []struct {
		name            string
		head            string // the branch's newest commit
		commit, applied string
		older           bool
	}{
		{name: "at the newest", head: c3, commit: c3, applied: c1},
		{name: "when there is a newer one", head: c3, commit: c2, applied: c0},
		{name: "it did not hear of the newest", head: c2, commit: c1, applied: c2, older: true},
		{name: "nor of the one that was applied", head: c3, commit: c1, applied: c2, older: true},
		{name: "forced to another history", head: forced, commit: forced, applied: c3},
		{name: "it did not hear of that", head: forced, commit: c3, applied: forced, older: true},
		{name: "reset to an older one", head: c1, commit: c1, applied: c3},
		{name: "it did not hear of the reset", head: c1, commit: c3, applied: c1, older: true},
		{name: "nor of what came on top of it", head: forced, commit: c3, applied: c0, older: true},
		{name: "far behind, when there is a newer one", head: far[len(far)-1], commit: late, applied: c0},
		{name: "far behind on a history that was left", head: far[len(far)-1], commit: late, applied: forced},
		{name: "it is far behind itself", head: far[len(far)-1], commit: c0, applied: late, older: true},
		{name: "it is far behind, and the applied one is the newest", head: far[len(far)-1], commit: far[1], applied: far[len(far)-1], older: true},
		{name: "garbled", head: c3, commit: c3, applied: "no commit"},
		{name: "garbled, and behind", head: c3, commit: c2, applied: "no commit", older: true},
	} {
		reset(tt.head)
		d := w.daemon(nil)
		err := d.Supersedes(t.Context(), tt.commit, tt.applied)
		if older := err != nil && strings.Contains(err.Error(), "the branch has moved on from "+sources.ShortHash(tt.commit)); older != tt.older || err != nil && !older {
			t.Errorf("%s: %v", tt.name, err)
		}
	}

	// The lock's own commit asks for what the one before it asks for.
	reset(c3)
	d := w.daemon(nil)
	d.history.same(c3, c2)
	if err := d.Supersedes(t.Context(), c2, forced); err != nil {
		t.Error(err)
	}
	if err := d.Supersedes(t.Context(), c1, c2); err == nil {
		t.Error("c1 may be applied after c2")
	}

	// Where the repository does not answer nobody knows.
	d = w.daemon(nil)
	w.git.Close()
	if err := d.Supersedes(t.Context(), c2, c1); err == nil || !strings.Contains(err.Error(), "cannot be told") {
		t.Error(err)
	}
}
