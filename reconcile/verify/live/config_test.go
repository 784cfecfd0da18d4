package live

import (
	"strings"
	"testing"

	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

// When the content of a declared object is called changed.
func TestDrifted(t *testing.T) {
	const pem = `"-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"`
	for _, tt := range []struct{ name, rendered, live, want string }{
		{"the same", "data: {a: x}", "data: {a: x}", ""},
		{"a value", "data: {a: x}", "data: {a: y}", "ConfigMap c key a"},
		{"a key that somebody added", "data: {a: x}", "data: {a: x, b: y}", "ConfigMap c key b"},
		{"a certificate that somebody added", "data: {a: x}", "data: {a: x, ca: " + pem + "}", ""},
		{"an object that others fill in", "metadata: {name: c}", "data: {key: y, ca: " + pem + "}", ""},
		{"an object that others fill in with certificates", "data: {}", "data: {ca: " + pem + "}", ""},
		{"an empty object that is gone", "data: {}", "", "ConfigMap c"},
		{"emptied", "data: {a: x}", "data: {}", "ConfigMap c ConfigMap c key a"},
	} {
		var live map[string]any
		if tt.live != "" {
			live = manifesttest.Tree(t, "{"+tt.live+"}")
		}
		have := drifted(behaviour.Reference{Kind: manifest.ConfigMap, Name: "c"}, manifesttest.Tree(t, "{"+tt.rendered+"}"), live, func(b []byte) string { return string(b) })
		if text := strings.Join(have, " "); text != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, text, tt.want)
		}
	}
}
