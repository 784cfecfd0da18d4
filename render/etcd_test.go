package render

import (
	"strings"
	"testing"

	"gitopsd.dev/render/etcd"
	"gitopsd.dev/render/manifest"
)

const etcdNamespace = "apiVersion: gitopsd.dev/v1alpha1\nkind: EtcdNamespace\nmetadata: {name: sample, namespace: default}\nspec: {caConfigMaps: [{name: ca}]}\n---\n"

// A declaration comes with its definition and a proxy. With an error, all of these stay
// unchanged in the cluster.
func TestEtcd(t *testing.T) {
	t.Parallel()
	id := manifest.EtcdNamespace.ID("default", "sample")
	deployment := manifest.Deployment.ID("default", "sample-etcd")
	definition := manifest.CRD.ID("", "etcdnamespaces.gitopsd.dev")
	twice := strings.Replace(etcdNamespace, "name: sample", "name: other", 1)
	for _, tt := range []struct {
		name, stream, err string
		image             string
		found             bool
	}{
		{"as it should be", etcdNamespace, "", "example.org/gitopsd:v1", true},
		{"without a proxy", etcdNamespace, "it needs a proxy: set spec.etcd of the Cluster, to proxy: {image: <image of gitopsd>} for one in the cluster", "", false},
		{"with a typing error", strings.Replace(etcdNamespace, "caConfigMaps", "caConfigMap", 1), "c/all.yaml:5: etcdnamespace.gitopsd.dev/default/sample: spec.caConfigMap: is not a field here; did you mean caConfigMaps?", "example.org/gitopsd:v1", false},
		{"of a kind with a typing error", etcdNamespace + strings.Replace(twice, "EtcdNamespace", "EtcdNameSpaces", 1), "kind: EtcdNameSpaces is not known; did you mean EtcdNamespace?", "example.org/gitopsd:v1", true},
		{"with somebody else's ConfigMap", etcdNamespace + twice, "configmap/default/ca is written for etcdnamespace.gitopsd.dev/", "example.org/gitopsd:v1", true},
		{"with a manifest of what is written", etcdNamespace + "{apiVersion: v1, kind: ConfigMap, metadata: {name: ca, namespace: default}}\n---\n", "configmap/default/ca: gitopsd writes it for etcdnamespace.gitopsd.dev/default/sample; rename the object", "example.org/gitopsd:v1", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := input(t, plainObject+tt.stream)
			in.Etcd = etcd.Proxy{Image: tt.image}
			r, err := expand(t, new(Renderer), in, nil)
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("error %v\nwant one with %s", err, tt.err)
			}
			if r.Objects.Get(definition) == nil || r.Objects.Get(manifest.Namespace.ID("", "gitopsd-system")) == nil {
				t.Error("definition or namespace are missing")
			}
			if strings.Contains(tt.err, "is written for") {
				return // which of the two comes first does not matter
			}
			for _, id := range []manifest.ID{id, deployment} {
				if found := r.Objects.Get(id) != nil; found != tt.found || r.Keeps(id, "") == tt.found {
					t.Errorf("%s: rendered %t, kept %t", id, found, r.Keeps(id, ""))
				}
			}
			if r.Keeps(manifest.Deployment.ID("default", "plain"), "") || r.Objects.Get(manifest.ConfigMap.ID("default", "plain")) == nil {
				t.Error("other objects are affected")
			}
		})
	}
	// Where the daemon serves, nothing runs in the cluster.
	in := input(t, plainObject+etcdNamespace)
	in.Etcd = etcd.Proxy{URL: "https://gitopsd.example.org:2379"}
	r, err := expand(t, new(Renderer), in, nil)
	if err != nil || r.Objects.Get(id) == nil || r.Objects.Get(definition) == nil || r.Objects.Get(deployment) != nil || r.Keeps(deployment, "") {
		t.Errorf("by the daemon: %v, %v", r, err)
	}
	r, err = expand(t, new(Renderer), input(t, plainObject), nil)
	if err != nil || r.Objects.Len() != 1 {
		t.Errorf("without declarations: %d objects, %v", r.Objects.Len(), err)
	}
}
