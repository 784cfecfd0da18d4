package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/status"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/testscripts/upstream"
)

// bumped is the file that the upgrade changes, and machines is a type that it affects.
const (
	bumped   = "examples/fleet/workload/cluster-api.yaml"
	machines = "machines.cluster.x-k8s.io"
)

// allowance is the annotation that the reviewers add to the declaration.
const allowance = `  annotations:
    gitopsd.dev/allow-breaking: |
      ` + upstream.ClusterAPINew + `:max-length-added=nothing of Cluster API is stored here yet
      ` + upstream.ClusterAPINew + `:min-length-added=nothing of Cluster API is stored here yet
      ` + upstream.ClusterAPINew + `:max-items-added=nothing of Cluster API is stored here yet
      ` + upstream.ClusterAPINew + `:enum-added=nothing of Cluster API is stored here yet
`

// clusterManifest is an object that Cluster API's webhooks see.
const clusterManifest = `apiVersion: cluster.x-k8s.io/v1beta1
kind: Cluster
metadata: {name: %s, namespace: default}
spec: {controlPlaneEndpoint: {host: %s, port: 6443}}
`

var blankLines = regexp.MustCompile(`\n{3,}`)

var crds = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// story plays the demo's steps.
func (s *stage) story(ctx context.Context) error {
	s.step("`gitopsd plan` in a clone: what would happen, before anything does")
	out, err := s.gitopsd(ctx, s.fleetFlags("plan")...)
	if err != nil {
		return err
	}
	s.indent(shorten(out, 39))

	s.step("`gitopsd run` follows the branch: it resolves, renders, applies, and commits the lock back")
	first, err := s.head(ctx)
	if err != nil {
		return err
	}
	if err := s.run(ctx); err != nil {
		return err
	}
	if err := s.acceptIssuers(ctx); err != nil {
		return err
	}
	if err := s.settled(ctx, first); err != nil {
		return err
	}
	if err := s.showLock(ctx, "a commit of clusters.lock alone, by the daemon:"); err != nil {
		return err
	}
	s.table()

	if err := s.webhooks(ctx); err != nil {
		return err
	}
	if err := s.namespaces(ctx); err != nil {
		return err
	}

	s.step("A pull request bumps cluster-api in dev and prod: the plan shows what that breaks")
	before, err := s.typesOf(ctx, "dev", upstream.ClusterAPI)
	if err != nil {
		return err
	}
	if err := s.edit(ctx, bumped, upstream.ClusterAPIOld, upstream.ClusterAPINew); err != nil {
		return err
	}
	planDev := s.fleetFlags("plan", "--cluster", "dev")
	out, err = s.gitopsd(ctx, planDev...)
	if err == nil || !strings.Contains(out, "refused") {
		return fmt.Errorf("the plan of the bump should have failed with what is refused (%v):\n%s", err, out)
	}
	s.indent(shorten(out, 14))
	help := remedy(out)
	if help == "" {
		return fmt.Errorf("the plan of the bump should say how to allow it:\n%s", out)
	}
	s.say("   and in it what would allow that:")
	s.indent(help)

	s.step("The reviewers accept that, for this version and by name, and the pull request is merged")
	if err := s.edit(ctx, bumped, "  name: cluster-api\n", "  name: cluster-api\n"+allowance); err != nil {
		return err
	}
	if out, err = s.gitopsd(ctx, planDev...); err != nil {
		return err
	}
	s.indent(shorten(out, 8))
	head, err := s.merge(ctx, "Bump cluster-api to "+upstream.ClusterAPINew)
	if err != nil {
		return err
	}
	if err := s.settled(ctx, head); err != nil {
		return err
	}
	if err := s.showLock(ctx, "rolled out; the lock says what to:"); err != nil {
		return err
	}
	after, err := s.typesOf(ctx, "dev", upstream.ClusterAPI)
	if err != nil {
		return err
	}
	added := slices.DeleteFunc(slices.Clone(after), func(name string) bool { return slices.Contains(before, name) })
	s.say("   dev had %d types of %s and has %d now: %s came", len(before), upstream.ClusterAPI, len(after), strings.Join(added, ", "))

	if err := s.conversion(ctx); err != nil {
		return err
	}

	s.step("Somebody edits a type in prod by hand: it is put right")
	if err := s.meddle(ctx); err != nil {
		return err
	}

	s.step("`gitopsd verify` asks the clusters themselves who has the same APIs: hub differs")
	out, err = s.gitopsd(ctx, s.fleetFlags("verify")...)
	// Status 2: everything was verified, and something differs.
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 2 {
		return fmt.Errorf("verify should have found that hub differs (%v):\n%s", err, out)
	}
	s.indent(shorten(out, 28))

	if err := s.showNamespaces(ctx); err != nil {
		return err
	}

	s.step("The fleet, as Git declares it and as it is")
	s.table()
	return nil
}

// run starts the daemon.
func (s *stage) run(ctx context.Context) error {
	secret := filepath.Join(s.dir, "git-password")
	if err := os.WriteFile(secret, []byte(password), 0o600); err != nil {
		return err
	}
	args := s.fleetFlags("run", "--repo", s.git.URL(fleet), "--git-username", user, "--git-password-file", secret,
		"--interval", "2s", "--listen", "127.0.0.1:0", "--etcd-embedded", s.etcdDir(), "--etcd-proxy-listen", "127.0.0.1:0")
	if err := s.background(daemon, exec.Command(s.bin("gitopsd"), args...)); err != nil {
		return err
	}
	serving, err := s.logged(ctx, 30*time.Second, "the daemon to serve", regexp.MustCompile(`msg=serving address=(\S+)`))
	if err != nil {
		return err
	}
	s.api = "http://" + serving[1]
	return nil
}

func (s *stage) head(ctx context.Context) (string, error) {
	return s.repo.Git(ctx, "rev-parse", "main")
}

// settled waits until the lock is committed on top of a commit and every cluster is
// ready.
func (s *stage) settled(ctx context.Context, commit string) error {
	err := s.wait(ctx, 5*time.Minute, "the lock commit on "+commit[:10], func() bool {
		parent, err := s.repo.Git(ctx, "rev-parse", "main^")
		return err == nil && parent == commit
	})
	if err != nil {
		return err
	}
	return s.rested(ctx, commit)
}

// rested waits until every cluster is ready with a commit, or with the lock commit on top
// of it.
func (s *stage) rested(ctx context.Context, commit string) error {
	head, err := s.head(ctx)
	if err != nil {
		return err
	}
	return s.wait(ctx, 5*time.Minute, "the fleet to be ready", func() bool {
		snap, err := s.status()
		if err != nil || len(snap.Clusters) != len(clusterNames) {
			return false
		}
		for _, c := range snap.Clusters {
			if c.Phase != status.Ready || c.Applied != commit && c.Applied != head {
				return false
			}
		}
		return true
	})
}

// acceptIssuers reports the example's issuer as ready in every cluster, as cert-manager's
// controller would: the fleet waits for that, and nodes here run no images.
func (s *stage) acceptIssuers(ctx context.Context) error {
	issuers := schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "clusterissuers"}
	patch := []byte(`{"status":{"conditions":[{"type":"Ready","status":"True","reason":"IsReady","message":"set by the demo"}]}}`)
	for _, name := range clusterNames {
		client, err := s.client(name)
		if err != nil {
			return err
		}
		err = s.wait(ctx, 5*time.Minute, "the issuer in "+name, func() bool {
			_, err := client.Resource(issuers).Patch(ctx, "self-signed", types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "cert-manager"}, "status")
			return err == nil
		})
		if err != nil {
			return err
		}
	}
	s.say("   (cert-manager's controller does not run here; the demo reports its issuers as ready)")
	return nil
}

// showLock shows the newest commit.
func (s *stage) showLock(ctx context.Context, what string) error {
	s.say("   %s", what)
	log, err := s.repo.Git(ctx, "log", "-1", "--stat", "--format=%h %an: %s%n%n%b", "main")
	if err != nil {
		return err
	}
	s.indent(shorten(blankLines.ReplaceAllString(log, "\n\n"), 24))
	return nil
}

// edit replaces a text in a file of the clone, and shows the changed lines.
func (s *stage) edit(ctx context.Context, file, old, new string) error {
	if _, err := s.command(ctx, s.clone, "git", "pull", "-q", "--ff-only"); err != nil {
		return err
	}
	path := filepath.Join(s.clone, file)
	before, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	after := strings.ReplaceAll(string(before), old, new)
	if after == string(before) {
		return fmt.Errorf("%s is not as the demo expects it", file)
	}
	if err := os.WriteFile(path, []byte(after), 0o644); err != nil {
		return err
	}
	diff, err := s.command(ctx, s.clone, "git", "diff", "-U0", "--", file)
	if err != nil {
		return err
	}
	for line := range lines(diff) {
		if (line[0] == '+' || line[0] == '-') && !strings.HasPrefix(line, "+++") && !strings.HasPrefix(line, "---") {
			s.say("   %s", line)
		}
	}
	return nil
}

// merge commits and pushes the edits, and returns the commit.
func (s *stage) merge(ctx context.Context, message string) (string, error) {
	for _, args := range [][]string{{"commit", "-q", "-a", "-m", message}, {"push", "-q", "origin", "HEAD:main"}} {
		if _, err := s.command(ctx, s.clone, "git", args...); err != nil {
			return "", err
		}
	}
	return s.head(ctx)
}

// client returns a client of a cluster of the fleet.
func (s *stage) client(cluster string) (*dynamic.DynamicClient, error) {
	return clientOf(s.kubeconfig(cluster))
}

func clientOf(kubeconfig string) (*dynamic.DynamicClient, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, err
	}
	return dynamic.NewForConfig(cfg)
}

// answers reports whether an API server answers and has a node.
func answers(kubeconfig string) bool {
	client, err := clientOf(kubeconfig)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	nodes, err := client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}).List(ctx, metav1.ListOptions{})
	return err == nil && len(nodes.Items) > 0
}

// typesOf lists the CRDs of a package in a cluster.
func (s *stage) typesOf(ctx context.Context, cluster, pkg string) ([]string, error) {
	client, err := s.client(cluster)
	if err != nil {
		return nil, err
	}
	live, err := client.Resource(crds).List(ctx, metav1.ListOptions{LabelSelector: manifest.PackageLabel + "=" + pkg})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, crd := range live.Items {
		names = append(names, crd.GetName())
	}
	return names, nil
}

// meddle drops a short name of a type in prod, and waits until it is back.
func (s *stage) meddle(ctx context.Context) error {
	client, err := s.client("prod")
	if err != nil {
		return err
	}
	shortNames := func() (string, error) {
		live, err := client.Resource(crds).Get(ctx, machines, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		spec, _ := live.Object["spec"].(map[string]any)
		names, _ := spec["names"].(map[string]any)
		return fmt.Sprint(names["shortNames"]), nil
	}
	was, err := shortNames()
	if err != nil {
		return err
	}
	patch := []byte(`{"spec":{"names":{"shortNames":[]}}}`)
	if _, err := client.Resource(crds).Patch(ctx, machines, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: "kubectl-edit"}); err != nil {
		return err
	}
	began := time.Now()
	s.say("   kubectl edit crd %s: shortNames %s -> []", machines, was)
	var now string
	err = s.wait(ctx, 2*time.Minute, "the edit to be undone", func() bool {
		now, err = shortNames()
		return err == nil && now == was
	})
	if err != nil {
		return err
	}
	s.say("   after %s: shortNames %s", time.Since(began).Round(100*time.Millisecond), now)
	// The daemon logs it once the pass over the cluster has ended.
	drift := regexp.MustCompile(`(?m)^.*(drift.*` + machines + `|` + machines + `.*drift).*$`)
	line, err := s.logged(ctx, 2*time.Minute, "the daemon to log the drift", drift)
	if err != nil {
		return err
	}
	s.indent(line[0])
	return nil
}

// webhooks shows Cluster API's webhooks at work in dev. Nothing is stored: an API server
// also calls its webhooks in a dry run.
func (s *stage) webhooks(ctx context.Context) error {
	s.step("Cluster API's webhooks are served in every cluster, by certificates that gitopsd made there")
	snap, err := s.status()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(s.w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "   CLUSTER\tSECRET\tUSE\tEXPIRES")
	for _, c := range snap.Clusters {
		if len(c.Certificates) < 2 {
			return fmt.Errorf("%s should have a certificate and a CA, and its status lists %d", c.Name, len(c.Certificates))
		}
		for _, cert := range c.Certificates {
			fmt.Fprintf(w, "   %s\t%s\t%s\t%s\n", c.Name, cert.Secret, cert.Use, cert.Expires.Format(time.DateOnly))
		}
	}
	_ = w.Flush() // to the terminal
	s.say("   They are replaced before they expire. In dev, the server in the place of Cluster API's controller")
	s.say("   marks what it sees, and denies clusters at %s. blue is elsewhere, green is there:", deniedHost)
	for _, o := range []struct{ file, host, want string }{
		{"blue.yaml", "blue.example.com", mark},
		{"green.yaml", deniedHost, "denied the request"},
	} {
		manifest := fmt.Sprintf(clusterManifest, strings.TrimSuffix(o.file, ".yaml"), o.host)
		if err := os.WriteFile(filepath.Join(s.dir, o.file), []byte(manifest), 0o644); err != nil {
			return err
		}
		args := []string{"create", "--dry-run=server", "-f", "../" + o.file, "-o", "jsonpath={.metadata.annotations}"}
		s.say("   $ kubectl --context dev %s", quoted(args...))
		cmd := exec.CommandContext(ctx, s.bin("kubectl"), append([]string{"--kubeconfig", s.kubeconfig("dev")}, args...)...)
		cmd.Dir = s.clone
		out, err := cmd.CombinedOutput()
		if denied := o.host == deniedHost; denied == (err == nil) || !strings.Contains(string(out), o.want) {
			return fmt.Errorf("the webhooks should have answered with %q for %s (%v):\n%s", o.want, o.file, err, out)
		}
		s.indent(string(out))
	}
	return nil
}

// table prints the fleet.
func (s *stage) table() {
	snap, err := s.status()
	if err != nil {
		s.say("   %v", err)
		return
	}
	w := tabwriter.NewWriter(s.w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "   CLUSTER\tPACKAGE\tVERSION\tDIGEST\tSTATE")
	for _, c := range snap.Clusters {
		for _, p := range c.Packages {
			fmt.Fprintf(w, "   %s\t%s\t%s\t%s…\t%s\n", c.Name, p.Name, p.Version, p.Digest[:min(len(p.Digest), 19)], p.State)
		}
	}
	_ = w.Flush() // to the terminal
	for _, c := range snap.Clusters {
		s.say("   %s: %s with all %d objects of commit %s", c.Name, c.Phase, c.Objects, c.Applied[:min(len(c.Applied), 10)])
	}
}

// remedy returns the part of a plan with a refused change and the lines to paste that
// would allow it, or "" if there is none.
func remedy(plan string) string {
	all := slices.Collect(lines(plan))
	depth := func(line string) int { return len(line) - len(strings.TrimLeft(line, " ")) }
	help := slices.IndexFunc(all, func(line string) bool { return strings.HasPrefix(strings.TrimSpace(line), "to allow it, ") })
	if help < 0 {
		return ""
	}
	from, to := help, help+1
	for from > 0 && !strings.HasPrefix(strings.TrimSpace(all[from]), "! ") {
		from--
	}
	for to < len(all) && depth(all[to]) > depth(all[help]) {
		to++
	}
	return strings.Join(all[from:to], "\n")
}

// shorten keeps the first lines of a long output and counts the rest.
func shorten(text string, most int) string {
	all := slices.Collect(lines(text))
	if len(all) <= most {
		return text
	}
	return strings.Join(append(all[:most:most], "… "+prose.Count(len(all)-most, "more line")), "\n")
}
