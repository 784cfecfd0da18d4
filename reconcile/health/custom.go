package health

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"gitopsd.dev/render/cel"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// Expressions judge the objects of a kind in the Common Expression Language. Fields
// and order are those of Flux's healthCheckExprs: the first of InProgress, Failed and
// Current that holds decides. If none holds, the object is in progress. It is also in
// progress while its controller has not seen its generation.
//
// The object is self, and its fields are variables. An expression that reads a missing field
// does not hold.
type Expressions struct {
	// InProgress, Failed and Current evaluate to a bool. Current is required.
	InProgress, Failed, Current string
	// Message evaluates to the reason, a string. If empty, the reason is the expression that
	// decided.
	Message string
}

// Rule are expressions for a kind.
type Rule struct {
	Kind manifest.GroupKind
	Expressions
	// From is where the rule was written, for people.
	From string
}

// The keys of expressions in YAML.
const (
	keyInProgress = "inProgress"
	keyFailed     = "failed"
	keyCurrent    = "current"
	keyMessage    = "message"
)

// maxText bounds all expressions of a rule together, and maxMessage the value of a message.
const (
	maxText    = 32 << 10
	maxMessage = 500
)

// parseExpressions reads the value of a manifest.HealthAnnotation: a YAML mapping with
// the keys inProgress, failed, current and message.
func parseExpressions(text string) (Expressions, error) {
	docs, err := sources.DecodeYAML(strings.NewReader(text), sources.Limits{Bytes: maxText})
	if err != nil {
		return Expressions{}, err
	}
	if len(docs) != 1 {
		return Expressions{}, fmt.Errorf("has %d documents; write one mapping with the key %s, and if needed %s, %s and %s",
			len(docs), keyCurrent, keyFailed, keyInProgress, keyMessage)
	}
	var e Expressions
	return e, e.read(docs[0].Tree)
}

// read sets the expressions from a mapping that has no other keys.
func (e *Expressions) read(tree map[string]any) error {
	fields := map[string]*string{keyInProgress: &e.InProgress, keyFailed: &e.Failed, keyCurrent: &e.Current, keyMessage: &e.Message}
	var errs []error
	for key, value := range tree {
		field, known := fields[key]
		text, isText := value.(string)
		switch {
		case !known:
			errs = append(errs, fmt.Errorf("%s: is not a field here; use %s, %s, %s and %s", key, keyCurrent, keyFailed, keyInProgress, keyMessage))
		case !isText:
			errs = append(errs, fmt.Errorf("%s: is not a string: put the expression in quotes", key))
		default:
			*field = text
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	if len(errs) == 0 && strings.TrimSpace(e.Current) == "" {
		errs = append(errs, fmt.Errorf("%s: is missing: the expression that holds for a healthy object", keyCurrent))
	}
	return errors.Join(errs...)
}

// compiledRule is a compiled rule. It is safe for concurrent use.
type compiledRule struct {
	rule                                 Rule
	inProgress, failed, current, message *cel.Program
}

// compileRule compiles a rule. schema is the OpenAPI v3 schema of a version of the kind, as in a
// CRD, that fields are checked by; if it is nil, any field may exist. The error has the
// expression and the position in it.
func compileRule(r Rule, schema map[string]any) (*compiledRule, error) {
	if r.Kind == manifest.Secret {
		return nil, errors.New("a Secret is not judged by expressions, which could show what is in it")
	}
	c := &compiledRule{rule: r}
	var errs []error
	for _, e := range []struct {
		key, text string
		result    cel.Result
		program   **cel.Program
	}{
		{keyCurrent, r.Current, cel.Bool, &c.current},
		{keyFailed, r.Failed, cel.Bool, &c.failed},
		{keyInProgress, r.InProgress, cel.Bool, &c.inProgress},
		{keyMessage, r.Message, cel.String, &c.message},
	} {
		if strings.TrimSpace(e.text) == "" && e.key != keyCurrent {
			continue
		}
		var err error
		if *e.program, err = cel.Compile(e.text, schema, e.result); err != nil {
			errs = append(errs, fmt.Errorf("%s:%w\n  %s", e.key, position{err}, quoted(e.text)))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return c, nil
}

// position prints the position of an error directly after the key: "current:1:7: …".
type position struct{ error }

func (p position) Error() string {
	if e, ok := errors.AsType[*cel.Error](p.error); ok && e.Line > 0 {
		return e.Error()
	}
	return " " + p.error.Error()
}

func (p position) Unwrap() error { return p.error }

// Of judges an object of the rule's kind. now is as in [Rules.Of].
func (c *compiledRule) Of(object map[string]any, now time.Time) Verdict {
	v := Verdict{Status: InProgress, Rule: c.rule.From}
	if behind(object, now, &v) {
		return v
	}
	for _, e := range []struct {
		key, text string
		program   *cel.Program
		status    Status
	}{
		{keyInProgress, c.rule.InProgress, c.inProgress, InProgress},
		{keyFailed, c.rule.Failed, c.failed, Failed},
		{keyCurrent, c.rule.Current, c.current, Healthy},
	} {
		if e.program == nil {
			continue
		}
		holds, err := e.program.True(object)
		switch {
		case errors.Is(err, cel.ErrAbsent):
		case err != nil:
			return Verdict{Status: Unknown, Rule: c.rule.From, Reason: fmt.Sprintf("its expression %s cannot be evaluated: %s", e.key, clip(err.Error()))}
		case holds:
			v.Status, v.Reason = e.status, c.say(object)
			if v.Reason == "" {
				v.Reason = fmt.Sprintf("%s holds: %s", e.key, quoted(e.text))
			}
			return v
		}
	}
	if v.Reason = c.say(object); v.Reason == "" {
		v.Reason = fmt.Sprintf("%s does not hold yet: %s", keyCurrent, quoted(c.rule.Current))
	}
	return v
}

// say returns the rule's message about an object; "" if it has none.
func (c *compiledRule) say(object map[string]any) string {
	if c.message == nil {
		return ""
	}
	text, err := c.message.Text(object)
	if err != nil && !errors.Is(err, cel.ErrAbsent) {
		return fmt.Sprintf("its expression %s cannot be evaluated: %s", keyMessage, clip(err.Error()))
	}
	return clip(text)
}

// behind reports whether the object's controller has not seen its generation yet, and sets the
// verdict's reason. If the controller never reports a generation, behind returns false after
// some time.
func behind(object map[string]any, now time.Time, v *Verdict) bool {
	metadata, _ := object["metadata"].(map[string]any)
	status, _ := object["status"].(map[string]any)
	want, ok := number(metadata["generation"])
	have, known := number(status["observedGeneration"])
	if !ok || !known || want == have {
		return false
	}
	l := look{object: object, now: now, patience: defaultPatience}
	if have == 0 && l.overdue() {
		return false
	}
	waits := l.inProgress(signal{reason: fmt.Sprintf("its controller has seen generation %d, and it is at %d", have, want), late: have == 0})
	v.Reason, v.Until = waits.Reason, waits.Until
	return true
}

// quoted returns an expression on one line.
func quoted(text string) string { return clip(strings.Join(strings.Fields(text), " ")) }

// clip returns a text of an object or its author on one line, bounded and without characters
// that a terminal would act on.
func clip(text string) string {
	text = strings.ToValidUTF8(strings.Join(strings.Fields(text), " "), "")
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return -1
	}, text)
	return cut(text, maxMessage)
}
