package verify

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// Admission is one webhook, or one policy with its bindings, of an API server.
type Admission struct {
	// ID is the configuration or policy.
	ID manifest.ID
	// Name identifies it among its kind in all clusters: the webhook's own name, since names
	// of configurations may be generated, or the policy's.
	Name string
	// Form is a hash of everything that decides its effect, without CA bundles.
	Form string
	// What is its effect on a request in words: "denies", "failurePolicy Fail".
	What string
	// Parameters are the objects with the parameters of a policy's bindings. They are not
	// compared.
	Parameters []string

	rules, excluded []admissionRule
}

// admissionRule matches requests.
type admissionRule struct {
	groups, versions, resources []string
	scope                       string
	// partial reports whether operations or names limit it further.
	partial bool
}

// kind returns the kind of the webhook or policy in words.
func (a *Admission) kind() string {
	switch a.ID.GroupKind() {
	case manifest.ValidatingWebhooks:
		return "validating webhook"
	case manifest.MutatingWebhooks:
		return "mutating webhook"
	}
	return a.ID.Kind
}

// Hooks returns the webhooks of a decoded configuration.
func Hooks(tree map[string]any) []Admission {
	kind := manifest.KindOf(tree)
	var all []Admission
	for _, item := range manifest.List(tree, "webhooks") {
		hook, _ := item.(map[string]any)
		form := hookForm(hook, kind == manifest.MutatingWebhooks)
		client := manifest.Mapping(form, "clientConfig")
		where := manifest.Text(client, "url")
		if service := manifest.Mapping(client, "service"); service != nil {
			where = "service " + manifest.Text(service, "namespace") + "/" + manifest.Text(service, "name")
		}
		all = append(all, Admission{
			ID:    kind.ID("", manifest.Text(tree, "metadata", "name")),
			Name:  manifest.Text(hook, "name"),
			Form:  hash(form),
			What:  fmt.Sprintf("asks %s, failurePolicy %s", Host(where), manifest.Text(form, "failurePolicy")),
			rules: admissionRules(manifest.List(form, "rules")),
		})
	}
	return all
}

// Host returns a URL without user, path and parameters, which may hold a credential.
func Host(where string) string {
	scheme, rest, ok := strings.Cut(where, "://")
	if !ok {
		return where
	}
	rest, _, _ = strings.Cut(rest, "/")
	rest, _, _ = strings.Cut(rest, "?")
	if _, after, ok := strings.Cut(rest, "@"); ok {
		rest = after
	}
	return scheme + "://" + rest
}

// Policies returns decoded policies of one kind with their bindings. A policy without
// bindings does nothing, and is left out.
func Policies(policies, bindings []map[string]any) []Admission {
	byPolicy := make(map[string][]map[string]any)
	for _, b := range bindings {
		spec := manifest.Mapping(b, "spec")
		name := manifest.Text(spec, "policyName")
		byPolicy[name] = append(byPolicy[name], spec)
	}
	var all []Admission
	for _, p := range policies {
		name := manifest.Text(p, "metadata", "name")
		bound := byPolicy[name]
		if len(bound) == 0 {
			continue
		}
		spec := policyForm(manifest.Mapping(p, "spec"))
		a := Admission{
			ID: manifest.KindOf(p).ID("", name), Name: cmp.Or(manifest.Text(p, "metadata", "generateName"), name),
			rules:    admissionRules(manifest.List(spec, "matchConstraints", "resourceRules")),
			excluded: admissionRules(manifest.List(spec, "matchConstraints", "excludeResourceRules")),
		}
		forms := []string{hash(spec)}
		actions := make(map[string]bool)
		for _, b := range bound {
			forms = append(forms, hash(map[string]any{"binding": bindingForm(b)}))
			for _, action := range manifest.Texts(b, "validationActions") {
				actions[action] = true
			}
			if ref := manifest.Mapping(b, "paramRef"); ref != nil {
				kind := manifest.Text(spec, "paramKind", "kind")
				a.Parameters = append(a.Parameters, strings.TrimSpace(kind+" "+manifest.Text(ref, "namespace")+"/"+cmp.Or(manifest.Text(ref, "name"), "(by label)")))
			}
		}
		// A policy has its bindings in no order.
		slices.Sort(forms[1:])
		a.Form = strings.Join(slices.Compact(forms), "\n")
		a.What = "changes objects"
		if a.ID.Is(manifest.ValidatingPolicy) {
			a.What = "checks objects: " + strings.Join(slices.Sorted(maps.Keys(actions)), ", ")
		}
		slices.Sort(a.Parameters)
		a.Parameters = slices.Compact(a.Parameters)
		all = append(all, a)
	}
	return all
}

// policyForm returns a policy's spec with the API server's defaults.
func policyForm(spec map[string]any) map[string]any {
	form := filled(spec, map[string]any{"failurePolicy": "Fail"})
	if form["mutations"] != nil {
		form = filled(form, map[string]any{"reinvocationPolicy": "Never"})
	}
	if m := manifest.Mapping(form, "matchConstraints"); m != nil {
		form["matchConstraints"] = matchForm(m)
	}
	return form
}

func bindingForm(spec map[string]any) map[string]any {
	form := maps.Clone(spec)
	if m := manifest.Mapping(form, "matchResources"); m != nil {
		form["matchResources"] = matchForm(m)
	}
	return form
}

func matchForm(match map[string]any) map[string]any {
	form := filled(match, map[string]any{"matchPolicy": "Equivalent", "namespaceSelector": map[string]any{}, "objectSelector": map[string]any{}})
	scopeRules(form, "resourceRules")
	scopeRules(form, "excludeResourceRules")
	return form
}

// scopeRules sets the API server's default for the scope of the rules in a field, if there are
// any.
func scopeRules(form map[string]any, field string) {
	rules := slices.Clone(manifest.List(form, field))
	if rules == nil {
		return
	}
	for i, r := range rules {
		if rule, ok := r.(map[string]any); ok {
			rules[i] = filled(rule, map[string]any{"scope": "*"})
		}
	}
	form[field] = rules
}

func admissionRules(list []any) []admissionRule {
	var rules []admissionRule
	for _, item := range list {
		r, _ := item.(map[string]any)
		rules = append(rules, admissionRule{
			groups: manifest.Texts(r, "apiGroups"), versions: manifest.Texts(r, "apiVersions"), resources: manifest.Texts(r, "resources"),
			scope:   cmp.Or(manifest.Text(r, "scope"), "*"),
			partial: !slices.Contains(manifest.Texts(r, "operations"), "*") || len(manifest.List(r, "resourceNames")) > 0,
		})
	}
	return rules
}

// matches reports whether it may match requests for a type, or for a subresource.
// Conditions and selectors are not evaluated, but compared.
func (a *Admission) matches(d *Definition) bool {
	if slices.ContainsFunc(a.excluded, func(r admissionRule) bool { return !r.partial && r.excludes(d) }) {
		return false
	}
	return slices.ContainsFunc(a.rules, func(r admissionRule) bool { return r.matches(d, false) })
}

// excludes reports whether all requests for a type are excluded.
func (r *admissionRule) excludes(d *Definition) bool {
	return slices.Contains(r.versions, "*") && r.matches(d, true)
}

func (r *admissionRule) matches(d *Definition, whole bool) bool {
	has := func(list []string, s string) bool { return slices.Contains(list, "*") || slices.Contains(list, s) }
	if !has(r.groups, d.Group) || r.scope != "*" && d.Scope != "" && r.scope != d.Scope {
		return false
	}
	// A rule for one version matches requests for any other, converted.
	if !slices.ContainsFunc(d.Live, func(t types.Type) bool { return has(r.versions, t.Version) }) {
		return false
	}
	return slices.ContainsFunc(r.resources, func(resource string) bool {
		plural, sub, _ := strings.Cut(resource, "/")
		if whole && sub != "" && sub != "*" {
			return false
		}
		return plural == "*" || slices.Contains(d.Resources, plural)
	})
}

// admission compares the webhooks and policies that match a type between the clusters that
// have it. A configuration that already has a finding gets no other.
func (c *comparison) admission() {
	told := make(map[string]bool)
	for _, s := range c.found {
		if c.types[s.id] == nil {
			told[s.id.String()] = true
		}
	}
	type difference struct {
		first *Admission
		p     *partition
		types []manifest.ID
	}
	found := make(map[string]*difference)
	for _, id := range slices.SortedFunc(maps.Keys(c.types), manifest.ID.Compare) {
		names := make(map[string]*Admission)
		forms := make(map[string]map[string][]*Admission) // by cluster and name
		for i := range c.clusters {
			cl := &c.clusters[i]
			d := cl.Definitions[id]
			if d == nil || d.Live == nil || cl.Unread || !cl.AdmissionRead {
				continue
			}
			forms[cl.Name] = make(map[string][]*Admission)
			for j := range cl.Admission {
				a := &cl.Admission[j]
				if !a.matches(d) {
					continue
				}
				c.admitted[a.kind()+" "+a.Name] = true
				if !slices.ContainsFunc(cl.Webhooks, func(w Webhook) bool { return w.ID == a.ID && !w.Missing }) {
					c.foreign[cl.Name] = append(c.foreign[cl.Name], a.kind()+" "+a.Name)
				}
				for _, p := range a.Parameters {
					c.parameters[cl.Name] = append(c.parameters[cl.Name], fmt.Sprintf("%s of %s %s", p, a.kind(), a.Name))
				}
				if told[a.ID.String()] {
					continue
				}
				key := a.kind() + " " + a.Name
				if names[key] == nil {
					names[key] = a
				}
				forms[cl.Name][key] = append(forms[cl.Name][key], a)
			}
		}
		for key, first := range names {
			p := newPartition()
			for _, cluster := range slices.Sorted(maps.Keys(forms)) {
				all := forms[cluster][key]
				if len(all) == 0 {
					p.add("", cluster, "not there", nil)
					continue
				}
				slices.SortFunc(all, func(a, b *Admission) int { return cmp.Compare(a.Form, b.Form) })
				var form, what []string
				for _, a := range all {
					form = append(form, a.Form)
					what = append(what, a.What+", of "+a.ID.String())
				}
				p.add(strings.Join(form, "\n\n"), cluster, strings.Join(what, "; "), nil)
			}
			if len(p.sides) < 2 {
				continue
			}
			at := key
			for _, s := range p.ordered() {
				at += fmt.Sprintln(s.key, s.Clusters)
			}
			if found[at] == nil {
				found[at] = &difference{first: first, p: p}
			}
			found[at].types = append(found[at].types, id)
		}
	}
	for _, at := range slices.Sorted(maps.Keys(found)) {
		f := found[at]
		for cluster, names := range c.foreign {
			c.foreign[cluster] = slices.DeleteFunc(names, func(name string) bool { return name == f.first.kind()+" "+f.first.Name })
		}
		c.report(AdmissionDiffers, f.first.ID, f.p.ordered())
		s := &c.found[len(c.found)-1]
		s.object = f.first.kind() + " " + f.first.Name
		for _, id := range f.types {
			t := c.types[id]
			s.types = append(s.types, t.name)
			for _, side := range s.sides {
				if !side.Odd {
					continue
				}
				for _, name := range side.Clusters {
					t.worst[name] = worst(t.worst[name], AdmissionDiffers)
				}
			}
		}
	}
}

// admissionNotes names the undeclared webhooks and policies that match the types and have no
// finding. They can only be compared between clusters.
func (c *comparison) admissionNotes() []string {
	said := make(map[string][]string) // clusters by note
	for _, cluster := range slices.Sorted(maps.Keys(c.foreign)) {
		names := c.foreign[cluster]
		if len(names) == 0 {
			continue // each has a finding
		}
		slices.Sort(names)
		note := "not declared in the repository, and checks or changes objects of the types: " + prose.Some(slices.Compact(names), mostNoted)
		said[note] = append(said[note], cluster)
	}
	return byCluster(said)
}
