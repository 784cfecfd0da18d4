package plan

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/webhook"
)

// When webhooks are registered.
//
// A webhook that fails closed blocks every request that it is for while nothing serves
// it. So the webhook configurations of a package, and APIServices, come after the
// workload that serves them is ready and its Service has endpoints (reconcile/apply
// waits), and go before it. A configuration of a package that nothing is going to
// serve, since a patch removed the workload or scaled it to zero, is not registered;
// one that is registered already goes before the workload does. While errors leave open
// whether its Service or workload is wanted, these stay, and so does the configuration.
//
// A configuration that is registered stays while its controller is replaced, and gets
// what restricts nothing further at once: a new CA bundle, or a repair of the
// configuration that keeps the controller from coming up. See [Registers].
//
// An object of a type that a new configuration is for, with a webhook that fails closed,
// comes after it, as if the configuration had been there first: it would be stored
// unchecked, or without what the webhook adds. See [Guards].
//
// A CRD that converts by rules waits for what serves them; see converters.go. A CRD that
// converts by a webhook of its package does not wait, since its controller does not start
// without its types. If its conversions are served by another Service now, such as that of a
// package which had another name, they are until the new one is served; see
// [MovesConversion]. Otherwise what it converts fails until the webhook is served. Nothing is
// lost meanwhile, since a conversion that fails returns nothing. What fails:
//
//   - a new CRD: requests in another version than the stored one; there are no objects
//     yet.
//   - a CRD that gets a webhook or a version: requests for objects in the new versions;
//     and, if the storage version changes, writes in the old versions. Objects are read
//     in the version they are stored in without the webhook.
//
// Not to convert until the webhook is served (strategy None) would be worse: the API
// server would hand out objects of the old version as the new one, without the fields
// that differ, and a controller would write them back like that.

// misuse returns why an object's CA bundle cannot be filled in as it asks; "" if it can.
func (c *computation) misuse(o *manifest.Object) string {
	if c.unregistered[o.ID()] != "" {
		return "" // which tells more
	}
	if err := webhook.Misuse(o, c.desired.Get); err != nil {
		return fmt.Sprintf("%v%s", err, o.Origin().InPackage())
	}
	return ""
}

// Unready returns why an object must not be applied yet, whether it exists or not: a CA
// bundle is not filled in. It returns "" for an object that may be applied.
func Unready(o *manifest.Object) string {
	id, pkg := o.ID(), o.Label(manifest.PackageLabel)
	if !id.Is(manifest.Webhooks...) && !id.Is(manifest.APIService) || pkg == "" && o.Annotation(manifest.InjectCAAnnotation) == "" {
		return ""
	}
	for _, path := range webhook.Left(o.Tree()) {
		if !slices.Contains(o.Unknown(), path) {
			return fmt.Sprintf("%s is not known yet; without it, requests would be blocked", path)
		}
	}
	return ""
}

// findUnregistered notes the webhook configurations of packages that nothing is going
// to serve.
func (c *computation) findUnregistered() {
	for _, o := range c.desired.All() {
		if !o.ID().Is(manifest.Webhooks...) {
			continue
		}
		if why := webhook.Unserved(c.desired.All(), o); why != "" && !c.mayBeServed(o) {
			if c.unregistered == nil {
				c.unregistered, c.without = make(map[manifest.ID]string), make(map[string]bool)
			}
			c.unregistered[o.ID()], c.without[o.Label(manifest.PackageLabel)] = why, true
		}
	}
}

// mayBeServed reports whether something that is not desired, but stays since it may be,
// serves a webhook configuration: a Service, or a workload if its Service selects no other.
func (c *computation) mayBeServed(o *manifest.Object) bool {
	if c.opts.Keeps == nil {
		return false
	}
	services := webhook.Services(o.Tree())
	open := make(map[string]bool) // the namespaces of Services without a desired workload
	for _, service := range services {
		if servers, known := webhook.Servers(c.desired.All(), service); known && len(servers) == 0 {
			open[service.Namespace] = true
		}
	}
	for id, meta := range c.live.Objects {
		if !slices.Contains(services, id) && (!open[id.Namespace] || !id.Is(manifest.Workloads...)) {
			continue
		}
		if c.desired.Get(id) == nil && c.inv.Membership(id, meta) == Member && c.opts.Keeps(id, meta.Labels[manifest.PackageLabel]) {
			return true
		}
	}
	return false
}

// withdrawn reports whether a desired object is removed: it is registered, it is ours,
// and nothing is going to serve it.
func (c *computation) withdrawn(id manifest.ID) bool {
	meta := c.live.Objects[id]
	return c.unregistered[id] != "" && meta != nil && c.inv.Membership(id, meta) == Member
}

// leaves returns why a webhook configuration is removed although it is desired; "" for
// other objects.
func (c *computation) leaves(id manifest.ID) string {
	if why := c.unregistered[id]; why != "" {
		return "nothing is going to serve it: " + why
	}
	return ""
}

// early reports whether a prune comes before Services and workloads are applied: the
// object sends requests to a package that is not going to serve them.
func (c *computation) early(s *Step) bool {
	return s.ID.Is(manifest.Webhooks...) && (c.unregistered[s.ID] != "" || c.without[s.Package])
}

// keepServers holds the changes to a package's workloads and Services as long as one of
// its configurations that must go first cannot go: it is kept, or may exist. It holds all
// changes, without asking which of them matter.
func (c *computation) keepServers(steps []Step) {
	needed := make(map[string]manifest.ID)
	for i := range steps {
		s := &steps[i]
		_, unreadable := c.live.Unreadable[kindOf(s.ID)]
		if s.Early && s.Action == Held || s.Object != nil && c.unregistered[s.ID] != "" && unreadable {
			needed[s.Package] = s.ID
		}
	}
	for i := range steps {
		s := &steps[i]
		config, ok := needed[s.Package]
		if ok && s.Object != nil && s.Action == Configure && (s.Stage == Workloads || s.ID.Is(manifest.Service)) {
			s.Action, s.Reason = Held, fmt.Sprintf("stays as it is: %s needs it until it is gone", config)
		}
	}
}

// serving returns the packages with a Service, which may serve webhook configurations
// that cannot be read, and why these cannot be read. It returns none if all can.
func (c *computation) serving() (unreadable string, packages map[string]bool) {
	for _, kind := range manifest.Webhooks {
		unreadable = cmp.Or(unreadable, c.live.Unreadable[schema.GroupKind(kind)])
	}
	if unreadable == "" {
		return "", nil
	}
	packages = make(map[string]bool)
	for id, meta := range c.live.Objects {
		if pkg := meta.Labels[manifest.PackageLabel]; pkg != "" && id.Is(manifest.Service) {
			packages[pkg] = true
		}
	}
	return unreadable, packages
}

// served returns when a new object is registered; "" if it sends no requests.
func (c *computation) served(o *manifest.Object) string {
	if StageOf(o.ID()) != Admission {
		return ""
	}
	var names []string
	for _, service := range webhook.Services(o.Tree()) {
		servers, _ := webhook.Servers(c.desired.All(), service)
		if len(servers) == 0 {
			names = append(names, fmt.Sprintf("%s has a ready endpoint", service))
		}
		for _, s := range servers {
			names = append(names, fmt.Sprintf("%s is ready", s.ID()))
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "registered once " + strings.Join(names, " and ")
}

// guarded returns when a new object is created, if that is after a new webhook
// configuration of the same plan that matches its type; "" otherwise, and for types that
// are not desired.
func (c *computation) guarded(o *manifest.Object) string {
	definition := c.defined[schema.FromAPIVersionAndKind(o.APIVersion(), o.ID().Kind)]
	if definition == (manifest.ID{}) {
		return ""
	}
	resource := resourceOf(c.desired.Get(definition), o.ID())
	for _, w := range c.desired.All() {
		if id := w.ID(); id.Is(manifest.Webhooks...) && c.live.Objects[id] == nil && c.unregistered[id] == "" && Guards(w.Tree(), resource) {
			return fmt.Sprintf("created once %s is registered", id)
		}
	}
	return ""
}

// Guards reports whether a webhook configuration has a webhook that fails closed and
// matches a resource. It ignores versions and selectors.
func Guards(tree map[string]any, of schema.GroupResource) bool {
	return slices.ContainsFunc(manifest.List(tree, "webhooks"), func(w any) bool {
		hook, _ := w.(map[string]any)
		return hook["failurePolicy"] != "Ignore" && matches(manifest.List(hook, "rules"), of)
	})
}

// Registers reports whether applying a webhook configuration or an APIService makes the
// API server send requests that it does not send now: to another server, for other
// objects, or no longer ignoring failures. Either tree is as the API server has it or
// as it is written.
func Registers(live, wanted map[string]any) bool {
	if manifest.KindOf(wanted) == manifest.APIService {
		return !reflect.DeepEqual(destination(manifest.Mapping(live, "spec")), destination(manifest.Mapping(wanted, "spec")))
	}
	hooks := make(map[any]map[string]any)
	for _, h := range manifest.List(live, "webhooks") {
		hook, _ := h.(map[string]any)
		hooks[hook["name"]] = hook
	}
	for _, h := range manifest.List(wanted, "webhooks") {
		hook, _ := h.(map[string]any)
		old := hooks[hook["name"]]
		if old == nil || !reflect.DeepEqual(destination(manifest.Mapping(old, "clientConfig")), destination(manifest.Mapping(hook, "clientConfig"))) {
			return true
		}
		if old["failurePolicy"] == "Ignore" && hook["failurePolicy"] != "Ignore" ||
			old["matchPolicy"] == "Exact" && hook["matchPolicy"] != "Exact" {
			return true
		}
		// For a request that a webhook is for, each of these must hold.
		for _, requirements := range [][]string{
			{"matchConditions"}, {"namespaceSelector", "matchExpressions"}, {"objectSelector", "matchExpressions"},
		} {
			if !eachIn(manifest.List(old, requirements...), manifest.List(hook, requirements...), reflect.DeepEqual) {
				return true
			}
		}
		for _, selector := range []string{"namespaceSelector", "objectSelector"} {
			if !selects(manifest.Mapping(hook, selector, "matchLabels"), manifest.Mapping(old, selector, "matchLabels")) {
				return true
			}
		}
		if !eachIn(manifest.List(hook, "rules"), manifest.List(old, "rules"), narrows) {
			return true
		}
	}
	return false
}

// eachIn reports whether each element of one list is like one of the other list.
func eachIn(list, other []any, like func(a, b any) bool) bool {
	return !slices.ContainsFunc(list, func(a any) bool {
		return !slices.ContainsFunc(other, func(b any) bool { return like(a, b) })
	})
}

// selects reports whether the labels of a selector include those of another.
func selects(labels, other map[string]any) bool {
	for key, value := range other {
		if labels[key] != value {
			return false
		}
	}
	return true
}

// narrows reports whether a rule matches only requests that another rule matches too.
func narrows(a, b any) bool {
	rule, _ := a.(map[string]any)
	other, _ := b.(map[string]any)
	for _, field := range []string{"apiGroups", "apiVersions", "operations", "resources"} {
		if !eachIn(manifest.List(rule, field), manifest.List(other, field), covered) {
			return false
		}
	}
	was := other["scope"]
	return was == nil || was == "*" || was == rule["scope"]
}

// covered reports whether a name in a rule is among the names that another stands for. A
// subresource is written as resource/subresource, and "*" alone stands for none.
func covered(a, b any) bool {
	name, _ := a.(string)
	other, _ := b.(string)
	resource, subresource, sub := strings.Cut(name, "/")
	otherResource, otherSubresource, otherSub := strings.Cut(other, "/")
	return other == "*/*" || sub == otherSub &&
		(otherResource == "*" || otherResource == resource) && (otherSubresource == "*" || otherSubresource == subresource)
}

// MovesConversion reports whether applying a CRD makes the API server send conversions to
// another Service than the present one, from. It is false if the CRD gets a version that it
// did not have, which the server behind the present Service may not know.
func MovesConversion(live, wanted map[string]any) (from manifest.ID, moves bool) {
	was, is := webhook.Services(live), webhook.Services(wanted)
	if len(was) == 0 || len(is) == 0 || was[0] == is[0] {
		return from, false
	}
	known := make(map[string]bool)
	for _, v := range manifest.List(live, "spec", "versions") {
		version, _ := v.(map[string]any)
		known[manifest.Text(version, "name")] = true
	}
	for _, v := range manifest.List(wanted, "spec", "versions") {
		if version, _ := v.(map[string]any); version["served"] == true && !known[manifest.Text(version, "name")] {
			return from, false
		}
	}
	return was[0], true
}

// WithConversion returns a copy of a CRD that converts as a live one does. The copy shares
// unchanged parts.
func WithConversion(tree, live map[string]any) map[string]any {
	tree = manifest.With(tree, manifest.Mapping(live, "spec", "conversion"), "spec", "conversion")
	if rules := manifest.Text(live, "metadata", "annotations", manifest.ConversionAnnotation); rules != "" {
		tree = manifest.With(tree, rules, "metadata", "annotations", manifest.ConversionAnnotation)
	}
	return tree
}

// destination returns where requests are sent, with the API server's defaults.
func destination(config map[string]any) [5]any {
	service := manifest.Mapping(config, "service")
	if service == nil {
		return [5]any{config["url"]}
	}
	port := service["port"]
	if port == nil {
		port = int64(443)
	}
	return [5]any{nil, service["namespace"], service["name"], port, service["path"]}
}
