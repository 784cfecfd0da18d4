package home

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"gitopsd.dev/reconcile/problem"
)

// However many problems a namespace has, those of another are shown, and always the same ones.
func TestBounded(t *testing.T) {
	of := func(namespace string, n int) (all []problem.Problem) {
		for i := range n {
			all = append(all, problem.Problem{Cluster: "hub", Object: fmt.Sprintf("kubernetesapplication.workload.crossplane.io/%s/app-%02d", namespace, i), Reason: "is wrong"})
		}
		return all
	}
	more := func(text string) problem.Problem { return problem.Problem{Cluster: "hub", Reason: text} }
	var crowd []problem.Problem
	for i := range 60 {
		crowd = append(crowd, of(fmt.Sprintf("team-%02d", i), 2)...)
	}
	clusterWide := problem.Problem{Cluster: "hub", Object: "etcdnamespace.gitopsd.dev/prod", Reason: "is wrong"}
	for _, tt := range []struct {
		name  string
		given []problem.Problem
		want  []problem.Problem
	}{
		{"none", nil, nil},
		{"few", of("team", 50), of("team", 50)},
		{"many in one", slices.Concat(of("a", 90), of("b", 1), []problem.Problem{clusterWide}),
			slices.Concat([]problem.Problem{clusterWide}, of("a", 16), []problem.Problem{more("… and 74 more in namespace a")}, of("b", 1))},
	} {
		for range 3 {
			rand.Shuffle(len(tt.given), func(i, j int) { tt.given[i], tt.given[j] = tt.given[j], tt.given[i] })
			if have := bounded("hub", tt.given); !reflect.DeepEqual(have, tt.want) {
				t.Errorf("%s: have %v", tt.name, have)
			}
		}
	}
	others := of("a", 90)
	for i := range others[:89] {
		others[i].Outside = true
	}
	declared := others[89]
	if have := bounded("hub", others); len(have) != mostProblems+1 || have[0] != declared || !have[mostProblems].Outside {
		t.Errorf("one of the repository: have %v", have)
	}
	have := bounded("hub", crowd)
	if len(have) != 2*mostProblems+1 || have[1] != more("… and 1 more in namespace team-00") || have[len(have)-1] != more("… and 20 more in 10 other namespaces") {
		t.Errorf("many namespaces: have %v", have)
	}
}
