package placement

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

func selector(t *testing.T, text string) labels.Selector {
	t.Helper()
	s, err := labels.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestDecide(t *testing.T) {
	dev := Target{Name: "dev", Labels: map[string]string{"env": "dev"}}
	stage := Target{Name: "stage", Labels: map[string]string{"env": "stage"}}
	down := Target{Name: "down", Labels: map[string]string{"env": "dev"}, Unready: "the cluster does not answer"}
	silent := Target{Name: "silent", Labels: map[string]string{"env": "dev"}, Silent: "shop"}
	quiet := Target{Name: "quiet", Labels: map[string]string{"env": "dev"}, Silent: "blog"}
	inDev := selector(t, "env=dev")
	for _, tt := range []struct {
		name    string
		app     Application
		others  []Application
		targets []Target
		want    Decision
	}{
		{"selected", Application{Selector: inDev}, nil, []Target{dev, stage}, Decision{Target: "dev", New: true, Why: "the only ready target that its selector selects"}},
		{"none there", Application{Selector: inDev}, nil, nil, Decision{Why: "namespace team has no KubernetesTarget"}},
		{"none selected", Application{Selector: inDev}, nil, []Target{stage}, Decision{Why: "its selector (env=dev) selects none of the targets of namespace team: stage"}},
		{"none ready", Application{Selector: inDev}, nil, []Target{down, stage}, Decision{Why: "no target that its selector selects is ready: down: the cluster does not answer"}},
		{"ready before down", Application{Selector: inDev}, nil, []Target{down, dev}, Decision{Target: "dev", New: true, Why: "the only ready target that its selector selects"}},
		{
			"answering before silent", Application{Selector: inDev}, []Application{{Name: "a", Placed: "dev"}}, []Target{silent, dev, quiet},
			Decision{Target: "dev", New: true, Why: "the only ready target that its selector selects; left out: quiet, whose cluster did not answer application blog, and silent, whose cluster did not answer application shop"},
		},
		{
			"answering ones before silent", Application{Selector: labels.Everything()}, []Application{{Name: "a", Placed: "dev"}}, []Target{silent, stage, dev},
			Decision{Target: "stage", New: true, Why: "chosen from dev, stage: no application is placed there yet; left out: silent, whose cluster did not answer application shop"},
		},
		{"all silent", Application{Selector: inDev}, []Application{{Name: "a", Placed: "quiet"}}, []Target{silent, quiet}, Decision{Target: "silent", New: true, Why: "chosen from quiet, silent: no application is placed there yet"}},
		{"placed on a silent one", Application{Selector: inDev, Placed: "silent"}, nil, []Target{silent, dev}, Decision{Target: "silent", Why: "it was placed there"}},
		{"moves to one that answers", Application{Selector: labels.Everything(), Placed: "dev", Moves: true}, nil, []Target{silent, dev, stage}, Decision{Target: "stage", New: true, Why: "the only ready target that its selector selects; left out: silent, whose cluster did not answer application shop"}},
		{"asks for nothing", Application{}, nil, []Target{dev}, Decision{Why: "it names no target: set spec.targetSelector ({} selects any target of the namespace) or spec.targetRef"}},
		{"named", Application{Ref: "down", Selector: selector(t, "env=stage")}, nil, []Target{down, stage}, Decision{Target: "down", New: true, Why: "it asks for this target"}},
		{"named and there", Application{Ref: "dev", Placed: "dev"}, nil, []Target{dev}, Decision{Target: "dev", Why: "it asks for this target"}},
		{"named anew", Application{Ref: "stage", Placed: "dev"}, nil, []Target{dev, stage}, Decision{Target: "stage", New: true, Why: "it asks for this target"}},
		{"label changed", Application{Selector: selector(t, "env=prod"), Placed: "dev"}, nil, []Target{dev, stage}, Decision{Target: "dev", Why: "it was placed there"}},
		{"target gone", Application{Selector: inDev, Placed: "gone"}, nil, []Target{dev}, Decision{Target: "gone", Why: "it was placed there"}},
		{"moves", Application{Selector: labels.Everything(), Placed: "dev", Moves: true}, nil, []Target{dev, stage}, Decision{Target: "stage", New: true, Why: "the only ready target that its selector selects"}},
		{"moves nowhere", Application{Selector: inDev, Placed: "dev", Moves: true}, nil, []Target{dev, stage}, Decision{Target: "dev", Stuck: true, Why: "it stays: its selector selects no other target"}},
		{"asks to move and is nowhere", Application{Selector: selector(t, "env=prod"), Moves: true}, nil, []Target{dev}, Decision{Why: "its selector (env=prod) selects none of the targets of namespace team: dev"}},
		{
			"the emptier one", Application{Selector: labels.Everything()}, []Application{{Name: "a", Placed: "dev"}, {Name: "b", Ref: "stage"}, {Name: "c", Placed: "stage"}}, []Target{stage, dev},
			Decision{Target: "dev", New: true, Why: "chosen from dev, stage: one application is placed there, and no fewer on another"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.app.Name = "web"
			have := Decide("team", append(tt.others, tt.app), tt.targets)["web"]
			if have != tt.want {
				t.Errorf("have %+v\nwant %+v", have, tt.want)
			}
		})
	}
}

// Equal targets get equally many applications, in any order, and placed applications stay
// when more are added.
func TestDecideEvenly(t *testing.T) {
	var targets []Target
	for i := range 7 {
		targets = append(targets, Target{Name: fmt.Sprintf("t%d", i)})
	}
	var apps []Application
	for i := range 100 {
		apps = append(apps, Application{Name: fmt.Sprintf("app%03d", i), Selector: labels.Everything()})
	}
	first := Decide("team", apps, targets)
	count := make(map[string]int)
	for _, d := range first {
		count[d.Target]++
	}
	for name, n := range count {
		if n < 14 || n > 15 {
			t.Errorf("target %s has %d of 100 applications on 7 targets", name, n)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		shuffled, other := slices.Clone(apps), slices.Clone(targets)
		random.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		random.Shuffle(len(other), func(i, j int) { other[i], other[j] = other[j], other[i] })
		if again := Decide("team", shuffled, other); !reflect.DeepEqual(first, again) {
			t.Fatal("the order of the arguments decides")
		}
	}
	for i := range apps {
		apps[i].Placed = first[apps[i].Name].Target
	}
	later := Decide("team", append(apps, Application{Name: "aaa", Selector: labels.Everything()}), append(targets, Target{Name: "new"}))
	for name, d := range first {
		if later[name].Target != d.Target || later[name].New {
			t.Errorf("%s moved from %s to %s by itself", name, d.Target, later[name].Target)
		}
	}
	if d := later["aaa"]; d.Target != "new" {
		t.Errorf("the next application goes to %s, not to the empty target", d.Target)
	}
}

func ExampleDecide() {
	targets := []Target{{Name: "east", Labels: map[string]string{"env": "dev"}}, {Name: "west", Labels: map[string]string{"env": "dev"}}}
	dev, _ := labels.Parse("env=dev")
	decisions := Decide("my-team", []Application{{Name: "shop", Placed: "east"}, {Name: "blog", Selector: dev}}, targets)
	fmt.Println(decisions["blog"].Target + ": " + decisions["blog"].Why)
	// Output: west: chosen from east, west: no application is placed there yet
}
