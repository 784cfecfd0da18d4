package histories

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/testscripts/upstream"
)

// authors runs the project's own tests of its conversions, by the rules.
func (p *project) authors(t *testing.T) {
	url, served := p.serve(t)
	cmd := upstream.Command(t, "go", "test", "-vet", "off", "-count", "1", "-timeout", "20m", "-json", "-run", p.tests, "./"+p.spoke)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "GITOPSD_RULES="+url, "GOWORK=off")
	out, err := cmd.CombinedOutput()
	var said strings.Builder
	passed, failed, output := make(map[string]bool), make(map[string]bool), make(map[string]string)
	for line := range strings.Lines(string(out)) {
		var e struct{ Action, Test, Output string }
		if json.Unmarshal([]byte(line), &e) != nil {
			e.Output = line
		}
		said.WriteString(e.Output)
		output[e.Test] += e.Output
		switch e.Action {
		case "pass":
			passed[e.Test] = true
		case "fail":
			failed[e.Test] = true
		}
	}
	if len(passed) == 0 {
		t.Fatalf("go test -run %s ./%s: %v\n%s", p.tests, p.spoke, err, said.String())
	}
	for _, name := range p.passed {
		if !passed[name] {
			t.Errorf("%s of %s did not pass", name, p.name)
		}
	}
	for _, b := range p.beyond {
		if !failed[b.test] {
			t.Errorf("%s was to fail, since %s", b.test, b.why)
		}
		delete(failed, b.test)
	}
	for name := range failed {
		within := func(other string) bool { return strings.HasPrefix(other, name+"/") }
		if name != "" && !slices.ContainsFunc(p.beyond, func(b beyond) bool { return within(b.test) }) {
			t.Errorf("%s", output[name])
		}
	}
	spoke, hub := p.versions()
	for _, k := range p.kinds {
		for _, to := range []string{spoke, hub} {
			if (served.conversions[k.name+" to "+to] == 0) != k.untested {
				t.Errorf("tests converted %d objects %s to %s", served.conversions[k.name+" to "+to], k.name, to)
			}
		}
	}
	t.Logf("conversions: %v", served.conversions)
	for _, n := range served.failed {
		t.Logf("%s: %s failed: %s", n.Rule, n.Path, n.Err)
	}
}
