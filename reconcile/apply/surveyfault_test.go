package apply_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/types"
)

// page is a page of a list of objects that the API server does not have.
func page(next string, items ...string) func(*http.Request) (*http.Response, error) {
	return answers(http.StatusOK, nil, fmt.Sprintf(`{"kind": "Thing0List", "metadata": {"continue": %q}, "items": [%s]}`, next, strings.Join(items, ",")))
}

// Whatever keeps the objects from being looked at, the schema's verdict stands and the plan
// says why; and a list that starts over counts nothing twice.
func TestSurveyFaults(t *testing.T) {
	gone := answers(http.StatusGone, nil, `{"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}`)
	item := func(i int) string {
		return fmt.Sprintf(`{"apiVersion": "$GROUP/v1", "kind": "Thing0", "metadata": {"namespace": "default", "name": "o%d"}, "spec": {"size": 9}}`, i)
	}
	for _, tt := range []struct {
		name string
		// fault answers the n-th list of the objects; nil leaves it to the API server, which
		// has one object that is not harmed.
		fault   func(n int, group string) func(*http.Request) (*http.Response, error)
		unknown string
	}{
		{"nobody", func(int, string) func(*http.Request) (*http.Response, error) { return nil }, ""},
		{"forbidden", func(int, string) func(*http.Request) (*http.Response, error) {
			return answers(http.StatusForbidden, nil, `{"kind": "Status", "code": 403, "reason": "Forbidden", "message": "no"}`)
		}, "the account may not list the objects"},
		{"an empty answer", func(int, string) func(*http.Request) (*http.Response, error) {
			return answers(http.StatusOK, nil, `{}`)
		}, "list"},
		{"another object", func(int, string) func(*http.Request) (*http.Response, error) {
			return answers(http.StatusOK, nil, `{"kind": "Status", "status": "Success"}`)
		}, "list"},
		{"an item that is no object", func(int, string) func(*http.Request) (*http.Response, error) { return page("", `"red"`) }, "an item that is no object"},
		{"an item that is nothing", func(int, string) func(*http.Request) (*http.Response, error) { return page("", `null`) }, "an item that is no object"},
		{"an item of another kind", func(int, string) func(*http.Request) (*http.Response, error) { return page("", `{"kind": "Pod"}`) }, "cannot be judged"},
		{"no answer", func(int, string) func(*http.Request) (*http.Response, error) { return hangs }, "answers others"},
		{"broken off", func(n int, group string) func(*http.Request) (*http.Response, error) {
			if n == 0 {
				return page("next", strings.ReplaceAll(item(0), "$GROUP", group))
			}
			return breaksOff
		}, "connection broke"},
		{"expired once", func(n int, group string) func(*http.Request) (*http.Response, error) {
			return [...]func(*http.Request) (*http.Response, error){page("next", strings.ReplaceAll(item(0), "$GROUP", group)), gone, nil}[min(n, 2)]
		}, ""},
		{"expired every time", func(n int, group string) func(*http.Request) (*http.Response, error) {
			return [...]func(*http.Request) (*http.Response, error){page("next", strings.ReplaceAll(item(0), "$GROUP", group)), gone}[n%2]
		}, "too old resource version"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newPopulation(t)
			f := newFaulty(p.bed, 5*time.Second)
			p.apply(p.set(limited("{type: integer}", "")))
			if code, answer, err := p.send(http.MethodPost, p.path(0, ""), p.body(0, "small", "{size: 1}")); err != nil || code != http.StatusCreated {
				t.Fatalf("%d %v %v", code, answer["message"], err)
			}
			var lists atomic.Int64
			f.breaks(endpoint(http.MethodGet, "/apis/"+p.name+".example.org/v1/things0"), func(req *http.Request) (*http.Response, error) {
				if fault := tt.fault(int(lists.Add(1)-1), p.name+".example.org"); fault != nil {
					return fault(req)
				}
				return nil, nil
			})
			s := p.plan(p.set(limited("{type: integer, maximum: 3}", "")), apply.PlanOptions{BreakingByData: true}).Steps[0]
			switch {
			case s.Survey == nil:
				t.Fatalf("nobody looked: %s %s", s.Action, s.Reason)
			case tt.unknown == "" && (s.Action != plan.Configure || s.Survey.Unknown != "" || s.Survey.Looked != 1 || s.Survey.Harmed != 0):
				t.Errorf("%s: %s; %+v", s.Action, s.Reason, s.Survey)
			case tt.unknown != "" && (s.Action != plan.Refused || !strings.Contains(s.Survey.Unknown, tt.unknown) || !strings.Contains(s.Reason, s.Survey.Unknown)):
				t.Errorf("%s: %s; %+v", s.Action, s.Reason, s.Survey)
			}
		})
	}
}

// For a plan nobody looks further than at a number of objects: the next page would go on
// without an end.
func TestSurveyTooMany(t *testing.T) {
	apply.SurveyAtMost(t, 600)
	p := newSerialPopulation(t)
	f := newFaulty(p.bed, 5*time.Second)
	p.apply(p.set(limited("{type: integer}", "")))
	item := fmt.Sprintf(`{"apiVersion": "%s.example.org/v1", "kind": "Thing0", "metadata": {"namespace": "default", "name": "a"}, "spec": {"size": 1}}`, p.name)
	var lists atomic.Int64
	f.breaks(endpoint(http.MethodGet, "/apis/"+p.name+".example.org/v1/things0"), func(req *http.Request) (*http.Response, error) {
		return page(fmt.Sprint("next", lists.Add(1)), slices.Repeat([]string{item}, 250)...)(req)
	})
	s := p.plan(p.set(limited("{type: integer, maximum: 3}", "")), apply.PlanOptions{BreakingByData: true}).Steps[0]
	if s.Action != plan.Refused || s.Survey == nil || s.Survey.Unknown != "there are more than 600 objects" || !strings.Contains(s.Reason, s.Survey.Unknown) {
		t.Errorf("%s: %s; %+v", s.Action, s.Reason, s.Survey)
	}
	if n := lists.Load(); n != 3 {
		t.Errorf("read %d pages of 250, want 3", n)
	}

	// Some callers look at all of them.
	lists.Store(0)
	f.breaks(endpoint(http.MethodGet, "/apis/"+p.name+".example.org/v1/things0"), func(req *http.Request) (*http.Response, error) {
		next := ""
		if n := lists.Add(1); n < 4 {
			next = fmt.Sprint("next", n)
		}
		return page(next, slices.Repeat([]string{item}, 250)...)(req)
	})
	live, wanted := p.set(limited("{type: integer}", "")).All()[0].Tree(), p.set(limited("{type: integer, maximum: 3}", "")).All()[0].Tree()
	judges, err := apply.Judges(t.Context(), p.cluster, live, wanted, s.Findings, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	if survey, err := apply.SurveyAll(t.Context(), p.cluster, judges); err != nil || survey.Unknown != "" || survey.Looked != 1000 {
		t.Errorf("all: %+v, %v", survey, err)
	}
}

// Only a record by this inventory makes a change a rollback, not one in a manifest that
// was copied from a cluster or forged.
func TestSurveyRollback(t *testing.T) {
	p := newPopulation(t)
	wide, narrow := limited("{type: integer}", ""), limited("{type: integer, maximum: 3}", "")
	all, err := types.Of(p.set(narrow).All()[0].Tree())
	if err != nil {
		t.Fatal(err)
	}
	forged := strings.Replace(wide, "metadata: {", "metadata: {annotations: {gitopsd.dev/types-before: '"+types.Sum(all)+" none'}, ", 1)
	p.apply(p.set(forged))
	step := func() plan.Step { return p.plan(p.set(narrow), apply.PlanOptions{}).Steps[0] }
	for _, when := range []string{"created", "applied again", "after a restart"} {
		if s := step(); s.Action != plan.Refused || s.Back {
			t.Errorf("%s: %s: %s", when, s.Action, s.Reason)
		}
		p.apply(p.set(strings.Replace(forged, "metadata: {", "metadata: {labels: {l: a}, ", 1)))
		if when == "applied again" {
			p.restart()
		}
	}
}

// A change that goes back to types that were applied before is a rollback, also after a
// restart.
func TestSurveyRollbackOfOurs(t *testing.T) {
	p := newPopulation(t)
	wide, narrow := limited("{type: integer}", ""), limited("{type: integer, maximum: 3}", "")
	p.apply(p.set(narrow))
	p.apply(p.set(wide))
	p.restart()
	if s := p.plan(p.set(narrow), apply.PlanOptions{}).Steps[0]; s.Action != plan.Configure || !s.Back {
		t.Errorf("%s: %s", s.Action, s.Reason)
	}
}
