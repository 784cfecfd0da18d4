package verify

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

// told returns the titles of findings, and the words of the first one's sides.
func told(r *Report) (titles, sides []string) {
	for i := range r.Findings {
		titles = append(titles, r.Findings[i].Title())
	}
	if len(r.Findings) > 0 {
		for _, s := range r.Findings[0].Sides {
			sides = append(sides, strings.Join(s.Clusters, " ")+": "+s.What)
		}
	}
	return titles, sides
}

// What controllers read and may do, in clusters that are alike in everything else.
func TestContexts(t *testing.T) {
	const both, workload = "2 types of package widgets: ", "Deployment gitopsd-system/widgets"
	read := func(pairs ...string) Context {
		c := Context{Read: true}
		for i := 0; i < len(pairs); i += 2 {
			c.Parts = append(c.Parts, behaviour.Part{Name: pairs[i], Value: pairs[i+1]})
		}
		return c
	}
	for _, tt := range []struct {
		name   string
		change func(dev, prod *Controller)
		title  string
		sides  []string
	}{
		{name: "the same", change: func(dev, prod *Controller) {
			dev.ConfigMaps, prod.ConfigMaps = read("ConfigMap a key mode", "hunter2"), read("ConfigMap a key mode", "hunter2")
		}},
		{name: "not read in one", change: func(dev, _ *Controller) { dev.Secrets = read("Secret a key mode", "hunter2") }},
		{
			name: "another value",
			change: func(dev, prod *Controller) {
				dev.Secrets, prod.Secrets = read("Secret a key mode", "hunter2"), read("Secret a key mode", "swordfish")
			},
			title: both + "the controller's configuration differs between dev and prod",
			sides: []string{"dev: " + workload + ", Secret a key mode: value A", "prod: " + workload + ", Secret a key mode: value B"},
		},
		{name: "a Secret of its own", change: func(dev, prod *Controller) {
			for _, c := range []*Controller{dev, prod} {
				wanted := *c.Wanted
				wanted.PerCluster = []string{"Secret a"}
				c.Wanted = &wanted
			}
			dev.Secrets, prod.Secrets = read("Secret a key mode", "hunter2"), read("Secret a key mode", "swordfish", "Secret a key more", "swordfish")
		}},
		{
			name: "none in one",
			change: func(dev, prod *Controller) {
				dev.ConfigMaps, prod.ConfigMaps = read("ConfigMap a key mode", "hunter2"), read("ConfigMap a", behaviour.Elsewhere)
			},
			title: both + "the controller's configuration differs between dev and prod",
			sides: []string{"dev: " + workload + ", ConfigMap a key mode: value A", "prod: " + workload + ", ConfigMap a key mode: none"},
		},
		{
			name: "not as rendered",
			change: func(_, prod *Controller) {
				prod.ConfigMaps = Context{Read: true, Drift: []string{"ConfigMap a key mode"}}
			},
			title: both + "the controller's configuration is not what was declared in prod",
			sides: []string{"prod: " + workload + ", other than rendered: ConfigMap a key mode"},
		},
		{
			name: "other rights",
			change: func(dev, prod *Controller) {
				dev.Rights, prod.Rights = read("secrets", "get", "widgets.acme.example", "*"), read("pods", "list", "secrets", "get list", "widgets.acme.example", "*")
			},
			title: both + "the controller's rights differ between dev and prod",
			sides: []string{"dev: " + workload + ", pods: none; secrets: get", "prod: " + workload + ", pods: list; secrets: get list"},
		},
		{
			name:   "rights not as rendered",
			change: func(_, prod *Controller) { prod.Rights = Context{Read: true, Drift: []string{"secrets"}} },
			title:  both + "the controller has other rights than declared in prod",
			sides:  []string{"prod: " + workload + ", other than rendered: secrets"},
		},
		{name: "rights on a type that only one cluster has", change: func(dev, prod *Controller) {
			dev.Rights, prod.Rights = read("secrets", "get"), read("others.acme.example", "*", "others/status.acme.example", "*", "secrets", "get")
		}},
		{name: "rights in a namespace that is named after the cluster", change: func(dev, prod *Controller) {
			dev.Rights, prod.Rights = read("pods in namespace dev-a", "get", "pods in namespace dev", "get"), read("pods in namespace prod", "get", "pods in namespace prod-a", "get")
		}},
		{
			name: "rights in other namespaces",
			change: func(dev, prod *Controller) {
				dev.Rights, prod.Rights = read("pods in namespace devices", "get"), read("pods in namespace production", "get")
			},
			title: both + "the controller's rights differ between dev and prod",
			sides: []string{
				"dev: " + workload + ", pods in namespace devices: get; pods in namespace production: none",
				"prod: " + workload + ", pods in namespace devices: none; pods in namespace production: get",
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			all := fleet("dev", "prod")
			for _, d := range all[0].Definitions {
				d.Resources = []string{strings.ToLower(d.Kind) + "s"}
			}
			for _, d := range all[1].Definitions {
				d.Resources = []string{strings.ToLower(d.Kind) + "s"}
			}
			all[1].Definitions[definitionID("Other")] = &Definition{ID: definitionID("Other"), Kind: "Other", Group: "acme.example", Resources: []string{"others"}, Live: typed("Other", "one")}
			tt.change(all[0].controller(), all[1].controller())
			r := Compare(t.Context(), all, options)
			titles, sides := told(r)
			if strings.Join(titles, "\n") != tt.title || !slices.Equal(sides, tt.sides) {
				t.Errorf("have %q %q\nwant %q %q", titles, sides, tt.title, tt.sides)
			}
			text, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), "hunter2") || strings.Contains(string(text), "swordfish") {
				t.Errorf("a value is in the report\n%s", text)
			}
		})
	}
}

func hooks(t *testing.T, kind, name, fields string) []Admission {
	t.Helper()
	return Hooks(manifesttest.Tree(t, "{apiVersion: admissionregistration.k8s.io/v1, kind: "+kind+", metadata: {name: "+name+"}, webhooks: [{name: a.example.org, "+fields+"}]}"))
}

func policies(t *testing.T, spec, binding string) []Admission {
	t.Helper()
	return Policies([]map[string]any{manifesttest.Tree(t, "{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, metadata: {name: p}, spec: {"+spec+"}}")},
		[]map[string]any{manifesttest.Tree(t, "{spec: {policyName: p, "+binding+"}}")})
}

// What matches a type in one cluster and not, or not so, in another.
func TestAdmission(t *testing.T) {
	const all, url = "rules: [{apiGroups: ['*'], apiVersions: ['*'], resources: ['*'], operations: ['*']}]", "clientConfig: {url: 'https://user:hunter2@a.example.org/hook?token=swordfish', caBundle: AA}, "
	const rules = "matchConstraints: {resourceRules: [{apiGroups: [acme.example], apiVersions: [v1], operations: [CREATE], resources: [widgets]}]}"
	for _, tt := range []struct {
		name      string
		dev, prod []Admission
		want      string
		types     int
	}{
		{name: "the same", dev: hooks(t, "MutatingWebhookConfiguration", "x", url+all), prod: hooks(t, "MutatingWebhookConfiguration", "x", url+all)},
		{
			name: "a generated name, defaults and another CA",
			dev:  hooks(t, "MutatingWebhookConfiguration", "x", url+all),
			prod: hooks(t, "MutatingWebhookConfiguration", "y", strings.Replace(url, "AA", "BB", 1)+"failurePolicy: Fail, timeoutSeconds: 10, "+all),
		},
		{
			name: "in one only", prod: hooks(t, "MutatingWebhookConfiguration", "x", url+all),
			want: "mutating webhook a.example.org: what it does to 2 types differs between dev and prod", types: 2,
		},
		{
			name: "another failure policy",
			dev:  hooks(t, "ValidatingWebhookConfiguration", "x", url+all), prod: hooks(t, "ValidatingWebhookConfiguration", "x", url+"failurePolicy: Ignore, "+all),
			want: "validating webhook a.example.org: what it does to 2 types differs between dev and prod", types: 2,
		},
		{name: "for another group", prod: hooks(t, "MutatingWebhookConfiguration", "x", url+"rules: [{apiGroups: [apps], apiVersions: ['*'], resources: ['*']}]")},
		{name: "for another version", prod: hooks(t, "MutatingWebhookConfiguration", "x", url+"rules: [{apiGroups: ['*'], apiVersions: [v2], resources: ['*']}]")},
		{name: "for another resource", prod: hooks(t, "MutatingWebhookConfiguration", "x", url+"rules: [{apiGroups: ['*'], apiVersions: ['*'], resources: [pods]}]")},
		{name: "for another scope", prod: hooks(t, "MutatingWebhookConfiguration", "x", url+"rules: [{apiGroups: ['*'], apiVersions: ['*'], resources: ['*'], scope: Cluster}]")},
		{
			name: "for the status", prod: hooks(t, "MutatingWebhookConfiguration", "x", url+"rules: [{apiGroups: ['*'], apiVersions: ['*'], resources: [widgets/status]}]"),
			want: "mutating webhook a.example.org: what it does to Widget.acme.example differs between dev and prod", types: 1,
		},
		{
			name: "a policy", prod: policies(t, rules, "validationActions: [Deny]"),
			want: "ValidatingAdmissionPolicy p: what it does to Widget.acme.example differs between dev and prod", types: 1,
		},
		{
			name: "a policy that only warns", dev: policies(t, rules, "validationActions: [Warn]"), prod: policies(t, rules, "validationActions: [Deny]"),
			want: "ValidatingAdmissionPolicy p: what it does to Widget.acme.example differs between dev and prod", types: 1,
		},
		{name: "a policy that is not bound", prod: Policies([]map[string]any{manifesttest.Tree(t, "{metadata: {name: p}, spec: {"+rules+"}}")}, nil)},
		{
			name: "a policy that excludes the type",
			prod: policies(t, "matchConstraints: {resourceRules: [{apiGroups: ['*'], apiVersions: ['*'], operations: ['*'], resources: ['*']}], excludeResourceRules: [{apiGroups: [acme.example], apiVersions: ['*'], operations: ['*'], resources: ['*/*']}]}", ""),
		},
		{
			name: "the API server's defaults in a policy",
			dev:  policies(t, rules, "validationActions: [Deny], matchResources: {}"),
			prod: policies(t, "failurePolicy: Fail, matchConstraints: {matchPolicy: Equivalent, namespaceSelector: {}, objectSelector: {}, resourceRules: [{scope: '*', apiGroups: [acme.example], apiVersions: [v1], operations: [CREATE], resources: [widgets]}]}",
				"validationActions: [Deny], matchResources: {matchPolicy: Equivalent, namespaceSelector: {}, objectSelector: {}}"),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			clusters := fleet("dev", "prod")
			for i := range clusters {
				clusters[i].AdmissionRead = true
				for _, d := range clusters[i].Definitions {
					d.Resources, d.Scope = []string{strings.ToLower(d.Kind) + "s"}, "Namespaced"
				}
			}
			clusters[0].Admission, clusters[1].Admission = tt.dev, tt.prod
			r := Compare(t.Context(), clusters, options)
			titles, _ := told(r)
			if strings.Join(titles, "\n") != tt.want {
				t.Errorf("have %q, want %q", titles, tt.want)
			}
			if len(r.Findings) > 0 && (r.Findings[0].Kind != AdmissionDiffers || len(r.Findings[0].Types) != tt.types) {
				t.Errorf("found %+v", r.Findings[0])
			}
			text, err := json.Marshal(r)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), "hunter2") || strings.Contains(string(text), "swordfish") {
				t.Errorf("a part of a URL is in the report\n%s", text)
			}
			// In a cluster where admission could not be read nothing is claimed of it.
			clusters[0].AdmissionRead = false
			if r := Compare(t.Context(), clusters, options); len(r.Findings) > 0 {
				t.Errorf("compared with nothing: %+v", r.Findings)
			}
		})
	}
}

// Undeclared webhooks and policies that match a type in all clusters alike are noted.
func TestForeignAdmission(t *testing.T) {
	all := fleet("dev", "prod")
	const fields = "clientConfig: {url: 'https://a.example.org'}, rules: [{apiGroups: ['*'], apiVersions: ['*'], resources: ['*']}]"
	for i := range all {
		all[i].AdmissionRead, all[i].Admission = true, append(hooks(t, "MutatingWebhookConfiguration", "x", fields), hooks(t, "ValidatingWebhookConfiguration", "widgets", fields)...)
		for _, d := range all[i].Definitions {
			d.Resources, d.Scope = []string{strings.ToLower(d.Kind) + "s"}, "Namespaced"
		}
	}
	const want = "dev and prod: not declared in the repository, and checks or changes objects of the types: mutating webhook a.example.org"
	if r := Compare(t.Context(), all, options); len(r.Findings) > 0 || !slices.Equal(r.Notes, []string{want}) {
		t.Errorf("findings %v, notes %q", r.Findings, r.Notes)
	}
}

// A type is not called verified unless everything that acts on it is declared.
func TestDefinitionOnly(t *testing.T) {
	all := fleet("dev", "prod")
	if have := Compare(t.Context(), all, options).Summary(); have != "2 types in 2 clusters: verified, no difference" {
		t.Error(have)
	}
	for i := range all {
		all[i].widget().Behaviour = nil
	}
	r := Compare(t.Context(), all, options)
	if have := r.Summary(); have != "2 types in 2 clusters: no difference; 1 verified, 1 in definition only" || !slices.Equal(r.Groups[0].DefinitionOnly, []string{"Widget.acme.example"}) {
		t.Error(have, r.Groups)
	}
	for i := range all {
		all[i].widget().Behaviour = new(behaviour.Identity) // an XRD without Compositions
		all[i].Definitions[definitionID("Gadget")].Behaviour = nil
	}
	if have := Compare(t.Context(), all, options).Summary(); have != "2 types in 2 clusters: no difference, in definition only" {
		t.Error(have)
	}
	for i := range all {
		all[i].widget().Behaviour = &behaviour.Identity{
			Compositions: []behaviour.Part{{Name: "widgets", Value: "1"}},
			Functions:    []behaviour.Part{{Name: "declared", Value: "sha256:1"}, {Name: "undeclared"}},
		}
	}
	if have := Compare(t.Context(), all, options).DefinitionOnly; have != 2 {
		t.Errorf("have %d in definition only, want the type whose Compositions name a Function that nobody declares too", have)
	}
	for i := range all {
		all[i].widget().Behaviour.Functions = all[i].widget().Behaviour.Functions[:1]
	}
	if have := Compare(t.Context(), all, options).DefinitionOnly; have != 1 {
		t.Errorf("have %d in definition only, want 1", have)
	}
	all[0].Omitted = []Omission{{What: "1 Secret", Reason: "forbidden", Unknown: true}}
	r = Compare(t.Context(), all, options)
	if have := r.Summary(); have != "2 types in 2 clusters: no difference in what could be read" || r.Omitted[0].Cluster != "dev" {
		t.Error(have, r.Omitted)
	}
}

// No answer of an API server makes it panic.
func FuzzAdmission(f *testing.F) {
	f.Add([]byte(`{"kind":"MutatingWebhookConfiguration","webhooks":[null,{"clientConfig":{"service":null},"rules":[1,{"apiGroups":["*"]}]}],"spec":{"policyName":"","matchConstraints":{"resourceRules":[null]},"paramRef":{},"matchResources":{"excludeResourceRules":[]}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var tree map[string]any
		if json.Unmarshal(text, &tree) != nil {
			return
		}
		d := &Definition{Group: "acme.example", Resources: []string{"widgets"}, Live: typed("Widget", "one")}
		for _, a := range append(Hooks(tree), Policies([]map[string]any{tree}, []map[string]any{tree, {}})...) {
			a.matches(d)
		}
		if manifest.KindOf(tree) == manifest.MutatingWebhooks {
			webhookForm(tree)
		}
	})
}
