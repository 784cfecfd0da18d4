package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"gitopsd.dev/reconcile/apply/managed"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/verify"
	"gitopsd.dev/render/behaviour"
	"gitopsd.dev/render/manifest"
)

// functionLabel has the name of a Function on its pods, which Crossplane's package manager or
// gitopsd runs.
const functionLabel = manifest.GroupPackages + "/function"

// function is the container of a Function.
const function = "package-runtime"

// mostWaiting is how many pods that do not run are reported for a controller.
const mostWaiting = 3

// pod is what is compared of a pod.
type pod struct {
	ownedPod
	template behaviour.Template
	// images are the image IDs of containers, by name.
	images []behaviour.Part
	// containers are those that run until the pod ends, init containers that always restart
	// among them.
	containers []container
}

// container is the state of a container. reason is why it does not run; may be empty. sidecar
// reports whether it is an init container.
type container struct {
	name             string
	running, sidecar bool
	reason           string
}

// controller is a rendered workload while its pods are looked for.
type controller struct {
	*verify.Controller
	selector labels.Selector
	provider string
	// rendered is the template of the rendered workload.
	rendered behaviour.Template
	// template is that of the live workload; nil if there is none.
	template *behaviour.Template
}

// controllers reads the pods of the rendered workloads behind types.
func (in *reading) controllers(ctx context.Context) error {
	if len(in.facts.Controllers) == 0 {
		return nil
	}
	// Until the pods are read.
	for _, c := range in.facts.Controllers {
		c.Unread = true
	}
	byNamespace := make(map[string]map[string]*controller) // by kind/name within
	var all []*controller
	owns := in.owns()
	kinds := make(map[string]map[string]bool)
	for id, facts := range in.facts.Controllers {
		c, err := newController(in.wanted.Objects.Get(id), facts)
		if err != nil {
			in.facts.Gap(err)
			continue
		}
		all = append(all, c)
		if byNamespace[id.Namespace] == nil {
			byNamespace[id.Namespace] = make(map[string]*controller)
			kinds[id.Namespace] = make(map[string]bool)
		}
		byNamespace[id.Namespace][id.Kind+"/"+id.Name] = c
		kinds[id.Namespace][id.Kind] = true
	}
	for _, namespace := range slices.Sorted(maps.Keys(byNamespace)) {
		for _, kind := range slices.Sorted(maps.Keys(kinds[namespace])) {
			if err := in.templates(ctx, namespace, kind, byNamespace[namespace]); err != nil {
				return err
			}
		}
		for _, c := range byNamespace[namespace] {
			if c.template != nil {
				in.running = append(in.running, c)
			}
		}
		err := in.pods(ctx, kube.ListOptions{Namespace: namespace}, func(p *pod) {
			for _, c := range byNamespace[namespace] {
				if owns(c, p) {
					c.add(p, false)
				}
			}
		})
		if err != nil {
			return err
		}
		for _, c := range byNamespace[namespace] {
			c.Unread = false
		}
	}
	// Others may have installed the package, too.
	err := in.pods(ctx, kube.ListOptions{Selector: manifest.ProviderLabel}, func(p *pod) {
		if slices.ContainsFunc(all, func(c *controller) bool {
			return c.Wanted.Workload.Namespace == p.Metadata.Namespace && c.selector.Matches(p.labels())
		}) {
			return // one of ours, added above
		}
		for _, c := range all {
			if c.provider == p.Metadata.Labels[manifest.ProviderLabel] {
				c.add(p, true)
			}
		}
	})
	if err != nil {
		return err
	}
	for _, c := range all {
		slices.SortFunc(c.Instances, func(a, b verify.Instance) int { return cmp.Compare(a.Pod, b.Pod) })
		slices.Sort(c.Waiting)
		slices.Sort(c.Added)
		c.Waiting = c.Waiting[:min(len(c.Waiting), mostWaiting)]
	}
	in.platforms(ctx)
	return nil
}

func newController(o *manifest.Object, facts *verify.Controller) (*controller, error) {
	c := &controller{Controller: facts, rendered: behaviour.FromWorkload(o.Tree())}
	var err error
	if c.selector, err = selectorOf(o); err != nil {
		return nil, fmt.Errorf("%s: spec.selector: %w", o.ID(), err)
	}
	c.provider = cmp.Or(manifest.Text(o.Tree(), "spec", "template", "metadata", "labels", manifest.ProviderLabel), " ") // no label is " "
	return c, nil
}

// owns returns a function that reports whether a pod belongs to a controller: its workload
// selects the pod, and no other declared workload has it and gives it its images, as it is
// rendered or as gitopsd applied it before. A sidecar that admission added does not count.
func (in *reading) owns() func(*controller, *pod) bool {
	declared := in.declared()
	cronJobs := make(map[workload]bool)
	for _, o := range in.wanted.Objects.All() {
		if id := o.ID(); id.Is(manifest.CronJob) {
			cronJobs[workload{id, declared(id).account}] = true
		}
	}
	return func(c *controller, p *pod) bool {
		if !c.selector.Matches(p.labels()) {
			return false
		}
		owner := p.owner(cronJobs)
		others := func(d *declaration) bool {
			return d != nil && d.has(&p.ownedPod) && slices.Equal(behaviour.Only(p.template.Images, d.images), d.images)
		}
		return owner == c.Wanted.Workload || !others(declared(owner)) && !others(in.before[owner])
	}
}

// selectorOf returns the selector of a workload's pods.
func selectorOf(o *manifest.Object) (labels.Selector, error) {
	var s metav1.LabelSelector
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(manifest.Mapping(o.Tree(), "spec", "selector"), &s); err != nil {
		return nil, err
	}
	if len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		return nil, errors.New("it selects no pods")
	}
	return metav1.LabelSelectorAsSelector(&s)
}

// templates reads the pod templates of live workloads of a kind.
func (in *reading) templates(ctx context.Context, namespace, kind string, controllers map[string]*controller) error {
	t, err := in.kube.Type(ctx, "apps/v1", kind)
	if err != nil {
		return err
	}
	return in.kube.ListFull(ctx, t, kube.ListOptions{Namespace: namespace}, func(tree map[string]any) bool {
		if c := controllers[kind+"/"+manifest.Text(tree, "metadata", "name")]; c != nil {
			template := behaviour.FromWorkload(tree)
			c.template = &template
			c.Held = heldImages(c.Wanted, tree)
		}
		in.noteBefore(tree)
		return true
	})
}

// noteBefore notes what a live workload that is declared gives its pods, if gitopsd applied
// their account and images, perhaps from another commit.
func (in *reading) noteBefore(tree map[string]any) {
	live, err := manifest.New(tree, manifest.Origin{})
	if err != nil {
		return
	}
	o := in.wanted.Objects.Get(live.ID())
	if o == nil {
		return
	}
	d := declare(live)
	ours := d.account == declare(o).account || managed.Owns(managedFields(tree), "spec", "template", "spec", "serviceAccountName")
	if ours && len(heldImages(behaviour.Workload(o), tree)) == 0 {
		in.before[live.ID()] = d
	}
}

// heldImages lists the images of a live workload that are not rendered and that gitopsd did not apply.
func heldImages(wanted *behaviour.Identity, tree map[string]any) []string {
	var held []string
	meta := managedFields(tree)
	pod := manifest.Mapping(tree, "spec", "template", "spec")
	for _, list := range []string{"initContainers", "containers"} {
		for _, c := range manifest.List(pod, list) {
			container, _ := c.(map[string]any)
			name, image := manifest.Text(container, "name"), manifest.Text(container, "image")
			is := image
			if d, ok := behaviour.ImageDigest(image); ok {
				is = string(d)
			}
			if slices.Contains(wanted.Images, behaviour.Part{Name: name, Value: is}) {
				continue
			}
			manager, at, ours := managed.ImageSetBy(meta, list, name)
			if ours {
				continue // from another commit
			}
			switch manager {
			case "":
				manager = "an unknown writer"
			case kube.FieldManager:
				manager = "an update in gitopsd's name"
			}
			text := fmt.Sprintf("%s itself has the image %s for container %s, set by %s", wanted, image, name, manager)
			if !at.IsZero() {
				text += " at " + at.Format(time.RFC3339)
			}
			held = append(held, text)
		}
	}
	return held
}

// managedFields returns the managedFields of an object's metadata.
func managedFields(tree map[string]any) *metav1.ObjectMeta {
	meta := new(metav1.ObjectMeta)
	fields := map[string]any{"managedFields": manifest.Mapping(tree, "metadata")["managedFields"]}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, meta); err != nil {
		return new(metav1.ObjectMeta)
	}
	return meta
}

// add adds a pod to the instance with the same image IDs and settings.
func (c *controller) add(p *pod, elsewhere bool) {
	name := p.Metadata.Namespace + "/" + p.Metadata.Name
	// A sidecar that admission added runs while the controller does not.
	var template []behaviour.Part
	if c.template != nil {
		template = c.template.Images
	}
	declared := p.of(c.Wanted.Images)
	ours := p.of(c.Wanted.Images, template)
	if elsewhere || len(ours) == 0 {
		declared, ours = nil, p.containers
	}
	if !slices.ContainsFunc(ours, container.runs) {
		if !elsewhere {
			c.Waiting = append(c.Waiting, "pod "+name+": "+why(ours))
		}
		return
	}
	partly := false
	for _, d := range declared {
		if !d.running {
			partly = true
			c.Waiting = append(c.Waiting, fmt.Sprintf("pod %s: container %s: %s", name, d.name, cmp.Or(d.reason, "it does not run")))
		}
	}
	ending := p.Metadata.Deleted != ""
	settings, images := p.template.Settings, p.images
	if c.template != nil && !elsewhere {
		// Without what admission added to the pod.
		settings = behaviour.Only(settings, c.template.Settings, c.Wanted.Settings)
		images = behaviour.Only(images, c.template.Images, c.Wanted.Images)
		for _, i := range p.images {
			if !slices.Contains(images, i) && !slices.Contains(c.Added, i.Name) {
				c.Added = append(c.Added, i.Name)
			}
		}
	}
	if !elsewhere {
		settings = c.renamed(settings, p)
	}
	for i := range c.Instances {
		j := &c.Instances[i]
		if j.Elsewhere == elsewhere && slices.Equal(j.Images, images) && slices.Equal(j.Settings, settings) {
			j.Pods++
			j.Pod = min(j.Pod, name)
			j.Partly = j.Partly && partly
			j.Ending = j.Ending && ending
			return
		}
	}
	c.Instances = append(c.Instances, verify.Instance{Pod: name, Pods: 1, Images: images, Settings: settings, Partly: partly, Ending: ending, Elsewhere: elsewhere})
}

// of returns the containers whose names are in one of the lists.
func (p *pod) of(lists ...[]behaviour.Part) []container {
	return slices.DeleteFunc(slices.Clone(p.containers), func(c container) bool {
		return len(behaviour.Only([]behaviour.Part{{Name: c.name}}, lists...)) == 0
	})
}

// runs reports whether a container runs that is no init container.
func (c container) runs() bool { return c.running && !c.sidecar }

// why returns why none of containers runs.
func why(containers []container) string {
	for _, c := range containers {
		if c.reason != "" {
			return c.reason
		}
	}
	return "its containers do not run"
}

// renamed returns settings of a pod with a mark on those that are as rendered but for the
// suffix that kustomize generated for the name of a ConfigMap or Secret. The object of that
// name may be gone or hold anything.
func (c *controller) renamed(settings []behaviour.Part, p *pod) []behaviour.Part {
	other := behaviour.Differing(c.rendered.Exact, p.template.Exact)
	marked := slices.Clone(settings)
	for i, s := range marked {
		if slices.Contains(other, s.Name) && slices.Contains(c.rendered.Settings, s) {
			marked[i].Value = "another object than rendered"
		}
	}
	return marked
}

// pods reads pods that have not ended.
func (in *reading) pods(ctx context.Context, opts kube.ListOptions, yield func(*pod)) error {
	t, err := in.kube.Type(ctx, "v1", manifest.Pod.Kind)
	if err != nil {
		return err
	}
	return in.kube.ListFull(ctx, t, opts, func(tree map[string]any) bool {
		if p := newPod(tree); p != nil {
			yield(p)
		}
		return true
	})
}

func newPod(tree map[string]any) *pod {
	if phase := manifest.Text(tree, "status", "phase"); phase == "Succeeded" || phase == "Failed" {
		return nil
	}
	p := &pod{template: behaviour.FromPodSpec(manifest.Mapping(tree, "spec"))}
	// The API server only has pods of this form.
	_ = runtime.DefaultUnstructuredConverter.FromUnstructured(tree, &p.ownedPod)
	restarts := make(map[string]bool)
	for _, c := range manifest.List(tree, "spec", "initContainers") {
		c, _ := c.(map[string]any)
		restarts[manifest.Text(c, "name")] = manifest.Text(c, "restartPolicy") == "Always"
	}
	for _, field := range []string{"containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"} {
		for _, s := range manifest.List(tree, "status", field) {
			status, _ := s.(map[string]any)
			name, state := manifest.Text(status, "name"), manifest.Mapping(status, "state")
			if field == "ephemeralContainerStatuses" && state["running"] == nil {
				continue // it has ended, and stays in the status as long as the pod
			}
			p.images = append(p.images, behaviour.Part{Name: name, Value: manifest.Text(status, "imageID")})
			sidecar := field == "initContainerStatuses" && restarts[name]
			if field == "containerStatuses" || sidecar {
				p.containers = append(p.containers, container{name, state["running"] != nil, sidecar, manifest.Text(state, "waiting", "reason")})
			}
		}
	}
	slices.SortFunc(p.images, func(a, b behaviour.Part) int { return cmp.Compare(a.Name, b.Name) })
	return p
}

// functions reads the image IDs that Functions run, by the Function's name. Several of one
// Function are separated by ", ".
func (in *reading) functions(ctx context.Context) (map[string]string, error) {
	all := make(map[string][]string)
	err := in.pods(ctx, kube.ListOptions{Selector: functionLabel}, func(p *pod) {
		name := p.Metadata.Labels[functionLabel]
		for _, i := range p.images {
			if i.Name == function && slices.ContainsFunc(p.of([]behaviour.Part{i}), container.runs) && !slices.Contains(all[name], i.Value) {
				all[name] = append(all[name], i.Value)
			}
		}
	})
	images := make(map[string]string, len(all))
	for name, ids := range all {
		slices.Sort(ids)
		images[name] = strings.Join(ids, ", ")
	}
	return images, err
}
