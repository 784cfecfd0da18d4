package preview

import (
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/cmd/gitopsd/show"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/manifest"
)

// group writes the steps of a package or of the plain manifests. told has the annotations that
// were shown before.
func (t textWriter) group(a *alike, g group, told map[string]bool) {
	c := a.first()
	steps := g.steps
	var records []*plan.Step
	if !t.All {
		records = slices.DeleteFunc(slices.Clone(steps), func(s *plan.Step) bool { return !isCosmetic(s) })
		steps = slices.DeleteFunc(slices.Clone(steps), isCosmetic)
	}
	refused, rest := refusal(steps)
	switch {
	case t.All, refused == nil && !heldAlike(g.name, steps):
		t.Line("  %s", t.Paint(show.Bold, title(c, g.name)))
		t.notes(c.Details[g.name])
		t.steps(a, steps, told)
	case refused == nil:
		first := steps[0]
		t.Say(show.Cyan, "  = "+title(c, g.name)+" "+why(first)+"; "+staying(len(steps)))
		t.notes(c.Details[g.name])
		if first.Allow != nil {
			t.allow(a, first.Allow, g.name, "      ", told)
		}
	default:
		t.Say(show.Red, "  ! "+title(c, g.name)+" refused: "+refused.text())
		t.notes(c.Details[g.name])
		for _, because := range refused.because {
			t.Say(show.Plain, "      "+because)
		}
		if refused.allow != nil {
			t.allow(a, refused.allow, g.name, "      ", told)
		}
		t.steps(a, rest, told)
	}
	if n := len(records); n > 0 {
		t.Say(show.Plain, fmt.Sprintf("    %s only in the annotation %s", prose.Agree(n, "definition changes", "definitions change"), generator))
	}
}

// heldAlike reports whether all steps of a package are held for one reason.
func heldAlike(pkg string, steps []*plan.Step) bool {
	return pkg != "" && len(steps) > 1 && !slices.ContainsFunc(steps, func(s *plan.Step) bool {
		return s.Action != plan.Held || len(s.Changes) > 0 || cause(s) != cause(steps[0])
	})
}

// staying says how many objects stay as they are.
func staying(n int) string {
	return prose.Agree(n, "object stays as it is", "objects stay as they are")
}

// refused is a package that is refused as a whole.
type refused struct {
	// findings are the breaking findings, each with its definitions.
	findings show.Groups[string, string]
	// why is the reason if there are no findings.
	why string
	// because are further reasons, each once.
	because []string
	objects int
	// allow would allow all findings; nil if nothing can.
	allow *plan.Allow
}

// text says why a package is refused.
func (r *refused) text() string {
	text := r.why
	if len(r.findings.Keys) > 0 {
		var parts []string
		for f, definitions := range r.findings.All() {
			parts = append(parts, fmt.Sprintf("%s (%s)", f, prose.Some(definitions, shownNames)))
		}
		text = "breaking: " + strings.Join(parts, ", ")
	}
	return text + "; " + staying(r.objects)
}

// refusal returns why a package is refused as a whole, nil if it is not, and the remaining
// steps.
func refusal(steps []*plan.Step) (r *refused, rest []*plan.Step) {
	var one refused
	for _, s := range steps {
		breaks := s.Action == plan.Refused && !s.Drift && s.Allow != nil && s.Allow.On == plan.OnPackage
		switch {
		case s.Follows && s.Action == plan.Refused:
			one.objects++
			one.why = s.Reason
		case breaks && s.Pin == nil && len(s.Unpinned)+len(s.Outgrown) == 0:
			one.objects++
			one.breaks(s)
		default:
			rest = append(rest, s)
		}
	}
	if one.objects == 0 {
		return nil, steps
	}
	return &one, rest
}

// breaks adds a definition with breaking findings.
func (r *refused) breaks(s *plan.Step) {
	if r.allow == nil {
		r.allow = new(*s.Allow)
	}
	for _, f := range s.Allow.Findings {
		r.findings.Add(f, s.ID.Name)
	}
	r.allow.Findings = r.findings.Keys
	_, why, _ := strings.Cut(s.Allow.Cause, "; ") // after the findings
	if why != "" && !slices.Contains(r.because, why) {
		r.because = append(r.because, why)
	}
}

// allow writes the annotation that would allow something, unless told has it.
func (t textWriter) allow(a *alike, what *plan.Allow, pkg, indent string, told map[string]bool) {
	text := what.Text(a.first().allowedVersion(pkg))
	if what.On == plan.OnObject {
		t.Say(show.Plain, indent+"to allow it, add to its metadata.annotations:")
		t.copied(indent, yaml(what.Annotation, text))
		if all := what.ForAlike(); all != what {
			t.annotation(indent, "or, for all objects of the same owner, to those of "+t.holder(a, all.On, pkg), all.Annotation, all.Value, told)
		}
		return
	}
	if d, ok := a.first().Undeclared[pkg]; ok && what.On == plan.OnPackage {
		ref := d.Ref.String()
		if a.first().Unpublished[pkg] {
			ref = d.Ref.Repository + ":" + a.first().allowedVersion(pkg)
		}
		t.once(indent, "to allow it, declare this dependency", manifest.Declare(d.Kind, d.Name, ref, yaml(what.Annotation, text)), told)
		return
	}
	t.annotation(indent, "to allow it, add to metadata.annotations of "+t.holder(a, what.On, pkg), what.Annotation, text, told)
}

// annotation writes where to add an annotation, and its lines, unless told has them.
func (t textWriter) annotation(indent, how, name, value string, told map[string]bool) {
	t.once(indent, how, yaml(name, value), told)
}

// once writes what to do, and the lines to copy, unless told has them.
func (t textWriter) once(indent, how string, lines []string, told map[string]bool) {
	key := how + "\n" + strings.Join(lines, "\n")
	if told[key] {
		return
	}
	told[key] = true
	t.Say(show.Plain, indent+how+":")
	t.copied(indent, lines)
}

// copied writes lines to be copied.
func (t textWriter) copied(indent string, lines []string) {
	for _, line := range lines {
		t.Line("%s  %s", indent, line)
	}
}

// holder names the document that takes an annotation, if that is not the object.
func (t textWriter) holder(a *alike, on plan.Holder, pkg string) string {
	where := a.declared(pkg)
	switch {
	case on == plan.OnPackage && where != "" && !t.placeless:
		return where
	case on == plan.OnPackage:
		return "the declaration of package " + pkg
	case len(a.of) > 1:
		return "each of these Clusters in clusters.yaml"
	}
	return "Cluster " + a.first().Name + " in clusters.yaml"
}

// at returns the place of a step's object in parentheses, "" if it is not in the repository.
func (t textWriter) at(a *alike, s *plan.Step) string {
	if t.placeless {
		return ""
	}
	if where := a.places(s.ID); where != "" {
		return " (" + where + ")"
	}
	return ""
}

// version returns the version of "repository version".
func version(pkg string) string {
	_, version, _ := strings.Cut(pkg, " ")
	return version
}

// yaml returns the lines of an annotation.
func yaml(name, value string) []string {
	if !strings.ContainsAny(value, "<:\n") {
		return []string{fmt.Sprintf("%s: %q", name, value)}
	}
	lines := []string{name + ": |"}
	for line := range strings.SplitSeq(value, "\n") {
		lines = append(lines, "  "+line)
	}
	return lines
}

// steps writes the steps of a group. Steps that differ only in their names are folded: changes
// by kind, and others by reason.
func (t textWriter) steps(a *alike, steps []*plan.Step, told map[string]bool) {
	for len(steps) > 0 {
		run := t.same(steps)
		if shown, folded := t.Fold(len(run), shownNames); folded > 0 {
			t.folded(a, run, shown, told)
		} else {
			for _, s := range run {
				t.step(a, s, told)
			}
		}
		steps = steps[len(run):]
	}
}

// folded writes steps in a line.
func (t textWriter) folded(a *alike, steps []*plan.Step, shown int, told map[string]bool) {
	s := steps[0]
	kind := kindOf(s)
	name := qualified
	if slices.ContainsFunc(steps, func(other *plan.Step) bool { return kindOf(other) != kind }) {
		kind, name = "objects", func(s *plan.Step) string { return s.ID.String() }
	}
	var names []string
	for _, other := range steps[:shown] {
		names = append(names, name(other))
	}
	line := fmt.Sprintf("    %s %d × %s: %s, … %d more", marks[s.Action].sign, len(steps), kind, strings.Join(names, ", "), len(steps)-shown)
	switch {
	case !s.Action.Writes():
		line += ", " + why(s)
	case s.Action == plan.Prune && s.Reason != "":
		line += ": " + s.Reason
	}
	t.Say(marks[s.Action].colour, line)
	if s.Allow == nil {
		return
	}
	all := s.Allow.ForAlike()
	if all.On == plan.OnObject { // each has an annotation of its own
		t.Say(show.Plain, fmt.Sprintf("        to allow it, annotate each with %s; --all shows the lines", all.Annotation))
		return
	}
	t.allow(a, all, s.Package, "        ", told)
}

// same returns the first steps that can be folded into one line.
func (t textWriter) same(steps []*plan.Step) []*plan.Step {
	first := steps[0]
	if !t.foldable(first) {
		return steps[:1]
	}
	n := 0
	for _, s := range steps {
		kinds := kindOf(s) == kindOf(first) || !first.Action.Writes()
		if s.Action != first.Action || !kinds || cause(s) != cause(first) || !t.foldable(s) {
			break
		}
		n++
	}
	return steps[:n]
}

// foldable reports whether one line says everything about a step.
func (t textWriter) foldable(s *plan.Step) bool {
	switch s.Action {
	case plan.Create, plan.Prune:
		return s.Rejected == "" && !t.doubtful(s)
	case plan.Held:
		return len(s.Changes) == 0
	case plan.Conflict:
		return true
	case plan.Refused:
		return s.Pin == nil && s.Controller == nil && (s.Follows || s.ID.Is(manifest.Definitions...))
	case plan.Configure:
		return s.ID.Is(manifest.Definitions...) && s.Rejected == "" && s.NotValidated == "" && len(s.Unpinned) == 0 && len(s.Outgrown) == 0 && len(t.told(s)) == 0
	}
	return false
}

// doubtful is like the function, but includes every step that was not validated if everything
// is shown.
func (t textWriter) doubtful(s *plan.Step) bool {
	return doubtful(s) || t.All && s.NotValidated != "" && s.Action.Writes()
}

// early writes why new objects could not be validated, unless each says so itself.
func (t textWriter) early(steps []plan.Step) {
	if t.All {
		return
	}
	var reasons show.Groups[string, manifest.ID]
	for i := range steps {
		if s := &steps[i]; early(s) {
			reasons.Add(s.NotValidated, s.ID)
		}
	}
	shown, folded := t.Fold(len(reasons.Keys), shownNames)
	for _, reason := range reasons.Keys[:shown] {
		t.Say(show.Plain, fmt.Sprintf("  %d not validated: %s", len(reasons.Of(reason)), reason))
	}
	if folded > 0 {
		t.Line("  … %s", prose.Count(folded, "more reason"))
	}
}

// cause returns a step's reason, without the advice that [textWriter.allow] writes.
func cause(s *plan.Step) string {
	if s.Allow != nil {
		return s.Allow.Cause
	}
	return s.Reason
}

// why returns the action of a step that does not write, with the reason: "held: …".
func why(s *plan.Step) string {
	text := string(s.Action)
	switch s.Action {
	case plan.Wait:
		text = "waits"
	case plan.Conflict:
		text = "in conflict"
	}
	if because := cause(s); because != "" {
		text += ": " + strings.TrimPrefix(because, "kept: ")
	}
	return text
}

func (t textWriter) step(a *alike, s *plan.Step, told map[string]bool) {
	mark := marks[markOf(s)]
	line := fmt.Sprintf("    %s %s", mark.sign, s.ID)
	if !s.Action.Writes() {
		line += " " + why(s)
	} else if because := cause(s); because != "" {
		line += ": " + because
	}
	if inTrouble(s) {
		line += t.at(a, s)
	}
	t.Say(mark.colour, line)
	if s.Allow != nil {
		t.allow(a, s.Allow, s.Package, "        ", told)
	}
	if len(s.After) > 0 && s.Action.Writes() {
		t.Say(show.Plain, fmt.Sprintf("        once %s is ready", strings.Join(s.After, ", ")))
	}
	if s.Pin != nil {
		t.mismatch(s.Pin)
	}
	if s.Controller != nil {
		t.controllerMismatch(s.Controller)
	}
	if len(s.Unpinned) > 0 {
		t.Say(show.Red, "        pinned to the type as it was: "+prose.Some(ids(s.Unpinned), shownNames))
	}
	t.outgrown(s.Outgrown)
	t.changes(s)
	if s.Rejected != "" {
		t.Indented("        ", show.Red, "the API server would not accept it: "+s.Rejected)
	}
	if t.doubtful(s) {
		t.Indented("        ", show.Plain, "not validated: "+s.NotValidated)
	}
}
