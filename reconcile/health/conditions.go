package health

import (
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
)

// condition is an entry of a list of conditions.
type condition struct {
	kind, status, reason, message, severity string
	// generation is its observedGeneration; 0 if it has none.
	generation int64
}

// text describes a condition: "condition Ready is False: NoPods: 0 of 3 are up".
func (c condition) text() string {
	s := fmt.Sprintf("condition %s is %s", c.kind, c.status)
	for _, part := range []string{c.reason, c.message} {
		if part = strings.TrimSpace(part); part != "" && !strings.Contains(s, part) {
			s += ": " + shorten(part)
		}
	}
	return s
}

// longestMessage bounds a controller's message in a reason, in bytes.
const longestMessage = 400

func shorten(s string) string { return cut(s, longestMessage) }

// cut returns the first bytes of a text, with a mark if there are more.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// mostConditions bounds the conditions that are read of a list.
const mostConditions = 200

func readConditions(list any) []condition {
	items, _ := list.([]any)
	var all []condition
	for _, item := range items[:min(len(items), mostConditions)] {
		m, _ := item.(map[string]any)
		c := condition{
			kind: manifest.Text(m, "type"), reason: manifest.Text(m, "reason"), message: manifest.Text(m, "message"), severity: manifest.Text(m, "severity"),
		}
		switch v := m["status"].(type) {
		case string:
			c.status = v
		case bool:
			c.status = "False"
			if v {
				c.status = "True"
			}
		}
		c.generation, _ = number(m["observedGeneration"])
		if c.kind == "" || c.status == "" {
			continue
		}
		for _, s := range []string{"True", "False", "Unknown"} {
			if strings.EqualFold(c.status, s) {
				c.status = s
			}
		}
		all = append(all, c)
	}
	return all
}

// sense is the meaning of a type of conditions.
type sense int

const (
	// neutral: it says nothing about health, or is unknown.
	neutral sense = iota
	// positive: it should be True.
	positive
	// negative: True means an error.
	negative
	// working: True means that a controller is at work.
	working
)

// neutralConditions say nothing about health, though their names suggest it: an autoscaler is
// not active without load, and a warning is no error.
var neutralConditions = []string{
	"Active", "Fallback", "Paused", "Suspended", "ReconciliationPaused", "Upgradeable", "Running", "Warning", "FailureTarget",
	"DisruptionTarget", "ContainersReady", "PodScheduled", "Drifted", "Hibernation", "RetrievedUpdates", "Recommended",
	"ReleaseAccepted", "InvalidPods",
}

var (
	positiveWords = set(`ready available healthy succeeded successful success complete completed established accepted
		programmed reconciled synced synchronized installed initialized valid validated provisioned bound deployed applied
		online admitted approved configured registered reachable resolved issued verified connected attached created
		promoted provided done updated joined satisfied finished served offered enforced populated scheduled ok passed loaded`)
	// negativeWords mean an error anywhere in a name.
	negativeWords = set(`failed failure failing fail error errors errored stalled invalid degraded unhealthy rejected denied
		aborted terminal misconfigured crashed crashing conflict conflicts conflicted faulted broken stuck unschedulable
		corrupted expired exceeded lost unsupported`)
	workingWords = set(`reconciling progressing issuing installing upgrading updating deploying provisioning creating
		pending deleting terminating restoring migrating initializing rebalancing scaling resizing restarting
		synchronizing syncing starting stopping waiting configuring bootstrapping joining rotating recovering importing
		uploading copying recoverable unavailable unreachable unknown`)
	// verdicts are results that a controller decides at once: False is not a step towards
	// True.
	verdicts = set(`succeeded successful success accepted valid validated refs resolved`)
)

func senseOf(kind string) sense {
	words := split(kind)
	if len(words) == 0 || slices.Contains(neutralConditions, kind) {
		return neutral
	}
	last := words[len(words)-1]
	if words[0] == "not" || words[0] == "non" {
		if positiveWords[last] {
			return working
		}
		return neutral
	}
	if words[0] == "no" && slices.Contains([]string{"matching", "available", "valid", "suitable"}, words[1%len(words)]) {
		return working // NoMatchingInstance
	}
	if words[0] == "no" || words[0] == "last" && !slices.Contains(companions, kind) || words[0] == "previous" {
		return neutral
	}
	switch {
	case positiveWords[last], slices.Contains(companions, kind), kind == "ResolvedRefs", last == "date" && len(words) > 2: // UpToDate
		return positive
	case slices.ContainsFunc(words, func(w string) bool { return negativeWords[w] }):
		return negative
	case workingWords[last]:
		return working
	}
	return neutral
}

// has reports whether the object has a condition, of any generation.
func (l *look) has(kind string) bool {
	return slices.ContainsFunc(l.conditions, func(c condition) bool { return c.kind == kind })
}

// companions count beside Ready even if no column shows them: resources of Crossplane and Upjet
// stay Ready when a later change fails.
var companions = []string{"Synced", "LastAsyncOperation"}

// conditionSignals reads the object's conditions, those in lists of its status, such as a
// route's parents, and, if it has none itself, those in parts of its status. Beside a
// condition Ready, other positive conditions count only if they are companions or a column
// shows them.
func (l *look) conditionSignals() {
	summary := l.ready() != nil
	// Unknown ones do not count beside a True one in a column.
	shown := slices.ContainsFunc(l.conditions, func(c condition) bool {
		return c.status == "True" && !l.stale(c) && senseOf(c.kind) == positive && l.t.shown(c.kind)
	})
	for _, c := range l.conditions {
		l.conditionSignal(c, "", strings.EqualFold(c.kind, "Ready") || slices.Contains(companions, c.kind) || l.t.shown(c.kind) || !summary && !(shown && c.status == "Unknown"))
	}
	if summary {
		return
	}
	for _, field := range sortedKeys(l.status) {
		if m, _ := l.status[field].(map[string]any); len(l.conditions) == 0 {
			for _, c := range readConditions(m["conditions"]) {
				l.conditionSignal(c, " (in status."+field+")", true)
			}
		}
		list, _ := l.status[field].([]any)
		for _, item := range list[:min(len(list), mostConditions)] {
			m, _ := item.(map[string]any)
			for _, c := range readConditions(m["conditions"]) {
				l.conditionSignal(c, " (in status."+field+")", true)
			}
		}
	}
}

// ready returns the condition Ready of this generation; nil if there is none.
func (l *look) ready() *condition {
	for i := range l.conditions {
		if c := &l.conditions[i]; strings.EqualFold(c.kind, "Ready") && !l.stale(*c) {
			return c
		}
	}
	return nil
}

// stale reports whether a condition is about an older generation of the object.
func (l *look) stale(c condition) bool { return c.generation != 0 && c.generation < l.generation }

func (l *look) conditionSignal(c condition, where string, decides bool) {
	s := senseOf(c.kind)
	rule := ruleConditions
	if l.t.shown(c.kind) {
		rule = ruleColumns
	}
	if _, counts := number(c.message); counts && c.status == "Unknown" {
		return // a counter, as of Cilium's addresses
	}
	if l.stale(c) {
		if s == positive && decides {
			l.add(signal{level: busy, rule: ruleGeneration, late: true, ready: strings.EqualFold(c.kind, "Ready"),
				reason: fmt.Sprintf("condition %s is about generation %d, and the object has %d%s", c.kind, c.generation, l.generation, where)})
		}
		return
	}
	at := silent
	switch {
	case s == positive && !decides, s == neutral:
	case s == positive && c.status == "True":
		at = good
	case s == positive:
		at = l.falseLevel(c)
	case c.status != "True":
		if s == negative && strings.HasPrefix(c.message, "Error") {
			at = bad // Failure is False, and says what failed
		} else if c.status == "False" {
			l.calm = append(l.calm, c.kind)
		}
	case s == negative:
		at = bad
	case c.kind != "Reconciling" && finished(c.reason):
		// Progressing, as of a Deployment that has arrived.
	case c.kind != "Reconciling" && c.kind != "Progressing" && l.isReady():
		// A certificate is valid while the next one is issued.
	case final(c.reason):
		at = bad
	default:
		at = busy
	}
	if c.kind == "Progressing" && c.status == "False" && strings.HasSuffix(c.reason, "DeadlineExceeded") {
		at = bad
	}
	if at != silent {
		l.add(signal{level: at, rule: rule, reason: c.text() + where, other: !strings.EqualFold(c.kind, "Ready")})
	}
}

func (l *look) isReady() bool {
	c := l.ready()
	return c != nil && c.status == "True"
}

// falseLevel returns the level of a condition that should be True and is not.
func (l *look) falseLevel(c condition) level {
	words := split(c.kind)
	last := words[len(words)-1]
	switch {
	case c.status != "False":
		return busy
	case c.severity == "Error":
		return bad
	case c.severity == "Info" && c.kind != "Ready":
		return silent
	case c.severity != "":
		return busy
	case final(c.reason), c.reason == "" && len(c.message) <= longestWord && final(c.message):
		return bad
	case strings.HasSuffix(l.kind.Group, ".knative.dev") && !strings.HasSuffix(c.reason, "NotReady"):
		return bad // https://github.com/knative/specs: what is under way is Unknown
	case verdicts[last]:
		if unfinished(c.reason) {
			return busy
		}
		return bad
	}
	return busy
}

// final reports whether a reason is an error that waiting does not solve: "BuildFailed",
// "ErrInitIssuer", "InvalidProviderConfig". A reason about something else that is not ready
// yet is not final.
func final(reason string) bool {
	words := split(reason)
	for i, w := range words {
		if w == "not" && i+1 < len(words) && goodWords[words[i+1]] || w == "dependency" && words[len(words)-1] != "invalid" {
			return false
		}
	}
	return slices.ContainsFunc(words, func(w string) bool { return badWords[w] && !passing[w] || alsoFinal[w] })
}

// alsoFinal are words that mean an error in a reason only: "HostAlreadyClaimed",
// "CruiseControlRestException".
var alsoFinal = set(`mismatch already exception throwable`)

// passing are bad words that do not make a reason final.
var passing = set(`unavailable unhealthy lost degraded conflict unreachable`)

// finished reports whether a reason says that the work is done: "NewReplicaSetAvailable".
func finished(reason string) bool {
	words := split(reason)
	n := len(words)
	return n > 0 && (goodWords[words[n-1]] || words[n-1] == "expected") && (n == 1 || words[n-2] != "not")
}

// unfinished reports whether a reason says that there is work to do: "Pending".
func unfinished(reason string) bool { return levelOf(reason, true) == busy }
