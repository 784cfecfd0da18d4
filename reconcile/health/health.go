// Package health judges whether an object is ready to be used. It is pure: it reads
// one object and what its definition says of the type, and asks no cluster.
//
// There is no table of kinds behind it. Rules are asked in this order, and the first
// that can tell decides:
//
//   - deletion: the object is being deleted;
//   - expressions for a kind ([Rules.Custom]): of its definition, of the cluster, and
//     those that gitopsd brings for kinds that the rules below get wrong (custom.go,
//     set.go, shipped.go);
//   - observed generation: a controller has seen the newest generation (signals.go);
//   - kind: built-in kinds, in code, where they need it (builtin.go);
//   - what the object says, of which the worst counts: its conditions
//     (conditions.go), the conditions and fields that the type's author shows as
//     printer columns (columns.go), words in fields such as status.phase (words.go)
//     and, if nothing else speaks, counts of replicas;
//   - status: an object without a status, of a type that has one (type.go).
//
// What none of them can judge is [Unknown]. Whatever is only missing counts for a
// while, so that no object is waited for for ever because its controller never says a
// thing.
package health

import (
	"cmp"
	"time"

	"gitopsd.dev/render/manifest"
)

// Status is how an object is doing.
type Status string

// The statuses of objects.
const (
	// Healthy: the object is ready to be used.
	Healthy Status = "Healthy"
	// InProgress: a controller is at work, or has not begun.
	InProgress Status = "InProgress"
	// Failed: a controller gave up, or reports an error that somebody must mend.
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
	// Rule is the name of the rule that decided, one of the Rule constants or the
	// name of a custom rule.
	Rule string
	// Until is when the verdict ends although the object stays as it is; zero for
	// never.
	Until time.Time
}

// Names of the general rules.
const (
	RuleDeletion   = "deletion"
	RuleGeneration = "observed generation"
	RuleKind       = "kind"
	RuleConditions = "conditions"
	RuleColumns    = "printer columns"
	RuleWords      = "status words"
	RuleReplicas   = "replicas"
	RuleStatus     = "status"
	RuleNone       = "none"
)

// DefaultPatience is how long an object may be without a status, or without
// something that its type promises, before that no longer counts.
const DefaultPatience = 5 * time.Minute

// Rules judge objects. The zero value has the general rules alone. Rules may be used
// by several goroutines.
type Rules struct {
	// Custom is asked before the general rules, except for an object that is being
	// deleted; ok reports whether it has a rule for the object. May be nil.
	Custom func(object map[string]any, t *Type, now time.Time) (v Verdict, ok bool)
	// Patience replaces DefaultPatience; zero for the default.
	Patience time.Duration
}

// Of judges an object. t is what is known of its type; nil for nothing. now is the
// time at which the object was read; if it is zero, as for a file, nothing is ever
// late. Objects are not changed.
func (r Rules) Of(object map[string]any, t *Type, now time.Time) Verdict {
	if at := manifest.Text(object, "metadata", "deletionTimestamp"); at != "" {
		return Verdict{Status: InProgress, Reason: "it is being deleted", Rule: RuleDeletion}
	}
	if r.Custom != nil {
		if v, ok := r.Custom(object, t, now); ok {
			return v
		}
	}
	return general(object, t, now, cmp.Or(r.Patience, DefaultPatience))
}
