package live

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/reconcile/verify"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/runtime"
	"gitopsd.dev/sources"
)

// Bounds on what is kept of a cluster's lists. A cluster beyond them is not verified.
const (
	mostRoles     = 10_000  // that may write a compared type
	mostBindings  = 50_000  // of these roles
	mostWorkloads = 100_000 // with their accounts
	// mostActors is how many undeclared workloads are listed one by one.
	mostActors = 50
)

// crossplane is the account that Crossplane runs as: it writes composites and what is
// composed.
const crossplane = "crossplane-system/crossplane"

// own is the account of the daemon as examples/deploy installs it.
const own = runtime.Namespace + "/" + runtime.DaemonName

// rule is a rule of a Role or ClusterRole.
type rule struct {
	Groups    []string `json:"apiGroups"`
	Resources []string `json:"resources"`
	Verbs     []string `json:"verbs"`
}

// right is the right to write some of the compared types, or all types of all groups.
type right struct {
	types []manifest.ID
	all   bool
}

// target is a compared type.
type target struct {
	id manifest.ID
	// namespaced types are the only ones that a RoleBinding grants.
	namespaced bool
}

// targets are the compared types by group and plural.
type targets map[string]map[string]target

var writes = []string{"*", "create", "update", "patch", "delete", "deletecollection"}

// rightOf returns the right that rules give. Writing the status counts, since a second
// controller does that.
func rightOf(rules []rule, of targets) right {
	var r right
	found := make(map[manifest.ID]bool)
	for _, rule := range rules {
		if !slices.ContainsFunc(rule.Verbs, func(v string) bool { return slices.Contains(writes, v) }) {
			continue
		}
		groups := rule.Groups
		if slices.Contains(groups, "*") {
			if slices.Contains(rule.Resources, "*") {
				return right{all: true}
			}
			groups = slices.Collect(maps.Keys(of))
		}
		for _, group := range groups {
			for _, resource := range rule.Resources {
				plural, sub, _ := strings.Cut(resource, "/")
				switch {
				case sub != "" && sub != "status" && sub != "*":
				case plural == "*":
					for _, t := range of[group] {
						found[t.id] = true
					}
				case of[group][plural] != (target{}):
					found[of[group][plural].id] = true
				}
			}
		}
	}
	r.types = slices.SortedFunc(maps.Keys(found), manifest.ID.Compare)
	return r
}

// subject is a subject of a binding.
type subject struct {
	Kind      string `json:"kind"`
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
}

// The groups that ServiceAccounts are in.
const (
	allAccounts      = "system:serviceaccounts"
	allAuthenticated = "system:authenticated"
)

// account returns the ServiceAccount of a subject, "namespace/name", or the group of
// ServiceAccounts. ok is false for users and other groups.
func (s subject) account() (account, group string, ok bool) {
	switch {
	case s.Kind == manifest.ServiceAccount.Kind:
		return s.Namespace + "/" + s.Name, "", true
	case s.Kind == "User" && strings.HasPrefix(s.Name, "system:serviceaccount:"):
		return strings.Replace(strings.TrimPrefix(s.Name, "system:serviceaccount:"), ":", "/", 1), "", true
	case s.Kind == "Group" && (s.Name == allAccounts || s.Name == allAuthenticated || strings.HasPrefix(s.Name, allAccounts+":")):
		return "", s.Name, true
	}
	return "", "", false
}

// grant is a right that a binding gives.
type grant struct {
	right *right
	// by is the binding, namespace the one that it is limited to.
	by, namespace string
}

// workload is a workload with the account of its pods.
type workload struct {
	id      manifest.ID
	account string
}

func (w workload) String() string {
	return fmt.Sprintf("%s %s/%s as ServiceAccount %s", w.id.Kind, w.id.Namespace, w.id.Name, w.account)
}

// access is the accounts that may write types in a cluster, and the workloads there.
type access struct {
	targets targets
	// accounts and groups are the grants by subject.
	accounts, groups map[string][]grant
	workloads        map[workload]bool
	// controllers are the declared ones by definition.
	controllers map[manifest.ID]manifest.ID
	// declared returns what the repository declares for the cluster; nil if nothing.
	declared func(manifest.ID) *declaration
	// known are the accounts that the repository names, silent those of gitopsd.
	known, silent []string
}

// actors returns the workloads that may write types beside the declared controllers.
func (a *access) actors() *verify.Actors {
	found := &verify.Actors{Second: make(map[manifest.ID][]verify.Actor), Known: make(map[string]int)}
	everything := make(map[string]bool)
	second := make(map[string]map[manifest.ID][]string) // bindings by what and type
	note := func(what string, g grant, but manifest.ID, to func(manifest.ID)) {
		for _, id := range g.right.types {
			t := a.target(id)
			if a.controllers[id] == but && but != (manifest.ID{}) || g.namespace != "" && !t.namespaced {
				continue
			}
			if to != nil {
				to(id)
				continue
			}
			if second[what] == nil {
				second[what] = make(map[manifest.ID][]string)
			}
			if !slices.Contains(second[what][id], g.by) {
				second[what][id] = append(second[what][id], g.by)
			}
		}
	}
	inUse, namespaces := make(map[string]bool), make(map[string]bool)
	for w := range a.workloads {
		inUse[w.account], namespaces[w.id.Namespace] = true, true
		if slices.Contains(a.silent, w.account) {
			continue
		}
		grants := a.accounts[w.account]
		where, all := a.everything(grants)
		for _, in := range where {
			everything[fmt.Sprintf("%s %s/%s%s", w.id.Kind, w.id.Namespace, w.id.Name, in)] = true
		}
		if all {
			continue
		}
		if d := a.declared(w.id); d != nil && d.account == w.account || slices.Contains(a.known, w.account) {
			types := make(map[manifest.ID]bool)
			for _, g := range grants {
				note("", g, w.id, func(id manifest.ID) { types[id] = true })
			}
			if len(types) > 0 {
				found.Known[fmt.Sprintf("%s %s/%s", w.id.Kind, w.id.Namespace, w.id.Name)] = len(types)
			}
			continue
		}
		for _, g := range grants {
			note(w.String(), g, manifest.ID{}, nil)
		}
	}
	for group, grants := range a.groups {
		what := "every workload"
		if namespace, ok := strings.CutPrefix(group, allAccounts+":"); ok {
			if !namespaces[namespace] {
				continue // nothing runs there
			}
			what += " of namespace " + namespace
		}
		what += " (group " + group + ")"
		where, _ := a.everything(grants)
		for _, in := range where {
			everything[what+in] = true
		}
		for _, g := range grants {
			note(what, g, manifest.ID{}, nil)
		}
	}
	names := slices.Sorted(maps.Keys(second))
	for i, what := range names {
		for id, by := range second[what] {
			slices.Sort(by)
			actor := verify.Actor{What: what, By: prose.Some(by, 3)}
			if i >= mostActors {
				actor = verify.Actor{What: prose.Count(len(names)-mostActors, "more workload"), By: "bindings that are not listed here"}
			}
			if !slices.Contains(found.Second[id], actor) {
				found.Second[id] = append(found.Second[id], actor)
			}
		}
	}
	found.Everything = slices.Sorted(maps.Keys(everything))
	for _, account := range a.known {
		if !inUse[account] && account != crossplane {
			found.Idle = append(found.Idle, account)
		}
	}
	return found
}

// everything returns where grants allow writing all types of all groups, in words: " in
// namespace a". all reports whether that is everywhere; where then has one empty text.
func (a *access) everything(grants []grant) (where []string, all bool) {
	for _, g := range grants {
		switch {
		case !g.right.all:
		case g.namespace == "":
			return []string{""}, true
		case a.namespaced():
			where = append(where, " in namespace "+g.namespace)
		}
	}
	slices.Sort(where)
	return slices.Compact(where), false
}

// namespaced reports whether objects of a compared type are in namespaces.
func (a *access) namespaced() bool {
	for _, group := range a.targets {
		for _, t := range group {
			if t.namespaced {
				return true
			}
		}
	}
	return false
}

func (a *access) target(id manifest.ID) target {
	plural, group, _ := strings.Cut(id.Name, ".")
	return a.targets[group][plural]
}

// actors reads the rights of ServiceAccounts, and the workloads that have them. It compares
// the types with a declared controller.
func (in *reading) actors(ctx context.Context) error {
	a := &access{
		targets: make(targets), accounts: make(map[string][]grant), groups: make(map[string][]grant),
		workloads: make(map[workload]bool), controllers: make(map[manifest.ID]manifest.ID), silent: []string{own},
		declared: in.declared(),
	}
	if account := in.wanted.Spec.ServiceAccount; account != "" {
		a.silent = append(a.silent, account)
	}
	var err error
	if a.known, err = verify.ParseActors(in.wanted.Annotations[manifest.ActorsAnnotation]); err != nil {
		return fmt.Errorf("%s: annotation %s: %w", sources.RegistryFile, manifest.ActorsAnnotation, err)
	}
	for id, d := range in.facts.Definitions {
		if d.Rendered == nil || d.Live == nil || d.Behaviour == nil {
			continue
		}
		plural, group, ok := strings.Cut(id.Name, ".")
		if !ok {
			continue
		}
		scope := manifest.Text(in.wanted.Objects.Get(id).Tree(), "spec", "scope")
		if a.targets[group] == nil {
			a.targets[group] = make(map[string]target)
		}
		a.targets[group][plural] = target{id, scope != "Cluster" && scope != "LegacyCluster"}
		a.controllers[id] = d.Behaviour.Workload
		if id.Is(manifest.XRD) && !slices.Contains(a.known, crossplane) {
			a.known = append(a.known, crossplane)
		}
	}
	if len(a.targets) == 0 {
		return nil
	}
	if err := in.grants(ctx, a); err != nil {
		return err
	}
	if len(a.accounts)+len(a.groups)+len(a.known) > 0 {
		if err := in.workloads(ctx, a); err != nil {
			return err
		}
	}
	in.facts.Actors = a.actors()
	return nil
}

// grants reads Roles, ClusterRoles and their bindings.
func (in *reading) grants(ctx context.Context, a *access) error {
	rights := make(map[manifest.ID]*right)
	for _, kind := range []manifest.GroupKind{manifest.ClusterRole, manifest.Role} {
		err := list(ctx, in.kube, kind, 0, func(role struct {
			Metadata named  `json:"metadata"`
			Rules    []rule `json:"rules"`
		},
		) error {
			r := rightOf(role.Rules, a.targets)
			if !r.all && len(r.types) == 0 {
				return nil
			}
			if rights[kind.ID(role.Metadata.Namespace, role.Metadata.Name)] = &r; len(rights) > mostRoles {
				return fmt.Errorf("more than %d roles may write the types that are compared", mostRoles)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	bindings := 0
	for _, kind := range []manifest.GroupKind{manifest.ClusterRoleBinding, manifest.RoleBinding} {
		err := list(ctx, in.kube, kind, 0, func(b struct {
			Metadata named `json:"metadata"`
			Role     struct {
				Kind string `json:"kind"`
				Name string `json:"name"`
			} `json:"roleRef"`
			Subjects []subject `json:"subjects"`
		},
		) error {
			role := manifest.ClusterRole.ID("", b.Role.Name)
			if b.Role.Kind == manifest.Role.Kind {
				role = manifest.Role.ID(b.Metadata.Namespace, b.Role.Name)
			}
			r := rights[role]
			if r == nil {
				return nil
			}
			g := grant{right: r, by: kind.Kind + " " + b.Metadata.Name, namespace: b.Metadata.Namespace}
			if g.namespace != "" {
				g.by += " in namespace " + g.namespace
			}
			for _, s := range b.Subjects {
				account, group, ok := s.account()
				switch {
				case !ok:
					continue
				case group != "":
					a.groups[group] = append(a.groups[group], g)
				default:
					a.accounts[account] = append(a.accounts[account], g)
				}
				if bindings++; bindings > mostBindings {
					return fmt.Errorf("more than %d subjects may write the types that are compared", mostBindings)
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// podPage is the number of pods in a page of a list.
const podPage = 250

// workloads reads the workloads: owners of pods, and CronJobs, which may run later.
func (in *reading) workloads(ctx context.Context, a *access) error {
	add := func(w workload) error {
		if a.workloads[w] = true; len(a.workloads) > mostWorkloads {
			return fmt.Errorf("more than %d workloads run there", mostWorkloads)
		}
		return nil
	}
	err := list(ctx, in.kube, manifest.CronJob, podPage, func(c struct {
		Metadata named `json:"metadata"`
		Spec     struct {
			Suspend bool `json:"suspend"`
			Job     struct {
				Spec struct {
					Template struct {
						Spec podSpec `json:"spec"`
					} `json:"template"`
				} `json:"spec"`
			} `json:"jobTemplate"`
		} `json:"spec"`
	},
	) error {
		if c.Spec.Suspend {
			return nil
		}
		return add(workload{manifest.CronJob.ID(c.Metadata.Namespace, c.Metadata.Name), c.Spec.Job.Spec.Template.Spec.account(c.Metadata.Namespace)})
	})
	if err != nil {
		return err
	}
	return list(ctx, in.kube, manifest.Pod, podPage, func(p ownedPod) error {
		if p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" {
			return nil
		}
		return add(workload{a.owner(&p), p.Spec.account(p.Metadata.Namespace)})
	})
}

// named is the metadata of an object in a list.
type named struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace"`
	Labels    map[string]string `json:"labels"`
	Deleted   string            `json:"deletionTimestamp"`
	Owners    []struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Name       string `json:"name"`
		Controller bool   `json:"controller"`
	} `json:"ownerReferences"`
}

type podSpec struct {
	Account string `json:"serviceAccountName"`
}

func (s podSpec) account(namespace string) string {
	return namespace + "/" + cmp.Or(s.Account, "default")
}

type ownedPod struct {
	Metadata named   `json:"metadata"`
	Spec     podSpec `json:"spec"`
	Status   struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

func (p *ownedPod) labels() labels.Set { return p.Metadata.Labels }

// owner returns the workload of a pod, or the pod itself. Anybody who may write a pod may write
// that a declared object owns it. So the labels and the account of the pod must be those that
// the declared workload gives its pods.
func (a *access) owner(p *ownedPod) manifest.ID {
	id := p.owner(a.workloads)
	if d := a.declared(id); d != nil && !d.has(p) {
		return manifest.Pod.ID(p.Metadata.Namespace, p.Metadata.Name)
	}
	return id
}

// declaration is what a rendered object gives its pods. It has no account if the object has no
// pods.
type declaration struct {
	account  string
	selector labels.Selector
	images   []behaviour.Part
}

// declare reads a rendered object. Kinds of others, such as a CloneSet, have the fields of a
// Deployment.
func declare(o *manifest.Object) *declaration {
	id, spec := o.ID(), manifest.Mapping(o.Tree(), "spec")
	if id.Is(manifest.CronJob) {
		spec = manifest.Mapping(spec, "jobTemplate", "spec")
	}
	template := manifest.Mapping(spec, "template")
	if id.Is(manifest.Pod) {
		template = o.Tree()
	}
	if len(manifest.List(template, "spec", "containers")) == 0 {
		return &declaration{}
	}
	pod := behaviour.FromPodSpec(manifest.Mapping(template, "spec"))
	d := &declaration{account: id.Namespace + "/" + pod.Account, images: pod.Images}
	var err error
	if d.selector, err = selectorOf(o); err != nil {
		// The selector of a Job is made up by the API server.
		set := make(labels.Set)
		for k := range manifest.Mapping(template, "metadata", "labels") {
			set[k] = manifest.Text(template, "metadata", "labels", k)
		}
		d.selector = labels.SelectorFromSet(set)
	}
	return d
}

// has reports whether a pod looks like one of the object's.
func (d *declaration) has(p *ownedPod) bool {
	return d.account == p.Spec.account(p.Metadata.Namespace) && d.selector.Matches(p.labels())
}

// declared returns a function that reads the rendered objects, each once.
func (in *reading) declared() func(manifest.ID) *declaration {
	all := make(map[manifest.ID]*declaration)
	return func(id manifest.ID) *declaration {
		d, known := all[id]
		if o := in.wanted.Objects.Get(id); !known && o != nil {
			d = declare(o)
			all[id] = d
		}
		return d
	}
}

// owner returns the owner of a pod by its metadata: the Deployment of its ReplicaSet, the
// CronJob of its Job if that is known, otherwise its controller. It is the pod itself if there
// is none, or one that never owns pods directly.
func (p *ownedPod) owner(known map[workload]bool) manifest.ID {
	m := &p.Metadata
	for _, o := range m.Owners {
		if !o.Controller {
			continue
		}
		group, _ := manifest.GroupVersion(o.APIVersion)
		id := manifest.GroupKind{Group: group, Kind: o.Kind}.ID(m.Namespace, o.Name)
		if hash := m.Labels["pod-template-hash"]; id.Is(manifest.ReplicaSet) && hash != "" && strings.HasSuffix(o.Name, "-"+hash) {
			return manifest.Deployment.ID(m.Namespace, strings.TrimSuffix(o.Name, "-"+hash))
		}
		if i := strings.LastIndexByte(o.Name, '-'); id.Is(manifest.Job) && i > 0 {
			job := manifest.CronJob.ID(m.Namespace, o.Name[:i])
			if known[workload{job, p.Spec.account(m.Namespace)}] {
				return job
			}
		}
		if !id.Is(manifest.Deployment, manifest.CronJob) {
			return id
		}
	}
	return manifest.Pod.ID(m.Namespace, m.Name)
}

// list reads all objects of a kind, and decodes the fields of T. It ends with the first error
// of yield.
func list[T any](ctx context.Context, c *kube.Client, kind manifest.GroupKind, page int, yield func(T) error) error {
	t, err := c.Kind(ctx, kind.Group, kind.Kind)
	if err != nil {
		return err
	}
	var bad error
	err = c.ListRaw(ctx, t, kube.ListOptions{Page: page}, func(item []byte) bool {
		var object T
		if bad = json.Unmarshal(item, &object); bad == nil {
			bad = yield(object)
		}
		return bad == nil
	})
	if err == nil && bad != nil {
		err = fmt.Errorf("list %s: %w", strings.ToLower(kind.Kind), bad)
	}
	return err
}
