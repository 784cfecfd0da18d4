package serve

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/convert"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/unit"
	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/conversion/bundle"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/runtime"
)

// Daemon serves clusters with API servers that reach the daemon by URL (spec.conversion.url).
// It is a [unit.Completer] that fills in the CA bundles of definitions.
//
// The rules of the newest commit are served before any cluster gets definitions that name
// them; see [Daemon.Want]. Rules that the definitions of a cluster still name are served, too:
// first those of the commits before, and once the cluster was read, those in the bundles that
// it keeps. The repository may no longer have them.
type Daemon struct {
	// Table gets the rules; nil if this process does not serve, such as a plan.
	Table *convert.Table
	// Certificates has the certificate of the server; nil if Table is.
	Certificates *Certificates
	// Log gets errors of rules; required with Table.
	Log *slog.Logger

	mu sync.Mutex
	// kept are the bundles that units keep beside the wanted ones, by the unit's name. It has
	// an entry for each unit whose bundles were listed. Those without a version were not read yet.
	kept map[string]map[string]read
}

var _ unit.Completer = (*Daemon)(nil)

// The holders of a Daemon's sets are these, followed by the unit's name.
const (
	holdsWanted  = "wanted "
	holdsApplied = "applied "
)

// Want serves the sets of units, by the unit's name.
func (d *Daemon) Want(wanted map[string][]*conversion.Set) {
	for name, sets := range wanted {
		d.Table.Hold(holdsWanted+name, sets)
	}
}

// Leave serves nothing for a unit any more, since it left the fleet.
func (d *Daemon) Leave(name string) {
	d.Table.Hold(holdsWanted+name, nil)
	d.Table.Hold(holdsApplied+name, nil)
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.kept, name)
}

// Follow returns a function for [unit.Config]. It notifies a unit that is served when its
// definitions must name another CA, from the call of Follow on.
func (d *Daemon) Follow(name string) func(ctx context.Context, notify func()) {
	if d.Certificates == nil {
		return nil
	}
	now := d.Certificates.now.Load()
	return func(ctx context.Context, notify func()) {
		for {
			select {
			case <-ctx.Done():
				return
			case <-now.replaced:
			}
			before := now
			now = d.Certificates.now.Load()
			if d.serves(name) && !bytes.Equal(before.authority, now.authority) {
				notify()
			}
		}
	}
}

// serves reports whether rules are served for a unit.
func (d *Daemon) serves(name string) bool {
	return slices.Contains(d.Table.Holders(), holdsApplied+name)
}

// looked reports whether all bundles that a unit keeps were read.
func (d *Daemon) looked(name string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	kept, listed := d.kept[name]
	for _, r := range kept {
		listed = listed && r.version != ""
	}
	return listed
}

// Serve serves the rules that a cluster's definitions may name: those of the unit, and those in
// the bundles that it keeps. After an error, what was served before still is.
func (d *Daemon) Serve(ctx context.Context, r unit.Request) error {
	if d.Table == nil {
		return nil
	}
	// A cluster that gets another server or none uses this one until its definitions say so. A
	// new process finds that out at its first look.
	name := r.Unit.ID.String()
	if r.Unit.Spec.Conversion == nil && d.looked(name) && !d.serves(name) {
		return nil
	}
	holder := holdsApplied + name
	var wanted []*conversion.Set
	for _, c := range r.Unit.Conversions {
		wanted = append(wanted, c.Set)
	}
	sets, err := d.keep(ctx, r)
	if err != nil {
		d.Table.Add(holder, append(wanted, sets...))
		return err
	}
	d.Table.Hold(holder, append(wanted, sets...))
	return nil
}

// Complete implements [unit.Completer].
func (d *Daemon) Complete(ctx context.Context, r unit.Request) (unit.Completion, error) {
	done := unit.Completion{Relied: make(map[manifest.ID]string)}
	if !r.Preview {
		if err := d.Serve(ctx, r); kube.IsClusterWide(err) || ctx.Err() != nil {
			return unit.Completion{}, errors.Join(err, ctx.Err())
		} else if err != nil {
			d.Log.Warn("the conversion rules that a cluster keeps cannot be read; those that were read are served", "cluster", r.Unit.ID.String(), "error", err)
		}
	}
	spec := r.Unit.Spec.Conversion
	if spec == nil || spec.URL == "" {
		return done, nil
	}
	done.Serving = true
	for _, crd := range slices.Sorted(maps.Keys(r.Unit.Conversions)) {
		o := r.Objects.Get(manifest.CRD.ID("", crd))
		if o == nil {
			continue
		}
		filled, err := d.fill(o)
		if err != nil {
			return unit.Completion{}, err
		}
		done.Objects = append(done.Objects, filled)
		if d.Table == nil && !r.Preview {
			if done.Refused == nil {
				done.Refused = make(map[manifest.ID]string)
			}
			done.Refused[o.ID()] = "spec.conversion.url has the daemon convert its objects, and this one does not serve: start it with --conversion-listen and --conversion-tls-dir, or have a server in the cluster, by spec.conversion.service"
		}
	}
	if d.Certificates != nil && len(r.Unit.Conversions) > 0 {
		if u, err := url.Parse(spec.URL); err == nil {
			if err := d.Certificates.Serves(u.Hostname(), time.Now()); err != nil {
				done.Notes = append(done.Notes, fmt.Sprintf("spec.conversion.url is %s, and the certificate in --conversion-tls-dir does not go with it: %v; unless something between presents another, API servers cannot convert", spec.URL, err))
			}
		}
	}
	return done, nil
}

// fill fills in the CA bundle of a definition. The bundle is unknown if this process does not
// serve, and left out if API servers trust the CA anyway.
func (d *Daemon) fill(o *manifest.Object) (*manifest.Object, error) {
	way := []string{"spec", "conversion", "webhook", "clientConfig", "caBundle"}
	if d.Certificates == nil {
		return o.Complete(o.Tree(), strings.Join(way, "."))
	}
	authority := d.Certificates.Authority()
	if authority == nil {
		return o.Complete(o.Tree())
	}
	return o.Complete(manifest.With(o.Tree(), base64.StdEncoding.EncodeToString(authority), way...))
}

// keep returns the sets in the bundles that a unit keeps beside the wanted ones. It does not
// read bundles that others wrote. With an error, it returns those that could be read, and the next
// call reads the rest: all of them may take longer than an attempt may.
func (d *Daemon) keep(ctx context.Context, r unit.Request) ([]*conversion.Set, error) {
	wanted := make(map[string]bool)
	for _, c := range r.Unit.Conversions {
		wanted[bundle.ID(c.Set.Name(), c.Set.Digest()).Name] = true
	}
	name := r.Unit.ID.String()
	d.mu.Lock()
	before := d.kept[name]
	d.mu.Unlock()
	versions := make(map[string]string)
	opts := kube.ListOptions{Namespace: runtime.Namespace, Selector: selector, Again: func() { clear(versions) }}
	_, err := r.Client.List(ctx, configMaps, opts, func(meta *metav1.PartialObjectMetadata) bool {
		if !wanted[meta.Name] && r.Owns(manifest.ConfigMap.ID(meta.Namespace, meta.Name), &meta.ObjectMeta) {
			versions[meta.Name] = meta.ResourceVersion
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	now := make(map[string]read, len(versions))
	var sets []*conversion.Set
	for _, configMap := range slices.Sorted(maps.Keys(versions)) { // so that the first error is the same each time
		one := before[configMap]
		if one.version != versions[configMap] {
			one = read{}
			if !kube.IsClusterWide(err) { // others may be readable
				var failed error
				one, failed = d.read(ctx, r, configMap, versions[configMap])
				if kube.ClassOf(failed) == kube.NotFound {
					continue
				}
				err = cmp.Or(err, failed)
			}
		}
		now[configMap] = one
		if one.set != nil {
			sets = append(sets, one.set)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.kept == nil {
		d.kept = make(map[string]map[string]read)
	}
	d.kept[name] = now
	return sets, err
}

// read reads a bundle of a unit. The error is about the request.
func (d *Daemon) read(ctx context.Context, r unit.Request, configMap, version string) (read, error) {
	tree, _, err := r.Client.Get(ctx, configMaps, manifest.ConfigMap.ID(runtime.Namespace, configMap))
	if err != nil {
		return read{}, err
	}
	set, err := bundle.Read(tree)
	if err != nil {
		d.Log.Error("conversion rules are not served", "cluster", r.Unit.ID.String(), "configmap", runtime.Namespace+"/"+configMap, "error", err)
		set = nil
	}
	return read{version: version, set: set}, nil
}
