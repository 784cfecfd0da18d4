package convert

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

// asJSON is a review as encoding/json reads it.
type asJSON struct {
	APIVersion, Kind string
	Request          struct {
		UID               string
		DesiredAPIVersion string
		Objects           []json.RawMessage
	}
}

func TestReadReview(t *testing.T) {
	t.Parallel()
	const head = `"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview"`
	for _, tt := range []struct{ name, body, want string }{
		{"a review", `{` + head + `,"request":{"uid":"1","desiredAPIVersion":"g/v2","objects":[{"a":1}, {"b":"}]\"\\"}]}}`, ""},
		{"no objects", `{` + head + `,"request":{"uid":"1","desiredAPIVersion":"g/v2","objects":[]}}`, ""},
		{"spaces and escapes", " {\n" + `"\u0061piVersion":"apiextensions.k8s.io\/v1","kind" : "ConversionReview", "more":[null,true,-1e3],"request":{"uid":"a\"b","desiredAPIVersion":"g/v2"}}` + "\n", ""},
		{"nothing", "", "cut short"},
		{"cut", `{` + head + `,"request":{"uid":"1"`, "cut short"},
		{"cut in an escape", `{"a":"\`, "cut short"},
		{"more behind", `{` + head + `,"request":{"uid":"1","desiredAPIVersion":"g/v2"}}x`, "text behind"},
		{"a list", `[]`, "malformed at byte 1"},
		{"another kind", `{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"ConversionReview","request":{}}`, "want a ConversionReview of apiextensions.k8s.io/v1"},
		{"no request", `{` + head + `}`, "request.uid and request.desiredAPIVersion are required"},
		{"no uid", `{` + head + `,"request":{"desiredAPIVersion":"g/v2"}}`, "are required"},
		{"no group", `{` + head + `,"request":{"uid":"1","desiredAPIVersion":"v2"}}`, "has no group"},
		{"a number for a text", `{` + head + `,"request":{"uid":1}}`, "request.uid is not a string"},
		{"no value", `{"a":}`, "want a value"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := readReview([]byte(tt.body))
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v; want %q", err, tt.want)
			}
		})
	}
}

// A review reads as encoding/json reads it, and an answer is JSON.
func FuzzReview(f *testing.F) {
	f.Add([]byte(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"ConversionReview","request":{"uid":"1","desiredAPIVersion":"g/v2","objects":[{"apiVersion":"g/v1","a":[{}]}, {"b":"}]\"\\"}]}}`))
	f.Add([]byte(`{"kind":"a","kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","request":{"uid":"\u0031","desiredAPIVersion":"g/v2","objects":[1,"a",null]}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		have, err := readReview(body)
		if err != nil || !json.Valid(body) {
			return
		}
		var want asJSON
		d := json.NewDecoder(bytes.NewReader(body))
		if d.Decode(&want) != nil || strings.Contains(strings.ToLower(string(body)), "\\u") || !exactKeys(body) {
			return // other types, or keys that encoding/json takes for these
		}
		if have.uid != want.Request.UID || have.group+"/"+have.to != want.Request.DesiredAPIVersion || len(have.objects) != len(want.Request.Objects) {
			t.Fatalf("%+v, want %+v", have, want)
		}
		for i, o := range have.objects {
			if !bytes.Equal(o, want.Request.Objects[i]) {
				t.Fatalf("object %d is %s, want %s", i, o, want.Request.Objects[i])
			}
		}
		if answer := writeReview(nil, have.uid, have.objects, ""); !json.Valid(answer) {
			t.Fatalf("the answer is no JSON: %s", answer)
		}
		if answer := writeReview(nil, have.uid, nil, string(body)); !json.Valid(answer) {
			t.Fatalf("the answer is no JSON: %s", answer)
		}
	})
}

// exactKeys reports whether no key is one of a review's in other letters, or twice in one
// object.
func exactKeys(body []byte) bool {
	text := string(body)
	for _, key := range []string{"apiVersion", "kind", "request", "uid", "desiredAPIVersion", "objects"} {
		if n := strings.Count(strings.ToLower(text), strings.ToLower(key)); n != strings.Count(text, key) || n > 1 {
			return false
		}
	}
	return true
}

func TestVersionOf(t *testing.T) {
	t.Parallel()
	for object, want := range map[string]string{
		`{"apiVersion":"g/v1","kind":"A"}`:                  "g/v1",
		`{"a":{"apiVersion":"no"}, "apiVersion" : "g\/v1"}`: "g/v1",
		`{}`: "", `[]`: "", `{"apiVersion":1}`: "", `{"a`: "", ``: "",
	} {
		if have := versionOf([]byte(object)); have != want {
			t.Errorf("%s: %q, want %q", object, have, want)
		}
	}
}
