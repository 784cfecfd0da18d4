package plan

import (
	"encoding/json"
	"io"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/render/types/compat"
)

// WriteJSON writes the plans for programs, one document:
//
//	{
//	  "source":  "working tree",        what was planned
//	  "against": "main",                the revision it was compared with, if it was not the live clusters
//	  "changes": true,                  whether anything would change
//	  "clusters": [{
//	    "name": "prod",
//	    "error": "…",                   why there is no plan, or not a whole one
//	    "summary": {"create": 3, "unchanged": 120},
//	    "steps": [{                     in the order of execution, without what is unchanged
//	      "action": "configure",        create, configure, prune, wait, conflict, refused, held
//	      "group": "apps", "kind": "Deployment", "namespace": "default", "name": "web",
//	      "package": "web",             if the object comes from one
//	      "stage": "workloads",
//	      "reason": "changed in the repository",
//	      "notValidated": "…",          why no dry run could say whether it would be accepted
//	      "rejected": "…",              what the API server has against it
//	      "compatibility": "breaking",  of the types of a CRD: documentation, compatible, breaking
//	      "findings": [{"name": "enum-value-removed", "severity": "breaking", "version": "v1", "path": ".spec.size", …}],
//	      "changes": [{"path": "spec.replicas", "old": 1, "new": 2}]
//	    }]
//	  }],
//	  "lock":   ["+ @prod …"],          lines of clusters.lock that change
//	  "errors": ["…"],
//	  "notes":  ["…"]
//	}
//
// A change has "added": true for a field that was not there, "removed": true for
// one that goes, and "hidden": true without values for those of Secrets. Fields
// that are empty are left out.
func (f *Fleet) WriteJSON(w io.Writer) error {
	doc := fleetJSON{Source: f.Source, Against: f.Against, Changes: f.HasChanges(), Lock: f.Lock, Errors: f.Errors, Notes: f.Notes, Clusters: []clusterJSON{}}
	for _, c := range f.Clusters {
		cj := clusterJSON{Name: c.Name, Error: c.Err, Steps: []stepJSON{}}
		if c.Plan != nil {
			cj.Summary = make(map[Action]int)
			for i := range c.Plan.Steps {
				s := &c.Plan.Steps[i]
				cj.Summary[s.Action]++
				if s.Action != Unchanged {
					cj.Steps = append(cj.Steps, newStepJSON(s))
				}
			}
			for _, gk := range slices.SortedFunc(maps.Keys(c.Plan.Unreadable), compareKinds) {
				cj.Unreadable = append(cj.Unreadable, gk.String()+": "+c.Plan.Unreadable[gk])
			}
		}
		doc.Clusters = append(doc.Clusters, cj)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(doc)
}

func compareKinds(a, b schema.GroupKind) int {
	switch {
	case a.String() < b.String():
		return -1
	case a.String() > b.String():
		return 1
	}
	return 0
}

type fleetJSON struct {
	Source   string        `json:"source"`
	Against  string        `json:"against,omitempty"`
	Changes  bool          `json:"changes"`
	Clusters []clusterJSON `json:"clusters"`
	Lock     []string      `json:"lock,omitempty"`
	Errors   []string      `json:"errors,omitempty"`
	Notes    []string      `json:"notes,omitempty"`
}

type clusterJSON struct {
	Name       string         `json:"name"`
	Error      string         `json:"error,omitempty"`
	Summary    map[Action]int `json:"summary,omitempty"`
	Steps      []stepJSON     `json:"steps"`
	Unreadable []string       `json:"unreadable,omitempty"`
}

type stepJSON struct {
	Action    Action `json:"action"`
	Group     string `json:"group,omitempty"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Package   string `json:"package,omitempty"`
	Stage     string `json:"stage"`
	Reason    string `json:"reason,omitempty"`
	// After names what must be ready before.
	After        []string `json:"after,omitempty"`
	Drift        bool     `json:"drift,omitempty"`
	NotValidated string   `json:"notValidated,omitempty"`
	Rejected     string   `json:"rejected,omitempty"`
	// Compatibility is a severity's name.
	Compatibility string           `json:"compatibility,omitempty"`
	Findings      []compat.Finding `json:"findings,omitempty"`
	Changes       []changeJSON     `json:"changes,omitempty"`
}

type changeJSON struct {
	Path    string `json:"path"`
	Old     any    `json:"old,omitempty"`
	New     any    `json:"new,omitempty"`
	Added   bool   `json:"added,omitempty"`
	Removed bool   `json:"removed,omitempty"`
	Hidden  bool   `json:"hidden,omitempty"`
}

func newStepJSON(s *Step) stepJSON {
	sj := stepJSON{
		Action: s.Action, Group: s.ID.Group, Kind: s.ID.Kind, Namespace: s.ID.Namespace, Name: s.ID.Name, Package: s.Package,
		Stage: s.Stage.String(), Reason: s.Reason, After: s.After, Drift: s.Drift, NotValidated: s.NotValidated, Rejected: s.Rejected,
	}
	if s.Compatibility != compat.Identical {
		sj.Compatibility, sj.Findings = s.Compatibility.String(), s.Findings
	}
	for _, c := range s.Changes {
		sj.Changes = append(sj.Changes, changeJSON(c))
	}
	return sj
}
