package health

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"gitopsd.dev/render/manifest"
)

// signal is a statement of an object about its health.
type signal struct {
	level        level
	reason, rule string
	// late signals no longer count once the object is overdue.
	late bool
	// ready is set if the condition Ready is missing, and other if the signal is another
	// condition: that alone does not make an object healthy that never got Ready.
	ready, other bool
}

// look is the reading of one object.
type look struct {
	object, status map[string]any
	kind           manifest.GroupKind
	t              *Type
	generation     int64
	conditions     []condition
	finite         bool
	signals        []signal
	// calm are negative and working conditions that are False.
	calm     []string
	now      time.Time
	patience time.Duration
}

func (l *look) add(s signal) {
	if s.level != silent {
		l.signals = append(l.signals, s)
	}
}

// general judges an object by the general rules.
func general(object map[string]any, t *Type, now time.Time, patience time.Duration) Verdict {
	l := &look{object: object, t: t, kind: manifest.KindOf(object), now: now, patience: patience}
	l.status, _ = object["status"].(map[string]any)
	l.generation, _ = number(at(object, "metadata", "generation"))
	l.conditions = readConditions(l.status["conditions"])
	l.finite = t != nil && t.known.Finite || finiteKind(l.kind.Kind) || slices.ContainsFunc(endFields, func(f string) bool {
		_, ok := l.status[f]
		return ok
	})
	if isQuiet(l.kind, object) && !l.speaks() {
		return Verdict{Status: Healthy, Reason: "objects of its kind have no status while all is well", Rule: ruleStatus}
	}
	if v, ok := l.unseen(); ok {
		return v
	}
	if v, ok := l.builtIn(); ok {
		return v
	}
	for _, field := range failureFields {
		if why := manifest.Text(l.status, field); why != "" {
			l.add(signal{level: bad, rule: ruleWords, reason: fmt.Sprintf("status.%s is %s", field, shorten(why))})
		}
	}
	l.conditionSignals()
	l.columnSignals()
	l.wordSignals()
	l.replicaSignals()
	l.weakSignals()
	return l.conclude()
}

// spoken reports whether there is a signal that is not late.
func (l *look) spoken() bool {
	return slices.ContainsFunc(l.signals, func(s signal) bool { return !s.late })
}

// weakSignals reads fields like certificateStatus and calm conditions, if there is no other
// signal.
func (l *look) weakSignals() {
	if l.spoken() {
		return
	}
	for _, field := range sortedKeys(l.status) {
		if isWordField(field) || field == "lastOperation" {
			l.fieldWord(field)
		}
	}
	for _, c := range l.conditions {
		switch {
		case l.spoken() || c.kind != "Active" || l.stale(c):
		case c.status == "True":
			l.add(signal{level: good, rule: ruleConditions, reason: c.text()})
		default: // some kinds are not active while nobody uses them
			l.add(signal{level: busy, rule: ruleConditions, reason: c.text(), late: true})
		}
	}
	if !l.spoken() && len(l.calm) > 0 && !l.finite {
		l.add(signal{level: good, rule: ruleConditions, reason: fmt.Sprintf("condition %s is False, and none reports trouble", strings.Join(l.calm, " and "))})
	}
}

// fieldWord reads the word in a field of the status, or in a field of that, such as
// status.health.status.
func (l *look) fieldWord(field string) {
	switch v := l.status[field].(type) {
	case string:
		if v != "" {
			l.word([]string{field}, v, ruleWords)
		}
	case map[string]any:
		for _, inside := range []string{"status", "state", "phase", "health", "lastObservedState"} {
			if s := manifest.Text(v, inside); s != "" {
				l.word([]string{field, inside}, s, ruleWords)
			}
		}
	}
}

// failureFields are set in a status only after a final failure.
var failureFields = []string{"failureReason", "failureMessage"}

// speaks reports whether an object of a quiet kind has conditions.
func (l *look) speaks() bool {
	if l.kind.Kind == "HelmRepository" {
		return false
	}
	return len(l.conditions) > 0 || slices.ContainsFunc(sortedKeys(l.status), func(field string) bool {
		list, _ := l.status[field].([]any)
		return slices.ContainsFunc(list[:min(len(list), mostConditions)], func(item any) bool {
			m, _ := item.(map[string]any)
			return len(readConditions(m["conditions"])) > 0
		})
	})
}

// unseen judges an object with a newest generation that no controller has seen.
func (l *look) unseen() (Verdict, bool) {
	seen, ok := number(l.status["observedGeneration"])
	switch {
	case !ok || l.generation == 0 || seen == l.generation:
		return Verdict{}, false
	case (seen == 0 || seen > l.generation) && l.overdue():
		return Verdict{}, false // a controller that does not fill it in, or a restored status
	}
	reason := fmt.Sprintf("no controller has seen generation %d yet, the last one seen is %d", l.generation, max(seen, 0))
	on, field := l.suspended()
	if on {
		reason += fmt.Sprintf("; it is suspended by spec.%s", field)
	}
	// Nothing will see the newer generation of an object that was Ready and is suspended.
	parked := on && slices.ContainsFunc(l.conditions, func(c condition) bool { return strings.EqualFold(c.kind, "Ready") && c.status == "True" })
	if parked && l.overdue() {
		return Verdict{Status: Unknown, Reason: reason, Rule: ruleGeneration}, true
	}
	return l.inProgress(signal{reason: reason, rule: ruleGeneration, late: seen == 0 || seen > l.generation || parked}), true
}

func (l *look) suspended() (on bool, field string) {
	for _, field := range []string{"suspend", "suspended", "paused", "pause", "stopped"} {
		if v, _ := at(l.object, "spec", field).(bool); v {
			return true, field
		}
	}
	return false, ""
}

// asks reports whether the spec has a word, such as in spec.powerState or
// spec.lifecycle.desiredPhase.
func (l *look) asks(word string) bool {
	spec, _ := l.object["spec"].(map[string]any)
	for _, v := range spec {
		switch v := v.(type) {
		case string:
			if strings.EqualFold(v, word) {
				return true
			}
		case map[string]any:
			for _, inside := range v {
				if s, _ := inside.(string); strings.EqualFold(s, word) {
					return true
				}
			}
		}
	}
	return false
}

// conclude returns the verdict of the worst signal.
func (l *look) conclude() Verdict {
	overdue := l.overdue()
	var worst, dropped signal
	for _, s := range l.signals {
		switch {
		case s.late && overdue:
			if !dropped.ready {
				dropped = s
			}
		case s.level > worst.level, s.level == worst.level && worst.other && !s.other:
			worst = s
		}
	}
	switch {
	case worst.level == bad:
		return Verdict{Status: Failed, Reason: worst.reason, Rule: worst.rule}
	case worst.level == busy:
		return l.inProgress(worst)
	case worst.level == good && !(dropped.ready && worst.other):
		return Verdict{Status: Healthy, Reason: worst.reason, Rule: worst.rule}
	case dropped.level != silent:
		return Verdict{Status: Unknown, Reason: fmt.Sprintf("%s, for longer than %s", dropped.reason, l.patience), Rule: dropped.rule}
	}
	return l.statusVerdict(overdue)
}

// inProgress returns the verdict of a busy signal, with the time until which it counts.
func (l *look) inProgress(s signal) Verdict {
	v := Verdict{Status: InProgress, Reason: s.reason, Rule: s.rule}
	if at := l.since(); s.late && !at.IsZero() && !l.now.IsZero() {
		v.Until = at.Add(l.patience)
		v.Reason += "; waiting for it until " + v.Until.UTC().Format(time.RFC3339)
	}
	return v
}

// statusVerdict judges an object that gave no signal.
func (l *look) statusVerdict(overdue bool) Verdict {
	empty := isEmpty(l.status)
	switch {
	case l.t != nil && l.t.known.Status == noStatus && empty:
		return Verdict{Status: Healthy, Reason: "objects of its type have no status", Rule: ruleStatus}
	case l.t != nil && l.t.known.Status == plainStatus:
		return Verdict{Status: Healthy, Reason: "the status of its type says nothing about health", Rule: ruleStatus}
	case manifest.BuiltIn(l.kind.Group) && empty:
		return Verdict{Status: Healthy, Reason: "it exists, and has no status", Rule: ruleStatus}
	case l.t == nil && empty:
		return Verdict{Status: Unknown, Reason: "it has no status, and nothing is known of its type", Rule: ruleNone}
	case empty && overdue:
		return Verdict{Status: Unknown, Reason: fmt.Sprintf("it has had no status for longer than %s", l.patience), Rule: ruleStatus}
	case empty:
		return l.inProgress(signal{reason: "no controller has given it a status yet", rule: ruleStatus, late: true})
	case l.finite && !l.ended():
		return Verdict{Status: InProgress, Reason: "its work has not ended", Rule: ruleStatus}
	}
	if seen, ok := number(l.status["observedGeneration"]); ok && seen == l.generation && seen != 0 && len(l.status) == 1 {
		return Verdict{Status: Healthy, Reason: "a controller has seen it, and says nothing else", Rule: ruleGeneration}
	}
	return Verdict{Status: Unknown, Reason: "nothing in its status says whether it is ready", Rule: ruleNone}
}

// isEmpty reports whether a value is empty, or a mapping of empty values.
func isEmpty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case map[string]any:
		for _, inside := range v {
			if !isEmpty(inside) {
				return false
			}
		}
		return true
	case []any:
		return len(v) == 0
	}
	return v == ""
}

// ended reports whether the status has a time at which the work ended.
func (l *look) ended() bool {
	return slices.ContainsFunc(endFields, func(f string) bool { v := l.status[f]; return v != nil && v != "" })
}

// since returns when the object's spec was last written, or the object created; zero if
// unknown. Writes to other fields do not count: controllers may make them all the time.
func (l *look) since() time.Time {
	last, _ := time.Parse(time.RFC3339, manifest.Text(l.object, "metadata", "creationTimestamp"))
	for _, e := range manifest.List(l.object, "metadata", "managedFields") {
		m, _ := e.(map[string]any)
		if at(m, "fieldsV1", "f:spec") == nil {
			continue
		}
		if t, err := time.Parse(time.RFC3339, manifest.Text(m, "time")); err == nil && t.After(last) {
			last = t
		}
	}
	return last
}

// overdue reports whether the patience with the object is exhausted.
func (l *look) overdue() bool {
	at := l.since()
	return !l.now.IsZero() && !at.IsZero() && l.now.Sub(at) > l.patience
}

// wordSignals reads fields like status.phase that no column shows. Beside a condition Ready,
// only failures count: a Machine that is not Ready may have the phase Failed.
func (l *look) wordSignals() {
	if l.ready() != nil {
		if before := len(l.signals); !l.isReady() {
			l.fieldWord("phase")
			l.fieldWord("state")
			rest := slices.DeleteFunc(l.signals[before:], func(s signal) bool { return s.level != bad })
			l.signals = l.signals[:before+len(rest)]
		}
		return
	}
	for _, field := range plainWordFields {
		l.fieldWord(field)
	}
	// clusterStatus of a CrdbCluster.
	for _, field := range sortedKeys(l.status) {
		words := split(field)
		if len(words) == 2 && isWordField(field) && slices.Contains(split(l.kind.Kind), words[0]) {
			l.fieldWord(field)
		}
	}
	for _, field := range plainTruthFields {
		if v, ok := l.status[field].(bool); ok {
			l.truth(field, v, ruleWords)
		}
	}
}

func (l *look) word(path []string, value, rule string) {
	reason := fmt.Sprintf("status.%s is %s", strings.Join(path, "."), value)
	for _, field := range []string{"message", "reason"} {
		if m := manifest.Text(l.status, field); m != "" && len(path) == 1 && levelOf(value, l.finite) != good {
			reason += ": " + shorten(m)
			break
		}
	}
	switch strings.ToLower(value) {
	case "true":
		l.add(signal{level: good, rule: rule, reason: reason})
	case "false":
		l.add(signal{level: busy, rule: rule, reason: reason})
	case "paused", "suspended", "stopped", "halted", "hibernated":
		if on, _ := l.suspended(); on || l.asks(value) {
			l.add(signal{level: good, rule: rule, reason: reason + ", as its spec asks"})
		} else {
			l.add(signal{level: busy, rule: rule, reason: reason})
		}
	case "created":
		if l.finite {
			l.add(signal{level: busy, rule: rule, reason: reason})
		} // for others it is the first word of some and the last of others
	case "scheduled":
		if strings.HasPrefix(l.kind.Kind, "Scheduled") || strings.HasPrefix(l.kind.Kind, "Cron") {
			l.add(signal{level: good, rule: rule, reason: reason}) // that is all it does
			return
		}
		l.add(signal{level: busy, rule: rule, reason: reason})
	default:
		l.add(signal{level: levelOf(value, l.finite), rule: rule, reason: reason})
	}
}

// Counts of replicas: how many are wanted, and how many are there.
var (
	wantedCounts = []string{"replicas", "instances", "size"}
	readyCounts  = []string{"readyReplicas", "availableReplicas", "readyInstances"}
)

// statusCounts are fields of a status with a wanted count, each followed by the fields with
// actual counts.
var statusCounts = [][]string{
	{"desiredNumberScheduled", "numberReady", "numberAvailable"},
	{"expectedMachines", "currentHealthy"},
}

// replicaSignals compares counts: those of parts if the object has no condition Ready, and
// those of the whole if there is no other signal.
func (l *look) replicaSignals() {
	if l.ready() == nil && !l.finite {
		l.partSignals()
	}
	if l.finite || l.spoken() {
		return
	}
	spec, _ := l.object["spec"].(map[string]any)
	for _, want := range wantedCounts {
		n, ok := number(spec[want])
		if !ok {
			continue
		}
		for _, have := range readyCounts {
			m, given := number(l.status[have])
			_, counts := number(l.status["replicas"])
			if given || counts && have == readyCounts[0] {
				l.compare(have, m, n)
				return
			}
		}
	}
	for _, names := range statusCounts {
		n, wanted := number(l.status[names[0]])
		if !wanted {
			continue
		}
		for _, name := range names[1:] {
			m, _ := number(l.status[name])
			l.compare(name, m, n)
		}
	}
}

// compare adds the signal of a count.
func (l *look) compare(field string, have, want int64) {
	s := signal{level: good, rule: ruleReplicas, reason: fmt.Sprintf("status.%s is %d of %d", field, have, want)}
	if have < want {
		s.level = busy
	}
	l.add(s)
}

// partSignals compares the counts in lists of the status, such as the sets of instances of a
// PostgresCluster.
func (l *look) partSignals() {
	for _, field := range sortedKeys(l.status) {
		list, _ := l.status[field].([]any)
		for i, item := range list[:min(len(list), mostConditions)] {
			m, _ := item.(map[string]any)
			n, wanted := number(m["replicas"])
			have, counts := number(m["readyReplicas"])
			if wanted && counts && have < n {
				l.compare(fmt.Sprintf("%s[%d].readyReplicas", field, i), have, n)
			}
		}
	}
}

// finiteKind reports whether the work of a kind's objects ends, by the name of the kind.
func finiteKind(kind string) bool {
	words := split(kind)
	if len(words) == 0 {
		return false
	}
	if len(words) > 1 && words[len(words)-2] == "ops" && words[len(words)-1] == "request" {
		return true // KubeDB, KubeBlocks
	}
	switch words[len(words)-1] {
	case "job", "run", "workflow", "backup", "restore", "migration", "execution", "experiment", "order", "challenge",
		"build":
		return words[0] != "cron" && words[0] != "scheduled" && words[0] != "scaled"
	}
	return false
}

// number reads an integer, also from a string.
func number(v any) (int64, bool) {
	switch n := v.(type) {
	case int64:
		return n, true
	case int:
		return int64(n), true
	case uint64:
		return int64(n), n <= math.MaxInt64
	case float64:
		return int64(n), n == math.Trunc(n) && math.Abs(n) < 1<<53
	case string:
		i, err := strconv.ParseInt(n, 10, 64)
		return i, err == nil
	}
	return 0, false
}

func sortedKeys(m map[string]any) []string { return slices.Sorted(maps.Keys(m)) }

// at returns a value in a tree; nil if it is missing.
func at(tree map[string]any, path ...string) any {
	var v any = tree
	for _, key := range path {
		m, _ := v.(map[string]any)
		v = m[key]
	}
	return v
}
