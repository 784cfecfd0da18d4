package apply

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/plan"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
	"gitopsd.dev/sources"
)

// packageVersion is the version of Crossplane's packages:
// github.com/crossplane/crossplane, apis/pkg/v1.
const packageVersion = manifest.GroupPackages + "/v1"

// soleInstaller marks the steps of a package as conflicts if a Crossplane in the
// cluster installs it too, for somebody else: the two controllers would overwrite
// each other. If the package was ours until now, the steps wait until it is gone.
// It sends nothing while there is nothing to write.
func (a *Applier) soleInstaller(ctx context.Context, p *plan.Plan) error {
	if !slices.ContainsFunc(p.Steps, func(s plan.Step) bool { return s.Action.Writes() && repositoryOf(s.Object) != "" }) {
		return nil
	}
	live, err := a.livePackages(ctx)
	if kube.IsClusterWide(err) || ctx.Err() != nil {
		return err
	}
	if kube.ClassOf(err) == kube.Forbidden {
		// Without the right to read Crossplane's packages others still work.
		a.log.Warn("cannot tell whether Crossplane installs the same packages", "error", err)
		err = nil
	}
	inside, look := make(map[manifest.ID]string), a.newLook()
	for i := range p.Steps {
		s := &p.Steps[i]
		if repositoryOf(s.Object) == "" || !s.Action.Writes() {
			continue
		}
		if other, ok := live[repositoryOf(s.Object)]; ok && other != s.ID {
			text, known := inside[other]
			if !known {
				var failed error
				if text, failed = look.text(ctx, other); failed != nil {
					return failed
				}
				inside[other] = text
			}
			s.Action, s.Reason = installedBy(p, other, s.ID.Is(manifest.Packages...), text)
		} else if err != nil {
			// Refused, so that prunes wait for what may replace their objects.
			s.Action, s.Reason = plan.Refused, fmt.Sprintf("whether Crossplane installs the same package is not known: %v", err)
		}
	}
	return nil
}

// mostCounted is how many objects a reason counts.
const mostCounted = 1000

// text says for a reason which objects are inside a container; "" if there are none. The
// error is about the cluster as a whole.
func (l *contentsLook) text(ctx context.Context, id manifest.ID) (string, error) {
	n := 0
	found, err := l.inside(ctx, id, func(plan.Content) bool {
		n++
		return n < mostCounted
	})
	switch {
	case kube.IsClusterWide(err) || ctx.Err() != nil:
		return "", errors.Join(ctx.Err(), err)
	case len(found) == 0 && err != nil:
		return fmt.Sprintf("objects that are not known (%v)", err), nil
	case err != nil || n == mostCounted:
		return "at least " + countKinds(found), nil
	}
	return countKinds(found), nil
}

// countKinds counts objects by kind, as in "3 objects (1 Bucket, 2 Widget)"; "" for none.
func countKinds(found []plan.Content) string {
	if len(found) == 0 {
		return ""
	}
	kinds := make(map[string]int)
	for _, c := range found {
		kinds[c.ID.Kind]++
	}
	var each []string
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		each = append(each, fmt.Sprintf("%d %s", kinds[kind], kind))
	}
	return fmt.Sprintf("%s (%s)", prose.Count(len(found), "object"), strings.Join(each, ", "))
}

// installedBy returns the action for a package that something installs already, and the
// reason with advice. inside says which objects are in it.
func installedBy(p *plan.Plan, other manifest.ID, delegated bool, inside string) (plan.Action, string) {
	text := fmt.Sprintf("Crossplane's %s installs the same package in this cluster", other)
	for i := range p.Steps {
		if s := &p.Steps[i]; s.ID == other && s.Object == nil {
			return plan.Wait, text + "; it has to be gone first"
		}
	}
	own := fmt.Sprintf("declare the package under the name %s, annotated with %s: \"true\", to take it over", other.Name, manifest.AdoptAnnotation)
	if !delegated {
		own = "set spec.packages: delegate on the Cluster and " + own
	}
	way := ", or delete it: it has no objects"
	if inside != "" {
		way = "; do not delete it: " + inside + " would be deleted with it; docs/crossplane.md says how gitopsd can install it in its place"
	}
	return plan.Conflict, text + ", and each would overwrite what the other writes; " + own + way
}

// repositoryOf returns the repository of an object's package; "" if it has none.
func repositoryOf(o *manifest.Object) string {
	switch {
	case o == nil:
		return ""
	case o.ID().Is(manifest.Packages...):
		return packageOf(o.Tree()).Repository
	}
	return o.Origin().Package.Ref.Repository
}

// packageOf reads spec.package; the Ref is zero if it cannot be read.
func packageOf(tree map[string]any) sources.Ref {
	ref, _ := sources.ParseRef(manifest.Text(tree, "spec", "package"))
	return ref
}

// livePackages returns the packages that Crossplane installs, by repository, as far
// as they can be read.
func (a *Applier) livePackages(ctx context.Context) (map[string]manifest.ID, error) {
	live := make(map[string]manifest.ID)
	for _, kind := range manifest.Packages {
		t, err := a.cluster.Type(ctx, packageVersion, kind.Kind)
		if kube.ClassOf(err) == kube.NoSuchType {
			continue
		}
		if err == nil {
			err = a.cluster.ListFull(ctx, t, kube.ListOptions{}, func(tree map[string]any) bool {
				if ref := packageOf(tree); ref.Repository != "" {
					live[ref.Repository] = t.ID("", manifest.Text(tree, "metadata", "name"))
				}
				return true
			})
		}
		if err != nil {
			return live, err
		}
	}
	return live, nil
}

// revision reads the current revision of a package; nil when there is none.
func (a *Applier) revision(ctx context.Context, id manifest.ID) (map[string]any, error) {
	get := func(id manifest.ID) (map[string]any, error) {
		t, err := a.cluster.Type(ctx, packageVersion, id.Kind)
		if err != nil {
			return nil, err
		}
		tree, _, err := a.cluster.Get(ctx, t, id)
		return tree, err
	}
	tree, err := get(id)
	if err == nil {
		name := manifest.Text(tree, "status", "currentRevision")
		if name == "" {
			return nil, nil
		}
		tree, err = get(manifest.ID{Group: manifest.GroupPackages, Kind: id.Kind + "Revision", Name: name})
	}
	switch kube.ClassOf(err) {
	case kube.NotFound, kube.NoSuchType:
		return nil, nil
	}
	return tree, err
}

// packageRevisions reads all revisions of a package.
func (a *Applier) packageRevisions(ctx context.Context, id manifest.ID) ([]map[string]any, error) {
	var revisions []map[string]any
	kind := schema.GroupKind{Group: id.Group, Kind: id.Kind + "Revision"}
	t, err := a.cluster.Kind(ctx, kind.Group, kind.Kind)
	if err == nil {
		opts := kube.ListOptions{Selector: manifest.PackageRevisionLabel + "=" + id.Name}
		err = a.cluster.ListFull(ctx, t, opts, func(tree map[string]any) bool {
			revisions = append(revisions, tree)
			return true
		})
	}
	if kube.ClassOf(err) == kube.NoSuchType {
		err = a.withdrawn(ctx, kind)
	}
	if err != nil {
		return nil, err
	}
	current, err := a.revision(ctx, id)
	if current != nil {
		revisions = append(revisions, current)
	}
	return revisions, err
}

// packageHealth reads a package's state from Crossplane's conditions.
func packageHealth(u *unstructured.Unstructured) (State, string) {
	wanted := packageOf(u.Object)
	pkg := manifest.Text(u.Object, "spec", "package")
	current := manifest.Text(u.Object, "status", "currentIdentifier")
	resolved := manifest.Text(u.Object, "status", "resolvedPackage")
	installed, healthy := conditionOf(u, "Installed"), conditionOf(u, "Healthy")
	switch {
	case current == "" && installed.status == "":
		return InProgress, "Crossplane has not looked at it yet"
	case installed.status == "False" && installed.reason != "InactivePackageRevision":
		return InProgress, "it is not installed: " + installed.text()
	case current != pkg:
		return InProgress, fmt.Sprintf("Crossplane has %s, and is to install %s", current, pkg)
	case resolved != "" && !strings.HasSuffix(resolved, "@"+string(wanted.Digest)):
		return FailedState, fmt.Sprintf("Crossplane resolved %s, and clusters.lock has %s", resolved, wanted.Digest)
	case installed.status == "False":
		revision := manifest.Text(u.Object, "status", "currentRevision")
		return InProgress, fmt.Sprintf("its revision %s waits to be activated (revisionActivationPolicy: Manual)", revision)
	case healthy.status != "True":
		return InProgress, "it is not healthy: " + healthy.text()
	}
	return ReadyState, ""
}

// revisionHealth verifies that the revision runs the wanted digest.
func revisionHealth(revision map[string]any, wanted sources.Digest) (State, string) {
	if revision == nil {
		return InProgress, "its revision is not there"
	}
	name := manifest.Text(revision, "metadata", "name")
	image := manifest.Text(revision, "spec", "image")
	resolved := manifest.Text(revision, "status", "resolvedImage")
	for _, have := range []string{image, resolved} {
		if have != "" && !strings.HasSuffix(have, "@"+string(wanted)) {
			return FailedState, fmt.Sprintf("its revision %s is of %s, and clusters.lock has %s", name, have, wanted)
		}
	}
	if state := manifest.Text(revision, "spec", "desiredState"); state != "Active" {
		return InProgress, fmt.Sprintf("its revision %s is %s", name, state)
	}
	return ReadyState, ""
}

// verifyPackages looks at the revisions of packages that report to be healthy. A
// revision may become healthy without a write to the package itself.
func (a *Applier) verifyPackages(ctx context.Context, l *healthLook) error {
	for id, digest := range l.packages {
		h := l.health[id]
		if h.State != ReadyState {
			continue
		}
		revision, err := a.revision(ctx, id)
		if kube.IsClusterWide(err) {
			return err
		}
		if err != nil {
			h.State, h.Reason = UnknownState, err.Error()
		} else {
			h.State, h.Reason = revisionHealth(revision, digest)
		}
		l.health[id] = h
		if h.State != ReadyState {
			l.again[id] = true
		}
	}
	return nil
}

// definitionHealth reads from an XRD whether Crossplane serves its types.
func definitionHealth(u *unstructured.Unstructured) (State, string) {
	conditions := []string{"Established"}
	if types.Read(u.Object).Claims.Kind != "" {
		conditions = append(conditions, "Offered")
	}
	for _, kind := range conditions {
		if c := conditionOf(u, kind); c.status != "True" {
			return InProgress, fmt.Sprintf("its types are not served: %s: %s", kind, c.text())
		}
	}
	return ReadyState, ""
}

// condition is an entry of status.conditions.
type condition struct{ status, reason, message string }

func (c condition) text() string {
	switch {
	case c.status == "":
		return "Crossplane has not said anything yet"
	case c.message == "":
		return c.reason
	}
	return c.message
}

// conditionOf returns a condition of the object's current generation.
func conditionOf(u *unstructured.Unstructured, kind string) condition {
	c := manifest.Condition(u.Object, kind)
	if seen, _ := c["observedGeneration"].(int64); seen != 0 && seen < u.GetGeneration() {
		return condition{}
	}
	return condition{manifest.Text(c, "status"), manifest.Text(c, "reason"), manifest.Text(c, "message")}
}
