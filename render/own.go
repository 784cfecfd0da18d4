package render

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/render/converter"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/runtime"
	"gitopsd.dev/render/target"
	"gitopsd.dev/sources"
)

// Objects and names that gitopsd has for itself in the clusters.

// refuseOwn refuses the plain objects that gitopsd keeps for itself in the cluster. Applied,
// they would lose content, and be pruned once no manifest has them any more. It also
// refuses those with the name of an object of the server of conversion rules.
func (c *cluster) refuseOwn(server []*manifest.Object) {
	c.plain = slices.DeleteFunc(slices.Clone(c.plain), func(o *manifest.Object) bool {
		what := ownContent(o.ID())
		switch {
		case what != "":
			c.refuse(o, fmt.Errorf("gitopsd keeps %s under such names; rename the object, or remove it from the manifests", what))
		case manifest.Find(server, o.ID()) != nil:
			c.refuse(o, errors.New("spec.conversion.service of the Cluster makes an object of that name; rename this one, or remove it from the manifests"))
		default:
			return false
		}
		return true
	})
}

// ownContent returns the kind of content that gitopsd itself has in an object of that name;
// "" if it has none.
func ownContent(id manifest.ID) string {
	has := func(prefix string) bool { return strings.HasPrefix(id.Name, prefix) }
	switch {
	case id.Namespace != runtime.Namespace:
	case id.Is(manifest.ConfigMap) && has(manifest.InventoryPrefix):
		return "its inventories"
	case id.Is(manifest.Secret) && (has(manifest.ServingCAPrefix) || has(manifest.EtcdCAPrefix)):
		return "its CAs"
	}
	return ""
}

// ownName reports whether a controller's object must not have that name. An account of the
// name exists or will exist for another purpose, and the controller would run with its
// rights: the daemon's, that of the server of conversion rules, those of connections, and
// the one that Kubernetes makes in each namespace. The other objects of the daemon and the
// server have the names of their accounts.
func ownName(id manifest.ID) bool {
	switch {
	case id.Namespace != runtime.Namespace:
		return false
	case id.Is(manifest.ServiceAccount) && (id.Name == "default" || target.Made(id, "")):
		return true
	}
	return id.Name == runtime.DaemonName || converter.Part(id)
}

// checkOwnName fails if an object of a package's controller has a name that is not a
// package's to use.
func checkOwnName(o *manifest.Object, s sources.Selected, config *runtime.Config) error {
	if !ownName(o.ID()) {
		return nil
	}
	how := fmt.Sprintf("declare %s under another name; a dependency is named after its repository until it is declared", s.Repository())
	if o.ID().Name != s.Declaration.Name {
		how = fmt.Sprintf("name another in %s %s", manifest.RuntimeConfig.Kind, config.Name)
	}
	return fmt.Errorf("its controller would get %s, whose name is reserved for gitopsd and Kubernetes: %s", o.ID(), how)
}
