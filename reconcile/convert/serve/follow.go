package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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

// followPause is the pause of a Follower after a failure, and before it begins anew.
const followPause = 2 * time.Second

// Follower has a table serve the rules in a cluster's ConfigMaps.
type Follower struct {
	// Client talks to the cluster; required.
	Client *kube.Client
	// Table gets the rules; required.
	Table *convert.Table
	// Required names the sets without which the server is not ready, as
	// [converter.Argument] does. They are served until the process ends.
	Required []string
	// Log gets what cannot be served; required.
	Log *slog.Logger

	mu sync.Mutex
	// listed: all ConfigMaps were read once. failure is why not.
	listed  bool
	failure string

	// found are the bundles by name, required the sets that are.
	found    map[string]read
	required map[string]*conversion.Set
}

// read is a ConfigMap as it was read.
type read struct {
	version string
	set     *conversion.Set // nil if it has an error
}

// Unready returns why not all rules are served that must be; empty if they are. Bundles
// that cannot be read stop nothing else.
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

// Run follows the ConfigMaps until ctx ends. While the API server does not answer,
// everything is served that was read before.
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
		select {
		case <-ctx.Done():
		case <-time.After(followPause):
		}
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
	for name := range f.found {
		if _, there := seen[name]; !there {
			delete(f.found, name)
		}
	}
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

// take reads a ConfigMap and compiles its rules, unless that was done for this version
// of it. The error is about the request.
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

// serve has the table hold what was found.
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
	var required []*conversion.Set
	for _, set := range f.required {
		required = append(required, set)
	}
	f.Table.Hold(holdsRequired, required)
	f.Table.Hold(holdsFound, sets)
}

// CheckRequired returns an error for a name that is not one of [converter.Argument].
func CheckRequired(names []string) error {
	for _, name := range names {
		crd, digest, ok := strings.Cut(name, "/")
		if !ok || crd == "" || len(digest) != 64 || strings.Trim(digest, "0123456789abcdef") != "" {
			return fmt.Errorf("%q: want <definition>/<64 hex digits of the digest>", name)
		}
	}
	return nil
}
