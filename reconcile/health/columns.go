package health

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
)

// column is a printer column that may say something about health: it shows a condition, or a
// field of the status.
type column struct {
	Name string `json:"name"`
	// Condition is the type of the condition that it shows, or a part of. Newest is set if it
	// shows the last condition of the list.
	Condition string   `json:"condition,omitempty"`
	Newest    bool     `json:"newest,omitempty"`
	Path      []string `json:"path,omitempty"` // of a field, without "status"
}

var (
	showsCondition = regexp.MustCompile(`^\.status\.conditions\[\?\(\s*@\.type\s*==?\s*\\?['"]([A-Za-z0-9_./-]+)\\?['"]\s*\)\](\.[A-Za-z]+)?$`)
	showsNewest    = regexp.MustCompile(`^\.status\.conditions\[-1:?\]\.(type|status|reason)$`)
	showsField     = regexp.MustCompile(`^\.status((?:\.[A-Za-z0-9_-]+)+)$`)
)

// readColumn reads an entry of additionalPrinterColumns. ok is false if it says nothing about
// health: a field of the spec, a count, a time, a message, or a column that kubectl shows only
// with -o wide.
func readColumn(item any) (c column, ok bool) {
	m, _ := item.(map[string]any)
	path := manifest.Text(m, "jsonPath")
	if n, _ := number(m["priority"]); n != 0 || len(path) > 500 {
		return column{}, false
	}
	if !strings.HasPrefix(path, ".") {
		path = "." + path
	}
	c.Name = manifest.Text(m, "name")
	if c.Name == "" {
		c.Name = path
	}
	if found := showsCondition.FindStringSubmatch(path); found != nil {
		switch found[2] {
		case "", ".type", ".status", ".reason":
		default:
			return column{}, false
		}
		c.Condition = found[1]
		return c, true
	}
	if showsNewest.MatchString(path) {
		c.Newest = true
		return c, true
	}
	found := showsField.FindStringSubmatch(path)
	if found == nil {
		return column{}, false
	}
	c.Path = strings.Split(found[1][1:], ".")
	last := c.Path[len(c.Path)-1]
	return c, (isWordField(last) || isTruthField(last)) && !slices.ContainsFunc(c.Path[:len(c.Path)-1], aside)
}

// aside reports whether a field is about something other than the object.
func aside(name string) bool {
	words := split(name)
	if len(words) == 0 || name == "lastOperation" { // Gardener's name for the current operation
		return false
	}
	return slices.Contains(otherTimes, words[0]) || words[len(words)-1] == "backup"
}

// shown reports whether a column shows a condition.
func (t *Type) shown(condition string) bool {
	return t != nil && slices.ContainsFunc(t.known.Columns, func(c column) bool { return c.Condition == condition })
}

// columnSignals reads the columns of the type: the conditions and fields in them must exist and
// be good.
func (l *look) columnSignals() {
	if l.t == nil {
		return
	}
	for _, c := range l.t.known.Columns {
		switch {
		case c.Condition != "":
			if senseOf(c.Condition) == positive && !l.has(c.Condition) && !slices.Contains(optional, c.Condition) && !l.isReady() {
				l.add(signal{level: busy, rule: ruleColumns, late: true, ready: c.Condition == "Ready",
					reason: fmt.Sprintf("it has no condition %s yet, which column %s shows", c.Condition, c.Name)})
			}
		case c.Newest:
			l.newestSignal()
		default:
			l.fieldSignal(c)
		}
	}
}

// optional are conditions in columns that not every object gets.
var optional = []string{"Offered", "Approved", "Synced-with-remote"}

func (l *look) fieldSignal(c column) {
	where := strings.Join(c.Path, ".")
	switch v := at(l.status, c.Path...).(type) {
	case nil:
		if l.isReady() {
			return // not every object has it
		}
		l.add(signal{level: busy, rule: ruleColumns, late: true,
			reason: fmt.Sprintf("status.%s is not there yet, which column %s shows", where, c.Name)})
	case bool:
		l.truth(where, v, ruleColumns)
	case string:
		if v == "" {
			l.add(signal{level: busy, rule: ruleColumns, late: true, reason: fmt.Sprintf("status.%s is empty", where)})
			return
		}
		l.word(c.Path, v, ruleColumns)
	}
}

// newestSignal judges the type of the newest condition, for objects that get a condition for
// each phase.
func (l *look) newestSignal() {
	if len(l.conditions) == 0 {
		l.add(signal{level: busy, rule: ruleColumns, late: true, reason: "it has no condition yet"})
		return
	}
	c := l.conditions[len(l.conditions)-1]
	if c.status != "True" {
		return
	}
	l.add(signal{level: levelOf(c.kind, l.finite), rule: ruleColumns, reason: c.text()})
}

// truth judges a boolean field such as status.ready. False beside an error is a failure.
func (l *look) truth(where string, v bool, rule string) {
	s := signal{level: busy, rule: rule, reason: fmt.Sprintf("status.%s is %t", where, v)}
	why := manifest.Text(l.status, "error")
	if why == "" {
		why = manifest.Text(l.status, "error", "message")
	}
	switch {
	case v:
		s.level = good
	case why != "" && !strings.EqualFold(why, "none"):
		s.level, s.reason = bad, s.reason+": "+shorten(why)
	}
	l.add(s)
}
