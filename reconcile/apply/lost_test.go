package apply_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/kube"
)

// widgets is a CRD of a package, and theirs an object of it.
var widgets = strings.Replace(strings.Split(everything, "---")[6], "metadata: {", "metadata: {labels: {gitopsd.dev/package: p}, ", 1)

func widget(name, metadata string) string {
	return "{apiVersion: $NAME.example.org/v1, kind: Widget, metadata: {name: " + name + metadata + "}}"
}

func (b *bed) uid(object string) string {
	b.t.Helper()
	meta, _ := b.get(object)["metadata"].(map[string]any)
	uid, _ := meta["uid"].(string)
	return uid
}

// A type goes only when all of its objects go: an owner is no reason to lose one,
// unless the owner goes too.
func TestOwnedContents(t *testing.T) {
	b := newBed(t)
	space := strings.Split(everything, "---")[0]
	role := "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: $NAME}, rules: []}"
	owned := func(uid string) string {
		return widget("owned", ", ownerReferences: [{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, name: $NAME, uid: "+uid+", controller: true}]")
	}
	b.apply(b.set(space + "\n---\n" + widgets))
	b.as("somebody", role)
	b.as("somebody", owned(b.uid(role)))
	steps, _ := b.apply(b.set(space))
	b.want("the owner stays", steps, `held customresourcedefinition.apiextensions.k8s.io/widgets.$NAME.example.org kept: it holds widget.$NAME.example.org/owned (written by somebody), which would be deleted with it; to allow that, annotate it with gitopsd.dev/allow-prune: "true"`)
	if b.get(owned("x")) == nil {
		t.Fatal("it is lost")
	}

	b.apply(b.set(space + "\n---\n" + widgets + "\n---\n" + strings.Replace(role, "{name", "{annotations: {gitopsd.dev/adopt: 'true', gitopsd.dev/allow-prune: 'true'}, name", 1)))
	steps, _ = b.apply(b.set(space))
	b.want("the owner goes", steps, "prune clusterrole.rbac.authorization.k8s.io/$NAME it was there before gitopsd adopted it", "prune customresourcedefinition.apiextensions.k8s.io/widgets.$NAME.example.org")
	eventually(t, "all is gone", func(context.Context) bool {
		b.apply(b.set(space))
		return b.parent()[kinds] == "Namespace"
	})
}

const policy = `{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicy, metadata: {name: $NAME}, spec: {failurePolicy: Fail,
matchConstraints: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: $NAME}}, resourceRules: [
{apiGroups: [$NAME.example.org], apiVersions: ["*"], resources: [widgets], operations: [OPERATION]},
{apiGroups: [""], apiVersions: ["*"], resources: [configmaps], operations: [OPERATION]}]},
validations: [{expression: "EXPRESSION", message: refused}]}}`

const binding = `{apiVersion: admissionregistration.k8s.io/v1, kind: ValidatingAdmissionPolicyBinding, metadata: {name: $NAME}, spec: {policyName: $NAME, validationActions: [Deny]}}`

// protect has the API server refuse requests, and returns when it does so.
func (b *bed) protect(operation, expression string, refused func() bool) {
	b.t.Helper()
	b.as("admin", strings.NewReplacer("OPERATION", operation, "EXPRESSION", expression).Replace(policy))
	b.as("admin", binding)
	eventually(b.t, "the policy is in force", func(context.Context) bool { return refused() })
}

// An object whose deletion is refused is not deleted with its container either.
func TestRefusedDelete(t *testing.T) {
	for _, tt := range []struct {
		name, object string
		want         []string
	}{
		{"widget", widget("protected", ""), []string{
			"failed widget.$NAME.example.org/protected",
			"pending customresourcedefinition.apiextensions.k8s.io/widgets.$NAME.example.org: waits until widget.$NAME.example.org/protected is gone, which is still there: ",
			"pending namespace/$NAME: waits until widget.$NAME.example.org/protected is gone, which is still there: ",
		}},
		{"configmap", cm("protected"), []string{
			"failed configmap/$NAME/protected",
			"skipped namespace/$NAME: kept: it holds configmap/$NAME/protected, which is still there: ",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			rest := b.set("{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: $NAME}, rules: []}")
			space := strings.Replace(strings.Split(everything, "---")[0], "name:", "annotations: {gitopsd.dev/allow-prune: 'true'}, name:", 1)
			b.apply(b.set(space + "\n---\n" + widgets + "\n---\n" + tt.object))
			b.protect("DELETE", "oldObject.metadata.name != 'protected'", func() bool {
				code, _ := b.send(http.MethodDelete, b.set(tt.object).All()[0], "", "dryRun=All", "", nil)
				return code >= 400
			})
			for range 2 {
				_, results := b.apply(rest)
				b.wantPrefixes("results", results, tt.want...)
				if b.get(tt.object) == nil {
					t.Fatal("it is lost")
				}
				b.restart()
			}
			b.delete(binding)
			eventually(t, "all is gone", func(context.Context) bool {
				b.apply(rest)
				return b.parent()[kinds] == "ClusterRole.rbac.authorization.k8s.io"
			})
			b.settled(rest)
		})
	}
}

func (b *bed) wantPrefixes(what string, have []string, want ...string) {
	b.t.Helper()
	ok := len(have) == len(want)
	for i := 0; ok && i < len(want); i++ {
		ok = strings.HasPrefix(have[i], want[i])
	}
	if !ok {
		b.t.Fatalf("%s: have\n\t%s\nwant\n\t%s", what, strings.Join(have, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// Objects that are kept until the rest is applied are not lost with their type.
func TestKeptWithItsType(t *testing.T) {
	b := newBed(t)
	space := strings.Split(everything, "---")[0]
	b.apply(b.set(space + "\n---\n" + widgets + "\n---\n" + widget("one", "")))
	bad := b.set(space + "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: Bad, namespace: $NAME}}")
	for range 2 {
		_, results := b.apply(bad)
		b.wantPrefixes("results", results, "failed configmap/$NAME/Bad: ",
			"skipped widget.$NAME.example.org/one: kept until the rest is applied: ",
			"pending customresourcedefinition.apiextensions.k8s.io/widgets.$NAME.example.org: waits until widget.$NAME.example.org/one is gone, which is still there: ")
		if b.get(widget("one", "")) == nil {
			t.Fatal("it is lost")
		}
	}
}

// An object that somebody puts into a type after the plan was made is not lost
// with it.
func TestMeanwhile(t *testing.T) {
	b := newBed(t)
	space := strings.Split(everything, "---")[0]
	b.apply(b.set(space + "\n---\n" + widgets))
	p := b.plan(b.set(space), apply.PlanOptions{})
	b.as("somebody", widget("late", ""))
	r := b.execute(p)
	b.want("results", b.results(r), "skipped customresourcedefinition.apiextensions.k8s.io/widgets.$NAME.example.org: kept: it holds widget.$NAME.example.org/late")
	if b.get(widget("late", "")) == nil {
		t.Fatal("it is lost")
	}
}

// An object is a member until it was seen to be gone, also where the watch tells
// of its deletion before the API server answers.
func TestCrossing(t *testing.T) {
	b := newBed(t)
	space := strings.Split(everything, "---")[0]
	object := widget("one", ", finalizers: [example.org/clean]")
	var notified <-chan struct{}
	b.cluster = b.connect(b.name, func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			resp, err := next.RoundTrip(req)
			if req.Method == http.MethodDelete && strings.HasSuffix(req.URL.Path, "/widgets/one") {
				select {
				case <-notified:
				case <-req.Context().Done():
				}
			}
			return resp, err
		})
	})
	b.restart()
	all := b.set(space + "\n---\n" + widgets + "\n---\n" + object)
	notified = b.follow()
	b.pass(t.Context(), all)
	eventually(t, "nothing is to do", func(ctx context.Context) bool { return b.pass(ctx, all) == 0 })
	for len(notified) > 0 {
		<-notified
	}
	without := b.set(space)
	b.apply(without)
	for range 2 {
		steps, _ := b.apply(without)
		b.want("steps", steps,
			"wait widget.$NAME.example.org/one it is being deleted, held by finalizer example.org/clean",
			"prune customresourcedefinition.apiextensions.k8s.io/widgets.$NAME.example.org")
	}
	if !strings.Contains(b.parent()[kinds], "Widget."+b.name+".example.org") {
		t.Errorf("the inventory has %s", b.parent()[kinds])
	}
	b.edit("controller", object, `{"metadata":{"finalizers":null}}`)
	eventually(t, "all is gone", func(context.Context) bool {
		b.apply(without)
		return b.parent()[kinds] == "Namespace"
	})
}

// Nothing is deleted to be created anew that would not be accepted anew.
func TestReplaceRefused(t *testing.T) {
	for _, tt := range []struct{ name, data, want string }{
		{"invalid", "{'no key!': '1'}", "failed configmap/$NAME/a: cluster $NAME: apply configmap/$NAME/a: "},
		{"not admitted", "{x: forbidden}", "failed configmap/$NAME/a: cluster $NAME: configmap/$NAME/a: create: "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			object := func(data string) string {
				return "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: $NAME, annotations: {gitopsd.dev/replace: 'true'}}, immutable: true, data: " + data + "}"
			}
			space := strings.Split(everything, "---")[0] + "---\n"
			b.apply(b.set(space + object("{x: '1'}")))
			uid := b.uid(cm("a"))
			b.protect("CREATE", "!has(object.data) || !('x' in object.data) || object.data.x != 'forbidden'", func() bool {
				o := b.set("{apiVersion: v1, kind: ConfigMap, metadata: {name: probe, namespace: $NAME}, data: {x: forbidden}}").All()[0]
				code, _ := b.send(http.MethodPatch, o, "", "dryRun=All&fieldManager=probe", "application/apply-patch+yaml", o.AppendJSON(nil))
				return code >= 400
			})
			set := b.set(space + object(tt.data))
			p := b.plan(set, apply.PlanOptions{DryRun: true})
			if s := p.Steps[len(p.Steps)-1]; s.Rejected == "" {
				t.Errorf("the plan says %s %s (%s)", s.Action, s.ID, s.Reason)
			}
			_, results := b.apply(set)
			b.wantPrefixes("results", results, tt.want)
			if have := b.uid(cm("a")); have != uid {
				t.Fatalf("UID %q, want %q", have, uid)
			}
			_, results = b.apply(b.set(space + object("{x: '2'}")))
			b.wantNothing("results", results)
			if have := b.uid(cm("a")); have == uid || have == "" {
				t.Error("it was not replaced")
			}
		})
	}
}

// Objects of a type that is not served for a while stay in the inventory, and in
// the cluster.
func TestNotServed(t *testing.T) {
	b := newBed(t)
	space := strings.Split(everything, "---")[0]
	crd := strings.Split(everything, "---")[6]
	served := func(yes bool) {
		b.patch("somebody", crd, "application/json-patch+json", fmt.Sprintf(`[{"op":"replace","path":"/spec/versions/0/served","value":%t}]`, yes))
		c := b.connect(b.name, nil)
		eventually(t, "what is served changes", func(ctx context.Context) bool {
			c.Refresh()
			c.Forget(b.name + ".example.org")
			_, err := c.Kind(ctx, b.name+".example.org", "Widget")
			return (err == nil) == yes && (err == nil || kube.ClassOf(err) == kube.NoSuchType)
		})
	}
	b.as("somebody", crd)
	served(true)
	_, results := b.apply(b.set(space + "\n---\n" + widget("one", "")))
	b.wantNothing("results", results)
	served(false)
	for range 2 {
		p := b.plan(b.set(space), apply.PlanOptions{})
		if len(p.Unreadable) != 1 {
			t.Errorf("unreadable: %v", p.Unreadable)
		}
		b.execute(p)
		if have := b.short(b.parent()[kinds]); have != "Namespace,Widget.$NAME.example.org" {
			t.Fatalf("the inventory has %s", have)
		}
		b.restart()
	}
	served(true)
	steps, results := b.apply(b.set(space))
	b.wantNothing("results", results)
	b.want("steps", steps, "prune widget.$NAME.example.org/one")
	b.settled(b.set(space))

	// And its CRD stays when that is to go.
	b.apply(b.set(space + "\n---\n" + strings.Replace(crd, "metadata: {", "metadata: {annotations: {gitopsd.dev/adopt: 'true'}, ", 1)))
	b.edit("somebody", crd, `{"metadata":{"annotations":{"gitopsd.dev/adopted":null}}}`) // or it stays anyway
	b.as("somebody", widget("theirs", ""))
	served(false)
	steps, _ = b.apply(b.set(space))
	b.wantPrefixes("steps", steps, "held customresourcedefinition.apiextensions.k8s.io/widgets.$NAME.example.org kept: its contents are not known: ")
	served(true)
	if b.get(widget("theirs", "")) == nil {
		t.Fatal("it is lost")
	}
}

// A namespace stays while an API that does not answer may have objects in it.
func TestStaleAPI(t *testing.T) {
	b := newBed(t)
	b.cluster = b.connect(b.name, stale)
	b.restart()
	rest := b.set("{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: $NAME}, rules: []}")
	b.apply(b.set(two))
	steps, _ := b.apply(rest)
	b.want("steps", steps, "create clusterrole.rbac.authorization.k8s.io/$NAME", "prune configmap/$NAME/a", "prune configmap/$NAME/b",
		`held namespace/$NAME kept: its contents are not known: the API backups.example.org/v1 does not answer; to prune it all the same, annotate it with gitopsd.dev/allow-prune: "true"`)
}

// stale adds an aggregated API that was never reached to the API server's discovery.
func stale(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(req)
		if err != nil || req.URL.Path != "/apis" || resp.StatusCode != http.StatusOK {
			return resp, err
		}
		defer resp.Body.Close()
		var doc map[string]any
		if err := json.NewDecoder(resp.Body).Decode(&doc); err != nil {
			return nil, err
		}
		items, _ := doc["items"].([]any)
		doc["items"] = append(items, map[string]any{
			"metadata": map[string]any{"name": "backups.example.org"},
			"versions": []any{map[string]any{"version": "v1", "freshness": "Stale"}},
		})
		body, err := json.Marshal(doc)
		if err != nil {
			return nil, err
		}
		resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		return resp, nil
	})
}
