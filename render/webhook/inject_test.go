package webhook_test

import (
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/render/webhook"
)

func TestParseSource(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"Service/a/b":   "service/a/b",
		"a/b":           "service/a/b",
		" Secret/a/b ":  "secret/a/b",
		"":              "",
		"b":             "",
		"Secret/b":      "service/Secret/b", // a namespace has no capitals: it names nothing
		"Secret/a/b/c":  "",
		"Secret//b":     "",
		"ConfigMap/a/b": "",
		"service/a/b":   "",
		"a/b, a/c":      "",
		"Service/a/b c": "",
	} {
		source, err := webhook.ParseSource(text)
		switch {
		case want == "" && (err == nil || !strings.Contains(err.Error(), "want Service/<namespace>/<name> or Secret/<namespace>/<name>")):
			t.Errorf("%q: have %v, %v", text, source, err)
		case want != "" && (err != nil || source.Object.String() != want):
			t.Errorf("%q: have %v, %v; want %s", text, source.Object, err, want)
		case want != "":
			if again, err := webhook.ParseSource(source.String()); err != nil || again != source {
				t.Errorf("%q: written as %s, it reads %v, %v", text, source, again, err)
			}
		}
	}
}

func FuzzParseSource(f *testing.F) {
	f.Add("Service/a/b")
	f.Add("a/b")
	f.Fuzz(func(t *testing.T, text string) {
		source, err := webhook.ParseSource(text)
		if err != nil {
			return
		}
		if again, err := webhook.ParseSource(source.String()); err != nil || again != source {
			t.Errorf("%q is %#v, but %q is %#v, %v", text, source, source.String(), again, err)
		}
	})
}

const service = "service: {namespace: ns, name: s}"

func TestOpen(t *testing.T) {
	t.Parallel()
	const (
		ours   = "gitopsd.dev/inject-ca: Secret/ns/s"
		theirs = "cert-manager.io/inject-ca-from: ns/c"
	)
	hook := func(name, bundle string) string {
		return "{name: " + name + ", clientConfig: {" + service + ", caBundle: " + bundle + "}}"
	}
	open := func(name string) string { return "{name: " + name + ", clientConfig: {" + service + "}}" }
	for _, tt := range []struct {
		name, doc string
		// want is empty if nothing changes.
		want string
	}{
		{name: "another kind", doc: "{apiVersion: v1, kind: ConfigMap, metadata: {name: x}, data: {caBundle: Cg==}}"},
		{name: "a certificate", doc: config(hook("a", "eA=="), "")},
		{name: "no bundle", doc: config(open("a"), "")},
		{name: "left to us", doc: config(open("a"), ours)},
		{name: "placeholders", doc: config(hook("a", "Cg==")+","+hook("b", "''")+","+hook("c", "null")+","+hook("d", "eA=="), ""), want: config(open("a")+","+open("b")+","+open("c")+","+hook("d", "eA=="), "")},
		{name: "placeholders of ours", doc: config(hook("a", "Cg==")+","+hook("b", "eA=="), ours), want: config(open("a")+","+hook("b", "eA=="), ours)},
		{name: "a variable", doc: config(hook("a", "'${CA_BUNDLE}'"), ""), want: config(open("a"), "gitopsd.dev/inject-ca: Service/ns/s")},
		{name: "a variable, with the source", doc: config(hook("a", "'${CA_BUNDLE}'"), ours), want: config(open("a"), ours)},
		{name: "a variable without a Service", doc: config("{name: a, clientConfig: {url: x, caBundle: '${CA_BUNDLE}'}}", "")},
		{name: "variables of several Services", doc: config(hook("a", "'${CA_BUNDLE}'")+", {name: b, clientConfig: {service: {namespace: ns, name: t}, caBundle: '${CA_BUNDLE}'}}", "")},
		{name: "another injector", doc: config(hook("a", "eA=="), theirs), want: config(open("a"), theirs)},
		{name: "another injector, a variable", doc: config(hook("a", "'${CA_BUNDLE}'"), theirs), want: config(open("a"), theirs)},
		{name: "without names", doc: config("{clientConfig: {caBundle: ''}}, x", ""), want: config("{clientConfig: {}}, x", "")},
		{
			name: "APIService",
			doc:  "{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.x, annotations: {" + ours + "}}, spec: {group: x, caBundle: Cg==, " + service + "}}",
			want: "{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1.x, annotations: {" + ours + "}}, spec: {group: x, " + service + "}}",
		},
		{
			name: "conversion",
			doc:  "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: x}, spec: {conversion: {strategy: Webhook, webhook: {clientConfig: {caBundle: Cg==, " + service + "}}}}}",
			want: "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: x}, spec: {conversion: {strategy: Webhook, webhook: {clientConfig: {" + service + "}}}}}",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := manifesttest.Objects(t, tt.doc)[0]
			before := string(o.AppendJSON(nil))
			have, err := webhook.Open(o)
			if err != nil {
				t.Fatal(err)
			}
			if tt.want == "" && have != o {
				t.Errorf("it has become %s", have.AppendJSON(nil))
			}
			if tt.want != "" {
				if want := manifesttest.Objects(t, tt.want)[0]; string(have.AppendJSON(nil)) != string(want.AppendJSON(nil)) {
					t.Errorf("have %s\nwant %s", have.AppendJSON(nil), want.AppendJSON(nil))
				}
			}
			if string(o.AppendJSON(nil)) != before {
				t.Error("the object that was given has changed")
			}
			if again, _ := webhook.Open(have); again != have {
				t.Error("a second time changes it again")
			}
		})
	}
}

func TestLeft(t *testing.T) {
	t.Parallel()
	for doc, want := range map[string]string{
		"{apiVersion: v1, kind: ConfigMap}": "",
		config("{name: a.example.org, clientConfig: {}}, {name: b, clientConfig: {caBundle: eA==}}, {name: c}", ""):        "webhooks[name=a.example.org].clientConfig.caBundle webhooks[name=c].clientConfig.caBundle",
		config("{name: a, clientConfig: {"+service+"}}, {name: b, clientConfig: {url: x}}", "gitopsd.dev/inject-ca: ns/s"): "webhooks[name=a].clientConfig.caBundle",
		"{apiVersion: apiregistration.k8s.io/v1, kind: APIService, spec: {}}":                                              "spec.caBundle",
		"{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, spec: {conversion: {strategy: None}}}":      "",
		"{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, spec: {conversion: {strategy: Webhook}}}":   "spec.conversion.webhook.clientConfig.caBundle",
	} {
		if have := strings.Join(webhook.Left(manifesttest.Tree(t, doc)), " "); have != want {
			t.Errorf("%s: have %q, want %q", doc, have, want)
		}
	}
}

// config returns a webhook configuration with webhooks and annotations.
func config(hooks, annotations string) string {
	return "{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingWebhookConfiguration, metadata: {name: x, annotations: {" + annotations + "}}, webhooks: [" + hooks + "]}"
}

func TestMisuse(t *testing.T) {
	t.Parallel()
	others := manifesttest.Objects(t, `
{apiVersion: v1, kind: Service, metadata: {name: s, namespace: ns, annotations: {gitopsd.dev/serving-cert: s-tls}}}
---
{apiVersion: v1, kind: Service, metadata: {name: bare, namespace: ns}}`)
	get := func(id manifest.ID) *manifest.Object {
		i := slices.IndexFunc(others, func(o *manifest.Object) bool { return o.ID() == id })
		if i < 0 {
			return nil
		}
		return others[i]
	}
	const hook = "{name: a, clientConfig: {" + service + "}}"
	crd := func(conversion string) string {
		return "{apiVersion: apiextensions.k8s.io/v1, kind: CustomResourceDefinition, metadata: {name: x, annotations: {gitopsd.dev/inject-ca: ns/s}}, spec: {conversion: " + conversion + "}}"
	}
	for _, tt := range []struct{ name, doc, want string }{
		{name: "not asked", doc: config(hook, "")},
		{name: "a Service", doc: config(hook, "gitopsd.dev/inject-ca: Service/ns/s")},
		{name: "a Service in short", doc: config(hook, "gitopsd.dev/inject-ca: ns/s")},
		{name: "a Secret", doc: config(hook, "gitopsd.dev/inject-ca: Secret/ns/any")},
		{name: "no webhooks", doc: config("", "gitopsd.dev/inject-ca: ns/s")},
		{name: "conversion", doc: crd("{strategy: Webhook, webhook: {clientConfig: {}}}")},
		{name: "grammar", doc: config(hook, "gitopsd.dev/inject-ca: s"), want: `gitopsd.dev/inject-ca: "s": want Service/<namespace>/<name> or Secret/<namespace>/<name>`},
		{name: "nothing there", doc: config(hook, "gitopsd.dev/inject-ca: ns/t"), want: "gitopsd.dev/inject-ca names service/ns/t, which the cluster does not get; name a Service of the repository or of a package, or a Secret"},
		{name: "no certificate", doc: config(hook, "gitopsd.dev/inject-ca: ns/bare"), want: "gitopsd.dev/inject-ca names service/ns/bare, which has no certificate of gitopsd's; annotate that with gitopsd.dev/serving-cert: <name of a Secret>, or name a Secret here"},
		{name: "another kind", doc: "{apiVersion: v1, kind: ConfigMap, metadata: {name: x, annotations: {gitopsd.dev/inject-ca: ns/s}}}", want: "gitopsd.dev/inject-ca means nothing on a ConfigMap; webhook configurations, APIServices and CRDs that convert by webhook have a CA bundle"},
		{name: "no conversion", doc: crd("{strategy: None}"), want: "gitopsd.dev/inject-ca means nothing here, since no webhook converts its objects; remove it"},
		{name: "two injectors", doc: config(hook, "gitopsd.dev/inject-ca: ns/s, cert-manager.io/inject-ca-from: ns/c"), want: "gitopsd.dev/inject-ca and another injector's annotation are both there; keep one of them"},
		{name: "a bundle too", doc: config("{name: a, clientConfig: {caBundle: eA==}}", "gitopsd.dev/inject-ca: ns/s"), want: "webhooks[name=a].clientConfig.caBundle is set, though gitopsd.dev/inject-ca has gitopsd fill it in; remove one of the two"},
		{name: "a bundle at the webhook of another", doc: config(hook+", {name: b, clientConfig: {url: x, caBundle: eA==}}", "gitopsd.dev/inject-ca: ns/s")},
		{name: "a variable for nothing", doc: config("{name: a, clientConfig: {url: x, caBundle: '${CA_BUNDLE}'}}", ""), want: "webhooks[name=a].clientConfig.caBundle: ${CA_BUNDLE} stands for the CA of one Service, and the object does not name one alone; annotate it with gitopsd.dev/inject-ca: Service/<namespace>/<name>"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := manifesttest.Objects(t, tt.doc)[0]
			have := ""
			if err := webhook.Misuse(o, get); err != nil {
				have = err.Error()
			}
			if have != tt.want {
				t.Errorf("have %q\nwant %q", have, tt.want)
			}
		})
	}
}
