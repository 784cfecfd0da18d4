package preview

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types/compat"
)

// evil clears the screen, reverses the direction of text, and pretends to be a line of the output,
// also in Markdown.
const evil = "x\x1b[2J\x1b]0;owned\a\u202ey\r\nNo changes: 9 clusters match main\n\n# Approved\n![p](http://evil.example/p.png) [here](http://evil.example) @everyone `c` <img src=x> | ``` ~~z~~\n</summary></details>"

// hostile returns a fleet in which every text from outside is evil.
func hostile() *Fleet {
	id := manifest.ConfigMap.ID("default", "a")
	return &Fleet{
		Source: "working tree", Notes: []string{"one " + evil, "run `gitopsd lock` in " + evil[len(evil)-20:]}, Errors: []string{evil}, Lock: []string{"+ @dev reg.io/p v1" + evil},
		Clusters: []ClusterPlan{
			{Name: "dev", Packages: map[string]string{"p": "reg.io/p v2" + evil, evil: "reg.io/e v1"}, Before: map[string]string{"p": "reg.io/p v1" + evil}, Plan: &plan.Plan{
				Steps: []plan.Step{
					{Action: plan.Refused, ID: id, Package: "p", Reason: evil},
					{Action: plan.Configure, ID: id, Package: evil, Reason: evil, Rejected: evil, Changes: []plan.Change{{Path: "data." + evil, Old: evil, New: evil + evil}}},
					{Action: plan.Create, ID: manifest.ConfigMap.ID("default", evil), NotValidated: evil},
					{Action: plan.Configure, ID: crdID("things.acme.example"), Package: "p", Compatibility: compat.Breaking, Findings: []compat.Finding{{Name: "field-removed", Severity: compat.Breaking, Detail: evil}},
						Object: nil},
				},
				Unreadable: map[schema.GroupKind]string{{Kind: "Widget"}: evil},
			}},
			{Name: "prod", Err: evil},
		},
	}
}

// Texts from outside do not control a terminal, and do not look like the verdict.
func TestTextIsNotObeyed(t *testing.T) {
	t.Parallel()
	colours := regexp.MustCompile("\x1b\\[(0|1|31|32|33|36)m")
	for _, o := range []show.Options{{}, {All: true}, {Width: 60}, {Colour: true}} {
		text := textOf(t, hostile(), o)
		if o.Colour {
			text = colours.ReplaceAllString(text, "")
		}
		if i := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
			t.Errorf("%+v: %q", o, text[i:min(i+40, len(text))])
		}
		if strings.Contains(text, "\nNo changes") {
			t.Errorf("%+v: it says in a line of its own that there are no changes:\n%s", o, text)
		}
	}
}

// Texts from outside add no headings, links, pictures, mentions or elements to a comment.
func TestMarkdownIsNotObeyed(t *testing.T) {
	t.Parallel()
	b := markdownOf(t, hostile())
	fence, prose := "", []string(nil)
	for line := range strings.SplitSeq(b, "\n") {
		ticks := line[:len(line)-len(strings.TrimLeft(line, "`"))]
		switch {
		case fence == "" && len(ticks) >= 3:
			fence = ticks
		case fence != "" && line == fence:
			fence = ""
		case fence == "":
			prose = append(prose, line)
		}
	}
	if fence != "" {
		t.Error("a block of code has no end")
	}
	columns := 0
	code := regexp.MustCompile("`[^`]*`")
	for _, line := range prose {
		rest := code.ReplaceAllString(strings.ReplaceAll(line, "\\`", ""), "")
		for _, bad := range []string{"](", "@everyone", "<img", "~~z~~", "\x1b", "\r", "\u202e"} {
			if at := strings.Index(rest, bad); at >= 0 && !strings.HasSuffix(rest[:at], "\\") {
				t.Errorf("%q is in %q", bad, line)
			}
		}
		if strings.HasPrefix(line, "#") && !strings.HasPrefix(line, "### gitopsd plan") || strings.HasPrefix(line, "No changes") {
			t.Errorf("a line of its own: %q", line)
		}
		if strings.HasPrefix(line, "|") {
			n := strings.Count(strings.ReplaceAll(line, "\\|", ""), "|")
			if strings.HasPrefix(line, "|---") {
				columns = n
			} else if columns > 0 && n != columns {
				t.Errorf("%d columns, want %d: %q", n, columns, line)
			}
		} else {
			columns = 0
		}
	}
	if open, closed := strings.Count(strings.Join(prose, "\n"), "<details>"), strings.Count(strings.Join(prose, "\n"), "</details>"); open == 0 || open != closed {
		t.Errorf("%d sections are opened, %d closed", open, closed)
	}
	if !strings.Contains(b, "\n> run `gitopsd lock` in ") {
		t.Error("a command in a note is not code")
	}
}

// A comment with very long texts is not longer than a forge accepts.
func TestLongTextsFitInAComment(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("<very long> ", 2_000)
	f := &Fleet{Source: "working tree"}
	for i := range 300 {
		f.Notes, f.Errors = append(f.Notes, long), append(f.Errors, long)
		name := fmt.Sprintf("%s-%d", strings.Repeat("n", 60), i)
		f.Clusters = append(f.Clusters, ClusterPlan{Name: name, Err: fmt.Sprint(i, long)})
	}
	b := markdownOf(t, f)
	if len(b) > show.MaxComment {
		t.Errorf("%d bytes", len(b))
	}
	for _, want := range []string{"more clusters |", "\n> … and ", "more bytes"} {
		if !strings.Contains(b, want) {
			t.Errorf("%q is missing", want)
		}
	}
}

// Clusters with different breaking findings have different tables.
func TestTypeTablesByFindings(t *testing.T) {
	t.Parallel()
	table := func(detail string) ClusterPlan {
		f := bumped(t)
		c := f.Clusters[0]
		for i := range c.Plan.Steps {
			if s := &c.Plan.Steps[i]; len(s.Findings) > 0 {
				s.Findings[0].Detail = detail
			}
		}
		return c
	}
	f := Fleet{Clusters: []ClusterPlan{table("v1alpha1 is stored"), table("v1beta1 is stored"), table("v1alpha1 is stored")}}
	if n := len(f.typeTables()); n != 2 {
		t.Errorf("%d tables, want 2", n)
	}
}

// A suspended cluster is shown even if its plan is empty, and its changes do not count.
func TestSuspended(t *testing.T) {
	t.Parallel()
	unchanged := planned(plan.Step{Action: plan.Unchanged, ID: manifest.ConfigMap.ID("a", "a")})
	changed := planned(plan.Step{Action: plan.Create, ID: manifest.ConfigMap.ID("a", "a")})
	unchanged.Name, changed.Name = "dev", "prod"
	asleep := unchanged
	asleep.Name, asleep.Suspended, changed.Suspended = "stage", true, true
	f := &Fleet{Source: "working tree", Clusters: []ClusterPlan{unchanged, asleep, changed}}
	if f.HasChanges() {
		t.Error("it has changes")
	}
	text := textOf(t, f, show.Options{})
	markdown := markdownOf(t, f)
	for _, want := range []string{"\nCluster stage: suspended, nothing is done: 1 unchanged\n", "\nCluster prod: suspended, nothing is done: 1 new\n", "\nCluster dev: 1 unchanged\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	if want := "| stage | suspended, nothing is done: 1 unchanged |\n"; !strings.Contains(markdown, want) || strings.Contains(markdown, "<summary>cluster stage") {
		t.Errorf("%q is missing, or an empty section is there:\n%s", want, markdown)
	}
}
