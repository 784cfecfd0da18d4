package plan_test

import (
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

const (
	hooks = `{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: p.w, labels: {gitopsd.dev/package: p}, annotations: {gitopsd.dev/inject-ca: Service/ns/p}}, webhooks: [{name: a.e.org, clientConfig: {caBundle: eA==, service: {namespace: ns, name: p}}}]}
---
`
	hooksService = `{apiVersion: v1, kind: Service, metadata: {name: p, namespace: ns, labels: {gitopsd.dev/package: p}, annotations: {gitopsd.dev/serving-cert: p-tls}}, spec: {selector: {app: p}}}
---
`
	hooksServer = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: p, namespace: ns, labels: {gitopsd.dev/package: p}}, spec: {template: {metadata: {labels: {app: p}}}}}
---
`
)

const (
	widgets = `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: widgets.e.org}, spec: {group: e.org, scope: Namespaced, names: {kind: Widget, plural: widgets}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]}}
---
`
	widget = `{apiVersion: e.org/v1, kind: Widget, metadata: {name: a, namespace: ns}}
---
`
)

// guarding are hooks for widgets.
var guarding = strings.Replace(hooks, "webhooks: [{", "webhooks: [{rules: [{apiGroups: [e.org], apiVersions: [v1], operations: [CREATE], resources: [widgets]}], ", 1)

// completed fills in the objects that are written with a CA bundle.
func completed(t *testing.T, text string) *manifest.Set {
	t.Helper()
	var all []*manifest.Object
	for _, o := range manifesttest.Objects(t, text) {
		if strings.Contains(string(o.AppendJSON(nil)), `"caBundle"`) {
			rendered := manifesttest.Objects(t, strings.ReplaceAll(string(o.AppendJSON(nil)), `"caBundle":"eA==",`, ""))[0]
			var err error
			if o, err = rendered.Complete(o.Tree()); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, o)
	}
	set, _ := manifest.NewSet(all)
	return set
}

// Webhooks are registered after their servers, and pruned before them.
func TestWebhookOrder(t *testing.T) {
	t.Parallel()
	scaled := strings.Replace(hooksServer, "spec: {", "spec: {replicas: 0, ", 1)
	const unfilled = "webhooks[name=a.e.org].clientConfig.caBundle is not known yet; without it, requests would be blocked"
	without := strings.Replace(hooks, "caBundle: eA==, ", "", 1)
	plain := strings.Replace(hooks, "labels: {gitopsd.dev/package: p}, ", "", 1)
	for _, tt := range []struct{ name, desired, live, want string }{
		{
			name: "installed", desired: hooks + hooksService + hooksServer,
			want: "create service/ns/p\ncreate deployment.apps/ns/p\ncreate validatingwebhookconfiguration.admissionregistration.k8s.io/p.w registered once deployment.apps/ns/p is ready\n",
		},
		{
			name: "installed with an object", desired: guarding + hooksService + hooksServer + widgets + widget,
			want: "create customresourcedefinition.apiextensions.k8s.io/widgets.e.org\ncreate service/ns/p\ncreate deployment.apps/ns/p\n" +
				"create validatingwebhookconfiguration.admissionregistration.k8s.io/p.w registered once deployment.apps/ns/p is ready\n" +
				"create widget.e.org/ns/a created once validatingwebhookconfiguration.admissionregistration.k8s.io/p.w is registered\n",
		},
		{
			name: "an object of a type that is not checked", desired: strings.Replace(guarding, "[widgets]", "[gadgets]", 1) + hooksService + hooksServer + widgets + widget,
			live: hooksService + hooksServer + widgets,
			want: "unchanged customresourcedefinition.apiextensions.k8s.io/widgets.e.org\nunchanged service/ns/p\nunchanged deployment.apps/ns/p\n" +
				"create validatingwebhookconfiguration.admissionregistration.k8s.io/p.w registered once deployment.apps/ns/p is ready\ncreate widget.e.org/ns/a\n",
		},
		{
			name: "an object that failures let pass", desired: strings.Replace(guarding, "webhooks: [{", "webhooks: [{failurePolicy: Ignore, ", 1) + hooksService + hooksServer + widgets + widget,
			live: hooksService + hooksServer + widgets,
			want: "unchanged customresourcedefinition.apiextensions.k8s.io/widgets.e.org\nunchanged service/ns/p\nunchanged deployment.apps/ns/p\n" +
				"create validatingwebhookconfiguration.admissionregistration.k8s.io/p.w registered once deployment.apps/ns/p is ready\ncreate widget.e.org/ns/a\n",
		},
		{
			name: "removed", desired: cm, live: hooks + hooksService + hooksServer,
			want: "create configmap/ns/a\nprune validatingwebhookconfiguration.admissionregistration.k8s.io/p.w\nprune deployment.apps/ns/p\nprune service/ns/p\n",
		},
		{
			name: "no CA yet", desired: without + hooksService + hooksServer,
			want: "create service/ns/p\ncreate deployment.apps/ns/p\nheld validatingwebhookconfiguration.admissionregistration.k8s.io/p.w " + unfilled + "\n",
		},
		{
			name: "no CA yet, in a plain manifest", desired: strings.Replace(without, "labels: {gitopsd.dev/package: p}, ", "", 1) + hooksService + hooksServer,
			want: "create service/ns/p\ncreate deployment.apps/ns/p\nheld validatingwebhookconfiguration.admissionregistration.k8s.io/p.w " + unfilled + "\n",
		},
		{
			name: "an APIService without its CA", desired: hooksService + hooksServer + "{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.e.org, annotations: {gitopsd.dev/inject-ca: ns/p}}, spec: {service: {namespace: ns, name: p}}}",
			want: "create service/ns/p\ncreate deployment.apps/ns/p\nheld apiservice.apiregistration.k8s.io/v1.e.org spec.caBundle is not known yet; without it, requests would be blocked\n",
		},
		{
			name: "scaled down from the start", desired: hooks + hooksService + scaled,
			want: "create service/ns/p\ncreate deployment.apps/ns/p\nheld validatingwebhookconfiguration.admissionregistration.k8s.io/p.w nothing would serve it: deployment.apps/ns/p has no replicas\n",
		},
		{
			name: "scaled down", desired: hooks + hooksService + scaled, live: hooks + hooksService + hooksServer,
			want: "unchanged service/ns/p\nconfigure deployment.apps/ns/p changed in the repository\nprune validatingwebhookconfiguration.admissionregistration.k8s.io/p.w nothing is going to serve it: deployment.apps/ns/p has no replicas\n",
		},
		{
			name: "removed by a patch", desired: hooks + hooksService, live: hooks + hooksService + hooksServer,
			want: "unchanged service/ns/p\nprune validatingwebhookconfiguration.admissionregistration.k8s.io/p.w nothing is going to serve it: service/ns/p selects the pods of no workload\nprune deployment.apps/ns/p\n",
		},
		{
			name: "under an older name, and scaled down", desired: hooks + hooksService + scaled, live: strings.Replace(hooks, "p.w", "w", 1) + hooksService + hooksServer,
			want: "unchanged service/ns/p\nconfigure deployment.apps/ns/p changed in the repository\nheld validatingwebhookconfiguration.admissionregistration.k8s.io/p.w nothing would serve it: deployment.apps/ns/p has no replicas\nprune validatingwebhookconfiguration.admissionregistration.k8s.io/w\n",
		},
		{
			name: "served by somebody else", desired: plain + strings.Replace(hooksService, "selector: {app: p}", "", 1),
			want: "create service/ns/p\ncreate validatingwebhookconfiguration.admissionregistration.k8s.io/p.w registered once service/ns/p has a ready endpoint\n",
		},
		{
			name: "a source that is not there", desired: strings.Replace(plain, "Service/ns/p", "Service/ns/q", 1),
			want: "refused validatingwebhookconfiguration.admissionregistration.k8s.io/p.w gitopsd.dev/inject-ca names service/ns/q, which the cluster does not get; name a Service of the repository or of a package, or a Secret\n",
		},
		{
			name: "an annotation that means nothing", desired: "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: ns, annotations: {gitopsd.dev/inject-ca: ns/p}}}",
			want: "refused configmap/ns/a gitopsd.dev/inject-ca means nothing on a ConfigMap; webhook configurations, APIServices and CRDs that convert by webhook have a CA bundle\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			l := live(t, "", nil)
			for _, o := range completed(t, tt.live).All() {
				for id, meta := range live(t, string(o.AppendJSON(nil)), nil).Objects {
					meta.Annotations[manifest.AppliedAnnotation] = inventory.Applied(o)
					l.Objects[id] = meta
				}
			}
			p := plan.Compute("prod", completed(t, tt.desired), l, inventory, plan.Options{})
			if have := steps(p); have != tt.want {
				t.Errorf("have\n%s\nwant\n%s", have, tt.want)
			}
			served := !strings.Contains(tt.want, "nothing ")
			for _, s := range p.Steps {
				if s.Action == plan.Prune && s.ID.Is(manifest.Webhooks...) && s.Early == served {
					t.Errorf("%s: early is %t", s.ID, s.Early)
				}
			}
		})
	}
}

// Two revisions are compared alike, without a cluster.
func TestWebhooksBetween(t *testing.T) {
	t.Parallel()
	scaled := strings.Replace(hooksServer, "spec: {", "spec: {replicas: 0, ", 1)
	for _, tt := range []struct{ name, before, after, want string }{
		{"scaled down", hooks + hooksService + hooksServer, hooks + hooksService + scaled, "unchanged service/ns/p\nconfigure deployment.apps/ns/p\nprune validatingwebhookconfiguration.admissionregistration.k8s.io/p.w nothing is going to serve it: deployment.apps/ns/p has no replicas\n"},
		{"scaled down before", hooks + hooksService + scaled, hooks + hooksService + scaled, "unchanged service/ns/p\nunchanged deployment.apps/ns/p\nheld validatingwebhookconfiguration.admissionregistration.k8s.io/p.w nothing would serve it: deployment.apps/ns/p has no replicas\n"},
		{"scaled up", hooks + hooksService + scaled, hooks + hooksService + hooksServer, "unchanged service/ns/p\nconfigure deployment.apps/ns/p\nunchanged validatingwebhookconfiguration.admissionregistration.k8s.io/p.w\n"},
		{"misuse", cm, cm + strings.Replace(cm, "name: a", "name: b, annotations: {gitopsd.dev/inject-ca: x}", 1), "unchanged configmap/ns/a\nrefused configmap/ns/b gitopsd.dev/inject-ca: \"x\": want Service/<namespace>/<name> or Secret/<namespace>/<name>\n"},
	} {
		p := between(t, new(plan.Comparer), "prod", manifesttest.Set(t, strings.ReplaceAll(tt.before, "caBundle: eA==, ", "")), manifesttest.Set(t, strings.ReplaceAll(tt.after, "caBundle: eA==, ", "")), nil, nil)
		if have := steps(p); have != tt.want {
			t.Errorf("%s: have\n%s\nwant\n%s", tt.name, have, tt.want)
		}
	}
}

// The server of a configuration that is kept is kept too.
func TestHeldWebhookKeepsServer(t *testing.T) {
	t.Parallel()
	l := live(t, hooks+hooksService+hooksServer, nil)
	id := manifest.ValidatingWebhooks.ID("", "p.w")
	l.Disputed = map[manifest.ID]string{id: "somebody else makes it again"}
	want := "create configmap/ns/a\nheld validatingwebhookconfiguration.admissionregistration.k8s.io/p.w somebody else makes it again\n" +
		"held deployment.apps/ns/p kept: validatingwebhookconfiguration.admissionregistration.k8s.io/p.w needs it until it is gone\n" +
		"held service/ns/p kept: validatingwebhookconfiguration.admissionregistration.k8s.io/p.w needs it until it is gone\n"
	if have := steps(plan.Compute("prod", manifesttest.Set(t, cm), l, inventory, plan.Options{})); have != want {
		t.Errorf("have\n%s\nwant\n%s", have, want)
	}
}

// A configuration stays while errors leave open whether what serves it is wanted: its Service or
// its workload is kept, and not rendered.
func TestWebhookStaysWithItsServer(t *testing.T) {
	t.Parallel()
	const (
		config      = "validatingwebhookconfiguration.admissionregistration.k8s.io/p.w"
		maybeWanted = "kept: errors in the repository leave open whether it is wanted\n"
	)
	plain := strings.NewReplacer("labels: {gitopsd.dev/package: p}, annotations", "annotations", ", labels: {gitopsd.dev/package: p}", "")
	service, server := plain.Replace(hooksService), plain.Replace(hooksServer)
	asks := strings.Replace(hooks, "caBundle: eA==, ", "", 1)
	hooks := strings.Replace(hooks, ", annotations: {gitopsd.dev/inject-ca: Service/ns/p}", "", 1)
	scaled := strings.Replace(server, "spec: {", "spec: {replicas: 0, ", 1)
	for _, tt := range []struct {
		name, before, desired string
		keeps                 manifest.ID
		want                  string
	}{
		{
			"the Service", hooks + service + server, hooks + server, manifest.Service.ID("ns", "p"),
			"unchanged deployment.apps/ns/p\nunchanged " + config + "\nheld service/ns/p " + maybeWanted,
		},
		{
			"the Service that it asks for a CA", asks + service + server, asks + server, manifest.Service.ID("ns", "p"),
			"unchanged deployment.apps/ns/p\nrefused " + config + " gitopsd.dev/inject-ca names service/ns/p, which the cluster does not get; name a Service of the repository or of a package, or a Secret\nheld service/ns/p " + maybeWanted,
		},
		{
			"the workload", hooks + service + server, hooks + service, manifest.Deployment.ID("ns", "p"),
			"unchanged service/ns/p\nunchanged " + config + "\nheld deployment.apps/ns/p " + maybeWanted,
		},
		{
			"another workload", hooks + service + server + strings.NewReplacer("name: p", "name: q", "app: p", "app: q").Replace(server), hooks + service + scaled, manifest.Deployment.ID("ns", "q"),
			"unchanged service/ns/p\nconfigure deployment.apps/ns/p changed in the repository\nprune " + config + " nothing is going to serve it: deployment.apps/ns/p has no replicas\nheld deployment.apps/ns/q " + maybeWanted,
		},
		{
			"another Service", hooks + service + server, hooks + server, manifest.Service.ID("ns", "q"),
			"unchanged deployment.apps/ns/p\nprune " + config + " nothing is going to serve it: its package has no controller, and the cluster no service/ns/p\nprune service/ns/p\n",
		},
	} {
		opts := plan.Options{Keeps: func(id manifest.ID, _ string) bool { return id == tt.keeps }}
		if have := steps(plan.Compute("prod", manifesttest.Set(t, tt.desired), live(t, tt.before, nil), inventory, opts)); have != tt.want {
			t.Errorf("%s: have\n%s\nwant\n%s", tt.name, have, tt.want)
		}
	}
}

// The server of a configuration stays as it is while the configuration must go first and
// cannot: it is kept, or may exist.
func TestWebhookThatStaysKeepsServer(t *testing.T) {
	t.Parallel()
	const config = "validatingwebhookconfiguration.admissionregistration.k8s.io/p.w"
	scaled := strings.Replace(hooksServer, "spec: {", "spec: {replicas: 0, ", 1)
	elsewhere := strings.Replace(hooksService, "app: p", "app: q", 1)
	before := hooks + hooksService + hooksServer
	unreadable := map[schema.GroupKind]string{{Group: manifest.GroupAdmission, Kind: "ValidatingWebhookConfiguration"}: "context deadline exceeded"}
	const notRendered = "kept: the cluster could not be rendered: x"
	for _, tt := range []struct {
		name, desired string
		opts          plan.Options
		unreadable    map[schema.GroupKind]string
		want          string
	}{
		{
			name: "scaled down in a cluster with errors", desired: hooks + hooksService + scaled, opts: plan.Options{RenderFailed: "x"},
			want: "unchanged service/ns/p\nheld deployment.apps/ns/p stays as it is: " + config + " needs it until it is gone\nheld " + config + " " + notRendered + "\n",
		},
		{
			name: "the Service leads elsewhere", desired: hooks + elsewhere + hooksServer, opts: plan.Options{RenderFailed: "x"},
			want: "held service/ns/p stays as it is: " + config + " needs it until it is gone\nunchanged deployment.apps/ns/p\nheld " + config + " " + notRendered + "\n",
		},
		{
			name: "scaled down, and the configuration cannot be read", desired: hooks + hooksService + scaled, unreadable: unreadable,
			want: "unchanged service/ns/p\nheld deployment.apps/ns/p stays as it is: " + config + " needs it until it is gone\nrefused " + config + " cannot tell what is there: context deadline exceeded\n",
		},
		{
			name: "removed, and configurations cannot be read", desired: cm, unreadable: unreadable,
			want: "create configmap/ns/a\nheld deployment.apps/ns/p kept: whether a webhook configuration needs it cannot be told: context deadline exceeded\nheld service/ns/p kept: whether a webhook configuration needs it cannot be told: context deadline exceeded\n",
		},
	} {
		l := live(t, "", nil)
		for _, o := range completed(t, before).All() {
			if tt.unreadable != nil && o.ID().Is(manifest.Webhooks...) {
				continue
			}
			for id, meta := range live(t, string(o.AppendJSON(nil)), nil).Objects {
				meta.Annotations[manifest.AppliedAnnotation] = inventory.Applied(o)
				l.Objects[id] = meta
			}
		}
		l.Unreadable = tt.unreadable
		if have := steps(plan.Compute("prod", completed(t, tt.desired), l, inventory, tt.opts)); have != tt.want {
			t.Errorf("%s: have\n%s\nwant\n%s", tt.name, have, tt.want)
		}
	}
}

func TestRegisters(t *testing.T) {
	t.Parallel()
	const (
		live = `{kind: ValidatingWebhookConfiguration, webhooks: [
  {name: a, failurePolicy: Fail, timeoutSeconds: 10, clientConfig: {caBundle: eA==, service: {namespace: ns, name: s, port: 443, path: /a}}, rules: [{apiGroups: [g], resources: [r], operations: [CREATE], scope: '*'}]},
  {name: b, failurePolicy: Ignore, clientConfig: {url: u}}]}`
		same = `{kind: ValidatingWebhookConfiguration, webhooks: [{name: a, clientConfig: {service: {namespace: ns, name: s, path: /a}}, rules: [{apiGroups: [g], resources: [r], operations: [CREATE]}]}]}`
		api  = "{apiVersion: apiregistration.k8s.io/v1, kind: APIService, spec: {group: g, service: {namespace: ns, name: s, port: 443}}}"
	)
	selecting := func(text, labels string) string {
		return strings.Replace(text, "name: a,", "name: a, namespaceSelector: {matchLabels: "+labels+"},", 1)
	}
	for _, tt := range []struct {
		name, live, wanted string
		want               bool
	}{
		{"as it is", live, same, false},
		{"another bundle", live, strings.Replace(same, "clientConfig: {", "clientConfig: {caBundle: eQ==, ", 1), false},
		{"failures ignored", live, strings.Replace(same, "name: a,", "name: a, failurePolicy: Ignore,", 1), false},
		{"narrower", live, strings.Replace(same, "name: a,", "name: a, namespaceSelector: {matchLabels: {x: z}},", 1), false},
		{"fewer", live, "{webhooks: []}", false},
		{"fewer operations", live, strings.Replace(same, "[CREATE]", "[]", 1), false},
		{"of all, some", strings.Replace(live, "resources: [r], operations: [CREATE]", "resources: ['*/*'], operations: ['*']", 1), strings.Replace(same, "[r]", "[pods, pods/status]", 1), false},
		{"of all but subresources, some", strings.Replace(live, "[r]", "['*']", 1), strings.Replace(same, "[r]", "[pods]", 1), false},
		{"subresources too", strings.Replace(live, "[r]", "['*']", 1), strings.Replace(same, "[r]", "[pods/status]", 1), true},
		{"of one scope", live, strings.Replace(same, "[CREATE]", "[CREATE], scope: Namespaced", 1), false},
		{"of both scopes", strings.Replace(live, "scope: '*'", "scope: Cluster", 1), same, true},
		{"more requirements", selecting(live, "{x: y}"), selecting(same, "{x: y, a: b}"), false},
		{"other requirements", selecting(live, "{x: y}"), selecting(same, "{x: z}"), true},
		{"fewer requirements", selecting(live, "{x: y}"), same, true},
		{"any label", strings.Replace(live, "name: a,", "name: a, objectSelector: {matchExpressions: [{key: k, operator: Exists}]},", 1), strings.Replace(same, "name: a,", "name: a, objectSelector: {},", 1), true},
		{"a condition", live, strings.Replace(same, "name: a,", "name: a, matchConditions: [{name: c, expression: e}],", 1), false},
		{"no condition", strings.Replace(live, "name: a,", "name: a, matchConditions: [{name: c, expression: e}],", 1), same, true},
		{"equivalent versions too", strings.Replace(live, "name: a,", "name: a, matchPolicy: Exact,", 1), same, true},
		{"another webhook", live, strings.Replace(same, "name: a", "name: c", 1), true},
		{"another path", live, strings.Replace(same, "/a", "/b", 1), true},
		{"another port", live, strings.Replace(same, "name: s,", "name: s, port: 8443,", 1), true},
		{"a URL instead", live, strings.Replace(same, "service: {namespace: ns, name: s, path: /a}", "url: u", 1), true},
		{"another rule", live, strings.Replace(same, "[CREATE]", "[CREATE, DELETE]", 1), true},
		{"failures no longer ignored", live, "{webhooks: [{name: b, clientConfig: {url: u}}]}", true},
		{"garbled", live, "{webhooks: [x]}", true},
		{"an APIService as it is", api, strings.Replace(api, ", port: 443", "", 1), false},
		{"another Service", api, strings.Replace(api, "name: s", "name: z", 1), true},
	} {
		if have := plan.Registers(manifesttest.Tree(t, tt.live), manifesttest.Tree(t, tt.wanted)); have != tt.want {
			t.Errorf("%s: have %t", tt.name, have)
		}
	}
}

func TestMovesConversion(t *testing.T) {
	t.Parallel()
	crd := func(service, versions string) map[string]any {
		return manifesttest.Tree(t, `{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {annotations: {a: b}},
spec: {conversion: {strategy: Webhook, webhook: {clientConfig: `+service+`}}, versions: [`+versions+`]}}`)
	}
	const (
		former = "{service: {namespace: ns, name: former, port: 443}}"
		next   = "{service: {namespace: ns, name: next}}"
		two    = "{name: v1, served: true}, {name: v2, served: true}"
	)
	none := manifesttest.Tree(t, "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, spec: {conversion: {strategy: None}, versions: [{name: v1, served: true}]}}")
	for _, tt := range []struct {
		name         string
		live, wanted map[string]any
		want         bool
	}{
		{"as it is", crd(former, two), crd("{service: {namespace: ns, name: former}}", two), false},
		{"another Service", crd(former, two), crd(next, two), true},
		{"another namespace", crd(former, two), crd("{service: {namespace: other, name: former}}", two), true},
		{"fewer versions", crd(former, two), crd(next, "{name: v2, served: true}"), true},
		{"a new version", crd(former, "{name: v1, served: true}"), crd(next, two), false},
		{"a new version that is not served", crd(former, "{name: v1, served: true}"), crd(next, "{name: v1, served: true}, {name: v2, served: false}"), true},
		{"a first webhook", none, crd(next, "{name: v1, served: true}"), false},
		{"no webhook any more", crd(former, two), none, false},
		{"a URL", crd(former, two), crd("{url: u}", two), false},
		{"no URL any more", crd("{url: u}", two), crd(next, two), false},
	} {
		from, moves := plan.MovesConversion(tt.live, tt.wanted)
		if moves != tt.want || moves && from != manifest.Service.ID("ns", "former") {
			t.Errorf("%s: have %t from %s", tt.name, moves, from)
		}
	}
	live := manifest.With(crd(former, two), "digest", "metadata", "annotations", manifest.ConversionAnnotation)
	as := plan.WithConversion(crd(next, "{name: v2, served: true}"), live)
	if !reflect.DeepEqual(as, manifest.With(crd(former, "{name: v2, served: true}"), "digest", "metadata", "annotations", manifest.ConversionAnnotation)) {
		t.Errorf("with the live conversion: %v", as)
	}
}
