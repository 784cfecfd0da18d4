// Package health judges whether an object is ready to be used. It is pure: it reads
// one object and what its definition says of the type, and asks no cluster.
//
// Most kinds need no rule of their own. The first of these rules that can judge an object
// decides:
//
//   - deletion: the object is being deleted;
//   - expressions for a kind ([Rules.Custom]): of its definition, of the cluster, and
//     those that are part of gitopsd for kinds that the rules below misjudge (custom.go,
//     set.go, shipped.go);
//   - observed generation: no controller has seen the newest generation (signals.go);
//   - kind: rules in code for some built-in kinds (builtin.go);
//   - signals of the object, the worst of which counts: its conditions
//     (conditions.go), the conditions and fields that the type's author shows as
//     printer columns (columns.go), words in fields such as status.phase (words.go)
//     and, without any of these, counts of replicas (signals.go);
//   - status: an object without a status, of a type that has one (type.go).
//
// An object that none of them can judge is [Unknown]. Something that is only missing counts
// for some minutes, so that nothing waits for ever for a controller that never reports it.
package health

import (
	"cmp"
	"time"

	"gitopsd.dev/render/manifest"
)

// Status is the health of an object.
type Status string

// The statuses of objects.
const (
	// Healthy: the object is ready to be used.
	Healthy Status = "Healthy"
	// InProgress: a controller is at work, or has not begun.
	InProgress Status = "InProgress"
	// Failed: a controller gave up, or reports an error that a person must mend.
	Failed Status = "Failed"
	// Unknown: no rule can judge the object.
	Unknown Status = "Unknown"
)

// Verdict is the judgement of an object. It is comparable.
type Verdict struct {
	Status Status
	// Reason says why, in a few words: "condition Ready is False: NoPods". It is
	// never empty.
	Reason string
	// Rule is the name of the rule that decided: one of the general rules, or a custom rule.
	Rule string
	// Until is when the verdict changes although the object does not; zero for never.
	Until time.Time
}

// Names of the general rules.
const (
	ruleDeletion   = "deletion"
	ruleGeneration = "observed generation"
	ruleKind       = "kind"
	ruleConditions = "conditions"
	ruleColumns    = "printer columns"
	ruleWords      = "status words"
	ruleReplicas   = "replicas"
	ruleStatus     = "status"
	ruleNone       = "none"
)

// defaultPatience is how long a missing status, or a missing field that the type promises,
// counts as progress.
const defaultPatience = 5 * time.Minute

// Rules judge objects. The zero value has only the general rules. Rules are safe for
// concurrent use.
type Rules struct {
	// Custom is asked before the general rules, except for an object that is being
	// deleted; ok reports whether it has a rule for the object. May be nil.
	Custom func(object map[string]any, t *Type, now time.Time) (v Verdict, ok bool)
	// Patience is how long a missing status counts as progress; 0 means five minutes.
	Patience time.Duration
}

// Of judges an object. t is its type; may be nil. now is when the object was read; if it is
// zero, as for a file, nothing is ever late. Objects are not changed.
func (r Rules) Of(object map[string]any, t *Type, now time.Time) Verdict {
	if at := manifest.Text(object, "metadata", "deletionTimestamp"); at != "" {
		return Verdict{Status: InProgress, Reason: "it is being deleted", Rule: ruleDeletion}
	}
	if r.Custom != nil {
		if v, ok := r.Custom(object, t, now); ok {
			return v
		}
	}
	return general(object, t, now, cmp.Or(r.Patience, defaultPatience))
}
