package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/manifest"
)

// Class is the kind of a failure. Callers decide by the class alone what to do about an
// error.
type Class string

// The classes. Unreachable, Unauthorized, Fenced and Canceled concern the whole
// cluster ([Error.ClusterWide]); all others one object or one type.
const (
	// Unreachable: no answer, or not from an API server that the kubeconfig
	// trusts.
	Unreachable Class = "unreachable"
	// Unauthorized: the credentials are not accepted.
	Unauthorized Class = "unauthorized"
	// Fenced: Config.MayWrite refused the write, and nothing was sent.
	Fenced Class = "fenced"
	// Unanswered: this request got no answer, though the API server answers others.
	Unanswered Class = "no answer"
	// Throttled: the API server asks to come back later; see RetryAfter.
	Throttled Class = "throttled"
	// Forbidden: the credentials may not do this.
	Forbidden Class = "forbidden"
	// Conflict: other field managers own fields that were to be applied.
	Conflict Class = "conflict"
	// Changed: since it was read, the object was written to, or deleted and created
	// again.
	Changed Class = "changed"
	// Exists: an object of the name that was to be created exists.
	Exists Class = "exists"
	// Invalid: the API server does not accept the object; see Fields.
	Invalid Class = "invalid"
	// Refused: an admission webhook or policy denied the request.
	Refused Class = "refused"
	// WebhookFailed: an admission or conversion webhook did not answer.
	WebhookFailed Class = "webhook failed"
	// NoDryRun: an admission webhook does not support dry runs.
	NoDryRun Class = "no dry run"
	// NotFound: the object does not exist.
	NotFound Class = "not found"
	// NoNamespace: the object's namespace does not exist, or is being deleted.
	NoNamespace Class = "no namespace"
	// NoSuchType: the cluster serves no such kind.
	NoSuchType Class = "no such type"
	// Expired: a list took longer than the API server keeps its version.
	Expired Class = "expired"
	// Server: the API server failed by itself.
	Server Class = "server error"
	// Canceled: the caller gave up.
	Canceled Class = "canceled"
)

// longestRetryAfter bounds the Retry-After of an API server, in seconds.
const longestRetryAfter = 3600

// few is how many fields a message lists.
const few = 5

// Field is a field of an object that is not valid.
type Field struct {
	// Path is written as the API server writes it: "spec.ports[0].port".
	Path string
	// Problem is the API server's text.
	Problem string
}

// Error is why a request failed. Its text never holds a value of a Secret.
type Error struct {
	Class Class
	// Cluster is the registered name.
	Cluster string
	// Verb is the operation: "apply", "get", "list", "delete", "discover", and so on.
	Verb string
	// ID is the object; for a list it has the kind alone.
	ID manifest.ID
	// Message is the reason, without verb, object and cluster.
	Message string
	// Fields are the fields that are not valid, if the class is Invalid.
	Fields []Field
	// Webhook is the webhook or policy of the classes Refused, WebhookFailed and
	// NoDryRun.
	Webhook string
	// RetryAfter is how long the API server asks to wait; 0 if it does not ask.
	RetryAfter time.Duration

	immutable bool
	cause     error
}

// Error names cluster, verb, object and reason.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("cluster " + e.Cluster + ": ")
	if e.Class != Unreachable && e.Class != Unauthorized {
		b.WriteString(e.Verb + subject(e.ID) + ": ")
	}
	b.WriteString(e.Message)
	return b.String()
}

// Problem returns the error with cluster and object apart from the reason.
func (e *Error) Problem() problem.Problem {
	p := problem.Problem{Cluster: e.Cluster, Reason: e.Message}
	switch {
	case e.Class == Unreachable || e.Class == Unauthorized:
	case e.ID.Name != "":
		p.Object, p.Reason = e.ID.String(), e.Verb+": "+e.Message
	default:
		p.Reason = e.Verb + subject(e.ID) + ": " + e.Message
	}
	return p
}

// subject returns the object with a space before it, or the kind or group if no more
// is known.
func subject(id manifest.ID) string {
	switch {
	case id.Name != "":
		return " " + id.String()
	case id.Kind == "" && id.Group == "":
		return ""
	case id.Kind == "":
		return " group " + id.Group
	}
	s := " " + strings.ToLower(id.Kind)
	if id.Group != "" {
		s += "." + id.Group
	}
	if id.Namespace != "" {
		s += " in namespace " + id.Namespace
	}
	return s
}

// Unwrap returns the error of the transport, the context or Config.MayWrite, if there
// is one.
func (e *Error) Unwrap() error { return e.cause }

// ClusterWide reports whether every other request to the cluster, or every other write if
// the class is Fenced, would fail too.
func (e *Error) ClusterWide() bool {
	switch e.Class {
	case Unreachable, Unauthorized, Fenced, Canceled:
		return true
	}
	return false
}

// onlyImmutable reports whether the API server objects to nothing but changes of
// immutable fields.
func onlyImmutable(message string, details *metav1.StatusDetails) bool {
	if len(details.Causes) == 0 {
		return problem.Immutable(message)
	}
	return !slices.ContainsFunc(details.Causes, func(c metav1.StatusCause) bool { return !problem.Immutable(c.Message) })
}

// Immutable reports whether the class is Invalid, and changes of immutable fields are the
// only reason known.
func (e *Error) Immutable() bool { return e.Class == Invalid && e.immutable }

// ClassOf returns the class of an error of this package, "" for any other.
func ClassOf(err error) Class {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Class
	}
	return ""
}

// MessageOf returns the message of an error of this package, without the cluster and the
// request, and the text of any other.
func MessageOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Message
	}
	return err.Error()
}

// IsClusterWide reports whether err is an [Error] that concerns the whole cluster.
func IsClusterWide(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.ClusterWide()
}

// IsMissing reports whether err means that an object, or its namespace, does not exist.
func IsMissing(err error) bool { return ClassOf(err) == NotFound || ClassOf(err) == NoNamespace }

// IsStale reports whether err means that an object was written to or deleted since it was
// read.
func IsStale(err error) bool { return ClassOf(err) == Changed || ClassOf(err) == NotFound }

// errorf returns an error about an operation.
func (c *Client) errorf(op operation, class Class, format string, args ...any) *Error {
	return &Error{Class: class, Cluster: c.name, Verb: op.verb, ID: op.id, Message: fmt.Sprintf(format, args...)}
}

// transportError classifies the error of a request without an answer. ctx is the
// caller's, limit the time limit of the request.
func (c *Client) transportError(ctx context.Context, op operation, limit time.Duration, err error) *Error {
	e := &Error{Class: Unreachable, Cluster: c.name, Verb: op.verb, ID: op.id, cause: err}
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // its text has method and URL, which say no more than verb and object
		e.cause = err
	}
	switch {
	case ctx.Err() != nil:
		e.Class, e.cause, e.Message = Canceled, context.Cause(ctx), context.Cause(ctx).Error()
	case errors.Is(err, context.DeadlineExceeded):
		e.Message = fmt.Sprintf("%s did not answer within %s", c.base.Redacted(), limit)
	default:
		e.Message = fmt.Sprintf("%s cannot be reached: %v", c.base.Redacted(), err)
	}
	return e
}

// Texts that distinguish errors with the same status. They come from
// k8s.io/apiserver/pkg/admission (webhook/errors, webhook/request, plugin/policy)
// and k8s.io/apiextensions-apiserver/pkg/apiserver/conversion.
var (
	webhookDenied  = regexp.MustCompile(`^admission webhook "([^"]+)" denied the request`)
	policyDenied   = regexp.MustCompile(`(?:Validating|Mutating)AdmissionPolicy '([^']+)'`)
	webhookDryRun  = regexp.MustCompile(`admission webhook "([^"]+)" does not support dry run`)
	webhookFailing = regexp.MustCompile(`failed calling webhook "([^"]+)"`)
	conversionFail = regexp.MustCompile(`conversion webhook for ([^ ]+) failed`)
	untypable      = regexp.MustCompile(`(?s)^failed to (?:create typed patch object|convert new object) \([^)]*\)(?: to proper version)?: (?:errors:\n)?(.*)`)
	goSyntax       = regexp.MustCompile(`&value\.valueUnstructured\{Value:(.*?)\}`)
	fieldProblem   = regexp.MustCompile(`(?m)^\s*\.([^:\s]+): (.*)$`)
	conflictWith   = regexp.MustCompile(`^conflict with "((?:[^"\\]|\\.)*)"`)
)

// statusError classifies an answer of 400 and above. It sends no request, except to find
// out whether the impersonated account exists if that lacks a right.
func (c *Client) statusError(ctx context.Context, op operation, code int, header http.Header, body []byte) *Error {
	e := &Error{Class: Server, Cluster: c.name, Verb: op.verb, ID: op.id}
	var status metav1.Status
	structured := json.Unmarshal(body, &status) == nil && status.Kind == "Status"
	details := status.Details
	if details == nil {
		details = &metav1.StatusDetails{}
	}
	// An event of a watch has no header.
	seconds, err := strconv.Atoi(header.Get("Retry-After"))
	if err != nil {
		seconds = int(details.RetryAfterSeconds)
	}
	e.RetryAfter = time.Duration(min(max(seconds, 0), longestRetryAfter)) * time.Second
	e.Message = status.Message
	if !structured || e.Message == "" {
		e.Message = fmt.Sprintf("the server answered %d %s", code, http.StatusText(code))
	}
	advice := ""
	switch {
	// A webhook chooses the status of its denial, and 401 says nothing about credentials then.
	case matched(e, webhookDenied, Refused), matched(e, webhookDryRun, NoDryRun),
		matched(e, webhookFailing, WebhookFailed), matched(e, conversionFail, WebhookFailed):
	case matched(e, policyDenied, Refused):
	case code == http.StatusUnauthorized:
		e.Class = Unauthorized
		e.Message = "the API server does not accept the credentials; they are wrong or have expired"
	case code == http.StatusTooManyRequests:
		e.Class = Throttled
	case untypable.MatchString(e.Message):
		// The API server calls this an internal error of its own.
		e.Class = Invalid
		e.Message = goSyntax.ReplaceAllString(untypable.FindStringSubmatch(e.Message)[1], "$1")
		for _, m := range fieldProblem.FindAllStringSubmatch(e.Message, -1) {
			e.Fields = append(e.Fields, Field{Path: m[1], Problem: m[2]})
		}
		// The API server's order varies, and the same error must have the same text.
		slices.SortStableFunc(e.Fields, func(a, b Field) int { return strings.Compare(a.Path, b.Path) })
		invalid(e, details)
	case slices.ContainsFunc(details.Causes, func(c metav1.StatusCause) bool { return c.Type == "NamespaceTerminating" }):
		e.Class = NoNamespace
	case code == http.StatusForbidden:
		e.Class = Forbidden
		advice = c.missingRule(ctx, op, e.Message)
	case code == http.StatusNotFound:
		c.notFound(e, structured, details, body)
	case code == http.StatusConflict && status.Reason == metav1.StatusReasonAlreadyExists:
		e.Class = Exists
	case code == http.StatusConflict:
		conflict(e, details)
	case code == http.StatusGone:
		e.Class = Expired
	case slices.ContainsFunc(details.Causes, func(c metav1.StatusCause) bool { return c.Field == "metadata.uid" }):
		e.Class = Changed
		e.Message = "it was deleted, and one of its name was created"
	case code == http.StatusUnprocessableEntity, code == http.StatusBadRequest, code == http.StatusRequestEntityTooLarge:
		e.Class = Invalid
		e.immutable = onlyImmutable(e.Message, details)
		invalid(e, details)
	}
	if len(e.Message) > maxMessage {
		e.Message = strings.ToValidUTF8(e.Message[:maxMessage], "") + " …"
	}
	e.Message += advice
	if op.id.Is(manifest.Secret) {
		withhold(e)
	}
	return e
}

func matched(e *Error, text *regexp.Regexp, class Class) bool {
	m := text.FindStringSubmatch(e.Message)
	if m == nil {
		return false
	}
	e.Class, e.Webhook = class, m[1]
	return true
}

// noSuchPath is what an API server answers for a path that it does not serve: Go's own text.
const noSuchPath = "404 page not found"

// notFound distinguishes a missing object from a missing namespace and a missing type,
// whose answer has no name. Another page is not an API server's: to take it for a missing
// type would be to take objects for deleted.
func (c *Client) notFound(e *Error, structured bool, details *metav1.StatusDetails, body []byte) {
	switch {
	case structured && details.Kind == "namespaces" && !e.ID.Is(manifest.Namespace):
		e.Class = NoNamespace
		e.Message = fmt.Sprintf("namespace %q not found", details.Name)
	case structured && details.Name != "" && e.Verb == "apply" && e.ID.Is(manifest.ClusterRoleBinding, manifest.RoleBinding):
		// The API server calls the role by the binding's kind.
		e.Class = NotFound
		e.Message = fmt.Sprintf("roleRef: role %q not found", details.Name)
	case structured && details.Name != "":
		e.Class = NotFound
		if e.ID.Name == "" || details.Name == e.ID.Name { // not another object
			e.Message = "not found"
		}
	case structured, len(body) == 0, strings.TrimSpace(string(body)) == noSuchPath:
		e.Class = NoSuchType
		e.Message = noSuchType(e.ID)
		c.Forget(e.ID.Group)
	default:
		e.Message = "something in front of the API server answered 404; is it set up for this cluster?"
	}
}

func noSuchType(id manifest.ID) string {
	return fmt.Sprintf("the cluster serves no kind %s in %s; is its CRD or package missing?", id.Kind, groupName(id.Group))
}

func groupName(group string) string {
	if group == "" {
		return "the core group"
	}
	return "group " + group
}

// conflict distinguishes fields that other managers own from an object that has changed.
func conflict(e *Error, details *metav1.StatusDetails) {
	e.Class = Changed
	var managers []string
	fields := make(map[string][]string) // by manager
	for _, cause := range details.Causes {
		if cause.Type != metav1.CauseTypeFieldManagerConflict {
			continue
		}
		e.Class = Conflict
		name := "an unknown manager"
		if m := conflictWith.FindStringSubmatch(cause.Message); m != nil {
			name = m[1]
		}
		if fields[name] == nil {
			managers = append(managers, name)
		}
		fields[name] = append(fields[name], cause.Field)
	}
	if e.Class != Conflict {
		return
	}
	var parts []string
	for _, name := range managers {
		parts = append(parts, fmt.Sprintf("%s owns %s", name, prose.Some(fields[name], few)))
	}
	e.Message = strings.Join(parts, "; ")
}

func invalid(e *Error, details *metav1.StatusDetails) {
	for _, cause := range details.Causes {
		if cause.Field != "" {
			e.Fields = append(e.Fields, Field{Path: cause.Field, Problem: withoutLongValue(cause.Message)})
		}
	}
	if len(e.Fields) > 0 {
		e.tellFields()
	}
}

// tellFields makes the message of the fields that are not valid.
func (e *Error) tellFields() {
	var parts []string
	for _, f := range e.Fields {
		parts = append(parts, f.Path+": "+f.Problem)
	}
	e.Message = prose.Some(parts, few)
}

// longValue is the longest part of an object that an error shows, in bytes.
const longValue = 200

// withoutLongValue removes the value from "Invalid value: {…}: what is wrong with it"
// if it is a large part of an object, such as a pod template.
func withoutLongValue(problem string) string {
	value, ok := strings.CutPrefix(problem, "Invalid value: ")
	end := max(strings.LastIndex(value, "}: "), strings.LastIndex(value, "]: "))
	if !ok || end < longValue {
		return problem
	}
	return value[end+len("}: "):]
}

// withheld is in the place of a text in which the API server may have quoted a Secret.
const withheld = "(the API server's message is withheld: it may quote the Secret)"

// withhold removes text in which the API server may have quoted a Secret. Class, paths,
// managers and the webhook's name stay.
func withhold(e *Error) {
	const why = " " + withheld
	switch e.Class {
	case Invalid:
		var paths []string
		for i := range e.Fields {
			e.Fields[i].Problem = "not valid"
			paths = append(paths, e.Fields[i].Path)
		}
		if len(paths) == 0 {
			e.Message = "not valid" + why
		} else {
			e.Message = prose.Some(paths, few) + ": not valid" + why
		}
	case Refused, WebhookFailed, NoDryRun:
		e.Message = fmt.Sprintf("admission by %q: %s", e.Webhook, e.Class) + why
	case Forbidden:
		// RBAC's own message names the user, verb and resource.
		if !strings.Contains(e.Message, "forbidden: User ") {
			e.Message = string(e.Class) + why
		}
	case NotFound:
		e.Message = string(e.Class)
	case Server, Changed, Exists, Throttled, Expired:
		e.Message = string(e.Class) + why
	}
}
