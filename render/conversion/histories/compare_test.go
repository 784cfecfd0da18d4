package histories

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/conversion/proof"
	"gitopsd.dev/render/exact"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/testscripts/upstream"
)

// generated is the number of objects to try in each direction.
const generated = 300

// compare tries the rules of a kind with package proof. Each object that it converts is
// also converted by the project's code.
func (p *project) compare(t *testing.T, k kind) {
	set := p.sets[k.name]
	c := &comparing{ruleSet: set, t: t, kind: k.name, seen: make(map[string]string), explained: make(map[string]bool)}
	for _, d := range p.explained {
		if d.kind == k.name {
			c.explained["to "+d.to+": "+d.path] = true
		}
	}
	c.start(p.dir)
	result, err := proof.Run(t.Context(), proof.Config{Rules: c, Documents: set.documents, Definition: set.definition,
		Stash: manifest.ConversionStashAnnotation, Most: generated})
	if err != nil {
		t.Fatal(err)
	}
	broken := make(map[string]bool)
	for _, f := range result.Findings {
		text := fmt.Sprintf("%s (%s): %v\n%s\nbecomes\n%s", f.Title(), f.Edit, f.Differences, c.text(f.Object), c.text(f.Converted))
		known := slices.IndexFunc(p.found, func(k finding) bool { return k.kind == c.kind && strings.HasPrefix(f.Title(), k.title) })
		switch {
		case known >= 0:
			broken[p.found[known].title] = true
		case f.Law == proof.Admitted && c.as(f.Object, f.To):
			t.Logf("the project's conversion does it, too: %s", f.Title())
		case f.Law == proof.RuleFails:
			t.Log(f.Title())
		default:
			t.Error(text)
		}
	}
	for _, k := range p.found {
		if k.kind == c.kind && !broken[k.title] {
			t.Errorf("%q is not found any more", k.title)
		}
	}
	if c.compared == 0 {
		t.Error("nothing was compared")
	}
	t.Logf("%d conversions are as the project's own, %d differ as explained; %d are of objects that its code does not convert %v",
		c.compared-c.different, c.different, c.refused, slices.Sorted(maps.Keys(c.refusals)))
	for at := range c.explained {
		if c.seen[at] == "" {
			t.Errorf("%s is explained, and does not differ", at)
		}
	}
	for _, at := range slices.Sorted(maps.Keys(c.seen)) {
		if !c.explained[at] {
			t.Errorf("%s", c.seen[at])
		}
	}
}

// comparing converts by rules and, in another process, by the project's code.
type comparing struct {
	ruleSet
	t    *testing.T
	kind string
	in   *json.Encoder
	out  *json.Decoder

	compared, different, refused int
	refusals                     map[string]bool
	// seen are the fields that differ, with the first object that shows it.
	seen      map[string]string
	explained map[string]bool
}

// start starts the process.
func (c *comparing) start(dir string) {
	c.t.Helper()
	c.refusals = make(map[string]bool)
	binary := c.t.TempDir() + "/compare"
	build := upstream.Command(c.t, "go", "build", "-o", binary, "./gitopsdcompare")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		c.t.Fatalf("%v\n%s", err, out)
	}
	cmd := upstream.Command(c.t, binary)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	cmd.Stderr = c.t.Output()
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		stdin.Close()
		io.Copy(io.Discard, stdout)
		cmd.Wait()
	})
	c.in, c.out = json.NewEncoder(stdin), json.NewDecoder(stdout)
}

// Convert converts by the rules.
func (c *comparing) Convert(object map[string]any, to string) (map[string]any, conversion.Report, error) {
	converted, report, err := c.Set.Convert(object, to)
	// The project's code does not know the annotation.
	if _, kept := manifest.Mapping(object, "metadata", "annotations")[manifest.ConversionStashAnnotation]; !kept && err == nil {
		c.ask(object, converted, to)
	}
	return converted, report, err
}

// verdict is the result of comparing a converted object with the project's.
type verdict struct {
	Equal           bool
	ByHand, ByRules any
	Failed          string
}

func (c *comparing) judge(object, converted map[string]any, to string) (v verdict) {
	c.t.Helper()
	if err := c.in.Encode(map[string]any{"Kind": c.kind, "To": to, "Object": c.text(object), "Converted": c.text(converted)}); err != nil {
		c.t.Fatal(err)
	}
	if err := c.out.Decode(&v); err != nil {
		c.t.Fatal(err)
	}
	return v
}

// as reports whether the project converts an object as the rules do, except for explained
// differences.
func (c *comparing) as(object map[string]any, to string) bool {
	c.t.Helper()
	converted, _, err := c.Set.Convert(object, to)
	if err != nil {
		c.t.Fatal(err)
	}
	v := c.judge(object, converted, to)
	for path := range differences("", v.ByHand, v.ByRules) {
		if !c.explained["to "+to+": "+path] {
			return false
		}
	}
	return v.Failed == ""
}

// ask compares an object, and counts.
func (c *comparing) ask(object, converted map[string]any, to string) {
	v := c.judge(object, converted, to)
	if v.Failed != "" {
		c.refused++
		c.refusals[v.Failed] = true
		return
	}
	c.compared++
	differ := differences("", v.ByHand, v.ByRules)
	if v.Equal || len(differ) == 0 { // what is one in JSON is one to a cluster
		return
	}
	c.different++
	for path, values := range differ {
		if at := "to " + to + ": " + path; c.seen[at] == "" {
			c.seen[at] = fmt.Sprintf("%s: by hand %s, by the rules %s; the object is\n%s", at, c.text(values[0]), c.text(values[1]), c.text(object))
		}
	}
}

func (c *comparing) text(v any) json.RawMessage {
	c.t.Helper()
	b, err := exact.Encode(v)
	if err != nil {
		c.t.Fatal(err)
	}
	return b
}

// differences returns the fields that differ, without indices.
func differences(path string, a, b any) map[string][2]any {
	all := make(map[string][2]any)
	am, aIsMap := a.(map[string]any)
	bm, bIsMap := b.(map[string]any)
	al, aIsList := a.([]any)
	bl, bIsList := b.([]any)
	switch {
	case aIsMap && bIsMap:
		for _, name := range slices.Sorted(maps.Keys(am)) {
			maps.Copy(all, differences(strings.TrimPrefix(path+"."+name, "."), am[name], bm[name]))
		}
		for name, v := range bm {
			if _, ok := am[name]; !ok {
				maps.Copy(all, differences(strings.TrimPrefix(path+"."+name, "."), nil, v))
			}
		}
	case aIsList && bIsList && len(al) == len(bl):
		for i := range al {
			maps.Copy(all, differences(path+"[]", al[i], bl[i]))
		}
	case !exact.Equal(a, b):
		all[path] = [2]any{a, b}
	}
	return all
}
