package migrate

import (
	"fmt"
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
	// Ours reports whether gitopsd has applied the CRD, by an annotation that anyone can
	// write. It only decides which CRDs are migrated by default.
	Ours bool `json:"applied"`

	// Blocked is why the CRD cannot be migrated now; empty if it can.
	Blocked string `json:"blocked,omitempty"`

	objects kube.Type
	served  []string // the storage version first
	has     []string // all versions
	// uid and generation identify the CRD and its spec, and thereby the storage version.
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
	served := false
	for _, v := range d.Versions() {
		s.has = append(s.has, v.Name)
		if v.Storage {
			s.Version, served = v.Name, v.Served
		}
		switch {
		case v.Served && v.Storage:
			s.served = append([]string{v.Name}, s.served...)
		case v.Served:
			s.served = append(s.served, v.Name)
		}
	}
	// A write in another version would drop the fields that this one does not have.
	s.objects.Version = s.Version
	s.changed = lastChange(tree)
	switch {
	case manifest.Text(tree, "metadata", "deletionTimestamp") != "":
		s.Blocked = "it is being deleted"
	case s.Version == "":
		s.Blocked = "it has no storage version"
	case !slices.Contains(s.Stored, s.Version) || !manifest.ConditionTrue(tree, "Established"):
		s.Blocked = "the API server has not established it yet; see its status.conditions"
	case !served:
		s.Blocked = fmt.Sprintf("its storage version %s is not served, and a write in another version may drop fields; serve it", s.Version)
	}
	return s
}

// lastChange returns when anything but the status was last written, by the API server's clock;
// zero if unknown.
func lastChange(tree map[string]any) time.Time {
	var last time.Time
	for _, e := range manifest.List(tree, "metadata", "managedFields") {
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

// Served returns the served versions, with the storage version first if it is served.
func (s Storage) Served() []string { return s.served }

// Type returns the type of the objects in a version.
func (s Storage) Type(version string) kube.Type {
	t := s.objects
	t.Version = version
	return t
}

// Old returns the stored versions other than the storage version. They cannot be removed from
// the CRD.
func (s Storage) Old() []string {
	return slices.DeleteFunc(slices.Clone(s.Stored), func(v string) bool { return v == s.Version })
}

// Needed reports whether the CRD has to be migrated.
func (s Storage) Needed() bool { return len(s.Old()) > 0 }

// same reports whether the CRD's spec, and so the storage version, has not changed in between.
// A storage version that was changed and changed back counts as changed: objects may have been
// stored in the other one.
func (s Storage) same(later Storage) bool {
	return s.uid == later.uid && s.generation == later.generation && s.uid != ""
}

// DefaultSettle is how long objects may still be stored in the old version after a change of
// the CRD. A request keeps the storage version that it began with, for up to a minute
// (kube-apiserver --request-timeout), and other API servers of the cluster may see the change
// some seconds later (Kubernetes waits for five: k8s.io/apiextensions-apiserver,
// pkg/controller/establish).
const DefaultSettle = 65 * time.Second

// skew is how far clocks of hosts may differ.
const skew = time.Minute

// settle returns how long to wait before objects are listed, so that none is stored in an old
// version after that. A CRD of unknown age counts as new.
func (s Storage) settle(now time.Time, least time.Duration) time.Duration {
	if !s.changed.IsZero() && now.Sub(s.changed) > least+skew {
		return 0
	}
	return least
}
