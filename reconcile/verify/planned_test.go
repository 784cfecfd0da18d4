package verify

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/desired"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/types/compat"
)

// A configuration without a CA bundle may be missing if its plan holds it.
func TestHeld(t *testing.T) {
	const config = "{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: checks%s}, webhooks: [{name: a.b.c, clientConfig: {url: 'https://a.example'%s}}]}"
	for _, tt := range []struct {
		name, metadata, client string
		held                   bool
	}{
		{name: "plain, with a public authority"},
		{name: "plain, and others fill it in", metadata: ", annotations: {cert-manager.io/inject-ca-from: acme/checks}"},
		{name: "of a package", metadata: ", labels: {gitopsd.dev/package: widgets}", held: true},
		{name: "of a package, with a bundle", metadata: ", labels: {gitopsd.dev/package: widgets}", client: ", caBundle: YQ=="},
		{name: "of a package, and gitopsd fills it in", metadata: ", labels: {gitopsd.dev/package: widgets}, annotations: {gitopsd.dev/inject-ca: Service/a/b}"},
		{name: "plain, and gitopsd fills it in", metadata: ", annotations: {gitopsd.dev/inject-ca: Service/a/b}"},
	} {
		facts := new(Repository).Wanted(t.Context(), &desired.Unit{Objects: manifesttest.Set(t, fmt.Sprintf(config, tt.metadata, tt.client))})
		if len(facts.Webhooks) != 1 || facts.Webhooks[0].Held != tt.held {
			t.Errorf("%s: have %+v", tt.name, facts.Webhooks)
		}
	}
}

// What was refused or not applied yet is told as that, and what somebody changed as
// that.
func TestPlanned(t *testing.T) {
	object := manifesttest.Object(t, "{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: z}}")
	widget, gadget := definitionID("Widget"), definitionID("Gadget")
	workload := manifest.Deployment.ID("gitopsd-system", "widgets")
	configMap := manifest.ConfigMap.ID("gitopsd-system", "a")
	role, binding := manifest.ClusterRole.ID("", "widgets"), manifest.ClusterRoleBinding.ID("", "widgets")
	webhook := manifest.ValidatingWebhooks.ID("", "widgets")
	step := func(id manifest.ID, a plan.Action, reason string) plan.Step {
		return plan.Step{ID: id, Action: a, Reason: reason, Package: "widgets", Object: object, Member: true}
	}
	bumped := func(c *Facts) {
		for _, d := range c.Definitions {
			d.Source, d.Rendered = "reg.io/widgets v2", typed(d.Kind, "two")
		}
		wanted := *c.controller().Wanted
		wanted.Images[0].Value = string(digest("4"))
		c.controller().Wanted, c.controller().Source = &wanted, "reg.io/widgets v2"
	}
	for _, tt := range []struct {
		name   string
		change func(prod *Facts)
		steps  []plan.Step
		want   []string // titles, sides and details
	}{
		{
			name:   "a bump that is refused",
			change: bumped,
			steps: []plan.Step{
				step(gadget, plan.Refused, "its package has a breaking change: widgets.acme.example: field-removed"),
				{ID: widget, Action: plan.Refused, Reason: "breaking: field-removed; allow it", Package: "widgets", Object: object, Compatibility: compat.Breaking},
				step(workload, plan.Refused, "its package has a breaking change: widgets.acme.example: field-removed"),
			},
			want: []string{
				"2 types of package widgets: what was declared is refused in prod",
				"wanted reg.io/widgets v2, refused: widgets.acme.example: breaking: field-removed; allow it",
				"prod: until then reg.io/widgets v1 (sha256:111111111111) runs",
			},
		},
		{
			name:   "a bump that is not applied yet",
			change: bumped,
			steps:  []plan.Step{step(gadget, plan.Configure, "changed in the repository"), step(widget, plan.Configure, ""), step(workload, plan.Configure, "")},
			want: []string{
				"2 types of package widgets: what was declared is not applied yet in prod",
				"wanted reg.io/widgets v2, not applied yet",
				"prod: until then reg.io/widgets v1 (sha256:111111111111) runs",
			},
		},
		{
			name: "a bump whose controller is rolled back",
			change: func(c *Facts) {
				bumped(c)
				for _, d := range c.Definitions {
					d.Live = d.Rendered
				}
			},
			steps: []plan.Step{step(gadget, plan.Unchanged, ""), step(widget, plan.Unchanged, ""), {ID: workload, Action: plan.Unchanged, Package: "widgets", Object: object, Rollback: plan.Rollback{Done: true, Why: "v2 did not get ready"}}},
			want: []string{
				"2 types of package widgets: what was declared did not get ready and is rolled back in prod",
				"wanted reg.io/widgets v2, rolled back: v2 did not get ready",
				"prod: until then reg.io/widgets v1 (sha256:111111111111) runs",
			},
		},
		{
			name:   "a bump whose controller does not roll out",
			change: bumped,
			steps:  []plan.Step{step(gadget, plan.Configure, ""), step(widget, plan.Configure, ""), step(workload, plan.Unchanged, "")},
			want: []string{
				"2 types of package widgets: another controller than declared acts on them in prod",
				"reg.io/widgets v1 (sha256:111111111111) in place of reg.io/widgets v2 (sha256:444444444444)",
				"prod: pod gitopsd-system/widgets-x",
				"2 types of package widgets: what was declared is not applied yet in prod",
				"wanted reg.io/widgets v2, not applied yet",
			},
		},
		{
			name: "a foreign image is never explained",
			change: func(c *Facts) {
				bumped(c)
				c.controller().Instances = []Instance{running("9")}
			},
			steps: []plan.Step{step(workload, plan.Configure, "")},
			want: []string{
				"2 types of package widgets: nobody knows what acts on them in prod: the image that runs is not in clusters.lock",
				"unknown image sha256:999999999999 in place of reg.io/widgets v2 (sha256:444444444444)",
				"prod: pod gitopsd-system/widgets-x",
				"2 types of package widgets: changed by somebody in prod",
				"not what was rendered",
			},
		},
		{
			name: "an image that somebody set in the workload is never explained",
			change: func(c *Facts) {
				bumped(c)
				c.controller().Held = []string{"Deployment a/b itself has the image x"}
			},
			steps: []plan.Step{step(workload, plan.Refused, "no"), step(gadget, plan.Refused, "no"), step(widget, plan.Refused, "no")},
			want: []string{
				"2 types of package widgets: another controller than declared acts on them in prod",
				"reg.io/widgets v1 (sha256:111111111111) in place of reg.io/widgets v2 (sha256:444444444444)",
				"prod: pod gitopsd-system/widgets-x", "prod: Deployment a/b itself has the image x",
				"2 types of package widgets: what was declared is refused in prod", "wanted reg.io/widgets v2, refused: no",
			},
		},
		{
			name:   "nor if no pod has it yet",
			change: func(c *Facts) { c.controller().Held = []string{"Deployment a/b itself has the image x"} },
			steps:  []plan.Step{step(workload, plan.Configure, "")},
			want: []string{
				"2 types of package widgets: the controller runs with other settings than declared in prod",
				"reg.io/widgets v1 (sha256:111111111111), and its workload has another image for new pods",
				"prod: Deployment a/b itself has the image x",
			},
		},
		{
			name:   "somebody's change",
			change: func(c *Facts) { c.widget().Live = typed("Widget", "three") },
			steps:  []plan.Step{{ID: widget, Action: plan.Refused, Reason: "drift: …", Drift: true, Object: object}},
			want:   []string{"Widget.acme.example: changed by somebody in prod", "not what was rendered"},
		},
		{
			name:   "somebody deleted it",
			change: func(c *Facts) { c.widget().Live = nil },
			steps:  []plan.Step{step(widget, plan.Create, "")},
			want:   []string{"Widget.acme.example: missing in prod", "rendered, and not there"},
		},
		{
			name: "rights and configuration that are not applied yet",
			change: func(c *Facts) {
				c.controller().ConfigMaps = Context{Read: true, Drift: []string{"ConfigMap a key mode"}, From: []manifest.ID{configMap}, Applied: true}
				c.controller().Rights = Context{Read: true, Drift: []string{"pods", "secrets"}, From: []manifest.ID{role, binding}, Applied: true}
			},
			steps: []plan.Step{step(configMap, plan.Configure, ""), step(role, plan.Configure, ""), {ID: binding, Action: plan.Prune, Member: true}},
			want: []string{
				"2 types of package widgets: what was declared is not applied yet in prod", "wanted reg.io/widgets v1, not applied yet",
				"prod: until then other than rendered: ConfigMap a key mode", "prod: until then other than rendered: pods, secrets",
			},
		},
		{
			name: "rights that are refused",
			change: func(c *Facts) {
				bumped(c)
				c.controller().Rights = Context{Read: true, Drift: []string{"pods"}, From: []manifest.ID{role}, Applied: true}
			},
			steps: []plan.Step{step(gadget, plan.Refused, "no"), step(widget, plan.Refused, "no"), step(workload, plan.Refused, "no"), step(role, plan.Refused, "no")},
			want: []string{
				"2 types of package widgets: what was declared is refused in prod", "wanted reg.io/widgets v2, refused: no",
				"prod: until then reg.io/widgets v1 (sha256:111111111111) runs", "prod: until then other than rendered: pods",
			},
		},
		{
			name: "rights that somebody added to a change",
			change: func(c *Facts) {
				c.controller().Rights = Context{Read: true, Drift: []string{"pods", "secrets"}, From: []manifest.ID{role, binding}, Applied: true}
			},
			steps: []plan.Step{step(role, plan.Configure, "")},
			want: []string{
				"2 types of package widgets: the controller has other rights than declared in prod",
				"Deployment gitopsd-system/widgets, other than rendered: pods, secrets",
				"prod: `gitopsd plan` also has a step for clusterrole.rbac.authorization.k8s.io/widgets: not applied yet",
			},
		},
		{
			name: "rights that somebody changed while others are refused",
			change: func(c *Facts) {
				c.controller().Rights = Context{Read: true, Drift: []string{"pods"}, From: []manifest.ID{role}}
			},
			steps: []plan.Step{step(role, plan.Refused, "no")},
			want: []string{
				"2 types of package widgets: the controller has other rights than declared in prod",
				"Deployment gitopsd-system/widgets, other than rendered: pods",
				"prod: `gitopsd plan` also has a step for clusterrole.rbac.authorization.k8s.io/widgets: refused: no",
			},
		},
		{
			name: "rights by a role that is not gitopsd's",
			change: func(c *Facts) {
				c.controller().Rights = Context{Read: true, Drift: []string{"pods"}, From: []manifest.ID{role}, Applied: true}
			},
			steps: []plan.Step{{ID: role, Action: plan.Conflict, Object: object, Reason: "it is Helm's"}},
			want: []string{
				"2 types of package widgets: the controller has other rights than declared in prod",
				"Deployment gitopsd-system/widgets, other than rendered: pods",
				"prod: `gitopsd plan` also has a step for clusterrole.rbac.authorization.k8s.io/widgets: in conflict: it is Helm's",
			},
		},
		{
			name: "configuration that somebody changed",
			change: func(c *Facts) {
				c.controller().ConfigMaps = Context{Read: true, Drift: []string{"ConfigMap a key mode"}, From: []manifest.ID{configMap}}
			},
			steps: []plan.Step{{ID: configMap, Action: plan.Configure, Object: object, Drift: true}},
			want: []string{
				"2 types of package widgets: the controller's configuration is not what was declared in prod",
				"Deployment gitopsd-system/widgets, other than rendered: ConfigMap a key mode",
			},
		},
		{
			name:   "somebody else has it",
			change: func(c *Facts) { c.widget().Live, c.widget().Package, c.widget().Source = nil, "", "" },
			steps:  []plan.Step{{ID: widget, Action: plan.Conflict, Reason: "it is Helm's", Object: object}},
			want:   []string{"Widget.acme.example: what was declared is refused in prod", "wanted as declared, in conflict: it is Helm's"},
		},
		{
			name:   "it is on its way out",
			change: func(c *Facts) { c.widget().Live = typed("Widget", "three") },
			steps:  []plan.Step{step(widget, plan.Wait, "it is being deleted")},
			want:   []string{"Widget.acme.example: what was declared is not applied yet in prod", "wanted reg.io/widgets v1, not applied yet: it is being deleted"},
		},
		{
			name:   "conversion rules",
			change: func(c *Facts) { c.widget().Conversion, c.widget().Converted = "h1:a", "nothing" },
			steps:  []plan.Step{step(widget, plan.Wait, "Deployment gitopsd-conversion is not ready")},
			want:   []string{"Widget.acme.example: what was declared is not applied yet in prod", "wanted reg.io/widgets v1, not applied yet: Deployment gitopsd-conversion is not ready"},
		},
		{
			name:   "a webhook configuration",
			change: func(c *Facts) { c.Webhooks[0].Drift = []string{"webhooks[name=w].failurePolicy"} },
			steps:  []plan.Step{step(webhook, plan.Configure, "")},
			want:   []string{webhook.String() + ": what was declared is not applied yet in prod", "wanted as declared, not applied yet"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			all := fleet("dev", "prod", "staging")
			if all[1].Behind(known) {
				t.Error("a cluster that agrees is behind")
			}
			tt.change(&all[1])
			if !all[1].Behind(known) {
				t.Error("a cluster that differs is not behind")
			}
			all[1].Explain(&plan.Plan{Steps: tt.steps})
			var have []string
			for _, f := range Compare(t.Context(), all, options).Findings {
				if f.Kind == ControllerDiffers || f.Kind == SchemaDiffers {
					continue
				}
				have = append(have, f.Title())
				for _, s := range f.Sides {
					have = append(have, s.What)
				}
				have = append(have, f.Details...)
			}
			if !slices.Equal(have, tt.want) {
				t.Errorf("have\n%s\nwant\n%s", strings.Join(have, "\n"), strings.Join(tt.want, "\n"))
			}
		})
	}
}

// Until a controller is applied as declared, its configuration is that of the one before, and is
// not compared with other clusters'. The report says so.
func TestPlannedContexts(t *testing.T) {
	all := fleet("dev", "prod")
	for i, mode := range []string{"new", "old"} {
		all[i].controller().ConfigMaps = Context{Read: true, Parts: []behaviour.Part{{Name: "ConfigMap a key mode", Value: mode}}}
	}
	var omitted []Omission
	kinds := func() (kinds []Kind) {
		r := Compare(t.Context(), all, options)
		for _, f := range r.Findings {
			kinds = append(kinds, f.Kind)
		}
		omitted = r.Omitted
		return kinds
	}
	if have := kinds(); !slices.Equal(have, []Kind{ConfigDiffers}) || len(omitted) > 0 {
		t.Errorf("applied: %v, omitted %v", have, omitted)
	}
	want := []Omission{{Cluster: "prod", What: "ConfigMaps of Deployment gitopsd-system/widgets", Reason: "not compared with other clusters' until what was declared is applied"}}
	all[1].controller().Instances[0].Settings = nil
	all[1].Planned = map[manifest.ID]Planned{all[1].controller().Wanted.Workload: {Kind: NotApplied, Why: "not applied yet"}}
	if have := kinds(); !slices.Equal(have, []Kind{NotApplied}) || !slices.Equal(omitted, want) {
		t.Errorf("not applied yet: %v, omitted %v", have, omitted)
	}
	all[1].controller().ConfigMaps.Drift = []string{"ConfigMap a key mode"}
	if have := kinds(); !slices.Equal(have, []Kind{ConfigDrifted, NotApplied}) || len(omitted) > 0 {
		t.Errorf("changed by somebody: %v, omitted %v", have, omitted)
	}
	all[1] = fleet("prod")[0]
	configMap := manifest.ConfigMap.ID("gitopsd-system", "a")
	all[1].controller().ConfigMaps = Context{Read: true, Parts: all[0].controller().ConfigMaps.Parts, Drift: []string{"ConfigMap a key mode"}, From: []manifest.ID{configMap}, Applied: true}
	all[1].Planned = map[manifest.ID]Planned{configMap: {Kind: NotApplied, Why: "not applied yet", Member: true}}
	if have := kinds(); !slices.Equal(have, []Kind{NotApplied}) || !slices.Equal(omitted, want) {
		t.Errorf("a ConfigMap alone is not applied yet: %v, omitted %v", have, omitted)
	}
}
