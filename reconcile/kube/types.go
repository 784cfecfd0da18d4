package kube

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources"
)

// Type is a kind as the cluster serves it. Types are comparable.
type Type struct {
	Group, Version, Kind string
	// Resource is the plural in paths, "deployments".
	Resource string
	// Namespaced kinds live in namespaces.
	Namespaced bool
	// HasStatus reports whether the status is a subresource: writing it leaves the
	// generation as it is.
	HasStatus bool
	// Listable reports whether objects of the type can be listed, patched and deleted;
	// reviews and bindings cannot.
	Listable bool
}

// APIVersion returns "group/version", or "v1" for the core group.
func (t Type) APIVersion() string { return apiVersion(t.Group, t.Version) }

// ID returns the identity of an object of the type.
func (t Type) ID(namespace, name string) manifest.ID {
	return manifest.ID{Group: t.Group, Kind: t.Kind, Namespace: namespace, Name: name}
}

func apiVersion(group, version string) string {
	if group == "" {
		return version
	}
	return group + "/" + version
}

// group is the versions of one API group, most preferred first.
type group struct {
	versions []string
	epoch    uint64
}

// groupTypes is the discovery document of one group and version.
type groupTypes struct {
	kinds  map[string]Type
	absent bool // the cluster does not serve it
	epoch  uint64
}

// Forget drops the types of a group, so that its discovery is read again. Call it after
// one of the group's CRDs was applied or deleted.
func (c *Client) Forget(groupName string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.groups, groupName)
	for gv := range c.gvs {
		if g, _ := manifest.GroupVersion(gv); g == groupName {
			delete(c.gvs, gv)
		}
	}
}

// Refresh begins a pass: each type that was not found is looked up once more, in new
// versions of its group too, and kinds that were slow get their full time limit again.
// Known types stay.
func (c *Client) Refresh() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	clear(c.lanes)
}

// Type finds a kind in a version, "apps/v1" and "Deployment". If the cluster serves no
// such kind, the error is of class NoSuchType.
func (c *Client) Type(ctx context.Context, apiVersion, kind string) (Type, error) {
	g, v := manifest.GroupVersion(apiVersion)
	t, known, err := c.find(ctx, g, v, func(kinds map[string]Type) (t Type, ok bool) { t, ok = kinds[kind]; return })
	if known == nil {
		return t, err
	}
	id := manifest.ID{Group: g, Kind: kind}
	message := noSuchType(id)
	if !known.absent {
		message = fmt.Sprintf("the cluster serves no kind %s in %s%s", kind, apiVersion, sources.Meant(kind, slices.Collect(maps.Keys(known.kinds))))
	}
	return Type{}, c.errorf(operation{verb: "discover", id: id}, NoSuchType, "%s", message)
}

// Unserved returns advice for a kind in a version that the cluster does not serve: the
// versions in which it serves the kind, or the group of a built-in kind. It returns "" if
// there is none, or the cluster does not answer.
func (c *Client) Unserved(ctx context.Context, apiVersion, kind string) string {
	g, v := manifest.GroupVersion(apiVersion)
	var served []string
	if g != "" {
		versions, _ := c.versions(ctx, g, true)
		for _, other := range versions {
			if _, err := c.Type(ctx, g+"/"+other, kind); other != v && err == nil {
				served = append(served, g+"/"+other)
			}
		}
	}
	if len(served) == 0 {
		built, ok := manifest.BuiltInKind(kind)
		if !ok || built.Group == g {
			return ""
		}
		if t, err := c.Kind(ctx, built.Group, kind); err == nil {
			served = append(served, t.APIVersion())
		}
	}
	if len(served) == 0 {
		return ""
	}
	return fmt.Sprintf("the cluster serves %s in %s, not in %s: write apiVersion: %s", kind, strings.Join(served, " and "), apiVersion, served[0])
}

// find picks a kind of a version. If there is none, it returns the version's kinds, read
// in this pass.
func (c *Client) find(ctx context.Context, groupName, version string, pick func(map[string]Type) (Type, bool)) (Type, *groupTypes, error) {
	gv := apiVersion(groupName, version)
	for {
		c.mu.Lock()
		known, epoch := c.gvs[gv], c.epoch
		c.mu.Unlock()
		if known != nil {
			if t, ok := pick(known.kinds); ok {
				return t, nil, nil
			}
			if known.epoch == epoch {
				return Type{}, known, nil
			}
		}
		fetched, err := c.fetchTypes(ctx, groupName, version, epoch)
		if err != nil {
			return Type{}, nil, err
		}
		c.mu.Lock()
		c.gvs[gv] = fetched
		c.mu.Unlock()
	}
}

// Kind finds a kind in the version that the cluster prefers. If the cluster serves no
// such kind, the error is of class NoSuchType.
func (c *Client) Kind(ctx context.Context, groupName, kind string) (Type, error) {
	if groupName == "" {
		return c.Type(ctx, "v1", kind)
	}
	t, served, err := c.inAnyVersion(ctx, groupName, func(kinds map[string]Type) (t Type, ok bool) { t, ok = kinds[kind]; return })
	if served || err != nil {
		return t, err
	}
	id := manifest.ID{Group: groupName, Kind: kind}
	return Type{}, c.errorf(operation{verb: "discover", id: id}, NoSuchType, "%s", noSuchType(id))
}

// inAnyVersion picks a kind of a group in the version that the cluster prefers, and
// reports whether there is one. If the known versions have none, the group may have got a
// new one.
func (c *Client) inAnyVersion(ctx context.Context, groupName string, pick func(map[string]Type) (Type, bool)) (t Type, served bool, err error) {
	for _, current := range []bool{false, true} {
		versions, err := c.versions(ctx, groupName, current)
		if err != nil {
			return Type{}, false, err
		}
		for _, v := range versions {
			t, absent, err := c.find(ctx, groupName, v, pick)
			if absent == nil {
				return t, err == nil, err
			}
		}
	}
	return Type{}, false, nil
}

// versions returns the versions of a group; with current, as read in this pass.
func (c *Client) versions(ctx context.Context, name string, current bool) ([]string, error) {
	c.mu.Lock()
	known, epoch := c.groups[name], c.epoch
	c.mu.Unlock()
	if known != nil && (len(known.versions) > 0 && !current || known.epoch == epoch) {
		return known.versions, nil
	}
	op := operation{verb: "discover", id: manifest.ID{Group: name}}
	body, _, err := c.do(ctx, op, request{method: http.MethodGet, path: []string{"apis", name}, accept: mimeJSON})
	if ClassOf(err) == NoSuchType {
		body, err = []byte("{}"), nil
	}
	if err != nil {
		return nil, err
	}
	var doc metav1.APIGroup
	if err := decodeJSON(body, maxValues, &doc); err != nil {
		return nil, c.malformed(op, err)
	}
	g := &group{epoch: epoch}
	for _, v := range doc.Versions {
		if v.Version == doc.PreferredVersion.Version {
			g.versions = slices.Insert(g.versions, 0, v.Version)
		} else {
			g.versions = append(g.versions, v.Version)
		}
	}
	c.mu.Lock()
	c.groups[name] = g
	c.mu.Unlock()
	return g.versions, nil
}

func (c *Client) fetchTypes(ctx context.Context, groupName, version string, epoch uint64) (*groupTypes, error) {
	path := []string{"apis", groupName, version}
	if groupName == "" {
		path = []string{"api", version}
	}
	op := operation{verb: "discover", id: manifest.ID{Group: groupName}}
	body, _, err := c.do(ctx, op, request{method: http.MethodGet, path: path, accept: mimeJSON})
	if ClassOf(err) == NoSuchType {
		return &groupTypes{absent: true, epoch: epoch}, nil
	}
	if err != nil {
		return nil, err
	}
	var doc metav1.APIResourceList
	if err := decodeJSON(body, maxValues, &doc); err != nil {
		return nil, c.malformed(op, err)
	}
	found := &groupTypes{kinds: make(map[string]Type, len(doc.APIResources)), epoch: epoch}
	status := make(map[string]bool)
	for _, r := range doc.APIResources {
		if parent, sub, ok := strings.Cut(r.Name, "/"); ok {
			status[parent] = status[parent] || sub == "status"
		}
	}
	for _, r := range doc.APIResources {
		if strings.Contains(r.Name, "/") {
			continue
		}
		found.add(groupName, version, r.Kind, r.Name, r.Namespaced, status[r.Name], r.Verbs)
	}
	return found, nil
}

func (g *groupTypes) add(groupName, version, kind, resource string, namespaced, status bool, verbs []string) {
	g.kinds[kind] = Type{
		Group: groupName, Version: version, Kind: kind, Resource: resource, Namespaced: namespaced, HasStatus: status,
		Listable: slices.Contains(verbs, "list") && slices.Contains(verbs, "patch") && slices.Contains(verbs, "delete"),
	}
}

// Resource finds a kind by its plural, in the version that the cluster prefers. If the
// cluster serves no such resource, the error is of class NoSuchType.
func (c *Client) Resource(ctx context.Context, groupName, resource string) (Type, error) {
	t, served, err := c.inAnyVersion(ctx, groupName, func(kinds map[string]Type) (Type, bool) {
		for _, t := range kinds {
			if t.Resource == resource {
				return t, true
			}
		}
		return Type{}, false
	})
	if served || err != nil {
		return t, err
	}
	op := operation{verb: "discover", id: manifest.ID{Group: groupName}}
	return Type{}, c.errorf(op, NoSuchType, "the cluster serves no %s.%s", resource, groupName)
}

// Everything is all types that a cluster serves.
type Everything struct {
	// Types are the kinds with objects that can be listed, each in the version that the
	// cluster prefers.
	Types []Type
	// Stale are the APIs, "group/version", of aggregated API servers that do not
	// answer: they may serve more kinds.
	Stale []string
}

// All reads all types that the cluster serves.
func (c *Client) All(ctx context.Context) (*Everything, error) {
	seen := make(map[schema.GroupKind]bool)
	all := new(Everything)
	for _, root := range []string{"api", "apis"} {
		doc, _, _, err := c.everything(ctx, root, "")
		if err != nil {
			return nil, err
		}
		for _, g := range doc.Items {
			for _, v := range g.Versions { // the preferred one is first
				if v.Freshness == apidiscovery.DiscoveryFreshnessStale {
					all.Stale = append(all.Stale, apiVersion(g.Name, v.Version))
				}
				for _, t := range discovered(g.Name, v).kinds {
					if gk := (schema.GroupKind{Group: t.Group, Kind: t.Kind}); t.Listable && !seen[gk] {
						seen[gk] = true
						all.Types = append(all.Types, t)
					}
				}
			}
		}
	}
	slices.SortFunc(all.Types, func(a, b Type) int { return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Kind, b.Kind)) })
	return all, nil
}

// Version reads the API server's version, "v1.36.3".
func (c *Client) Version(ctx context.Context) (string, error) {
	op := operation{verb: "discover"}
	body, _, err := c.do(ctx, op, request{method: http.MethodGet, path: []string{"version"}, accept: mimeJSON})
	if err != nil {
		return "", err
	}
	var doc struct {
		GitVersion string `json:"gitVersion"`
	}
	if err := decodeJSON(body, maxValues, &doc); err != nil {
		return "", c.malformed(op, err)
	}
	return doc.GitVersion, nil
}

// Served returns the resources of the given groups that the cluster serves. A resource is
// served from the moment its CRD is established, and one request answers for any number
// of CRDs. etag is the last answer's, "" at first. If nothing has changed since, served is
// nil.
func (c *Client) Served(ctx context.Context, groups map[string]bool, etag string) (served map[schema.GroupVersionResource]bool, newETag string, err error) {
	doc, unchanged, newETag, err := c.everything(ctx, "apis", etag)
	if err != nil || unchanged {
		return nil, etag, err
	}
	served = make(map[schema.GroupVersionResource]bool)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range doc.Items {
		if !groups[g.Name] {
			continue
		}
		for _, v := range g.Versions {
			found := discovered(g.Name, v)
			for _, t := range found.kinds {
				served[schema.GroupVersionResource{Group: g.Name, Version: v.Version, Resource: t.Resource}] = true
			}
			// Its epoch is 0: more of the group's kinds may come any moment.
			c.gvs[apiVersion(g.Name, v.Version)] = found
		}
	}
	return served, newETag, nil
}

// everything reads the aggregated discovery document (KEP-3352) of the core
// group, "api", or of all others, "apis".
func (c *Client) everything(ctx context.Context, root, etag string) (doc *apidiscovery.APIGroupDiscoveryList, unchanged bool, newETag string, err error) {
	op := operation{verb: "discover"}
	body, header, err := c.do(ctx, op, request{
		method: http.MethodGet, path: []string{root}, accept: mimeDiscovery, ifNoneMatch: etag, limit: maxPageBytes,
	})
	if err != nil || body == nil {
		return nil, err == nil, etag, err
	}
	doc = new(apidiscovery.APIGroupDiscoveryList)
	if err := decodeJSON(body, maxValues, doc); err != nil {
		return nil, false, "", c.malformed(op, err)
	}
	if doc.Kind != "APIGroupDiscoveryList" {
		return nil, false, "", c.malformed(op, fmt.Errorf("it is of kind %q where APIGroupDiscoveryList was asked for; gitopsd needs Kubernetes 1.30 or newer", doc.Kind))
	}
	return doc, false, header.Get("ETag"), nil
}

func discovered(groupName string, v apidiscovery.APIVersionDiscovery) *groupTypes {
	found := &groupTypes{kinds: make(map[string]Type, len(v.Resources))}
	for _, r := range v.Resources {
		if r.ResponseKind == nil {
			continue
		}
		status := slices.ContainsFunc(r.Subresources, func(s apidiscovery.APISubresourceDiscovery) bool { return s.Subresource == "status" })
		found.add(groupName, v.Version, r.ResponseKind.Kind, r.Resource, r.Scope == apidiscovery.ScopeNamespace, status, r.Verbs)
	}
	return found
}

func (c *Client) malformed(op operation, err error) *Error {
	e := c.errorf(op, Server, "the answer is not what an API server sends: %v", err)
	e.cause = err
	return e
}
