package health

import (
	"slices"
	"strings"
	"unicode"
)

// level is the level of a signal; the worst counts.
type level int

const (
	silent level = iota // says nothing
	good
	busy
	bad
)

// Words in values such as "Ready", "CreateFailed" or "Setting up primary", and in the reasons
// of conditions. All other words are silent.
var (
	badWords = set(`failed failing failure failures fail error errors errored err invalid lost degraded unhealthy
		unavailable rejected denied aborted abort crashed crash crashing crashloopbackoff faulted fault stuck broken red critical
		unrecoverable unreachable misconfigured conflict conflicted conflicting forbidden unauthorized exceeded
		unsupported unschedulable timeout expired terminal corrupted inconsistent incompatible canceled cancelled stalled
		evicted orphaned backoff offline noncompliant abnormal fatal`)
	busyWords = set(`build install upgrade replacing promoting finalising finalizing inspecting registering partial requires required pending new waiting wait queued queue init initializing initialising progress inprogress
		progressing starting started start stopping terminated creating created updating upgrading installing uninstalling
		provisioning deploying configuring reconciling syncing synchronizing scheduling scheduled restoring recovering
		migrating scaling resizing restarting restart restarted rebooting deleting terminating removing draining
		preparing building pulling pushing downloading uploading copying importing exporting cloning validating
		verifying issuing applying joining bootstrapping rebalancing rebuilding rolling rollback rollingout modifying
		attaching detaching binding releasing processing planning setting switching switchover failover unknown
		yellow being outofsync unsynced delayed paused blocked maintenance missing submitted unbound
		requested retrying cleanup
		expanding shrinking growing recreating reloading resuming pausing suspending activating allocating connecting
		decommissioning hibernating loading renewing electing converging executing evaluating testing analyzing submitting
		resolving fetching unpacking reconfiguring mounting finishing aborting canceling cancelling shutting disconnected`)
	goodWords = set(`ready running active available bound succeed succeeded success successful complete completed healthy ok green
		done finished online deployed synced synchronized established installed provisioned attached enabled issued
		valid approved accepted normal up connected serving operational stable released resolved registered configured
		reconciled admitted applied idle insync uptodate current fulfilled runnable detached reachable scraping initialized latest compliant`)
	// runningWords mean that an object with finite work is still working.
	runningWords = set(`running active started serving ready idle`)
)

func set(words string) map[string]bool {
	m := make(map[string]bool)
	for _, w := range strings.Fields(words) {
		m[w] = true
	}
	return m
}

// longestWord is the length of the longest value that is read as words; longer ones are prose.
const longestWord = 120

// phrases are values with another meaning than their words.
var phrases = map[string]level{
	"noncompliant": bad, "outofsync": busy, "inprogress": busy, "uptodate": good, "insync": good,
	"waitforfirstconsumer": good, // it waits for whoever waits for it
	"down":                 bad, "dead": bad, "panic": bad,
}

// levelOf judges a value such as "Ready", "HEALTH_OK" or "Cluster in healthy state". finite is
// set for objects with work that ends.
func levelOf(value string, finite bool) level {
	if len(value) > longestWord {
		return silent
	}
	words := split(value)
	if l, ok := phrases[strings.Join(words, "")]; ok {
		return l
	}
	worst := silent
	for i, w := range words {
		l := wordLevel(w, finite)
		if i > 0 {
			l = after(words[i-1], w, l)
		}
		worst = max(worst, l)
	}
	return worst
}

// after returns the level of a word that follows another and alone has level l: "not ready" is
// busy, "no errors" good, "already exists" bad, and "not failed" silent.
func after(before, word string, l level) level {
	switch before {
	case "not", "non", "isn":
		if l == good {
			return busy
		}
		return silent
	case "already":
		if word == "exists" {
			return bad
		}
	case "no", "without":
		if l == bad {
			return good
		}
	}
	return l
}

func wordLevel(w string, finite bool) level {
	switch {
	case badWords[w]:
		return bad
	case finite && runningWords[w]:
		return busy
	case goodWords[w]:
		return good
	case busyWords[w]:
		return busy
	}
	return silent
}

// split returns the words of a CamelCase name, a constant or a phrase, in lower
// case: "AllReplicasReady", "HEALTH_OK", "rolling-out", "ACK.Terminal".
func split(s string) []string {
	var words []string
	runes := []rune(s)
	start := -1
	end := func(i int) {
		if start >= 0 && i > start {
			words = append(words, strings.ToLower(string(runes[start:i])))
		}
		start = -1
	}
	for i, r := range runes {
		switch {
		case !unicode.IsLetter(r) && !unicode.IsDigit(r):
			end(i)
			continue
		case start < 0:
			start = i
		case unicode.IsUpper(r) && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])):
			end(i)
			start = i
		}
	}
	end(len(runes))
	return words
}

// isWordField reports whether a field holds a word about the object as a whole: phase, state or
// currentStatus, but not lastBackupStatus or desiredState.
func isWordField(name string) bool {
	words := split(name)
	if len(words) == 0 {
		return false
	}
	switch words[len(words)-1] {
	case "phase", "state", "status", "health", "robustness", "stage", "compliant":
		return !slices.Contains(otherTimes, words[0]) || name == "lastObservedState"
	}
	return false
}

// otherTimes begin the names of fields about the past or the future.
var otherTimes = []string{"last", "previous", "prev", "desired", "target", "old", "initial", "requested", "expected", "next", "prior"}

// plainWordFields are read although no column shows them.
var plainWordFields = []string{"phase", "state", "status", "health", "currentStatus", "currentPhase", "currentState"}

// plainTruthFields are read although no column shows them.
var plainTruthFields = []string{"ready", "healthy", "available", "created", "initialized", "valid", "readyToUse"}

// isTruthField reports whether a boolean field says that the object is ready.
func isTruthField(name string) bool {
	words := split(name)
	if len(words) == 0 || slices.Contains(otherTimes, words[0]) {
		return false
	}
	switch words[len(words)-1] {
	case "use":
		return name == "readyToUse"
	case "ready", "available", "healthy", "initialized", "provisioned", "created", "valid", "validated", "generated", "synced", "deployed", "installed":
		return !slices.Contains(words, "not")
	}
	return false
}
