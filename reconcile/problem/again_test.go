package problem_test

import (
	"slices"
	"testing"

	"gitopsd.dev/reconcile/problem"
)

func TestNews(t *testing.T) {
	t.Parallel()
	at := func(origin, reason string) problem.Problem {
		return problem.Problem{Cluster: "dev", Object: "configmap/a/b", Origin: origin, Reason: reason}
	}
	field := at("a/web.yaml:9", "spec.siez: unknown")
	for _, tt := range []struct {
		name        string
		before, now []problem.Problem
		news        []problem.Problem
		unchanged   bool
	}{
		{"nothing", nil, nil, nil, true},
		{"the first", nil, []problem.Problem{field}, []problem.Problem{field}, false},
		{"gone", []problem.Problem{field}, nil, nil, false},
		{"lines moved", []problem.Problem{field}, []problem.Problem{at("a/web.yaml:12", "spec.siez: unknown")}, nil, true},
		{"lines in the text moved", []problem.Problem{at("", "a/b.yml:3 and kustomization:4: no")}, []problem.Problem{at("", "a/b.yml:13 and kustomization:5: no")}, nil, true},
		{"several places moved", []problem.Problem{at("a.yaml:1, b.yaml:2", "no")}, []problem.Problem{at("a.yaml:4, b.yaml:5", "no")}, nil, true},
		{"another file", []problem.Problem{field}, []problem.Problem{at("b/web.yaml:9", "spec.siez: unknown")}, []problem.Problem{at("b/web.yaml:9", "spec.siez: unknown")}, false},
		{"another reason", []problem.Problem{field}, []problem.Problem{at("a/web.yaml:9", "spec.size: Required value")}, []problem.Problem{at("a/web.yaml:9", "spec.size: Required value")}, false},
		{"a port is no line", []problem.Problem{at("", "127.0.0.1:80 refused")}, []problem.Problem{at("", "127.0.0.1:81 refused")}, []problem.Problem{at("", "127.0.0.1:81 refused")}, false},
		{"a version is no line", []problem.Problem{at("", "a.example.org/b:1 is gone")}, []problem.Problem{at("", "a.example.org/b:2 is gone")}, []problem.Problem{at("", "a.example.org/b:2 is gone")}, false},
		{"the same once more", []problem.Problem{field}, []problem.Problem{field, at("a/web.yaml:30", "spec.siez: unknown")}, []problem.Problem{at("a/web.yaml:30", "spec.siez: unknown")}, false},
		{"once less", []problem.Problem{field, at("a/web.yaml:30", "spec.siez: unknown")}, []problem.Problem{field}, nil, false},
	} {
		if have := problem.News(tt.now, tt.before, problem.Problem.String); !slices.Equal(have, tt.news) {
			t.Errorf("%s: news are %v, want %v", tt.name, have, tt.news)
		}
		if have := problem.Unchanged(tt.now, tt.before); have != tt.unchanged {
			t.Errorf("%s: unchanged is %t, want %t", tt.name, have, tt.unchanged)
		}
	}
}
