package clusters

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

const valid = `# the fleet
apiVersion: gitopsd.dev/v1alpha1
kind: Cluster
metadata:
  name: hub
  labels: {env: dev, example.org/Zone: a_1, gitopsd.dev.example.org/x: '', n: 1}
spec:
  path: ./clusters/hub/
  kubeconfig: {file: hub.yaml}
---
apiVersion: gitopsd.dev/v1alpha1
kind: Cluster
metadata: {name: prod-eu}
spec:
  path: clusters/prod-eu
  kubeconfig:
    secretRef: {name: prod-eu}
  context: admin
  serviceAccount: gitopsd
  dependsOn: [hub]
  drift: report
  breaking: data
  suspend: true
  unknownHealth: unready
  health:
  - group: example.org
    kind: Gadget
    current: status.phase == 'Ready'
    failed: status.phase == 'Broken'
  patches:
  - target: {kind: CustomResourceDefinition, name: .*}
    patch: |
      - op: add
        path: /metadata/annotations/team
        value: platform
`

func TestParse(t *testing.T) {
	r, err := Parse("clusters.yaml", []byte(valid))
	if err != nil {
		t.Fatal(err)
	}
	want := []Cluster{
		{Name: "hub", Labels: map[string]string{"env": "dev", "example.org/Zone": "a_1", "gitopsd.dev.example.org/x": "", "n": "1"}, Line: 2, Spec: Spec{
			Path: "clusters/hub", Kubeconfig: Kubeconfig{File: "hub.yaml"}, Packages: Expand, Drift: Correct, Pins: Check, Breaking: Schema, UnknownHealth: Ready}},
		{Name: "prod-eu", Line: 11, Spec: Spec{
			Path: "clusters/prod-eu", Kubeconfig: Kubeconfig{SecretRef: &SecretRef{Name: "prod-eu"}}, Context: "admin",
			ServiceAccount: "gitopsd-system/gitopsd", Packages: Expand, DependsOn: []string{"hub"}, Drift: Report, Pins: Check, Breaking: Data, Suspend: true, UnknownHealth: Unready,
			Health: []HealthRule{{Group: "example.org", Kind: "Gadget", Current: "status.phase == 'Ready'", Failed: "status.phase == 'Broken'", Line: 26}},
			Patches: []Patch{{
				Target: &Selector{Kind: "CustomResourceDefinition", Name: ".*"},
				Patch:  "- op: add\n  path: /metadata/annotations/team\n  value: platform\n", Line: 31,
			}}}},
	}
	if !reflect.DeepEqual(r.Clusters, want) {
		t.Errorf("have %+v\nwant %+v", r.Clusters, want)
	}
}

// Each fault is a line in error, with file, line and key, and takes its own
// document with it and no other.
func TestParseFaults(t *testing.T) {
	cluster := func(lines ...string) string {
		return "apiVersion: gitopsd.dev/v1alpha1\nkind: Cluster\n" + strings.Join(lines, "\n") + "\n"
	}
	const meta, where, creds = "metadata: {name: bad}", "  path: clusters/bad", "  kubeconfig: {file: bad.yaml}"
	for _, tt := range []struct {
		name, doc string
		want      string
	}{
		{name: "unknown key", doc: cluster(meta, "spec:", where, creds, "  supend: true"), want: "clusters.yaml:7: supend: is not a field here; did you mean suspend?"},
		{name: "tab", doc: cluster(meta, "spec:", where, "\tkubeconfig: {file: bad.yaml}"), want: "clusters.yaml:6: the indentation has a tab; YAML takes spaces alone"},
		{name: "alias without an anchor", doc: cluster(meta, "spec:", where, "  kubeconfig: {file: *bad}"), want: "an alias has no anchor; quote a text that begins with *"},
		{name: "conflict", doc: cluster("<<<<<<< HEAD", meta, "=======", "metadata: {name: worse}", ">>>>>>> theirs", "spec:", where, creds), want: "clusters.yaml:3: Git left a merge conflict here"},
		{name: "misspelt annotation", doc: cluster("metadata:", "  name: bad", "  annotations:", "    example.org/any: x", "    gitopsd.dev/alow-prune: '3'", "spec:", where, creds), want: "clusters.yaml:7: metadata.annotations.gitopsd.dev/alow-prune: is no annotation of a Cluster; did you mean gitopsd.dev/allow-prune?"},
		{name: "list that is not quoted", doc: cluster("metadata:", "  name: bad", "  annotations: {gitopsd.dev/adopt: flux, helm/r1}", "spec:", where, creds), want: `clusters.yaml:5: metadata.annotations.helm/r1: has no value: if it is a part of the value before a comma, quote the whole value; else write "" for an empty one`},
		{name: "list with a line without a value", doc: cluster("metadata: {name: bad}", "spec:", where, creds, "  dependsOn:", "  - # staging"), want: "clusters.yaml:8: spec.dependsOn.0: has no value: write one, or remove the line"},
		{name: "label without a value", doc: cluster("metadata:", "  name: bad", "  labels:", "    tier:", "spec:", where, creds), want: "clusters.yaml:6: metadata.labels.tier: has no value"},
		{name: "unknown annotation", doc: cluster("metadata: {name: bad, annotations: {gitopsd.dev/whatever: x}}", "spec:", where, creds), want: "is no annotation of a Cluster; there are gitopsd.dev/actors, gitopsd.dev/adopt, gitopsd.dev/allow-prune, gitopsd.dev/remove"},
		{name: "wrong type", doc: cluster(meta, "spec:", where, creds, "  suspend: maybe"), want: "clusters.yaml:7: a str (maybe) stands where true or false is wanted"},
		{name: "syntax", doc: cluster(meta, "spec: ["), want: "clusters.yaml:"},
		{name: "Latin-1", doc: cluster(meta, "spec:", where, "# caf\xe9", creds), want: "clusters.yaml:6: not valid UTF-8: save the file as UTF-8"},
		{name: "end instead of a marker", doc: cluster(meta, "spec:", where, creds, "...", "apiVersion: gitopsd.dev/v1alpha1"), want: "clusters.yaml:7: the document ends here: begin another one with a line of ---"},
		{name: "old Macintosh", doc: strings.ReplaceAll(cluster(meta, "spec:", where, creds)+"---\n"+cluster(meta, "spec:", where, creds), "\n", "\r") + "\n", want: "the document ends here"},
		{name: "list", doc: "- a\n", want: "clusters.yaml:1: a document must be a mapping"},
		{name: "apiVersion", doc: "apiVersion: v1\nkind: Cluster\n" + meta + "\nspec:\n" + where + "\n" + creds + "\n", want: `clusters.yaml:1: apiVersion: "v1"; this file holds gitopsd.dev/v1alpha1`},
		{name: "kind", doc: "apiVersion: gitopsd.dev/v1alpha1\nkind: Clutser\n" + meta + "\nspec:\n" + where + "\n" + creds + "\n", want: `clusters.yaml:2: kind: "Clutser"`},
		{name: "rollout", doc: "apiVersion: gitopsd.dev/v1alpha1\nkind: Rollout\nmetadata: {name: x}\nspec: {waves: []}\n", want: "clusters.yaml:2: kind: Rollout is not supported by this version"},
		{name: "no name", doc: cluster("spec:", where, creds), want: `metadata.name: "" is no cluster name`},
		{name: "name", doc: cluster("metadata: {name: Bad_Name}", "spec:", where, creds), want: `clusters.yaml:3: metadata.name: "Bad_Name" is no cluster name`},
		{name: "no path", doc: cluster(meta, "spec:", creds), want: "clusters.yaml:4: spec.path: is missing"},
		{name: "path leaves", doc: cluster(meta, "spec:", "  path: clusters/../../etc", creds), want: `clusters.yaml:5: spec.path: "clusters/../../etc" leaves the repository`},
		{name: "absolute path", doc: cluster(meta, "spec:", "  path: /etc", creds), want: `spec.path: "/etc" leaves the repository`},
		{name: "label that is none", doc: cluster("metadata:", "  name: bad", "  labels:", "    env: dev", "    a b: c", "spec:", where, creds), want: `clusters.yaml:7: metadata.labels: "a b": name part must consist of`},
		{name: "label with a value that is none", doc: cluster("metadata:", "  name: bad", "  labels:", "    env: dev", "    zone: x y!", "spec:", where, creds), want: `clusters.yaml:7: metadata.labels.zone: "x y!": a valid label must be`},
		{name: "label of gitopsd", doc: cluster("metadata:", "  name: bad", "  labels:", "    gitopsd.dev/package: a", "spec:", where, creds), want: "clusters.yaml:6: metadata.labels.gitopsd.dev/package: is gitopsd's own to set"},
		{name: "label of an inventory", doc: cluster("metadata:", "  name: bad", "  labels:", "    applyset.kubernetes.io/part-of: a", "spec:", where, creds), want: "clusters.yaml:6: metadata.labels.applyset.kubernetes.io/part-of: is gitopsd's own to set"},
		{name: "no credentials", doc: cluster(meta, "spec:", where), want: "spec.kubeconfig: has 0 of secretRef, clusterProfileRef, file and inCluster"},
		{name: "no ClusterProfile", doc: cluster(meta, "spec:", where, "  kubeconfig: {clusterProfileRef: {name: a/b}}"), want: `spec.kubeconfig.clusterProfileRef: "a/b" is no name of a ClusterProfile`},
		{name: "two credentials", doc: cluster(meta, "spec:", where, "  kubeconfig: {file: a, inCluster: true}"), want: "clusters.yaml:6: spec.kubeconfig: has 2 of"},
		{name: "file leaves", doc: cluster(meta, "spec:", where, "  kubeconfig: {file: ../a}"), want: `clusters.yaml:6: spec.kubeconfig.file: "../a" leaves`},
		{name: "drift", doc: cluster(meta, "spec:", where, creds, "  drift: fix"), want: `clusters.yaml:7: spec.drift: "fix"; use correct or report`},
		{name: "breaking", doc: cluster(meta, "spec:", where, creds, "  breaking: never"), want: `clusters.yaml:7: spec.breaking: "never"; use schema or data`},
		{name: "packages", doc: cluster(meta, "spec:", where, creds, "  packages: ignore"), want: `clusters.yaml:7: spec.packages: "ignore"; use expand or delegate`},
		{name: "publish to no namespace", doc: cluster(meta, "spec:", where, creds, "  publish:", "  - {cluster: good, role: edit}"), want: `clusters.yaml:8: spec.publish.0.namespace: "" is no name of a namespace`},
		{name: "publish to gitopsd's own namespace", doc: cluster(meta, "spec:", where, creds, "  publish:", "  - {cluster: bad, namespace: gitopsd-system, role: edit}"), want: `clusters.yaml:8: spec.publish.0.namespace: gitopsd keeps its own credentials in namespace gitopsd-system`},
		{name: "publish to no cluster", doc: cluster(meta, "spec:", where, creds, "  publish:", "  - {namespace: a, role: edit}"), want: `clusters.yaml:8: spec.publish.0.cluster: "" is no cluster name`},
		{name: "publish to a stranger", doc: cluster(meta, "spec:", where, creds, "  publish:", "  - {cluster: nobody, namespace: a, role: edit}"), want: `clusters.yaml:8: spec.publish.0.cluster: cluster bad is published to "nobody", which is not registered`},
		{name: "publish without a role", doc: cluster(meta, "spec:", where, creds, "  publish:", "  - {cluster: bad, namespace: a}"), want: "clusters.yaml:8: spec.publish.0.role: is missing: name the ClusterRole"},
		{name: "publish with a strange role", doc: cluster(meta, "spec:", where, creds, "  publish:", "  - {cluster: bad, namespace: a, role: a/b}"), want: `spec.publish.0.role: "a/b" is no name of a ClusterRole`},
		{name: "publish with a role and credentials", doc: cluster(meta, "spec:", where, creds, "  publish:", "  - {cluster: bad, namespace: a, role: edit, credentials: connection}"), want: "spec.publish.0.role: means nothing with credentials: connection"},
		{name: "publish other credentials", doc: cluster(meta, "spec:", where, creds, "  publish:", "  - {cluster: bad, namespace: a, role: edit, credentials: mine}"), want: `spec.publish.0.credentials: "mine"; use token or connection`},
		{name: "publish what it has not", doc: cluster(meta, "spec:", where, "  kubeconfig: {inCluster: true}", "  publish:", "  - {cluster: bad, namespace: a, credentials: connection}"), want: "spec.publish.0.credentials: connection needs a kubeconfig"},
		{name: "publish more than it uses", doc: cluster(meta, "spec:", where, creds, "  serviceAccount: limited", "  publish:", "  - {cluster: bad, namespace: a, credentials: connection}"), want: "spec.publish.0.credentials: connection would hand out more"},
		{name: "publish twice", doc: cluster(meta, "spec:", where, creds, "  publish:", "  - {cluster: bad, namespace: a, role: edit}", "  - {cluster: bad, namespace: a, role: view}"), want: "clusters.yaml:9: spec.publish.1.namespace: a of cluster bad is at line 8 already"},
		{name: "publish a target", doc: cluster(meta, "spec:", where, creds, "  publish:", "  - {cluster: bad, namespace: a, role: edit, target: no}"), want: "spec.publish.0.target"},
		{name: "publish as misspelt", doc: cluster(meta, "spec:", where, creds, "  publish:", "  - {cluster: bad, namespce: a, role: edit}"), want: "clusters.yaml:8: namespce: is not a field here; did you mean namespace?"},
		{name: "empty patch", doc: cluster(meta, "spec:", where, creds, "  patches:", "  - target: {kind: A}"), want: "clusters.yaml:8: spec.patches.0.patch: is missing"},
		{name: "health of nothing", doc: cluster(meta, "spec:", where, creds, "  health:", "  - {current: 'true'}"), want: "clusters.yaml:8: spec.health.0.kind: is missing"},
		{name: "health without rule", doc: cluster(meta, "spec:", where, creds, "  health:", "  - {kind: A}"), want: "clusters.yaml:8: spec.health.0.current: is missing"},
		{name: "health twice", doc: cluster(meta, "spec:", where, creds, "  health:", "  - {kind: A, current: 'true'}", "  - {kind: A, current: 'true'}"), want: "clusters.yaml:9: spec.health.1.kind: A has a rule at line 8 already"},
		{name: "health of a version", doc: cluster(meta, "spec:", where, creds, "  health:", "  - {group: a.b/v1, kind: A, current: 'true'}"), want: "leave the version out"},
		{name: "health as Flux has it", doc: cluster(meta, "spec:", where, creds, "  health:", "  - {apiVersion: a.b/v1, kind: A, current: 'true'}"), want: "clusters.yaml:8: apiVersion: is not a field here"},
		{name: "certificates", doc: cluster(meta, "spec:", where, creds, "  certificates: {authority: My_CA}"), want: `clusters.yaml:7: spec.certificates.authority: "My_CA" is no name of a Secret`},
		{name: "certificates of a file", doc: cluster(meta, "spec:", where, creds, "  certificates: {file: ca.pem}"), want: "clusters.yaml:7: file: is not a field here"},
		{name: "conversion", doc: cluster(meta, "spec:", where, creds, "  conversion: {}"), want: "clusters.yaml:7: spec.conversion: want either service: {image: <image of gitopsd>}, for a server in the cluster, or url: https://"},
		{name: "conversion twice", doc: cluster(meta, "spec:", where, creds, "  conversion:", "    url: https://a", "    service: {image: 'a.b/c:d'}"), want: "clusters.yaml:7: spec.conversion: want either"},
		{name: "conversion without image", doc: cluster(meta, "spec:", where, creds, "  conversion:", "    service: {replicas: 3}"), want: "clusters.yaml:8: spec.conversion.service.image: is missing"},
		{name: "conversion by any image", doc: cluster(meta, "spec:", where, creds, "  conversion:", "    service: {image: ghcr.io/a/b}"), want: `spec.conversion.service.image: "ghcr.io/a/b" is no image with a tag or a digest`},
		{name: "conversion without replicas", doc: cluster(meta, "spec:", where, creds, "  conversion:", "    service:", "      image: a.b/c:d", "      replicas: 0"), want: "clusters.yaml:10: spec.conversion.service.replicas: 0; want 1 at least"},
		{name: "conversion by too many replicas", doc: cluster(meta, "spec:", where, creds, "  conversion:", "    service:", "      image: a.b/c:d", "      replicas: 4000000000"), want: "spec.conversion.service.replicas: 4000000000; want 100 at most"},
		{name: "conversion by a path that gets lost", doc: cluster(meta, "spec:", where, creds, "  conversion: {url: 'https://a/b/../c'}"), want: `its path has . or .. or an empty part, which is lost on the way: write /c`},
		{name: "conversion at no port", doc: cluster(meta, "spec:", where, creds, "  conversion: {url: 'https://a:99999'}"), want: `spec.conversion.url: "https://a:99999"; 99999 is no port`},
		{name: "conversion over http", doc: cluster(meta, "spec:", where, creds, "  conversion:", "    url: http://a"), want: `clusters.yaml:8: spec.conversion.url: "http://a"; want https://<host>`},
		{name: "conversion with a query", doc: cluster(meta, "spec:", where, creds, "  conversion: {url: 'https://a/b?c'}"), want: "clusters.yaml:7: spec.conversion.url: has a user, a query or a fragment"},
		{name: "etcd", doc: cluster(meta, "spec:", where, creds, "  etcd: {}"), want: "clusters.yaml:7: spec.etcd: want proxy: {image: <image of gitopsd>}"},
		{name: "etcd of no name", doc: cluster(meta, "spec:", where, creds, "  etcd: {namespace: a/b}"), want: `clusters.yaml:7: spec.etcd.namespace: "a/b"; want at most 63 lower-case letters`},
		{name: "etcd of a typing error", doc: cluster(meta, "spec:", where, creds, "  etcd: {namesapce: a}"), want: "clusters.yaml:7: namesapce: is not a field here; did you mean namespace?"},
		{name: "etcd without image", doc: cluster(meta, "spec:", where, creds, "  etcd:", "    proxy: {replicas: 3}"), want: "clusters.yaml:8: spec.etcd.proxy.image: is missing"},
		{name: "etcd without replicas", doc: cluster(meta, "spec:", where, creds, "  etcd:", "    proxy: {image: 'a.b/c:d', replicas: 0}"), want: "clusters.yaml:8: spec.etcd.proxy.replicas: 0; want 1 at least, since API servers"},
		{name: "etcd of the daemon by grpc-go", doc: cluster(meta, "spec:", where, creds, "  etcd:", "    proxy: {grpcGo: true, url: 'https://a.b:2379'}"), want: "clusters.yaml:8: spec.etcd.proxy: want either image, for a proxy in the cluster, or url"},
		{name: "etcd of two proxies", doc: cluster(meta, "spec:", where, creds, "  etcd:", "    proxy: {image: 'a.b/c:d', url: 'https://a.b:2379'}"), want: "clusters.yaml:8: spec.etcd.proxy: want either image, for a proxy in the cluster, or url"},
		{name: "etcd of a proxy without a port", doc: cluster(meta, "spec:", where, creds, "  etcd:", "    proxy: {url: 'https://a.b'}"), want: "clusters.yaml:8: spec.etcd.proxy.url: want https://<host>:<port>"},
		{name: "etcd of a proxy with a path", doc: cluster(meta, "spec:", where, creds, "  etcd:", "    proxy: {url: 'https://a.b:2379/c'}"), want: "clusters.yaml:8: spec.etcd.proxy.url: want https://<host>:<port>"},
		{name: "etcd twice", doc: cluster(meta, "spec:", where, creds, "  etcd: {namespace: a}") + "---\n" + cluster("metadata: {name: worse}", "spec:", where, creds, "  etcd: {namespace: a}"), want: `clusters.yaml:9: spec.etcd.namespace: cluster worse names "a", which is the key space of cluster bad (line 1): name another`},
		{name: "conversion of a typing error", doc: cluster(meta, "spec:", where, creds, "  conversion: {uri: 'https://a'}"), want: "clusters.yaml:7: uri: is not a field here; did you mean url?"},
		{name: "unknownHealth", doc: cluster(meta, "spec:", where, creds, "  unknownHealth: yes"), want: "clusters.yaml:7"},
		{name: "dependsOn", doc: cluster(meta, "spec:", where, creds, "  dependsOn: [nobody]"), want: `cluster bad waits for "nobody", which is not registered`},
		{name: "depends on itself", doc: cluster(meta, "spec:", where, creds, "  dependsOn: [bad]"), want: "clusters wait for each other: bad -> bad"},
		{name: "twice", doc: cluster(meta, "spec:", where, creds) + "---\n" + cluster(meta, "spec:", where, creds), want: `clusters.yaml:10: metadata.name: "bad" is the name of the cluster at line 3 already`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := Parse("clusters.yaml", []byte(tt.doc+"---\n"+valid))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v\nwant one with %q", err, tt.want)
			}
			var names []string
			for _, c := range r.Clusters {
				names = append(names, c.Name)
			}
			if !slices.Equal(names, []string{"hub", "prod-eu"}) {
				t.Errorf("clusters %v go on, want hub and prod-eu", names)
			}
			if r.Removed("hub") || r.Removed("gone") {
				t.Error("a cluster was removed by a file with errors")
			}
		})
	}
}

// The Packages document says for the whole fleet what decides about breaking changes. If it
// cannot be read, that is the strict one.
func TestBreaking(t *testing.T) {
	packages := func(spec string) string {
		return "---\napiVersion: gitopsd.dev/v1alpha1\nkind: Packages\nspec: " + spec + "\n"
	}
	for _, tt := range []struct{ packages, hub, want string }{
		{"", Schema, ""},
		{packages("{breaking: data}"), Data, ""},
		{packages("{breaking: schema}"), Schema, ""},
		{packages("{breaking: objects}"), Schema, `clusters.yaml:39: spec.breaking: "objects"; use schema or data`},
		{packages("{breaking: data, exclude: [{}]}"), Schema, "spec.exclude.0"},
		{packages("{breaking: data}") + packages("{breaking: data}"), Schema, "there is a Packages document at line"},
	} {
		r, err := Parse("clusters.yaml", []byte(valid+tt.packages))
		if (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error %v, want %q", tt.packages, err, tt.want)
		}
		for name, want := range map[string]string{"hub": tt.hub, "prod-eu": Data} {
			if c, _ := r.Get(name); c.Spec.Breaking != want {
				t.Errorf("%s: %s has %q, want %q", tt.packages, name, c.Spec.Breaking, want)
			}
		}
	}
}

func TestBrokenClusterIsNotRemoved(t *testing.T) {
	r, err := Parse("clusters.yaml", []byte(strings.Replace(valid, "  path: clusters/prod-eu", "  paht: clusters/prod-eu", 1)))
	if err == nil || r.Removed("prod-eu") || !slices.Equal(r.Broken, []string{"prod-eu"}) {
		t.Errorf("removed %t, broken %v, error %v", r.Removed("prod-eu"), r.Broken, err)
	}
	if r, err := Parse("clusters.yaml", []byte(valid)); err != nil || !r.Removed("staging") || r.Removed("hub") {
		t.Errorf("a cluster that is in no document was not removed, or one that is was: %v", err)
	}
}

// An incomplete file removes no cluster.
func TestNotWhole(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"empty", "", "clusters.yaml:1: registers no cluster, which is taken for an accident: every cluster is left as it is; restore a document, or stop the daemon"},
		{"comments", "# the fleet\n---\n# to come\n", "clusters.yaml:1: registers no cluster"},
		{"null", "---\nnull\n", "clusters.yaml:1: registers no cluster"},
		{"UTF-16", "\xff\xfe" + strings.Join(strings.Split(valid, ""), "\x00") + "\x00", "clusters.yaml:1: the file is in UTF-16; save it as UTF-8"},
		{"cut off after a marker", valid + "---\n", "clusters.yaml:36: the file ends where a document begins"},
		{"cut off in a marker's document", valid + "---\napiVersion: gitopsd.dev/v1alpha1\nkind: Clu", `"Clu"; this file holds documents of kind Cluster`},
		{"cut off in a name", valid + "---\napiVersion: gitopsd.dev/v1alpha1\nkind: Cluster\nmetadata:\n  name: prod-u", "spec.path: is missing"},
		{"cut off in a spec", valid + "---\napiVersion: gitopsd.dev/v1alpha1\nkind: Cluster\nmetadata: {name: prod-us}\nspec:\n  path: a\n", "spec.kubeconfig: has 0 of"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := Parse("clusters.yaml", []byte(tt.text))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v\nwant one with %q", err, tt.want)
			}
			if r.Removed("prod-us") || r.Removed("staging") {
				t.Error("it removes a cluster")
			}
		})
	}
}

// A cluster is emptied at the word of its own document, in a file without errors.
func TestRemove(t *testing.T) {
	doc := func(name, annotations, kubeconfig, more string) string {
		return "apiVersion: gitopsd.dev/v1alpha1\nkind: Cluster\nmetadata:\n  name: " + name + "\n  annotations: {" + annotations + "}\n" +
			"spec:\n  path: c\n  kubeconfig: {file: " + kubeconfig + "}\n" + more
	}
	const old = "gitopsd.dev/remove: old"
	for _, tt := range []struct {
		name, text string
		removed    []string
		want       string // in the error; none without
	}{
		{name: "annotated", text: doc("old", old, "a", ""), removed: []string{"old"}},
		{name: "two of them", text: doc("old", old, "a", "---\n") + doc("older", "gitopsd.dev/remove: older", "b", ""), removed: []string{"old", "older"}},
		{name: "copied", text: doc("new", old, "a", ""), want: `clusters.yaml:5: metadata.annotations.gitopsd.dev/remove: "old" is not the name of this cluster`},
		{name: "true", text: doc("old", `gitopsd.dev/remove: "true"`, "a", ""), want: `"true" is not the name of this cluster; to have everything removed that was applied to it, write "old"`},
		{name: "an error elsewhere", text: doc("old", old, "a", "---\n") + doc("US_East", "", "b", ""), want: "cluster old is not emptied while clusters.yaml has errors"},
		{name: "renamed", text: doc("old", old, "a", "---\n") + doc("new", "", "a", ""), want: "clusters.yaml:1: metadata.annotations.gitopsd.dev/remove: cluster old is not emptied: its kubeconfig is also cluster new's"},
		{name: "renamed, and written differently", text: doc("old", old, "a", "---\n") + doc("new", "", "./b/../a", ""), want: "cluster old is not emptied: its kubeconfig is also cluster new's"},
		{name: "another context", text: doc("old", old, "a", "  context: x\n---\n") + doc("new", "", "a", ""), removed: []string{"old"}},
		{name: "waited for", text: doc("old", old, "a", "---\n") + doc("new", "", "b", "  dependsOn: [old]\n"), want: `cluster new waits for "old", which is to be emptied`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := Parse("clusters.yaml", []byte(tt.text))
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("error %v\nwant one with %q", err, tt.want)
			}
			var removed []string
			for _, c := range r.Clusters {
				if c.Remove {
					removed = append(removed, c.Name)
				}
			}
			if !slices.Equal(removed, tt.removed) {
				t.Errorf("to be emptied: %q, want %q", removed, tt.removed)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(valid)
	f.Add("apiVersion: gitopsd.dev/v1alpha1\nkind: Cluster\nmetadata: {name: a}\nspec: {path: &a [*a], patches: [{}]}\n--- x\n---\n")
	f.Fuzz(func(t *testing.T, in string) {
		r, err := Parse("clusters.yaml", []byte(in))
		if r == nil {
			t.Fatal("no registry")
		}
		for _, c := range r.Clusters {
			if c.Name == "" || c.Spec.Path == "" {
				t.Errorf("%q: cluster %+v without name or path, error %v", in, c, err)
			}
		}
	})
}

func TestConversion(t *testing.T) {
	for text, want := range map[string]Conversion{
		"{url: 'https://gitopsd.example.org:9443/fleet/'}":          {URL: "https://gitopsd.example.org:9443/fleet"},
		"{service: {image: 'example.org/gitopsd:v1'}}":              {Service: &ConversionService{Image: "example.org/gitopsd:v1", Replicas: new(2)}},
		"{service: {image: 'example.org/gitopsd:v1', replicas: 3}}": {Service: &ConversionService{Image: "example.org/gitopsd:v1", Replicas: new(3)}},
	} {
		r, err := Parse("clusters.yaml", []byte(strings.Replace(valid, "  drift: report", "  conversion: "+text, 1)))
		if err != nil {
			t.Fatal(err)
		}
		c, _ := r.Get("prod-eu")
		if !reflect.DeepEqual(*c.Spec.Conversion, want) {
			t.Errorf("%s is %+v", text, c.Spec.Conversion)
		}
	}
}

// A proxy has two pods unless something else is said, and a cluster's own key space needs
// none.
func TestEtcd(t *testing.T) {
	r, err := Parse("clusters.yaml", []byte(strings.Replace(valid, "spec:", "spec:\n  etcd: {namespace: prod-eu, proxy: {image: 'ghcr.io/acme/gitopsd:v1', grpcGo: true}}", 1)))
	if err != nil {
		t.Fatal(err)
	}
	want := &Etcd{Namespace: "prod-eu", Proxy: &EtcdProxy{Image: "ghcr.io/acme/gitopsd:v1", Replicas: new(2), GRPCGo: true}}
	if have := r.Clusters[0].Spec.Etcd; !reflect.DeepEqual(have, want) {
		t.Errorf("have %+v\nwant %+v", have, want)
	}
}
