package problem_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/problem"
)

// refused is an error that knows its structure.
type refused struct{}

func (refused) Error() string { return "cluster dev: apply service/default/web: forbidden" }
func (refused) Problem() problem.Problem {
	return problem.Problem{Cluster: "dev", Object: "service/default/web", Reason: "apply: forbidden"}
}

func TestOf(t *testing.T) {
	one := problem.Problem{Cluster: "dev", Package: "widgets", Reason: "is gone"}
	for _, tt := range []struct {
		name string
		err  error
		want []problem.Problem
		text string
	}{
		{"nothing", nil, nil, ""},
		{"any error", io.EOF, []problem.Problem{{Reason: "EOF"}}, "EOF"},
		{"a problem", one, []problem.Problem{one}, "cluster dev: package widgets: is gone"},
		{"with a place", problem.Problem{Object: "a", Origin: "a.yaml:3", Reason: "no", Advice: "correct it"},
			[]problem.Problem{{Object: "a", Origin: "a.yaml:3", Reason: "no", Advice: "correct it"}}, "a: no (a.yaml:3); correct it"},
		{"in a cluster", problem.In("prod", io.EOF), []problem.Problem{{Cluster: "prod", Reason: "EOF"}}, "cluster prod: EOF"},
		{"joined", errors.Join(io.EOF, one), []problem.Problem{{Reason: "EOF"}, one}, "EOF\ncluster dev: package widgets: is gone"},
		{"joined in a cluster", problem.In("prod", errors.Join(io.EOF, io.ErrClosedPipe)),
			[]problem.Problem{{Cluster: "prod", Reason: "EOF"}, {Cluster: "prod", Reason: io.ErrClosedPipe.Error()}},
			"cluster prod: EOF\ncluster prod: io: read/write on closed pipe"},
		{"wrapped twice is one error", fmt.Errorf("%w of %w", io.EOF, one),
			[]problem.Problem{{Reason: "EOF of cluster dev: package widgets: is gone"}}, "EOF of cluster dev: package widgets: is gone"},
		{"it knows itself", refused{}, []problem.Problem{refused{}.Problem()}, "cluster dev: service/default/web: apply: forbidden"},
		{"it knows more", &problem.Error{Cluster: "other", Advice: "allow it", Err: refused{}},
			[]problem.Problem{{Cluster: "dev", Object: "service/default/web", Reason: "apply: forbidden", Advice: "allow it"}},
			"cluster dev: service/default/web: apply: forbidden; allow it"},
		{"advice twice", &problem.Error{Advice: "second", Err: &problem.Error{Advice: "first", Object: "a", Err: io.EOF}},
			[]problem.Problem{{Object: "a", Reason: "EOF", Advice: "first; second"}}, "a: EOF; first; second"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			all := problem.Of(tt.err)
			if !slices.Equal(all, tt.want) {
				t.Errorf("%+v\nwant %+v", all, tt.want)
			}
			joined := problem.Join(all)
			if joined == nil != (tt.err == nil) || joined != nil && joined.Error() != tt.text {
				t.Errorf("%v, want %s", joined, tt.text)
			}
			if again := problem.Of(joined); !slices.Equal(again, all) {
				t.Errorf("taken apart again: %+v", again)
			}
		})
	}
}

// Problems that clusters share have the same key, wherever a package is declared; objects in two files are two.
func TestKey(t *testing.T) {
	p := problem.Problem{Cluster: "a", Package: "p", Reason: "x.yaml:1: late", Origin: "a/p.yaml:1"}
	q := problem.Problem{Cluster: "b", Package: "p", Reason: "x.yaml:2: late", Origin: "b/p.yaml:7"}
	if p.Key() != q.Key() {
		t.Errorf("%q is not %q", p.Key(), q.Key())
	}
	if q.Reason = "x.yaml:2: later"; p.Key() == q.Key() {
		t.Errorf("%q for two reasons", p.Key())
	}
	p.Object, q.Object, q.Reason = "configmap/a/b", "configmap/a/b", p.Reason
	if p.Key() == q.Key() {
		t.Errorf("%q for two objects", p.Key())
	}
}

func TestMerge(t *testing.T) {
	in := func(cluster, reason string) problem.Problem {
		return problem.Problem{Cluster: cluster, Reason: reason, Package: "p"}
	}
	all := []problem.Problem{in("", "fleet"), in("a", "once"), in("a", "twice"), in("b", "other"), in("b", "twice"), in("b", "other"), in("c", "twice"), in("c", "fleet")}
	want := []problem.Problem{in("", "fleet"), in("a", "once"), in("", "twice"), in("b", "other")}
	if have := problem.Merge(all); !slices.Equal(have, want) {
		t.Errorf("%v, want %v", have, want)
	}
	all, want = nil, []problem.Problem{{Reason: "late", Package: "p", Origin: "a.yaml:1, b.yaml:1, c.yaml:1 and 2 more"}}
	for _, cluster := range []string{"a", "b", "c", "d", "e", "a"} {
		all = append(all, problem.Problem{Cluster: cluster, Reason: "late", Package: "p", Origin: cluster + ".yaml:1"})
	}
	if have := problem.Merge(all); !slices.Equal(have, want) {
		t.Errorf("declared in several places: %v, want %v", have, want)
	}
	object := problem.Problem{Cluster: "a", Reason: "invalid", Object: "configmap/d/c", Origin: "a.yaml:1"}
	other := problem.Problem{Cluster: "b", Reason: "invalid", Object: "configmap/d/c", Origin: "b.yaml:1"}
	if have := problem.Merge([]problem.Problem{object, other}); len(have) != 2 {
		t.Errorf("two objects of one name: %v", have)
	}
}

func TestError(t *testing.T) {
	err := problem.In("dev", io.EOF)
	if !errors.Is(err, io.EOF) || err.Error() != "cluster dev: EOF" {
		t.Errorf("%v is not EOF in dev", err)
	}
	if text := problem.Message(err); text != "EOF" {
		t.Errorf("message %q", text)
	}
	if text := problem.Message(errors.Join(refused{}, io.EOF)); text != "service/default/web: apply: forbidden\nEOF" {
		t.Errorf("message %q", text)
	}
}

// An error about nothing is none, and one that joins nothing is itself.
func TestNothing(t *testing.T) {
	if err := problem.In("dev", nil); err != nil {
		t.Errorf("error: %v", err)
	}
	if m := problem.Message(nil); m != "" {
		t.Errorf("message %q", m)
	}
	if e := (&problem.Error{Cluster: "dev"}).Error(); e != "" {
		t.Errorf("error %q", e)
	}
	var none error
	if all := problem.Of(fmt.Errorf("%w and %w", none, none)); len(all) != 1 || !strings.Contains(all[0].Reason, " and ") {
		t.Errorf("problems %q", all)
	}
}

// A shared problem has its clusters, in JSON, too.
func TestGather(t *testing.T) {
	all := problem.Gather([]problem.Problem{{Cluster: "dev", Reason: "late"}, {Cluster: "prod", Reason: "late"}, {Cluster: "dev", Reason: "late"}, {Cluster: "dev", Reason: "own"}, {Reason: "both"}, {Cluster: "dev", Reason: "both"}})
	text, err := json.Marshal(all)
	const want = `[{"reason":"late","clusters":["dev","prod"]},{"cluster":"dev","reason":"own"},{"reason":"both"}]`
	if err != nil || string(text) != want {
		t.Errorf("%v %s\nwant %s", err, text, want)
	}
	for name, want := range map[string][]bool{"dev": {true, true, true}, "prod": {true, false, true}, "stage": {false, false, true}} {
		for i, s := range all {
			if s.Concerns([]string{name}) != want[i] || !s.Concerns(nil) {
				t.Errorf("%s: %s: %t", name, s, !want[i])
			}
		}
	}
}
