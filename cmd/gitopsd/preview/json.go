package preview

import (
	"io"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/types/compat"
)

// WriteJSON writes the plans for programs, one document:
//
//	{
//	  "source":  "working tree",        the tree that was planned
//	  "against": "main",                the revision it was compared with, if it was not the live clusters
//	  "changes": true,                  reports whether anything would change, or is held back, waits or would fail
//	  "clusters": [{
//	    "name": "prod",
//	    "suspended": true,              gitopsd leaves the cluster alone, and does none of this
//	    "error": "…",                   the reason why there is no plan, or only part of one
//	    "summary": {"create": 3, "unchanged": 120},
//	    "packages": {"web": {           by name
//	      "repository": "xpkg.example.org/acme/web", "version": "v1.0.0",
//	      "from": "mirror…",            the repository that it is fetched from, if that differs
//	      "verified": "signed by key…", the verified signature, if one is required
//	      "replaces": "in place of…"    the replaced package, by the Packages document in clusters.yaml or --replace
//	    }},
//	    "steps": [{                     in the order of execution, without unchanged objects
//	      "action": "configure",        create, configure, prune, wait, conflict, refused, held
//	      "group": "apps", "kind": "Deployment", "namespace": "default", "name": "web",
//	      "package": "web",             the object's package, if it has one
//	      "stage": "workloads",
//	      "reason": "changed in the repository",
//	      "allow": {                    the annotation that would allow the step, if there is one
//	        "on": "package",            object, package or cluster: the document that takes it
//	        "where": "Provider web (clusters/dev/web.yaml:1)", the package's declaration, if "on" is package and it has one
//	        "annotation": "gitopsd.dev/allow-breaking", "value": "v2.0.0:field-removed=<reason>"
//	      },
//	      "origin": "clusters/dev/web.yaml:7", the place of the object, if the step would fail
//	      "after": ["package/infra"],   objects and packages that must be ready before
//	      "drift": true,                reports whether it reverts changes that others made
//	      "notValidated": "…",          the reason why a dry run could not validate it
//	      "rejected": "…",              the API server's reason to reject it
//	      "compatibility": "breaking",  of the types of a CRD: documentation, compatible, breaking; see types
//	      "unpinned": ["widget.acme.example/default/w"], objects whose pins a change of their type breaks
//	      "outgrown": [{"object": "widget.acme.example/default/w", "why": "spec.size: Required value"}],
//	                                  objects that stay as they are although their new type would not accept them
//	      "pin": {                      the reason why a pinned object is refused
//	        "version": "v1", "pinned": "h1:…", "have": "h1:…",
//	        "known": "cluster dev",     the place where the pinned type was found
//	        "findings": […]             the differences, from the pinned type to the cluster's
//	      },
//	      "controllerPin": {            the reason why an object that is pinned to a behaviour is refused
//	        "pinned": "h1:…", "have": "h1:…", "known": "cluster dev",
//	        "differences": [{"what": "image", "name": "c", "before": "sha256:…", "after": "sha256:…"}]
//	      },
//	      "changes": [{"path": "spec.replicas", "old": 1, "new": 2}]
//	    }],
//	    "tried": [{                     with --live: conversion rules on the cluster's objects
//	      "definition": "widgets.acme.example", "version": "v1", "objects": 1200,
//	      "stopped": "…",               the reason why not all objects were tried
//	      "findings": [{"law": "round-trip", "text": "…", "objects": ["widget.acme.example/default/w"], "times": 5}]
//	    }],
//	    "unreadable": ["Widget.acme.example: …"] kinds that could not be read, with the reason
//	  }],
//	  "types": [{                       changes of types: one entry for each package and its versions, with
//	    "package": "widgets",           the clusters in which the changes are the same
//	    "from": "reg.io/widgets v1.0.0", "to": "reg.io/widgets v1.1.0",
//	    "clusters": ["dev", "prod"],
//	    "added": 0, "changed": 1, "removed": 0, "breaking": 1, "refused": 1, "documentation": 3,
//	    "definitions": [{               without those that change only in descriptions
//	      "name": "widgets.acme.example",
//	      "change": "changed",          added, changed, removed
//	      "compatibility": "breaking", "refused": true,
//	      "versions": [{"version": "v1", "kind": "Widget", "before": "h1:…", "after": "h1:…"}],
//	      "findings": [{"name": "enum-value-removed", "severity": "breaking", "version": "v1", "path": ".spec.size", …}],
//	      "allowed": {"enum-value-removed": "nobody uses it"},
//	      "letThrough": ["field-removed"], findings that are not allowed, but that harm no object
//	      "objects": [{                 the effect of a breaking change on the objects of a cluster
//	        "cluster": "prod", "looked": 2112, "harmed": 1,
//	        "objects": [{"namespace": "acme", "name": "a", "harms": [
//	          {"kind": "lost", "version": "v1", "path": ".spec.size", "owners": ["kubectl"]}]}],
//	                                  kind: lost, invalid, stuck, defaulted, removed; at most 50 objects
//	        "findings": [{"name": "field-removed", "version": "v1", "path": ".spec.size", "harmed": 1, "writers": ["kubectl"]}],
//	        "unknown": "…"              the reason why not all objects were judged
//	      }]
//	    }]
//	  }],
//	  "controllers": [{                 changes of the controllers of types, in the same form
//	    "package": "widgets", "from": "reg.io/widgets v1.0.0", "to": "reg.io/widgets v1.1.0",
//	    "clusters": ["dev", "prod"],
//	    "typesUnchanged": true,         reports whether only the controller changes
//	    "function": true,               it is a Function, which Crossplane installs with any types in it
//	    "refused": true,
//	    "changes": [{                   what: image, argument, variable, setting, rights, composition, function
//	      "what": "image", "name": "package-runtime", "before": "sha256:…", "after": "sha256:…"
//	    }]
//	  }],
//	  "conversions": [{                 proofs of conversion rules that change, in the same form
//	    "definition": "widgets.acme.example", "clusters": ["dev", "prod"],
//	    "digest": "h1:…",               the first digits, as in allowances
//	    "objects": 2000, "unfinished": true,
//	    "refused": ["round-trip"], "allowed": {"admitted": "never set"},
//	    "counterexamples": [{"law": "round-trip", "from": "v1", "to": "v2", "title": "…", "rules": ["rules.yaml:3: …"],
//	      "object": {}, "converted": {}, "times": 12}],
//	    "more": 3,                      other counterexamples
//	    "warnings": ["…"]
//	  }],
//	  "lock":   ["+ @prod …"],          lines of clusters.lock that change
//	  "errors": ["…"],
//	  "notes":  ["…"]
//	}
//
// A change has "added": true for a new field, and "removed": true for one that goes.
// For Secrets, also those inside other objects, it has "hidden": true and no values; in a
// value that holds a Secret, "(hidden)" replaces the Secret's values. For a value that is
// known only after the plan is applied it has "unknown": true. Empty fields are left out.
func (f *Fleet) WriteJSON(w io.Writer) error {
	doc := fleetJSON{Source: f.Source, Against: f.Against, Changes: f.HasChanges(), Controllers: f.controllerTables(), Lock: f.Lock, Errors: f.Errors, Notes: f.Notes, Clusters: []clusterJSON{}}
	for _, c := range f.Clusters {
		cj := clusterJSON{Name: c.Name, Suspended: c.Suspended, Error: c.Err, Packages: c.Details, Steps: []stepJSON{}}
		if c.Plan != nil {
			cj.Summary = make(map[plan.Action]int)
			for i := range c.Plan.Steps {
				s := &c.Plan.Steps[i]
				cj.Summary[s.Action]++
				if s.Action != plan.Unchanged {
					cj.Steps = append(cj.Steps, newStepJSON(&c, s))
				}
				if s.Tried != nil {
					cj.Tried = append(cj.Tried, newTriedJSON(s))
				}
			}
			for _, gk := range slices.SortedFunc(maps.Keys(c.Plan.Unreadable), compareKinds) {
				cj.Unreadable = append(cj.Unreadable, gk.String()+": "+c.Plan.Unreadable[gk])
			}
		}
		doc.Clusters = append(doc.Clusters, cj)
	}
	for _, t := range f.typeTables() {
		doc.Types = append(doc.Types, newTypesJSON(t))
	}
	for _, t := range f.proofTables() {
		doc.Conversions = append(doc.Conversions, newProofJSON(t))
	}
	return show.JSON(w, doc)
}

func compareKinds(a, b schema.GroupKind) int { return strings.Compare(a.String(), b.String()) }

type fleetJSON struct {
	Source      string             `json:"source"`
	Against     string             `json:"against,omitempty"`
	Changes     bool               `json:"changes"`
	Clusters    []clusterJSON      `json:"clusters"`
	Types       []typesJSON        `json:"types,omitempty"`
	Controllers []*controllerTable `json:"controllers,omitempty"`
	Conversions []proofJSON        `json:"conversions,omitempty"`
	Lock        []string           `json:"lock,omitempty"`
	Errors      []string           `json:"errors,omitempty"`
	Notes       []string           `json:"notes,omitempty"`
}

type clusterJSON struct {
	Name       string                    `json:"name"`
	Suspended  bool                      `json:"suspended,omitempty"`
	Error      string                    `json:"error,omitempty"`
	Summary    map[plan.Action]int       `json:"summary,omitempty"`
	Packages   map[string]PackageDetails `json:"packages,omitempty"`
	Steps      []stepJSON                `json:"steps"`
	Tried      []triedJSON               `json:"tried,omitempty"`
	Unreadable []string                  `json:"unreadable,omitempty"`
}

type stepJSON struct {
	Action    plan.Action `json:"action"`
	Group     string      `json:"group,omitempty"`
	Kind      string      `json:"kind"`
	Namespace string      `json:"namespace,omitempty"`
	Name      string      `json:"name"`
	Package   string      `json:"package,omitempty"`
	Stage     string      `json:"stage"`
	Reason    string      `json:"reason,omitempty"`
	Allow     *allowJSON  `json:"allow,omitempty"`
	Origin    string      `json:"origin,omitempty"`
	// After names objects and packages that must be ready before the step.
	After        []string `json:"after,omitempty"`
	Drift        bool     `json:"drift,omitempty"`
	NotValidated string   `json:"notValidated,omitempty"`
	Rejected     string   `json:"rejected,omitempty"`
	// Compatibility is a severity's name.
	Compatibility string   `json:"compatibility,omitempty"`
	Unpinned      []string `json:"unpinned,omitempty"`
	// Outgrown are the objects that stay as they are although the definition would not
	// accept them.
	Outgrown      []outgrownJSON     `json:"outgrown,omitempty"`
	Pin           *pinJSON           `json:"pin,omitempty"`
	ControllerPin *controllerPinJSON `json:"controllerPin,omitempty"`
	Changes       []changeJSON       `json:"changes,omitempty"`
}

type controllerPinJSON struct {
	Pinned      string                 `json:"pinned"`
	Have        string                 `json:"have"`
	Known       string                 `json:"known,omitempty"`
	Differences []behaviour.Difference `json:"differences,omitempty"`
}

type outgrownJSON struct {
	Object string `json:"object"`
	Why    string `json:"why"`
}

type pinJSON struct {
	Version  string           `json:"version"`
	Pinned   string           `json:"pinned"`
	Have     string           `json:"have"`
	Known    string           `json:"known,omitempty"`
	Findings []compat.Finding `json:"findings,omitempty"`
}

type typesJSON struct {
	Package  string   `json:"package,omitempty"`
	From     string   `json:"from,omitempty"`
	To       string   `json:"to,omitempty"`
	Clusters []string `json:"clusters"`

	// Numbers of definitions: by change, then those that break and those that are refused.
	// Documentation counts others that change only in descriptions.
	Added         int `json:"added"`
	Changed       int `json:"changed"`
	Removed       int `json:"removed"`
	Breaking      int `json:"breaking"`
	Refused       int `json:"refused"`
	Documentation int `json:"documentation"`

	Definitions []definitionJSON `json:"definitions"`
}

type definitionJSON struct {
	Name          string            `json:"name"`
	Change        typeChange        `json:"change"`
	Compatibility string            `json:"compatibility,omitempty"`
	Refused       bool              `json:"refused,omitempty"`
	Versions      []versionChange   `json:"versions,omitempty"`
	Findings      []compat.Finding  `json:"findings,omitempty"`
	Allowed       map[string]string `json:"allowed,omitempty"`
	LetThrough    []string          `json:"letThrough,omitempty"`
	Objects       []clusterSurvey   `json:"objects,omitempty"`
}

func newTypesJSON(t *typeTable) typesJSON {
	tj := typesJSON{Package: t.Package, From: t.From, To: t.To, Clusters: t.Clusters, Documentation: t.Documentation, Definitions: []definitionJSON{}}
	for i := range t.Rows {
		r := &t.Rows[i]
		switch r.Change {
		case typesAdded:
			tj.Added++
		case typesChanged:
			tj.Changed++
		case typesRemoved:
			tj.Removed++
		}
		if r.Compatibility == compat.Breaking {
			tj.Breaking++
		}
		if r.Refused {
			tj.Refused++
		}
		d := definitionJSON{Name: r.Name, Change: r.Change, Refused: r.Refused, Versions: r.Versions, Findings: r.Findings, Allowed: r.Allowed, LetThrough: r.LetThrough, Objects: r.Surveys}
		if r.Compatibility != compat.Identical {
			d.Compatibility = r.Compatibility.String()
		}
		tj.Definitions = append(tj.Definitions, d)
	}
	return tj
}

type changeJSON struct {
	Path    string `json:"path"`
	Old     any    `json:"old,omitempty"`
	New     any    `json:"new,omitempty"`
	Added   bool   `json:"added,omitempty"`
	Removed bool   `json:"removed,omitempty"`
	Hidden  bool   `json:"hidden,omitempty"`
	Unknown bool   `json:"unknown,omitempty"`
}

type allowJSON struct {
	On         plan.Holder `json:"on"`
	Where      string      `json:"where,omitempty"`
	Annotation string      `json:"annotation"`
	Value      string      `json:"value"`
}

func newStepJSON(c *ClusterPlan, s *plan.Step) stepJSON {
	sj := stepJSON{
		Action: s.Action, Group: s.ID.Group, Kind: s.ID.Kind, Namespace: s.ID.Namespace, Name: s.ID.Name, Package: s.Package,
		Stage: s.Stage.String(), Reason: s.Reason, After: s.After, Drift: s.Drift, NotValidated: s.NotValidated, Rejected: s.Rejected,
	}
	if a := s.Allow; a != nil {
		sj.Allow = &allowJSON{On: a.On, Annotation: a.Annotation, Value: a.Text(c.allowedVersion(s.Package))}
		if a.On == plan.OnPackage {
			sj.Allow.Where = c.Declared[s.Package]
		}
	}
	if s.Action == plan.Refused || s.Action == plan.Conflict || s.Rejected != "" {
		sj.Origin = s.Place()
	}
	if s.Compatibility != compat.Identical {
		sj.Compatibility = s.Compatibility.String()
	}
	for _, id := range s.Unpinned {
		sj.Unpinned = append(sj.Unpinned, id.String())
	}
	for _, o := range s.Outgrown {
		sj.Outgrown = append(sj.Outgrown, outgrownJSON{Object: o.ID.String(), Why: o.Why})
	}
	if m := s.Pin; m != nil {
		sj.Pin = &pinJSON{Version: m.Type.Version, Pinned: m.Pinned, Have: m.Have, Known: m.Known, Findings: m.Findings}
	}
	if m := s.Controller; m != nil {
		sj.ControllerPin = &controllerPinJSON{Pinned: m.Pinned, Have: m.Have, Known: m.Known, Differences: m.Differences}
	}
	for _, c := range s.Changes {
		sj.Changes = append(sj.Changes, changeJSON(c))
	}
	return sj
}
