// Package migrate stores the objects of a CRD again in its storage version, so that older
// versions can be removed from the CRD.
//
// The API server converts an object when it is read, and stores it in the storage version
// when it is written. An object that nobody writes stays in etcd in the version of its
// last write. A CRD lists in status.storedVersions every version that has been the storage
// version, and the API server refuses to remove one of these from the CRD. Nothing shortens
// the list by itself.
//
// It owns
//   - the storage of a CRD's objects, and whether the CRD changed in between
//     (storage.go; pure);
//   - the fields that objects would lose (drops.go);
//   - Kubernetes' own migration, where the cluster offers it (native.go);
//   - gitopsd's own, where it does not, or where Kubernetes' failed (own.go);
//   - the order of steps, and when status.storedVersions may be shortened (this file);
//   - the removal of fields that objects keep for versions that are gone (forget.go);
//   - the daemon's migrations, one CRD after the other in the background (keeper.go).
//
// The only record is status.storedVersions, written at the end: whoever could write another
// record could make gitopsd skip objects. A migration may be interrupted at any time. In the
// same process the next one resumes, if the CRD has not changed. Otherwise it starts over, and
// an object that is already stored in the storage version costs a request and no write.
package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/problem"
	"gitopsd.dev/render/manifest"
)

// DefaultRate is how many objects are written in a second.
const DefaultRate = 50

// defaultBatch is how many objects are written between two looks at the CRD.
const defaultBatch = 200

// Config configures a Migrator.
type Config struct {
	// Cluster is the cluster; required.
	Cluster *kube.Client
	// Rate bounds the objects that are written in a second; 0 means DefaultRate. It does not
	// bound Kubernetes' own migration.
	Rate float64
	// Settle is how old the last change of the CRD must be before objects are listed; 0 means
	// DefaultSettle.
	Settle time.Duration
	// DropFields permits the loss of fields that the storage version does not keep.
	DropFields bool
	// Progress, if set, is called from time to time, from one goroutine at a time.
	Progress func(Progress)
	// Log is required.
	Log *slog.Logger

	// For tests: pause replaces pause, batch replaces defaultBatch, and page is the size of
	// pages of the list of objects; 0 means the default of [kube.ListOptions].
	pause       func(context.Context, time.Duration) error
	batch, page int
}

// Progress is the progress of the migration of a CRD.
type Progress struct {
	// Name is the name of the CRD.
	Name string
	// Kubernetes reports whether the cluster's own migrator works on it. Then there are no
	// numbers.
	Kubernetes bool
	// Done objects of All have been tried, and Failed of these have not been stored again.
	Done, All, Failed int
	// Wait, if not 0, is how long the migration waits before it begins, because the CRD has
	// just changed.
	Wait time.Duration
}

// Migrator migrates CRDs of one cluster. Only one goroutine at a time may use it.
type Migrator struct {
	cfg Config
	// reached is where interrupted migrations ended, by the CRD's name.
	reached map[string]reached
}

// reached is where a migration ended: all objects up to last, sorted by name, are in the
// storage version of this generation of the CRD.
type reached struct {
	uid        string
	generation int64
	last       name
}

// New returns a Migrator.
func New(cfg Config) (*Migrator, error) {
	if !(cfg.Rate >= 0) || cfg.Settle < 0 { // NaN, too
		return nil, fmt.Errorf("a rate of %v objects a second, or a wait of %s, is too low", cfg.Rate, cfg.Settle)
	}
	cfg.Rate, cfg.Settle = cmp.Or(cfg.Rate, DefaultRate), cmp.Or(cfg.Settle, DefaultSettle)
	cfg.batch = cmp.Or(cfg.batch, defaultBatch)
	if cfg.Progress == nil {
		cfg.Progress = func(Progress) {}
	}
	if cfg.pause == nil {
		cfg.pause = kube.Sleep
	}
	return &Migrator{cfg: cfg, reached: make(map[string]reached)}, nil
}

// Result is the result of a migration of one CRD.
type Result struct {
	// Storage is the storage at the end, as far as it could be read.
	Storage
	// Drops are the losses of fields when the objects are stored again. If there is one,
	// none is, unless [Config].DropFields is set.
	Drops []Drop `json:"drops,omitempty"`
	// Removed are the versions that were removed from status.storedVersions.
	Removed []string `json:"removed,omitempty"`
	// Kubernetes reports whether the cluster's own migrator did it; then Objects is 0.
	Kubernetes bool `json:"kubernetes,omitempty"`
	// Objects is the number of objects, and Migrated the number that is in the storage
	// version now. Others were deleted meanwhile, or failed.
	Objects  int `json:"objects"`
	Migrated int `json:"migrated"`
	// Failures are the objects that may still be stored in an old version, sorted by name. If
	// there is one, status.storedVersions stays.
	Failures []Failure `json:"failures,omitempty"`
	// Stopped reports whether there were so many failures that objects were left untried.
	Stopped bool `json:"stopped,omitempty"`
}

// Failure is an object that could not be stored again.
type Failure struct {
	// Object is the object, as manifest.ID prints it.
	Object string `json:"object"`
	Reason string `json:"reason"`
}

// List returns the storage of the cluster's CRDs, sorted by name, or of the named ones. If the
// cluster does not have a name, the error is of class NotFound, and the others are returned
// with it.
func (m *Migrator) List(ctx context.Context, names ...string) ([]Storage, error) {
	var all []Storage
	if len(names) > 0 {
		var errs []error
		for _, name := range names {
			s, err := m.read(ctx, name)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			all = append(all, s)
		}
		return all, errors.Join(errs...)
	}
	crds, err := m.cfg.Cluster.Kind(ctx, manifest.CRD.Group, manifest.CRD.Kind)
	if err != nil {
		return nil, err
	}
	// CRDs are large.
	err = m.cfg.Cluster.ListFull(ctx, crds, kube.ListOptions{Page: 50, Again: func() { all = nil }}, func(tree map[string]any) bool {
		all = append(all, read(tree))
		return true
	})
	return all, err
}

func (m *Migrator) read(ctx context.Context, name string) (Storage, error) {
	tree, err := m.tree(ctx, name)
	if err != nil {
		return Storage{}, err
	}
	return read(tree), nil
}

// tree reads a CRD.
func (m *Migrator) tree(ctx context.Context, name string) (map[string]any, error) {
	crds, err := m.cfg.Cluster.Kind(ctx, manifest.CRD.Group, manifest.CRD.Kind)
	if err != nil {
		return nil, err
	}
	tree, _, err := m.cfg.Cluster.Get(ctx, crds, manifest.CRD.ID("", name))
	return tree, err
}

// Count returns how many objects of the CRD there are.
func (m *Migrator) Count(ctx context.Context, s Storage) (int, error) {
	return m.cfg.Cluster.Count(ctx, s.objects)
}

// mostStarts is how often a migration starts because the CRD changed.
const mostStarts = 4

// errMoved says that the CRD changed, and with it perhaps the storage version.
var errMoved = errors.New("the definition was changed meanwhile")

// Run migrates one CRD until ctx ends. Without an error, status.storedVersions has only the
// storage version, unless the result has failures. The result is also valid with an error.
func (m *Migrator) Run(ctx context.Context, name string) (Result, error) {
	var r Result
	var err error
	for start := 1; ; start++ {
		r, err = m.once(ctx, name)
		if !errors.Is(err, errMoved) {
			return r, err
		}
		if start == mostStarts {
			return r, m.fault(name, fmt.Errorf("%w, %d times", errMoved, start), "run `gitopsd migrate` again when nobody changes it")
		}
		m.cfg.Log.Info("starting over", "cluster", m.cfg.Cluster.Name(), "definition", name, "reason", errMoved)
	}
}

func (m *Migrator) fault(name string, err error, advice string) error {
	return &problem.Error{Cluster: m.cfg.Cluster.Name(), Object: manifest.CRD.ID("", name).String(), Advice: advice, Err: err}
}

// once migrates a CRD as it is now. If the CRD changes meanwhile, the error is errMoved.
func (m *Migrator) once(ctx context.Context, name string) (Result, error) {
	s, err := m.read(ctx, name)
	r := Result{Storage: s}
	if err != nil {
		r.Name = name
		return r, err
	}
	switch {
	case !s.Needed():
		return r, nil
	case s.Blocked != "":
		return r, m.fault(name, errors.New(s.Blocked), "")
	}
	if wait := s.settle(time.Now(), m.cfg.Settle); wait > 0 {
		m.cfg.Progress(Progress{Name: name, Wait: wait})
		m.cfg.Log.Info("waiting: the definition has just changed", "cluster", m.cfg.Cluster.Name(), "definition", name, "wait", wait)
		if err := m.cfg.pause(ctx, wait); err != nil {
			return r, err
		}
	}
	if err := m.aggregated(ctx, s); err != nil {
		return r, err
	}
	if r.Drops, err = m.Drops(ctx, s); err != nil {
		return r, err
	}
	if err := s.Refusal(r.Drops); err != nil && !m.cfg.DropFields {
		return r, m.fault(name, err, "")
	}
	// Kubernetes stores the objects in the storage version of the moment.
	if err := m.check(ctx, s); err != nil {
		return r, err
	}
	if r.Kubernetes, err = m.native(ctx, s); err == nil && !r.Kubernetes {
		err = m.own(ctx, s, &r)
	}
	if err != nil || len(r.Failures) > 0 {
		return r, err
	}
	// All objects in the list have been stored again, and later ones are in the storage
	// version, if that has not changed.
	if err := m.aggregated(ctx, s); err != nil {
		return r, err
	}
	return m.finish(ctx, s, r)
}

// aggregated returns an error if requests for the storage version go to an aggregated API
// server, which hides the objects of the CRD.
func (m *Migrator) aggregated(ctx context.Context, s Storage) error {
	id, err := m.elsewhere(ctx, s, s.Version)
	if err == nil && id != (manifest.ID{}) {
		err = m.fault(s.Name, fmt.Errorf("version %s is served by another API server, and nothing can be said about the objects of the definition", s.Version), "remove "+id.String()+" or its spec.service")
	}
	return err
}

// elsewhere returns the APIService by which requests for a version go to an aggregated API
// server; zero if there is none.
func (m *Migrator) elsewhere(ctx context.Context, s Storage, version string) (manifest.ID, error) {
	t, err := m.cfg.Cluster.Kind(ctx, manifest.APIService.Group, manifest.APIService.Kind)
	if kube.ClassOf(err) == kube.NoSuchType {
		return manifest.ID{}, nil // an API server without aggregation
	}
	if err != nil {
		return manifest.ID{}, err
	}
	id := manifest.APIService.ID("", version+"."+s.objects.Group)
	tree, _, err := m.cfg.Cluster.Get(ctx, t, id)
	switch {
	case kube.ClassOf(err) == kube.NotFound:
		return manifest.ID{}, nil
	case err != nil:
		return manifest.ID{}, err
	case len(manifest.Mapping(tree, "spec", "service")) == 0:
		return manifest.ID{}, nil
	}
	return id, nil
}

// finish shortens status.storedVersions.
func (m *Migrator) finish(ctx context.Context, s Storage, r Result) (Result, error) {
	const attempts = 5 // others write the status as well
	for attempt := 1; ; attempt++ {
		now, err := m.read(ctx, s.Name)
		if err != nil {
			return r, err
		}
		if !s.same(now) {
			return r, errMoved
		}
		r.Storage = now
		if !now.Needed() { // Kubernetes' own migration has done it
			r.Removed = s.Old()
			return r, nil
		}
		err = m.cfg.Cluster.SetStoredVersions(ctx, s.Name, []string{s.Version}, now.version)
		if kube.ClassOf(err) == kube.Changed && attempt < attempts {
			continue
		}
		if err != nil {
			return r, err
		}
		delete(m.reached, s.Name)
		r.Stored, r.Removed = []string{s.Version}, s.Old()
		return r, nil
	}
}

// check returns errMoved if the CRD has changed.
func (m *Migrator) check(ctx context.Context, s Storage) error {
	crds, err := m.cfg.Cluster.Kind(ctx, manifest.CRD.Group, manifest.CRD.Kind)
	if err != nil {
		return err
	}
	meta, err := m.cfg.Cluster.GetMetadata(ctx, crds, manifest.CRD.ID("", s.Name))
	if err != nil {
		return err
	}
	if string(meta.UID) != s.uid || meta.Generation != s.generation {
		return errMoved
	}
	return nil
}
