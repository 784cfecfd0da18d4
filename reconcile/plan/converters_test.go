package plan_test

import (
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/render/conversion/bundle"
	"gitopsd.dev/render/converter"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
)

// convertedBy returns widgets with conversion by rules, in the cluster or by URL.
func convertedBy(digest, client string) string {
	return strings.NewReplacer("metadata: {name: widgets.e.org}", "metadata: {name: widgets.e.org, annotations: {gitopsd.dev/conversion: '"+digest+"'}}",
		"scope: Namespaced", "scope: Namespaced, conversion: {strategy: Webhook, webhook: {clientConfig: {"+client+"}}}").Replace(widgets)
}

const (
	byService = "service: {namespace: gitopsd-system, name: gitopsd-conversion}"
	byURL     = "url: 'https://gitopsd.example.org/convert'"
)

func rulesMap(digest string) string {
	return "{apiVersion: v1, kind: ConfigMap, metadata: {name: " + bundle.ID("widgets.e.org", digest).Name + ", namespace: gitopsd-system}}\n---\n"
}

// A definition names new rules once the workload that serves them is ready. The rules of
// the live definition are kept while it stays as it is.
func TestConverters(t *testing.T) {
	t.Parallel()
	const (
		workload = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: gitopsd-conversion, namespace: gitopsd-system}, spec: {template: {metadata: {labels: {app: c}}}}}\n---\n"
		service  = "{apiVersion: v1, kind: Service, metadata: {name: gitopsd-conversion, namespace: gitopsd-system}, spec: {selector: {app: c}}}\n---\n"
		server   = workload + service
		crd      = "customresourcedefinition.apiextensions.k8s.io/widgets.e.org"
		waits    = "applied once deployment.apps/gitopsd-system/gitopsd-conversion is ready, which converts its objects"
		kept     = "kept: " + crd + " names conversion rules that need it"
	)
	one, two := bundle.ID("widgets.e.org", "h1:AAAA").String(), bundle.ID("widgets.e.org", "h1:BBBB").String()
	for _, tt := range []struct {
		name, desired, live string
		keeps               bool // whatever is not desired
		want                string
	}{
		{
			name: "new", desired: widget + convertedBy("h1:AAAA", byService) + server + rulesMap("h1:AAAA"),
			want: "create " + one + "\ncreate service/gitopsd-system/gitopsd-conversion\ncreate deployment.apps/gitopsd-system/gitopsd-conversion\ncreate " + crd + " " + waits + "\ncreate widget.e.org/ns/a\n",
		},
		{
			name: "the first rules", desired: convertedBy("h1:AAAA", byService) + server + rulesMap("h1:AAAA"), live: widgets,
			want: "create " + one + "\ncreate service/gitopsd-system/gitopsd-conversion\ncreate deployment.apps/gitopsd-system/gitopsd-conversion\nconfigure " + crd + " changed in the repository; " + waits + "\n",
		},
		{
			name: "other rules", desired: convertedBy("h1:BBBB", byService) + server + rulesMap("h1:BBBB"), live: convertedBy("h1:AAAA", byService) + server + rulesMap("h1:AAAA"),
			want: "create " + two + "\nunchanged service/gitopsd-system/gitopsd-conversion\nunchanged deployment.apps/gitopsd-system/gitopsd-conversion\nconfigure " + crd + " changed in the repository; " + waits + "\nprune " + one + "\n",
		},
		{
			name: "the same rules and another description", desired: strings.Replace(convertedBy("h1:AAAA", byService), "type: object", "type: object, description: a", 1) + server + rulesMap("h1:AAAA"), live: convertedBy("h1:AAAA", byService) + server + rulesMap("h1:AAAA"),
			want: "unchanged " + one + "\nunchanged service/gitopsd-system/gitopsd-conversion\nunchanged deployment.apps/gitopsd-system/gitopsd-conversion\nconfigure " + crd + " changed in the repository\n",
		},
		{
			name: "by URL", desired: convertedBy("h1:AAAA", byURL) + rulesMap("h1:AAAA"), live: widgets,
			want: "create " + one + "\nconfigure " + crd + " changed in the repository\n",
		},
		{
			name: "by URL now", desired: convertedBy("h1:AAAA", byURL) + rulesMap("h1:AAAA"), live: convertedBy("h1:AAAA", byURL) + server + rulesMap("h1:AAAA"),
			want: "unchanged " + one + "\nunchanged " + crd + "\nprune deployment.apps/gitopsd-system/gitopsd-conversion\nprune service/gitopsd-system/gitopsd-conversion\n",
		},
		{
			name: "no rules any more", desired: widgets, live: convertedBy("h1:AAAA", byService) + server + rulesMap("h1:AAAA") + rulesMap("h1:BBBB"),
			want: "configure " + crd + " changed in the repository\nprune deployment.apps/gitopsd-system/gitopsd-conversion\nprune service/gitopsd-system/gitopsd-conversion\nprune " + one + "\nprune " + two + "\n",
		},
		{
			name: "a definition that may be wanted", desired: cm, live: convertedBy("h1:AAAA", byService) + server + rulesMap("h1:AAAA") + rulesMap("h1:BBBB"), keeps: true,
			want: "create configmap/ns/a\nheld " + crd + " kept: errors in the repository leave open whether it is wanted\nheld deployment.apps/gitopsd-system/gitopsd-conversion " + kept +
				"\nheld service/gitopsd-system/gitopsd-conversion " + kept + "\nheld " + one + " " + kept + "\nprune " + two + "\n",
		},
		{
			name: "removed with the definition", desired: cm, live: convertedBy("h1:AAAA", byService) + server + rulesMap("h1:AAAA"),
			want: "create configmap/ns/a\nprune " + crd + "\nprune deployment.apps/gitopsd-system/gitopsd-conversion\nprune service/gitopsd-system/gitopsd-conversion\nprune " + one + "\n",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			opts := plan.Options{}
			if tt.keeps {
				opts.Keeps = func(id manifest.ID, _ string) bool { return id.Is(manifest.CRD) }
			}
			p := plan.Compute("prod", manifesttest.Set(t, tt.desired), live(t, tt.live, nil), inventory, opts)
			have := steps(p)
			if !slices.Equal(slices.Sorted(strings.SplitSeq(have, "\n")), slices.Sorted(strings.SplitSeq(tt.want, "\n"))) {
				t.Errorf("have\n%s\nwant\n%s", have, tt.want)
			}
			at := func(id string) int { return strings.Index(have, id) }
			deployment := converter.Workload().String()
			if strings.Contains(have, "create "+deployment) && !(at(one) < at("create "+deployment) && at("create "+deployment) < at(crd)) ||
				strings.Contains(have, "prune "+deployment) && at(crd) > at("prune "+deployment) {
				t.Errorf("the order is\n%s", have)
			}
		})
	}
}
