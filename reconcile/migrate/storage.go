package migrate

import (
	"slices"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/types"
)

// Storage is how one cluster stores the objects of one CRD.
type Storage struct {
	// Name is the CRD's: "widgets.acme.example".
	Name string `json:"name"`
	// Version is the storage version; everything is written in it.
	Version string `json:"storageVersion"`
	// Stored is status.storedVersions: the versions that objects may be stored in.
	Stored []string `json:"storedVersions"`
	// Ours reports whether gitopsd has applied the CRD. The annotation that says so
	// could be anybody's, so that this decides nothing but what is migrated by
	// default.
	Ours bool `json:"applied"`

	// Blocked says why the CRD cannot be migrated as it is; empty if it can.
	Blocked string `json:"blocked,omitempty"`

	objects kube.Type
	// uid and generation change with the CRD's identity and spec: while both stay, so
	// does the storage version.
	uid        string
	generation int64
	version    string // the resourceVersion
	changed    time.Time
}

// read returns the storage of a live CRD.
func read(tree map[string]any) Storage {
	d := types.Read(tree)
	s := Storage{
		Name: manifest.Text(tree, "metadata", "name"), Stored: d.StoredVersions(),
		Ours: manifest.Text(tree, "metadata", "annotations", manifest.AppliedAnnotation) != "",
		objects: kube.Type{
			Group: d.Group, Kind: d.Names.Kind, Resource: d.Names.Plural, Namespaced: d.Scope == "Namespaced",
		},
		uid: manifest.Text(tree, "metadata", "uid"), version: manifest.Text(tree, "metadata", "resourceVersion"),
	}
	s.generation, _ = manifest.Mapping(tree, "metadata")["generation"].(int64)
	served := ""
	for _, v := range d.Versions() {
		if v.Storage {
			s.Version = v.Name
		}
		if v.Served && (served == "" || v.Storage) {
			served = v.Name
		}
	}
	// Any served version will do: writing in one stores in the storage version.
	s.objects.Version = served
	s.changed = lastChange(tree)
	switch {
	case manifest.Text(tree, "metadata", "deletionTimestamp") != "":
		s.Blocked = "it is being deleted"
	case s.Version == "":
		s.Blocked = "it has no storage version"
	case !slices.Contains(s.Stored, s.Version) || !established(tree):
		s.Blocked = "the API server has not established it yet; see its status.conditions"
	case served == "":
		s.Blocked = "no version of it is served, so that its objects can be neither read nor written; serve one"
	}
	return s
}

func established(tree map[string]any) bool {
	return slices.ContainsFunc(manifest.List(manifest.Mapping(tree, "status"), "conditions"), func(c any) bool {
		condition, _ := c.(map[string]any)
		return manifest.Text(condition, "type") == "Established" && manifest.Text(condition, "status") == "True"
	})
}

// lastChange returns when something other than the status was last written, by the
// API server's clock; zero if that is not known.
func lastChange(tree map[string]any) time.Time {
	var last time.Time
	for _, e := range manifest.List(manifest.Mapping(tree, "metadata"), "managedFields") {
		entry, _ := e.(map[string]any)
		if manifest.Text(entry, "subresource") != "" {
			continue
		}
		if at, err := time.Parse(time.RFC3339, manifest.Text(entry, "time")); err == nil && at.After(last) {
			last = at
		}
	}
	return last
}

// Old returns the stored versions that are not the storage version. While the API
// server lists them, they cannot be removed from the CRD.
func (s Storage) Old() []string {
	return slices.DeleteFunc(slices.Clone(s.Stored), func(v string) bool { return v == s.Version })
}

// Needed reports whether the CRD has to be migrated.
func (s Storage) Needed() bool { return len(s.Old()) > 0 }

// same reports whether the CRD's spec did not change in between, and with it neither the
// storage version. A version that was changed and changed back counts as a change:
// something may have been stored in the other one.
func (s Storage) same(later Storage) bool {
	return s.uid == later.uid && s.generation == later.generation && s.uid != ""
}

// Another API server of the cluster may go on writing in the old version for as long as
// it has not seen a change of the CRD. Kubernetes' own grace for that is five seconds
// (k8s.io/apiextensions-apiserver, pkg/controller/establish).
const grace = 5 * time.Second

// recent is the age up to which a change counts as a new one. Clocks of hosts differ by
// less.
const recent = time.Minute

// settle returns how long to wait before the list of objects: none that is created later
// may be stored in an old version.
func (s Storage) settle(now time.Time) time.Duration {
	if age := now.Sub(s.changed); s.changed.IsZero() || age > recent {
		return 0
	}
	return grace
}
