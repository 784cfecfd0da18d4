// Package behaviour identifies the programs that act on the objects of a type. Two
// clusters with the same type and the same behaviour treat an object alike.
//
// The objects of a type are acted on by
//
//   - CRDs of a package: the package's rendered Deployment;
//   - CRDs of plain manifests: the workload of the same cluster that the annotation
//     gitopsd.dev/controller names, "<namespace>/<name>" of a Deployment, StatefulSet or
//     DaemonSet;
//   - XRDs: the Compositions for their composite type, the Functions that these name,
//     and the composed types with their own behaviour (composes.go);
//   - CRDs with conversion rules: the rules, beside a workload if there is one.
//
// A workload is identified by
//
//   - the digests of its images (workload.go);
//   - its settings: the command, arguments and environment of each container, and the
//     names of the ConfigMaps and Secrets that variables and files come from. The order
//     of different arguments does not count;
//   - the contents of these ConfigMaps and Secrets, by key (references.go), except for
//     certificates and tokens, which differ in every cluster;
//   - the rights of its ServiceAccount (rights.go).
//
// index.go finds the identity of each type among the rendered objects of a cluster, and
// differences.go compares two identities.
//
// Values of settings are hashed one by one, so that the names of differing settings can
// be shown. The values and their single hashes are never shown, since a short secret could
// be guessed from its hash. For the same reason no digest covers the values of Secrets:
// reconcile/verify compares them in memory only, by hashes with a key made for one run.
//
// The package does no I/O. It works on decoded trees, so that rendered and live objects
// are read alike. Package render/types computes the digests of types, and
// reconcile/verify/live reads the workloads that run in a cluster.
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
	// Images are the images of the workload's containers: the digest, or the name of an
	// image that has no digest in it.
	Images []Part
	// Settings are the containers' commands, arguments and environment, and the mounts of
	// their volumes. For Compositions they are the settings that DeploymentRuntimeConfigs
	// give Functions. Their values are hashes that must not be shown.
	Settings []Part
	// Config are the contents of rendered ConfigMaps and Secrets that the workload refers
	// to; see the function [Config]. Values of ConfigMaps are hashes that must not be
	// shown. Values of Secrets are [Withheld], and values that are not rendered
	// [Elsewhere].
	Config []Part
	// Rights are the rights of the account by the rendered roles and bindings, except for
	// those of other packages; see the function [Rights]. A role that is not rendered, or
	// is aggregated, is a part with the role's name.
	Rights []Part
	// PerCluster are the settings and contents that may differ in every cluster, by
	// manifest.PerClusterAnnotation of the workload: names of Settings ("manager
	// variable REGION"), of Config ("ConfigMap settings key region"), or of whole objects
	// ("Secret login").
	PerCluster []string
	// Compositions are the Compositions for a composite type, each with a hash of its spec.
	Compositions []Part
	// Functions are the Functions that the Compositions name, with their locked
	// digests; "" for a Function that the cluster does not declare.
	Functions []Part
	// Composes are the types that the Compositions compose, directly or through other
	// composites: "Bucket.acme.example/v1" with a hash of the type and its behaviour.
	// Identities read from a cluster have none.
	Composes []Part
	// Conversion are the conversion rules of the definition: its name, and the digest of
	// its rules.
	Conversion []Part
}

// Part is one part of a behaviour. Parts are comparable; lists of them are sorted by
// Name, each Name once.
type Part struct {
	Name, Value string
}

// List has the parts of one kind of a behaviour.
type List struct {
	// What is "image", "setting", "config", "right", "composition", "function",
	// "composes" or "conversion".
	What  string
	Parts []Part
	// Shown reports whether values may be shown.
	Shown bool
}

// Lists returns all parts, in the order of [Identity.Digest], without the values that may
// differ in every cluster.
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

// Common returns settings or contents without the values of parts that may differ in
// every cluster: each entry of PerCluster becomes one part.
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

// Digest returns "h1:" and the base64 of a SHA-256 over all parts. It does not depend on
// the workload's name. Each part adds a line to the hash, in the order of
// [Identity.Lists]: [List.What], the name and the value as JSON strings, and a newline.
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

// Differing returns the names of the parts that only one list has, or with another value.
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
			_, found := find(l, p.Name)
			return found
		})
	})
}

// String returns the identity in one line, without the settings.
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

// named returns "composition a, b"; empty if there are no parts.
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
