package compat

import (
	"reflect"
	"testing"
)

func TestParseAllowances(t *testing.T) {
	const digest = "sha256:e1dde2d0d249fb43d984b09ddcfb0146954a7507cbd5966e1157b0f06236e0f9"
	for _, tt := range []struct {
		name, in string
		want     []Allowance
		err      string
	}{
		{name: "nothing", in: " \n"},
		{name: "one", in: "v2.0.0:field-removed=nobody sets it", want: []Allowance{{"v2.0.0", "field-removed", "nobody sets it"}}},
		{name: "more", in: "v2.0.0:field-removed=a=b: c\n\n  " + digest + ":max-length-tightened = checked \n", want: []Allowance{
			{"v2.0.0", "field-removed", "a=b: c"}, {digest, "max-length-tightened", "checked"},
		}},
		{name: "no reason", in: "v1:field-removed=", err: `annotation gitopsd.dev/allow-breaking: "v1:field-removed=" gives no reason: add one after "="`},
		{name: "no equals sign", in: "v1:field-removed", err: `annotation gitopsd.dev/allow-breaking: "v1:field-removed" gives no reason: add one after "="`},
		{name: "no version", in: "field-removed=x", err: `annotation gitopsd.dev/allow-breaking: "field-removed=x": want <version>:<finding>=<reason>`},
		{name: "no finding", in: "v1:=x", err: `annotation gitopsd.dev/allow-breaking: "v1:=x": want <version>:<finding>=<reason>`},
		{name: "no such finding", in: "v1:fields-removed=x", err: `annotation gitopsd.dev/allow-breaking: there is no finding "fields-removed"; did you mean field-removed?`},
		{name: "nothing like a finding", in: "v1:nonsense=x", err: `annotation gitopsd.dev/allow-breaking: there is no finding "nonsense": take the name from the plan`},
		{name: "placeholder", in: "v1:field-removed=<why that is fine>", err: `annotation gitopsd.dev/allow-breaking: "v1:field-removed=<why that is fine>" still has the placeholder: write your reason in the place of <why that is fine>`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			have, err := ParseAllowances(tt.in)
			if (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
				t.Errorf("error %v\nwant  %s", err, tt.err)
			}
			if !reflect.DeepEqual(have, tt.want) {
				t.Errorf("have %v, want %v", have, tt.want)
			}
		})
	}
}

// An allowance does not outlive its bump.
func TestAllowed(t *testing.T) {
	all := []Allowance{{"v2", "field-removed", "a"}, {"v2", "enum-added", "b"}}
	for _, tt := range []struct {
		version, finding string
		want             bool
	}{{"v2", "field-removed", true}, {"v2", "enum-added", true}, {"v3", "field-removed", false}, {"v2", "type-changed", false}} {
		a, ok := Allowed(all, tt.version, Finding{Name: tt.finding})
		if ok != tt.want || ok && (a.Finding != tt.finding || a.Reason == "") {
			t.Errorf("%s in %s: %v, %t", tt.finding, tt.version, a, ok)
		}
	}
}

func FuzzParseAllowances(f *testing.F) {
	f.Add("v2.0.0:field-removed=nobody sets it\nsha256:00:enum-added=x")
	f.Fuzz(func(t *testing.T, value string) {
		all, err := ParseAllowances(value)
		if err != nil {
			return
		}
		for _, a := range all {
			again, err := ParseAllowances(a.Version + ":" + a.Finding + "=" + a.Reason)
			if err != nil || len(again) != 1 || again[0] != a {
				t.Errorf("%q: %v, %v", a, again, err)
			}
		}
	})
}
