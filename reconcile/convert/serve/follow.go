package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gitopsd.dev/reconcile/convert"
	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/reconcile/prose"
	"gitopsd.dev/render/conversion"
	"gitopsd.dev/render/conversion/bundle"
	"gitopsd.dev/render/converter"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/render/runtime"
	"gitopsd.dev/sources/errgroup"
)

var configMaps = kube.Type{Version: "v1", Kind: manifest.ConfigMap.Kind, Resource: "configmaps", Namespaced: true}

// selector selects the ConfigMaps of bundles.
const selector = manifest.ConversionLabel + "=true"

// The holders of a Follower's sets.
const (
	holdsFound    = "found"
	holdsRequired = "required"
)

// followPause is the pause of a Follower before it lists and watches again.
const followPause = 2 * time.Second

// Follower keeps the rules of a cluster's ConfigMaps in a table.
type Follower struct {
	// Client is a client of the cluster; required.
	Client *kube.Client
	// Table gets the rules; required.
	Table *convert.Table
	// Required are the names, as of [converter.Argument], of sets that the server must have
	// to be ready. They are served until the process ends.
	Required []string
	// Log gets errors of rules; required.
	Log *slog.Logger

	mu sync.Mutex
	// listed reports whether all ConfigMaps were read once. failure is the last error.
	listed  bool
	failure string

	// found are the bundles by name, and required the sets that are required.
	found    map[string]read
	required map[string]*conversion.Set
}

// read is a ConfigMap as it was read.
type read struct {
	version string
	set     *conversion.Set // nil if it has an error
}

// Unready returns why required rules are not served; empty if they are. Errors of other bundles
// do not count.
func (f *Follower) Unready() string {
	var missing []string
	for _, name := range f.Required {
		if f.Table.Find(name) == nil {
			missing = append(missing, name)
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case len(missing) > 0:
		why := "rules are not there or do not compile: " + prose.Some(missing, 3)
		if f.failure != "" {
			why += ": " + f.failure
		}
		return why
	case !f.listed:
		return "the cluster's rules are not read yet" + strings.TrimSuffix(": "+f.failure, ": ")
	}
	return ""
}

// Run follows the ConfigMaps until ctx ends. While the API server does not answer, the rules
// that were read before are served.
func (f *Follower) Run(ctx context.Context) {
	told := ""
	for ctx.Err() == nil {
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		text := ""
		if err != nil {
			text = err.Error()
		}
		f.mu.Lock()
		f.failure = text
		f.mu.Unlock()
		if text != "" && text != told {
			f.Log.Warn("the cluster's conversion rules cannot be followed; those that were read are served", "error", err)
		}
		told = text
		kube.Sleep(ctx, followPause)
	}
}

// follow reads all ConfigMaps and follows them until the API server ends the watch.
func (f *Follower) follow(ctx context.Context) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = errgroup.Recovered(v)
		}
	}()
	seen := make(map[string]string)
	opts := kube.ListOptions{Namespace: runtime.Namespace, Selector: selector, Again: func() { clear(seen) }}
	at, err := f.Client.List(ctx, configMaps, opts, func(meta *metav1.PartialObjectMetadata) bool {
		seen[meta.Name] = meta.ResourceVersion
		return true
	})
	if err != nil {
		return err
	}
	maps.DeleteFunc(f.found, func(name string, _ read) bool { return seen[name] == "" })
	var errs []error
	for name, version := range seen {
		errs = append(errs, f.take(ctx, name, version))
	}
	f.serve()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	f.mu.Lock()
	f.listed, f.failure = true, ""
	f.mu.Unlock()
	watching, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	err = f.Client.Watch(watching, configMaps, runtime.Namespace, selector, at, func(e kube.Event) {
		switch {
		case e.Progress:
			return
		case e.Deleted:
			delete(f.found, e.Meta.Name)
		default:
			if err := f.take(ctx, e.Meta.Name, e.Meta.ResourceVersion); err != nil {
				stop(err)
			}
		}
		f.serve()
	})
	if cause := context.Cause(watching); cause != nil && ctx.Err() == nil {
		return cause
	}
	if kube.ClassOf(err) == kube.Expired {
		return nil
	}
	return err
}

// take reads a ConfigMap and compiles its rules, unless this version was read before. The error
// is about the request.
func (f *Follower) take(ctx context.Context, name, version string) error {
	if f.found[name].version == version {
		return nil
	}
	tree, meta, err := f.Client.Get(ctx, configMaps, manifest.ConfigMap.ID(runtime.Namespace, name))
	switch {
	case kube.ClassOf(err) == kube.NotFound:
		delete(f.found, name)
		return nil
	case err != nil:
		return err
	}
	if f.found == nil {
		f.found = make(map[string]read)
	}
	set, err := bundle.Read(tree)
	if err != nil {
		f.Log.Error("conversion rules are not served", "configmap", runtime.Namespace+"/"+name, "error", err)
		set = nil
	} else {
		f.Log.Info("conversion rules are served", "definition", set.Name(), "digest", set.Digest())
	}
	f.found[name] = read{version: meta.ResourceVersion, set: set}
	return nil
}

// serve puts the found and the required sets into the table.
func (f *Follower) serve() {
	var sets []*conversion.Set
	for _, r := range f.found {
		if r.set == nil {
			continue
		}
		sets = append(sets, r.set)
		if name := converter.Argument(r.set); slices.Contains(f.Required, name) {
			if f.required == nil {
				f.required = make(map[string]*conversion.Set)
			}
			f.required[name] = r.set
		}
	}
	f.Table.Hold(holdsRequired, slices.Collect(maps.Values(f.required)))
	f.Table.Hold(holdsFound, sets)
}

// CheckRequired returns an error if a name does not have the form of [converter.Argument].
func CheckRequired(names []string) error {
	for _, name := range names {
		crd, digest, ok := strings.Cut(name, "/")
		if !ok || crd == "" || len(digest) != 64 || strings.Trim(digest, "0123456789abcdef") != "" {
			return fmt.Errorf("%q: want <definition>/<64 hex digits of the digest>", name)
		}
	}
	return nil
}
