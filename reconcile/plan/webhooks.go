package plan

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

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
// one that is registered already goes before the workload does.
//
// A configuration that is registered stays while its controller is replaced, and gets
// what restricts nothing further at once: a new CA bundle, or a repair of the
// configuration that keeps the controller from coming up. See [Registers].
//
// A CRD that converts by webhook does not wait, although what it converts fails until
// the webhook is served: its controller does not start without its types. Nothing is
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

// misuse returns why an object's CA bundle cannot be filled in as it asks, "" if it can.
func (c *computation) misuse(o *manifest.Object) string {
	if c.unregistered[o.ID()] != "" {
		return "" // which tells more
	}
	if err := webhook.Misuse(o, c.desired.Get); err != nil {
		return fmt.Sprintf("%v (%s)", err, o.Origin())
	}
	return ""
}

// unready returns why an object must not be applied yet, whether it exists or not: a CA
// bundle is not filled in.
func unready(o *manifest.Object) string {
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
		if why := webhook.Unserved(c.desired.All(), o); why != "" {
			if c.unregistered == nil {
				c.unregistered, c.without = make(map[manifest.ID]string), make(map[string]bool)
			}
			c.unregistered[o.ID()], c.without[o.Label(manifest.PackageLabel)] = why, true
		}
	}
}

// withdrawn reports whether a desired object must go: it is registered, it is ours,
// and nothing is going to serve it.
func (c *computation) withdrawn(id manifest.ID) bool {
	meta := c.live.Objects[id]
	return c.unregistered[id] != "" && meta != nil && c.inv.Membership(id, meta) == Member
}

// leaves returns why a webhook configuration goes although it is desired; "" for other
// objects.
func (c *computation) leaves(id manifest.ID) string {
	if why := c.unregistered[id]; why != "" {
		return "nothing is going to serve it: " + why
	}
	return ""
}

// early reports whether a prune comes before workloads are applied: of what sends
// requests to a package that is not going to serve them.
func (c *computation) early(s *Step) bool {
	return s.ID.Is(manifest.Webhooks...) && (c.unregistered[s.ID] != "" || c.without[s.Package])
}

// served returns when a new object is registered, "" if it sends no requests.
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

// Registers reports whether applying a webhook configuration or an APIService makes the
// API server send requests that it does not send now: to another server, for other
// objects, or no longer ignoring failures. Either tree is as the API server has it or
// as it is written.
func Registers(live, wanted map[string]any) bool {
	if manifest.KindOf(wanted) == manifest.APIService {
		return !reflect.DeepEqual(target(manifest.Mapping(live, "spec")), target(manifest.Mapping(wanted, "spec")))
	}
	hooks := make(map[any]map[string]any)
	for _, h := range manifest.List(live, "webhooks") {
		hook, _ := h.(map[string]any)
		hooks[hook["name"]] = hook
	}
	for _, h := range manifest.List(wanted, "webhooks") {
		hook, _ := h.(map[string]any)
		old := hooks[hook["name"]]
		if old == nil || !reflect.DeepEqual(target(manifest.Mapping(old, "clientConfig")), target(manifest.Mapping(hook, "clientConfig"))) {
			return true
		}
		if old["failurePolicy"] == "Ignore" && hook["failurePolicy"] != "Ignore" {
			return true
		}
		before := rules(old)
		for _, rule := range rules(hook) {
			if !slices.ContainsFunc(before, func(r any) bool { return reflect.DeepEqual(r, rule) }) {
				return true
			}
		}
	}
	return false
}

// target is where requests are sent, with the API server's defaults.
func target(config map[string]any) [5]any {
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

// rules are the rules of a webhook, with the API server's defaults.
func rules(hook map[string]any) []any {
	var list []any
	for _, r := range manifest.List(hook, "rules") {
		rule, _ := r.(map[string]any)
		full := map[string]any{"scope": "*"}
		for k, v := range rule {
			full[k] = v
		}
		list = append(list, full)
	}
	return list
}
