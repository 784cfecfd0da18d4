package serve

import (
	"bytes"
	"context"
	"encoding/base64"
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

// Daemon is the daemon's part for clusters whose API servers reach the daemon by URL
// (spec.conversion.url). It is a [unit.Completer]: it fills in the CA bundles of
// definitions.
//
// What the newest commit asks for is served before any cluster is told of it; see
// [Daemon.Want]. What a cluster's definitions still name is served as well: what was
// wanted of it before, until it was looked at again, and then the bundles that it
// keeps, since the repository may not have these rules any more.
type Daemon struct {
	// Table gets the rules; nil if this process does not serve, as a plan does not.
	Table *convert.Table
	// Certificates is the certificate by which it serves; nil as Table.
	Certificates *Certificates
	// Log gets what cannot be served; required with Table.
	Log *slog.Logger

	mu sync.Mutex
	// kept are the bundles that units keep beside those that are wanted, by name. It has
	// all units that are served.
	kept map[string]map[string]read
}

var _ unit.Completer = (*Daemon)(nil)

// The holders of a Daemon's sets end in the unit's name.
const (
	holdsWanted  = "wanted "
	holdsApplied = "applied "
)

// Want serves what is wanted of units, by name. left reports whether a unit is known to
// have left the fleet: nothing is served for it any more.
func (d *Daemon) Want(wanted map[string][]*conversion.Set, left func(name string) bool) {
	for name, sets := range wanted {
		d.Table.Hold(holdsWanted+name, sets)
	}
	for _, holder := range d.Table.Holders() {
		_, name, _ := strings.Cut(holder, " ")
		if _, still := wanted[name]; !still && left(name) {
			d.Table.Hold(holder, nil)
			d.forget(name)
		}
	}
}

func (d *Daemon) forget(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.kept, name)
}

// Follow returns a function for [unit.Config]: it notifies a unit that is served when its
// definitions must name another CA. Nothing that is done for the unit later is missed.
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
			d.mu.Lock()
			_, served := d.kept[name]
			d.mu.Unlock()
			if served && !bytes.Equal(before.authority, now.authority) {
				notify()
			}
		}
	}
}

// Complete implements [unit.Completer].
func (d *Daemon) Complete(ctx context.Context, r unit.Request) (unit.Completion, error) {
	name := r.Unit.ID.String()
	done := unit.Completion{Relied: make(map[manifest.ID]string)}
	spec := r.Unit.Spec.Conversion
	// A cluster that gets another server asks this one until its definitions name that,
	// which may take long to come up.
	if d.Table != nil && !r.Preview && (spec != nil || slices.Contains(d.Table.Holders(), holdsApplied+name)) {
		kept, err := d.keep(ctx, r)
		if err != nil {
			return unit.Completion{}, err
		}
		for _, c := range r.Unit.Conversions {
			kept = append(kept, c.Set)
		}
		d.Table.Hold(holdsApplied+name, kept)
	}
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

// fill fills in the CA bundle of a definition. It is unknown if this process does not
// serve, and left out if API servers trust the CA anyway.
func (d *Daemon) fill(o *manifest.Object) (*manifest.Object, error) {
	way := []string{"spec", "conversion", "webhook", "clientConfig"}
	if d.Certificates == nil {
		return o.Complete(o.Tree(), strings.Join(way, ".")+".caBundle")
	}
	authority := d.Certificates.Authority()
	if authority == nil {
		return o.Complete(o.Tree())
	}
	tree := maps.Clone(o.Tree())
	at := tree
	for _, field := range way {
		inner, _ := at[field].(map[string]any)
		inner = maps.Clone(inner)
		if inner == nil {
			inner = make(map[string]any)
		}
		at[field], at = inner, inner
	}
	at["caBundle"] = base64.StdEncoding.EncodeToString(authority)
	return o.Complete(tree)
}

// keep returns the sets of the bundles that a unit keeps, beside those that are wanted.
// Bundles that others wrote are not read. The error concerns the whole cluster.
func (d *Daemon) keep(ctx context.Context, r unit.Request) ([]*conversion.Set, error) {
	wanted := make(map[string]bool)
	for _, c := range r.Unit.Conversions {
		wanted[bundle.ID(c.Set.Name(), c.Set.Digest()).Name] = true
	}
	name := r.Unit.ID.String()
	d.mu.Lock()
	before := d.kept[name]
	d.mu.Unlock()
	now := make(map[string]read)
	opts := kube.ListOptions{Namespace: runtime.Namespace, Selector: selector, Again: func() { clear(now) }}
	_, err := r.Client.List(ctx, configMaps, opts, func(meta *metav1.PartialObjectMetadata) bool {
		if !wanted[meta.Name] && r.Owns(manifest.ConfigMap.ID(meta.Namespace, meta.Name), &meta.ObjectMeta) {
			now[meta.Name] = read{version: meta.ResourceVersion}
		}
		return true
	})
	for configMap, found := range now {
		if err != nil {
			break
		}
		if known, ok := before[configMap]; ok && known.version == found.version {
			now[configMap] = known
			continue
		}
		var tree map[string]any
		if tree, _, err = r.Client.Get(ctx, configMaps, manifest.ConfigMap.ID(runtime.Namespace, configMap)); err != nil {
			if kube.ClassOf(err) == kube.NotFound {
				delete(now, configMap)
				err = nil
			}
			continue
		}
		set, why := bundle.Read(tree)
		if why != nil {
			d.Log.Error("conversion rules are not served", "cluster", name, "configmap", runtime.Namespace+"/"+configMap, "error", why)
			set = nil
		}
		now[configMap] = read{version: found.version, set: set}
	}
	if err != nil {
		if kube.IsClusterWide(err) || ctx.Err() != nil {
			return nil, err
		}
		d.Log.Warn("the conversion rules that a cluster keeps cannot be read; those that were read are served", "cluster", name, "error", err)
		now = before
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.kept == nil {
		d.kept = make(map[string]map[string]read)
	}
	d.kept[name] = now
	var sets []*conversion.Set
	for _, r := range now {
		if r.set != nil {
			sets = append(sets, r.set)
		}
	}
	return sets, nil
}
