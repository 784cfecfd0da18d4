package hub

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/manifest/manifesttest"
	"gitopsd.dev/sources"
	"gitopsd.dev/sources/clusters"
	"gitopsd.dev/testscripts/await"
	"gitopsd.dev/testscripts/devcluster"
)

func TestMain(m *testing.M) { os.Exit(devcluster.Main(m)) }

// hidden is the secret value in every Secret and file of these tests. It must be in no
// error and no log.
const hidden = "hunter2"

const fleetFile = `
apiVersion: v1
kind: Config
current-context: main
contexts: [{name: main, context: {cluster: main, user: main}}]
clusters: [{name: main, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: main, user: {token: ` + hidden + `}}]
`

const dockerAuth = `{"auths": {"registry.example.org": {"username": "robot", "password": "` + hidden + `"}}}`

// installed is what the operator made in the hub, once for all tests.
var installed struct {
	once  sync.Once
	err   error
	admin *kube.Client
}

// admin returns the operator's client of the hub, in which examples/deploy gave the
// daemon its rights.
func admin(t *testing.T) *kube.Client {
	t.Helper()
	text, err := os.ReadFile(devcluster.Start(t, "hub").Kubeconfig("hub"))
	if err != nil {
		t.Fatal(err)
	}
	installed.once.Do(func() { installed.admin, installed.err = install(context.Background(), text) })
	if installed.err != nil {
		t.Fatal(installed.err)
	}
	return installed.admin
}

func install(ctx context.Context, text []byte) (*kube.Client, error) {
	c, err := kube.New(kube.Config{Name: "admin", Kubeconfig: text, Trusted: true})
	if err != nil {
		return nil, err
	}
	rights, err := os.ReadFile("../../examples/deploy/rbac.yaml")
	if err != nil {
		return nil, err
	}
	secret, err := os.ReadFile("../../examples/deploy/registry.yaml")
	if err != nil {
		return nil, err
	}
	const more = `
apiVersion: v1
kind: Namespace
metadata: {name: gitopsd-system}
---
apiVersion: v1
kind: Namespace
metadata: {name: elsewhere}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader}
rules: [{apiGroups: [""], resources: [secrets], verbs: [get]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: gitopsd-system}]
---
`
	docs, err := sources.DecodeYAML(strings.NewReader(more+string(rights)+"---\n"+string(secret)), sources.Limits{})
	if err != nil {
		return nil, err
	}
	for _, doc := range docs {
		meta := doc.Tree["metadata"].(map[string]any)
		if doc.Tree["kind"] != "Namespace" {
			meta["namespace"] = DefaultNamespace
		}
		if err := apply(ctx, c, doc.Tree); err != nil {
			return nil, err
		}
	}
	for _, account := range []string{"gitopsd", "reader"} {
		if err := granted(ctx, text, account); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// granted waits until the API server knows the rights of a ServiceAccount.
func granted(ctx context.Context, text []byte, account string) error {
	c, err := kube.New(kube.Config{Name: account, Kubeconfig: text, Trusted: true, ServiceAccount: &kube.ServiceAccount{Namespace: DefaultNamespace, Name: account}})
	if err != nil {
		return err
	}
	defer c.Close()
	typ, err := c.Type(ctx, "v1", manifest.Secret.Kind)
	for err == nil {
		_, err = c.GetMetadata(ctx, typ, typ.ID(DefaultNamespace, "none"))
		switch kube.ClassOf(err) {
		case kube.NotFound:
			return nil
		case kube.Forbidden:
			err = nil
			time.Sleep(20 * time.Millisecond)
		}
	}
	return err
}

func apply(ctx context.Context, c *kube.Client, tree map[string]any) error {
	typ, err := c.Type(ctx, tree["apiVersion"].(string), tree["kind"].(string))
	if err != nil {
		return err
	}
	body, err := json.Marshal(tree)
	if err != nil {
		return err
	}
	meta := tree["metadata"].(map[string]any)
	namespace, _ := meta["namespace"].(string)
	_, err = c.Apply(ctx, typ, typ.ID(namespace, meta["name"].(string)), body, kube.ApplyOptions{Force: true})
	return err
}

// put makes or replaces a Secret in the hub.
func put(t *testing.T, namespace, name, typ string, labels, data map[string]string) {
	t.Helper()
	c := admin(t)
	remove(t, namespace, name) // a type cannot be changed
	tree := map[string]any{
		"apiVersion": "v1", "kind": "Secret", "type": typ, "stringData": data,
		"metadata": map[string]any{"namespace": namespace, "name": name, "labels": labels},
	}
	if err := apply(t.Context(), c, tree); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, namespace, name string) {
	t.Helper()
	c := admin(t)
	typ, err := c.Type(t.Context(), "v1", manifest.Secret.Kind)
	if err != nil {
		t.Fatal(err)
	}
	id := typ.ID(namespace, name)
	meta, err := c.GetMetadata(t.Context(), typ, id)
	if kube.ClassOf(err) == kube.NotFound {
		return
	}
	if err == nil {
		_, _, err = c.Delete(t.Context(), typ, id, string(meta.UID))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// kubeconfigOf writes a kubeconfig of the hub that acts as a ServiceAccount.
func kubeconfigOf(t *testing.T, account string) string {
	t.Helper()
	admin(t)
	text, err := os.ReadFile(devcluster.Start(t, "hub").Kubeconfig("hub"))
	if err != nil {
		t.Fatal(err)
	}
	tree := manifesttest.Tree(t, string(text))
	user := tree["users"].([]any)[0].(map[string]any)["user"].(map[string]any)
	user["as"] = "system:serviceaccount:" + DefaultNamespace + ":" + account
	if text, err = json.Marshal(tree); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "hub.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// open returns the hub with the rights that the daemon has from examples/deploy.
func open(t *testing.T) *Hub {
	t.Helper()
	h := New(Config{Kubeconfig: kubeconfigOf(t, "gitopsd"), Namespace: DefaultNamespace})
	t.Cleanup(h.Close)
	return h
}

// expect checks an error: none where want is empty, else one that has it; and that
// nothing secret is in it.
func expect(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case err != nil && strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), hidden):
		t.Errorf("the error holds what is secret: %v", err)
	case want == "" && err != nil:
		t.Errorf("error %v, want none", err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
		t.Errorf("error %v, want one with %q", err, want)
	}
}

func registered(k clusters.Kubeconfig) clusters.Cluster {
	return clusters.Cluster{Name: "dev", Spec: clusters.Spec{Kubeconfig: k}}
}

func ref(name, key string) clusters.Kubeconfig {
	return clusters.Kubeconfig{SecretRef: &clusters.SecretRef{Name: name, Key: key}}
}

// A cluster is connected to with a kubeconfig from a Secret only if the Secret is in
// the daemon's namespace and carries the cluster's label.
func TestKubeconfigSecret(t *testing.T) {
	t.Parallel()
	h := open(t)
	ours := map[string]string{manifest.ClusterLabel: "dev"}
	config := map[string]string{"kubeconfig": fleetFile, "other": fleetFile}
	put(t, DefaultNamespace, "dev", "Opaque", ours, config)
	put(t, DefaultNamespace, "unlabelled", "Opaque", nil, config)
	put(t, DefaultNamespace, "prod", "Opaque", map[string]string{manifest.ClusterLabel: "prod"}, config)
	put(t, DefaultNamespace, "pull", "Opaque", map[string]string{manifest.PullSecretLabel: "true", manifest.VerificationKeyLabel: "true"}, config)
	put(t, DefaultNamespace, "garbled", "Opaque", ours, map[string]string{"kubeconfig": "}" + hidden})
	put(t, DefaultNamespace, "program", "Opaque", ours, map[string]string{
		"kubeconfig": strings.Replace(fleetFile, "{token: "+hidden+"}", "{exec: {apiVersion: client.authentication.k8s.io/v1, command: "+hidden+"}}", 1)})
	put(t, "elsewhere", "abroad", "Opaque", ours, config)
	for _, tt := range []struct{ name, secret, key, want string }{
		{name: "labelled", secret: "dev"},
		{name: "another key", secret: "dev", key: "other"},
		{name: "no such key", secret: "dev", key: "missing", want: `Secret gitopsd-system/dev has no key "missing"`},
		{name: "not labelled", secret: "unlabelled", want: "Secret gitopsd-system/unlabelled does not carry the label gitopsd.dev/cluster: dev, which allows this cluster to use it"},
		{name: "another cluster's", secret: "prod", want: "Secret gitopsd-system/prod does not carry the label gitopsd.dev/cluster: dev"},
		{name: "for packages", secret: "pull", want: "Secret gitopsd-system/pull does not carry the label gitopsd.dev/cluster: dev"},
		{name: "not there", secret: "missing", want: "spec.kubeconfig.secretRef: Secret gitopsd-system/missing is not in the hub; make it there, labelled gitopsd.dev/cluster: dev, with a kubeconfig under the key kubeconfig"},
		{name: "another namespace", secret: "abroad", want: "Secret gitopsd-system/abroad is not in the hub"},
		{name: "a path", secret: "../../elsewhere/secrets/abroad", want: "cannot be part of a name"},
		{name: "no kubeconfig", secret: "garbled", want: "it is not a kubeconfig file"},
		{name: "runs a program", secret: "program", want: "exec plugins are refused"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, err := (&Connector{Hub: h}).Connect(t.Context(), registered(ref(tt.secret, tt.key)))
			expect(t, err, tt.want)
			if err == nil {
				defer c.Close()
				if c.Server() != "https://127.0.0.1:1" {
					t.Errorf("connected to %s", c.Server())
				}
			}
		})
	}
	// The rights from examples/deploy are for that namespace alone.
	abroad := New(Config{Kubeconfig: h.cfg.Kubeconfig, Namespace: "elsewhere"})
	defer abroad.Close()
	_, err := (&Connector{Hub: abroad}).Connect(t.Context(), registered(ref("abroad", "")))
	expect(t, err, "cannot get resource")
}

// A cluster is connected to by a ClusterProfile only if the profile is in the daemon's
// namespace and carries the cluster's label; its Secret is found by the profile's name.
func TestClusterProfile(t *testing.T) {
	t.Parallel()
	h := open(t)
	crd := map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{
			"name": "clusterprofiles.multicluster.x-k8s.io", "annotations": map[string]any{"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements"},
		},
		"spec": map[string]any{
			"group": "multicluster.x-k8s.io", "scope": "Namespaced", "names": map[string]any{"kind": "ClusterProfile", "plural": "clusterprofiles"},
			"versions": []any{map[string]any{
				"name": "v1alpha1", "served": true, "storage": true, "schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}},
			}},
		},
	}
	connected := func(name string) error {
		c, err := (&Connector{Hub: h}).Connect(t.Context(), registered(clusters.Kubeconfig{ClusterProfileRef: &clusters.ClusterProfileRef{Name: name}}))
		if err == nil {
			defer c.Close()
			if c.Server() != "https://127.0.0.1:1" {
				t.Errorf("connected to %s", c.Server())
			}
		}
		return err
	}
	expect(t, connected("dev"), "multicluster.x-k8s.io")
	if err := apply(t.Context(), admin(t), crd); err != nil {
		t.Fatal(err)
	}
	profile := func(name, label string) {
		t.Helper()
		tree := map[string]any{"apiVersion": "multicluster.x-k8s.io/v1alpha1", "kind": "ClusterProfile", "metadata": map[string]any{
			"namespace": DefaultNamespace, "name": name, "labels": map[string]any{manifest.ClusterLabel: label},
		}}
		var err error
		for range 600 { // until the kind is served
			admin(t).Forget("multicluster.x-k8s.io")
			if err = apply(t.Context(), admin(t), tree); err == nil {
				return
			}
			<-time.After(50 * time.Millisecond)
		}
		t.Fatal(err)
	}
	of := func(name string) map[string]string { return map[string]string{manifest.ClusterProfileLabel: name} }
	profile("dev", "dev")
	profile("prod", "prod")
	profile("bare", "dev")
	profile("doubled", "dev")
	profile("garbled", "dev")
	put(t, DefaultNamespace, "dev-access", "Opaque", of("dev"), map[string]string{"Config": fleetFile})
	put(t, DefaultNamespace, "dev-abroad", "Opaque", map[string]string{manifest.ClusterProfileLabel: "dev", manifest.ClusterProfileNamespaceLabel: "elsewhere"}, map[string]string{"Config": hidden})
	put(t, DefaultNamespace, "prod-access", "Opaque", of("prod"), map[string]string{"Config": fleetFile})
	put(t, DefaultNamespace, "doubled-a", "Opaque", of("doubled"), map[string]string{"Config": fleetFile})
	put(t, DefaultNamespace, "doubled-b", "Opaque", of("doubled"), map[string]string{"Config": fleetFile})
	put(t, DefaultNamespace, "garbled-access", "Opaque", of("garbled"), map[string]string{"password": hidden})
	for _, tt := range []struct{ name, want string }{
		{"dev", ""},
		{"prod", "ClusterProfile gitopsd-system/prod does not carry the label gitopsd.dev/cluster: dev, which allows this cluster to use it"},
		{"missing", "spec.kubeconfig.clusterProfileRef: cluster the hub: get clusterprofile.multicluster.x-k8s.io/gitopsd-system/missing: not found"},
		{"bare", "exactly one Secret of its namespace has to carry the label x-k8s.io/cluster-profile: bare; have none"},
		{"doubled", "has to carry the label x-k8s.io/cluster-profile: doubled; have doubled-a, doubled-b"},
		{"garbled", `Secret gitopsd-system/garbled-access has no key "Config"`},
	} {
		expect(t, connected(tt.name), tt.want)
	}
}

// A kubeconfig comes from a file only below the directory that the operator named.
func TestKubeconfigFile(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	dir := filepath.Join(top, "kubeconfigs")
	for name, text := range map[string]string{
		"kubeconfigs/dev.yaml":     fleetFile,
		"kubeconfigs/sub/dev.yaml": fleetFile,
		"kubeconfigs/large.yaml":   fleetFile + strings.Repeat("#", maxFile),
		"outside.yaml":             fleetFile,
	} {
		file := filepath.Join(top, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"inside.yaml": "dev.yaml", "outside.yaml": "../outside.yaml"} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	h := New(Config{Kubeconfig: filepath.Join(top, "none"), Namespace: DefaultNamespace})
	for _, tt := range []struct{ name, dir, file, want string }{
		{name: "allowed", dir: dir, file: "dev.yaml"},
		{name: "below", dir: dir, file: "sub/dev.yaml"},
		{name: "a link inside", dir: dir, file: "inside.yaml"},
		{name: "not allowed", file: "dev.yaml", want: "no directory for such files was named; use --kubeconfig-dir"},
		{name: "no directory", dir: filepath.Join(top, "none"), file: "dev.yaml", want: "spec.kubeconfig.file dev.yaml: --kubeconfig-dir: open"},
		{name: "missing", dir: dir, file: "missing.yaml", want: "spec.kubeconfig.file missing.yaml: not found in " + dir},
		{name: "a way out", dir: dir, file: "../outside.yaml", want: "path escapes from parent"},
		{name: "a link out", dir: dir, file: "outside.yaml", want: "path escapes from parent"},
		{name: "too large", dir: dir, file: "large.yaml", want: "large.yaml: more than 1048576 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			connector := &Connector{Hub: h, Dir: tt.dir}
			cluster := registered(clusters.Kubeconfig{File: tt.file})
			c, err := connector.Connect(t.Context(), cluster)
			expect(t, err, tt.want)
			if err == nil {
				c.Close()
			}
			if _, known := connector.Version(cluster); known != (tt.want == "") {
				t.Errorf("its version is known: %t", known)
			}
		})
	}
	// A replaced file has another version.
	connector := &Connector{Hub: h, Dir: dir}
	cluster := registered(clusters.Kubeconfig{File: "dev.yaml"})
	before, _ := connector.Version(cluster)
	if err := os.WriteFile(filepath.Join(dir, "dev.yaml"), []byte(fleetFile+"#"), 0o600); err != nil {
		t.Fatal(err)
	}
	if after, known := connector.Version(cluster); !known || after == before || strings.Contains(before+after, hidden) {
		t.Errorf("versions %q and %q, known %t", before, after, known)
	}
}

// The cluster that the daemon runs in is the operator's to allow.
func TestInCluster(t *testing.T) {
	t.Parallel()
	h := New(Config{Namespace: DefaultNamespace})
	for _, tt := range []struct {
		allowed bool
		want    string
	}{
		{want: "spec.kubeconfig.inCluster: the daemon was not started with --allow-in-cluster"},
		{allowed: true, want: "cluster dev: spec.kubeconfig.inCluster: unable to load in-cluster configuration"}, // this is no pod
	} {
		_, err := (&Connector{Hub: h, AllowInCluster: tt.allowed}).Connect(t.Context(), registered(clusters.Kubeconfig{InCluster: true}))
		expect(t, err, tt.want)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "dev.yaml"), []byte(strings.Replace(fleetFile, "token:", "as-uid: x, tokenFile:", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := (&Connector{Hub: h, Dir: dir}).Connect(t.Context(), registered(clusters.Kubeconfig{File: "dev.yaml"}))
	expect(t, err, "cluster dev: spec.kubeconfig.file dev.yaml: kubeconfig: user \"main\": tokenFile names a file")
	expect(t, err, "\ncluster dev: spec.kubeconfig.file dev.yaml: kubeconfig: user \"main\": as-groups")
	_, err = (&Connector{Hub: h}).Connect(t.Context(), registered(ref("dev", "")))
	expect(t, err, "no hub to read Secrets from: this process runs in no pod, and no --kubeconfig names the hub's; name it with --kubeconfig, or register a file of --kubeconfig-dir: kubeconfig: {file: dev.yaml}")
}

// A context is for a cluster that is registered, as far as the registry can be read.
func TestCheck(t *testing.T) {
	t.Parallel()
	one := []clusters.Cluster{{Name: "dev"}}
	for _, tt := range []struct {
		name, context string
		registry      clusters.Registry
		want          string
	}{
		{name: "none", registry: clusters.Registry{Clusters: one}},
		{name: "registered", context: "dev", registry: clusters.Registry{Clusters: one}},
		{name: "not registered", context: "dve", registry: clusters.Registry{Clusters: one}, want: `--context dve=mine: cluster "dve" is not registered in clusters.yaml`},
		{name: "nobody knows", context: "dve", registry: clusters.Registry{Clusters: one, Faulty: true}},
	} {
		c := new(Connector)
		if tt.context != "" {
			c.Contexts = map[string]string{tt.context: "mine"}
		}
		t.Run(tt.name, func(t *testing.T) { expect(t, c.Check(&tt.registry), tt.want) })
	}
}

// Packages can use Secrets only as their labels allow.
func TestSecrets(t *testing.T) {
	t.Parallel()
	h := open(t)
	const docker = "kubernetes.io/dockerconfigjson"
	pull, key := map[string]string{manifest.PullSecretLabel: "true"}, map[string]string{manifest.VerificationKeyLabel: "true"}
	auth := map[string]string{dockerConfigJSON: dockerAuth}
	both := map[string]string{dockerConfigJSON: dockerAuth, "cosign.pub": hidden}
	put(t, DefaultNamespace, "registry", docker, pull, auth)
	put(t, DefaultNamespace, "old", "kubernetes.io/dockercfg", pull, map[string]string{dockerConfig: `{"registry.example.org": {"auth": ""}}`})
	put(t, DefaultNamespace, "refused", docker, map[string]string{manifest.PullSecretLabel: "false", manifest.VerificationKeyLabel: ""}, both)
	put(t, DefaultNamespace, "cosign", docker, key, both)
	put(t, DefaultNamespace, "cluster", docker, map[string]string{manifest.ClusterLabel: "true"}, both)
	put(t, DefaultNamespace, "opaque", "Opaque", pull, auth)
	put(t, DefaultNamespace, "nothing", docker, pull, map[string]string{dockerConfigJSON: `{"` + hidden + `": 1}`})
	put(t, "elsewhere", "distant", docker, pull, auth)
	for _, tt := range []struct{ name, secret, pull, key string }{
		{name: "a pull secret", secret: "registry", key: `does not carry the label gitopsd.dev/verification-key: "true", which allows to use it as a public key`},
		{name: "of the older type", secret: "old", key: "does not carry the label"},
		{name: "a key", secret: "cosign", pull: `Secret gitopsd-system/cosign does not carry the label gitopsd.dev/pull-secret: "true", which allows to use it as a pull secret`},
		{name: "labels that say no", secret: "refused", pull: "does not carry the label", key: "does not carry the label"},
		{name: "a cluster's", secret: "cluster", pull: "does not carry the label", key: "does not carry the label"},
		{name: "not there", secret: "missing", pull: `Secret gitopsd-system/missing is not in the hub; make it there, labelled gitopsd.dev/pull-secret: "true"`, key: "is not in the hub"},
		{name: "another namespace", secret: "distant", pull: "Secret gitopsd-system/distant is not in the hub", key: "is not in the hub"},
		{name: "another type", secret: "opaque", pull: `Secret gitopsd-system/opaque has type "Opaque"; a pull secret has type kubernetes.io/dockerconfigjson`, key: "does not carry the label"},
		{name: "garbled", secret: "nothing", pull: "Secret gitopsd-system/nothing, key .dockerconfigjson: not a Docker configuration", key: "does not carry the label"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &Secrets{Hub: h}
			creds, err := s.Pull(t.Context(), []string{tt.secret})
			expect(t, err, tt.pull)
			if (len(creds) == 1) != (tt.pull == "") || strings.Contains(fmt.Sprintf("%v %+v %#v", creds, creds, creds), hidden) {
				t.Errorf("credentials %v", creds)
			}
			text, err := s.Key(t.Context(), &sources.VerificationKey{Secret: tt.secret, Entry: "cosign.pub"})
			expect(t, err, tt.key)
			if (string(text) == hidden) != (tt.key == "") {
				t.Errorf("a key of %d bytes", len(text))
			}
		})
	}
	_, err := (&Secrets{Hub: h}).Key(t.Context(), &sources.VerificationKey{Secret: "cosign", Entry: "missing.pub"})
	expect(t, err, `Secret gitopsd-system/cosign has no key "missing.pub"`)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = (&Secrets{Hub: h}).Pull(canceled, []string{"registry"}); err == nil {
		t.Error("who gave up got credentials")
	}
}

// A directory comes before the hub, and nothing in it leads out of it.
func TestSecretsDir(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	dir := filepath.Join(top, "secrets")
	for name, text := range map[string]string{
		"secrets/registry/.dockerconfigjson": dockerAuth,
		"secrets/cosign/cosign.pub":          hidden,
		"secrets/empty/cosign.pub":           "",
		"outside/cosign.pub":                 hidden,
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(top, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(top, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("../outside", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, dir, secret, want, text string }{
		{name: "there", dir: dir, secret: "cosign", text: hidden},
		{name: "empty", dir: dir, secret: "empty"},
		{name: "not there", dir: dir, secret: "missing", want: "neither in a Secret missing of the cluster's manifests nor in " + dir + "/missing/cosign.pub"},
		{name: "a way out", dir: dir, secret: "../outside", want: "path escapes from parent"},
		{name: "a link out", dir: dir, secret: "link", want: "path escapes from parent"},
		{name: "no directory", dir: filepath.Join(top, "none"), secret: "cosign", want: "--secrets-dir: open"},
		{name: "nowhere", secret: "cosign", want: "into the file cosign/cosign.pub below --secrets-dir"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text, err := (&Secrets{Dir: tt.dir}).Key(t.Context(), &sources.VerificationKey{Secret: tt.secret, Entry: "cosign.pub"})
			expect(t, err, tt.want)
			if string(text) != tt.text {
				t.Errorf("a key of %d bytes, want %d", len(text), len(tt.text))
			}
		})
	}
	for _, tt := range []struct {
		name    string
		secrets *Secrets
		want    string
	}{
		{"in a directory", &Secrets{Dir: dir}, "[" + dir + "/registry/.dockerconfigjson pull secret missing (which is not in " + dir + ")]"},
		{"nowhere, so that Docker's are used", new(Secrets), "[pull secret registry (which was not read, since neither --secrets-dir nor a hub, --kubeconfig, is named) pull secret missing (which was not read, since neither --secrets-dir nor a hub, --kubeconfig, is named)]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			creds, err := tt.secrets.Pull(t.Context(), []string{"registry", "missing"})
			if err != nil || fmt.Sprint(creds) != tt.want {
				t.Errorf("credentials %v, %v; want %s", creds, err, tt.want)
			}
		})
	}
}

// A Secret is read again after a while, and its label is looked at again.
func TestSecretChanges(t *testing.T) {
	t.Parallel()
	s := &Secrets{Hub: open(t)}
	label := map[string]string{manifest.VerificationKeyLabel: "true"}
	check := func(want, wantErr string) {
		t.Helper()
		text, err := s.Key(t.Context(), &sources.VerificationKey{Secret: "changing", Entry: "key"})
		expect(t, err, wantErr)
		if string(text) != want {
			t.Errorf("the key is %q, want %q", text, want)
		}
	}
	age := func(d time.Duration) { // makes what was read so much older
		r := s.read["changing"]
		r.at = r.at.Add(-d)
		s.read["changing"] = r
	}
	check("", "is not in the hub")
	put(t, DefaultNamespace, "changing", "Opaque", label, map[string]string{"key": "one"})
	check("one", "")
	age(-time.Hour)
	put(t, DefaultNamespace, "changing", "Opaque", label, map[string]string{"key": "two"})
	check("one", "") // the requests of a pass share it
	age(time.Hour + 2*secretsAge)
	check("two", "")
	put(t, DefaultNamespace, "changing", "Opaque", nil, map[string]string{"key": hidden})
	age(2 * secretsAge)
	check("", "does not carry the label")
	remove(t, DefaultNamespace, "changing")
	age(2 * secretsAge)
	check("", "is not in the hub")
}

// The daemon hears of kubeconfigs that are replaced, lose their label or go.
func TestFollow(t *testing.T) {
	t.Parallel()
	h := open(t)
	connector := &Connector{Hub: h}
	cluster := registered(ref("followed", ""))
	label := map[string]string{manifest.ClusterLabel: "dev"}
	config := map[string]string{"kubeconfig": fleetFile}
	put(t, DefaultNamespace, "followed", "Opaque", label, config)
	if _, known := connector.Version(cluster); known {
		t.Error("a version is known before anything was read")
	}
	c, err := connector.Connect(t.Context(), cluster)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	last, known := connector.Version(cluster)
	if !known || last == "" {
		t.Errorf("version %q, known %t, after it was read", last, known)
	}
	log := follow(t, h)
	for _, step := range []struct {
		name string
		do   func()
		gone bool
	}{
		{"replaced", func() { put(t, DefaultNamespace, "followed", "Opaque", label, config) }, false},
		{"without its label", func() { put(t, DefaultNamespace, "followed", "Opaque", nil, config) }, true},
		{"labelled again", func() { put(t, DefaultNamespace, "followed", "Opaque", label, config) }, false},
		{"deleted", func() { remove(t, DefaultNamespace, "followed") }, true},
	} {
		step.do()
		await.True(t, step.name, func() bool {
			now, known := connector.Version(cluster)
			done := known && now != last && (now == "") == step.gone
			if done {
				last = now
			}
			return done
		})
	}
	if text := log(); text != "" {
		t.Errorf("log %q", text)
	}
}

// Without the rights to follow, the daemon says so, and reads Secrets as before.
func TestFollowForbidden(t *testing.T) {
	t.Parallel()
	put(t, DefaultNamespace, "unfollowed", "Opaque", map[string]string{manifest.ClusterLabel: "dev"}, map[string]string{"kubeconfig": fleetFile})
	h := New(Config{Kubeconfig: kubeconfigOf(t, "reader"), Namespace: DefaultNamespace})
	defer h.Close()
	log := follow(t, h)
	for range 2 {
		c, err := (&Connector{Hub: h}).Connect(t.Context(), registered(ref("unfollowed", "")))
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
	}
	await.True(t, "a warning", func() bool { return strings.Contains(log(), "allow the verbs list and watch") })
	if text := log(); strings.Contains(text, hidden) || strings.Count(text, "\n") != 1 {
		t.Errorf("log %q", text)
	}
}

// A replaced kubeconfig of the hub is taken up; one that is gone is an error.
func TestHubKubeconfig(t *testing.T) {
	t.Parallel()
	h := open(t)
	first, err := h.Client()
	if err != nil {
		t.Fatal(err)
	}
	if again, err := h.Client(); err != nil || again != first {
		t.Errorf("another client of the same kubeconfig, %v", err)
	}
	text, err := os.ReadFile(h.cfg.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h.cfg.Kubeconfig, append(text, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	if again, err := h.Client(); err != nil || again == first {
		t.Errorf("the same client of another kubeconfig, %v", err)
	}
	if err := os.Remove(h.cfg.Kubeconfig); err != nil {
		t.Fatal(err)
	}
	_, err = (&Secrets{Hub: h}).Pull(t.Context(), []string{"registry"})
	expect(t, err, "no hub to read Secrets from: --kubeconfig: open")
}

// follow follows the hub until the test ends, and returns the log so far.
func follow(t *testing.T, h *Hub) func() string {
	var log await.Log
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { h.Follow(ctx, slog.New(slog.NewTextHandler(&log, nil))) })
	t.Cleanup(func() {
		cancel()
		done.Wait()
	})
	return log.String
}
