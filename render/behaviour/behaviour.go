// Package behaviour identifies the programs that act on the objects of a type:
// the half of a type's identity that no schema shows. Two clusters with the same
// type and the same behaviour do the same with the same object.
//
// Behind a type is
//
//   - a package's CRDs: the Deployment of the package, as it was rendered;
//   - CRDs of plain manifests: the workload of the same cluster that the
//     annotation gitopsd.dev/controller names, "<namespace>/<name>" of a
//     Deployment, StatefulSet or DaemonSet;
//   - XRDs: the Compositions for their composite type, the Functions which these
//     name, and the types that they compose with what acts on those (composes.go);
//   - CRDs with conversion rules: these, too, with a workload or without.
//
// A workload is known by
//
//   - the digests of its images (workload.go);
//   - its settings: the command, arguments and environment of each container, and
//     the ConfigMaps and Secrets that variables and files come from. The order of
//     different arguments does not count;
//   - what these ConfigMaps and Secrets hold, by key (references.go), apart from
//     certificates and tokens, which every cluster has its own of;
//   - the rights of its ServiceAccount (rights.go).
//
// The values of settings are hashed one by one, so that the names of those that
// differ can be told; the values never are, nor their single hashes, since a short
// secret could be guessed from them. For the same reason no digest covers the values
// of Secrets: reconcile/verify compares them in memory only, by hashes with a key
// that is made for one run.
//
// The package is pure and works on decoded trees, so that what is rendered and
// what is live are read alike. Types' digests are render/types' business, what
// runs in a cluster is reconcile/verify/live's.
package behaviour

import (
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/render/manifest"
)

// Identity is a workload, or Compositions, that act on the objects of a type. It
// must not be changed.
type Identity struct {
	// Workload runs the controller; the zero ID for Compositions.
	Workload manifest.ID
	// Images are the images of the workload's containers: the digest if the image is
	// named by one, else the image's name.
	Images []Part
	// Settings are the containers' commands, arguments and environment, and the places
	// of files; for Compositions those that DeploymentRuntimeConfigs set of Functions.
	// Their values are hashes that must not be shown.
	Settings []Part
	// Config are the contents of rendered ConfigMaps and Secrets that it refers to;
	// see the function [Config]. Values of ConfigMaps are hashes that must not be
	// shown, those of Secrets [Withheld], and those that are not rendered [Elsewhere].
	Config []Part
	// Rights are those of its account by the rendered roles and bindings, without those
	// of other packages; see the function [Rights]. A role that is not rendered, or is
	// aggregated, is a part with the role's name.
	Rights []Part
	// PerCluster are the settings and contents that every cluster has its own of, by
	// manifest.PerClusterAnnotation of the workload: names of Settings ("manager
	// variable REGION"), of Config ("ConfigMap settings key region"), or all of an object
	// ("Secret login").
	PerCluster []string
	// Compositions are those for a composite type, each with a hash of its spec.
	Compositions []Part
	// Functions are the Functions that the Compositions name, with their locked
	// digests; "" for a Function that the cluster does not declare.
	Functions []Part
	// Composes are the types that the Compositions compose, by way of other composites
	// too: "Bucket.acme.example/v1" with a hash of the type and of what acts on it. In
	// what is read from a cluster there are none.
	Composes []Part
	// Conversion are the conversion rules of the definition: its name, and the digest
	// that it is rendered with.
	Conversion []Part
}

// Part is one part of a behaviour. Parts are comparable; lists of them are sorted by
// Name, each Name once.
type Part struct {
	Name, Value string
}

// List is the parts of a behaviour that are the same in kind.
type List struct {
	// What is "image", "setting", "config", "right", "composition", "function",
	// "composes" or "conversion".
	What  string
	Parts []Part
	// Shown reports whether values may be shown.
	Shown bool
}

// Lists returns all parts, in the order of [Identity.Digest], without the values of
// those that every cluster has its own of.
func (i *Identity) Lists() []List {
	return []List{
		{"image", i.Images, true},
		{"setting", i.Common(i.Settings), false},
		{"config", i.Common(i.Config), false},
		{"right", i.Rights, true},
		{"composition", i.Compositions, false},
		{"function", i.Functions, true},
		{"composes", i.Composes, false},
		{"conversion", i.Conversion, true},
	}
}

// Common returns settings or contents with one part in place of each that every
// cluster has its own of.
func (i *Identity) Common(parts []Part) []Part {
	if len(i.PerCluster) == 0 {
		return parts
	}
	var kept []Part
	own := make(map[string]bool)
	for _, p := range parts {
		n := slices.IndexFunc(i.PerCluster, func(name string) bool { return p.Name == name || strings.HasPrefix(p.Name, name+" key ") })
		switch {
		case n < 0:
			kept = append(kept, p)
		case !own[i.PerCluster[n]]:
			own[i.PerCluster[n]] = true
			kept = append(kept, Part{i.PerCluster[n], "per cluster"})
		}
	}
	return sorted(kept)
}

// Digest returns "h1:" and the base64 of a SHA-256 over all parts. It does not
// depend on the workload's name. Each part adds a line to the hash: [List.What] and
// JSON strings of name and value, in the order of [Identity.Lists] and each ended by
// a newline.
func (i *Identity) Digest() string {
	var b strings.Builder
	for _, list := range i.Lists() {
		for _, p := range list.Parts {
			fmt.Fprintf(&b, "%s %s %s\n", list.What, quoted(p.Name), quoted(p.Value))
		}
	}
	return hash([]byte(b.String()))
}

// SettingsDigest returns a hash of all Settings together, "h1:…".
func SettingsDigest(settings []Part) string {
	var b strings.Builder
	for _, p := range settings {
		fmt.Fprintf(&b, "%s %s\n", quoted(p.Name), quoted(p.Value))
	}
	return hash([]byte(b.String()))
}

// Differing returns the names of the parts that are in one list only or have another
// value.
func Differing(a, b []Part) []string {
	var names []string
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].Name < b[0].Name:
			names, a = append(names, a[0].Name), a[1:]
		case len(a) == 0 || b[0].Name < a[0].Name:
			names, b = append(names, b[0].Name), b[1:]
		default:
			if a[0].Value != b[0].Value {
				names = append(names, a[0].Name)
			}
			a, b = a[1:], b[1:]
		}
	}
	return names
}

// Only returns the parts whose names are in one of the lists.
func Only(parts []Part, lists ...[]Part) []Part {
	return slices.DeleteFunc(slices.Clone(parts), func(p Part) bool {
		return !slices.ContainsFunc(lists, func(l []Part) bool {
			_, found := slices.BinarySearchFunc(l, p.Name, func(p Part, name string) int { return cmp.Compare(p.Name, name) })
			return found
		})
	})
}

// String returns one line for people, without the settings.
func (i *Identity) String() string {
	switch {
	case i.Workload != (manifest.ID{}):
	case len(i.Conversion) > 0:
		return "conversion rules"
	default:
		return strings.TrimSuffix(fmt.Sprintf("%s; %s", named("composition", i.Compositions), named("function", i.Functions)), "; ")
	}
	return i.Workload.Kind + " " + i.Workload.Namespace + "/" + i.Workload.Name
}

// named returns "composition a, b", or nothing for no parts.
func named(what string, parts []Part) string {
	if len(parts) == 0 {
		return ""
	}
	names := make([]string, len(parts))
	for i, p := range parts {
		names[i] = p.Name
	}
	return what + " " + strings.Join(names, ", ")
}

func sorted(parts []Part) []Part {
	slices.SortStableFunc(parts, func(a, b Part) int { return cmp.Compare(a.Name, b.Name) })
	return parts
}

func hash(text []byte) string {
	sum := sha256.Sum256(text)
	return "h1:" + base64.StdEncoding.EncodeToString(sum[:])
}

func quoted(s string) string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string can always be written
	}
	return string(text)
}
