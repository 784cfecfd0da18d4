package plan

import (
	"cmp"
	"slices"

	"gitopsd.dev/render/converter"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/pins"
)

// Stage is a stage of applying: an object is applied after all objects of earlier stages,
// and pruned before them.
type Stage int

// The stages, in order.
const (
	// Definitions: Namespaces and CRDs, which everything else needs, and the workload
	// that converts objects by rules.
	Definitions Stage = iota
	// Settings: RBAC, Secrets, ConfigMaps, Services and others that workloads need.
	Settings
	// Workloads: objects that run pods.
	Workloads
	// Admission: webhook configurations, admission policies and APIServices,
	// which break other requests while nothing serves them.
	Admission
	// Custom: objects of types that a CRD or an aggregated API server defines.
	Custom
)

var stageNames = [...]string{"definitions", "settings", "workloads", "admission", "custom resources"}

func (s Stage) String() string { return stageNames[s] }

// stageOf returns the stage of a desired object. The policies by which the API server compares
// pins (render/pins) come after all types, XRDs' too, and before their objects.
func stageOf(o *manifest.Object) Stage {
	if pins.Of(o) {
		return Custom
	}
	return StageOf(o.ID())
}

// Workload kinds by group. All other kinds of Kubernetes' own groups are
// settings.
var workloadGroups = map[string]bool{"apps": true, "batch": true, "autoscaling": true}

// StageOf returns the stage of an object.
func StageOf(id manifest.ID) Stage {
	switch {
	case id.Is(manifest.Namespace, manifest.CRD), converter.Part(id):
		return Definitions
	case id.Group == manifest.GroupAdmission, id.Group == manifest.GroupAggregator:
		return Admission
	case workloadGroups[id.Group], id.Is(manifest.Pod, manifest.GroupKind{Kind: "ReplicationController"}):
		return Workloads
	case manifest.BuiltIn(id.Group):
		return Settings
	}
	return Custom
}

// First reports whether an object comes before the rest of its stage: Namespaces
// before CRDs, XRDs before objects of their types.
func First(id manifest.ID) bool {
	return id.Is(manifest.Namespace, manifest.XRD)
}

// rank orders prunes within a stage.
func rank(id manifest.ID) int {
	switch {
	case First(id):
		return 0
	case converter.Part(id):
		return 1
	}
	return 2
}

// Batch is the part of its stage in which a desired object is applied: 0 for objects that
// come [First], 1 for policies for pins and for the parts that the
// conversion workload needs, 2 for that workload, 3 for all others.
func (s *Step) Batch() int {
	switch {
	case First(s.ID):
		return 0
	case s.ID == converter.Workload():
		return 2
	case s.Stage == Custom && s.ID.Is(manifest.ValidatingPolicy, manifest.ValidatingPolicyBinding), converter.Part(s.ID):
		return 1
	}
	return 3
}

// sortApplied sorts steps into the order of applying; within a batch they keep their
// order.
func sortApplied(steps []Step) {
	slices.SortStableFunc(steps, func(a, b Step) int {
		if a.Stage != b.Stage {
			return int(a.Stage - b.Stage)
		}
		return a.Batch() - b.Batch()
	})
}

// sortPruned sorts steps into the order of pruning, the reverse of applying, and numbers
// the rounds. An object goes before the pruned objects that it Needs, but a container stays in the place of its stage.
// A package's CRD that goes with its objects comes right after custom resources: their
// finalizers may need the rest of the package.
func sortPruned(steps []Step) {
	slices.SortFunc(steps, func(a, b Step) int { return a.ID.Compare(b.ID) })
	turns := turnsOf(steps)
	slices.SortStableFunc(steps, func(a, b Step) int { return turns[b.ID].compare(turns[a.ID]) })
	for i := 1; i < len(steps); i++ {
		steps[i].Round = steps[i-1].Round
		if turns[steps[i].ID] != turns[steps[i-1].ID] {
			steps[i].Round++
		}
	}
}

// turn is when an object is pruned: the latest stage first, and in a stage the longest
// chain of dependents first.
type turn struct{ stage, chain int }

func (t turn) compare(o turn) int { return cmp.Or(t.stage-o.stage, t.chain-o.chain) }

func turnsOf(steps []Step) map[manifest.ID]turn {
	named := make(map[string][]*Step)
	for i := range steps {
		s := &steps[i]
		named[s.ID.String()] = append(named[s.ID.String()], s)
		if s.Package != "" {
			named[packagePrefix+s.Package] = append(named[packagePrefix+s.Package], s)
		}
	}
	turns := make(map[manifest.ID]turn, len(steps))
	var turnOf func(s *Step) turn
	turnOf = func(s *Step) turn {
		if t, known := turns[s.ID]; known {
			return t // in a cycle, as far as it is known
		}
		t := turn{stage: 3*int(s.Stage) + rank(s.ID)}
		if s.ID.Is(manifest.CRD) && s.Package != "" && (s.WithContents || s.Action == Wait) {
			t = turn{stage: 3 * int(Custom), chain: -1}
		}
		turns[s.ID] = t
		if First(s.ID) || s.ID.Is(manifest.CRD) || s.ID.Group == manifest.GroupPackages {
			return t
		}
		for _, name := range s.Needs {
			for _, needed := range named[name] {
				if needed == s {
					continue
				}
				if n := turnOf(needed); t.compare(n) <= 0 {
					t = turn{n.stage, n.chain + 1}
				}
			}
		}
		turns[s.ID] = t
		return t
	}
	for i := range steps {
		turnOf(&steps[i])
	}
	return turns
}
