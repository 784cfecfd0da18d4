package migrate

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/flowcontrol"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
	"gitopsd.dev/sources/errgroup"
)

const (
	// workers bounds the requests under way.
	workers = 8
	// rounds is how often an object is tried after errors that may pass, and between the
	// pause before the next round.
	rounds  = 3
	between = 5 * time.Second
	// mostFailures is how many objects may fail before the rest is left untried: then the
	// error is probably common to all.
	mostFailures = 500
)

// verdict is the meaning of an answer for the object.
type verdict int

const (
	// stored: the object is in the storage version.
	stored verdict = iota
	// gone: there is no such object any more.
	gone
	// later: the error may pass.
	later
	// refused: it will not be stored again until a person acts.
	refused
	// stop: all other objects would fail, too.
	stop
)

// judge returns the verdict of the answer to a rewrite.
func judge(err error) verdict {
	switch kube.ClassOf(err) {
	case "":
		if err == nil {
			return stored
		}
		return stop
	case kube.NotFound, kube.NoNamespace:
		return gone
	case kube.Unreachable, kube.Unauthorized, kube.Fenced, kube.Canceled, kube.NoSuchType:
		return stop
	case kube.Unanswered, kube.Throttled, kube.WebhookFailed, kube.Server, kube.Changed:
		return later
	}
	return refused
}

// name is the name of an object of the CRD. Of a list only names are kept, so that it does not
// expire.
type name struct{ namespace, name string }

func (n name) compare(o name) int {
	return cmp.Or(cmp.Compare(n.namespace, o.namespace), cmp.Compare(n.name, o.name))
}

// own lists all objects, and stores each of them again. The list is of the newest state: an
// object that is not in it was stored after the CRD got its storage version.
func (m *Migrator) own(ctx context.Context, s Storage, r *Result) error {
	all, err := m.names(ctx, s, func(*metav1.PartialObjectMetadata) bool { return true })
	if err != nil {
		return err
	}
	skip := m.skip(s, all)
	w := m.writer(s, len(all))
	w.done, w.stored = skip, skip
	w.object = func(ctx context.Context, id manifest.ID) error { return m.cfg.Cluster.Rewrite(ctx, s.objects, id) }
	w.reach = func(last name) { m.reached[s.Name] = reached{s.uid, s.generation, last} }
	err = w.write(ctx, all[skip:])
	r.Objects, r.Migrated = len(all), w.stored
	r.Failures, r.Stopped, err = w.failed(err)
	return err
}

// names returns the wanted objects of the CRD, sorted.
func (m *Migrator) names(ctx context.Context, s Storage, wanted func(*metav1.PartialObjectMetadata) bool) ([]name, error) {
	var all []name
	_, err := m.cfg.Cluster.List(ctx, s.objects, kube.ListOptions{Page: m.cfg.page, Again: func() { all = nil }}, func(o *metav1.PartialObjectMetadata) bool {
		if wanted(o) {
			all = append(all, name{o.Namespace, o.Name})
		}
		return true
	})
	slices.SortFunc(all, name.compare)
	return all, err
}

// skip returns how many of the objects, in order, an interrupted migration has stored again
// since the CRD last changed.
func (m *Migrator) skip(s Storage, all []name) int {
	r, ok := m.reached[s.Name]
	if !ok || r.uid != s.uid || r.generation != s.generation {
		return 0
	}
	at, found := slices.BinarySearchFunc(all, r.last, name.compare)
	if found {
		at++
	}
	return at
}

// errTooMany says that too many objects failed.
var errTooMany = errors.New("too many objects failed")

// writer writes objects.
type writer struct {
	*Migrator
	of    Storage
	all   int
	limit flowcontrol.RateLimiter
	// object writes an object, and verb describes that in the log.
	object func(context.Context, manifest.ID) error
	verb   string
	// reach is called with an object when all objects up to it are written.
	reach func(last name)

	mu           sync.Mutex
	done, stored int
	again        []name
	failures     map[name]string // the last reason
}

func (m *Migrator) writer(s Storage, all int) *writer {
	return &writer{
		Migrator: m, of: s, all: all, failures: make(map[name]string), verb: "stored again", reach: func(name) {},
		// A larger burst than workers would have no effect.
		limit: flowcontrol.NewTokenBucketRateLimiter(float32(m.cfg.Rate), workers),
	}
}

// failed returns the objects that failed, sorted, and whether err is errTooMany. It returns any
// other err.
func (w *writer) failed(err error) (all []Failure, stopped bool, _ error) {
	if stopped = errors.Is(err, errTooMany); stopped {
		err = nil
	}
	for _, n := range slices.SortedFunc(maps.Keys(w.failures), name.compare) {
		all = append(all, Failure{Object: w.of.objects.ID(n.namespace, n.name).String(), Reason: w.failures[n]})
	}
	return all, stopped, err
}

// write tries all objects, and then those with errors that may pass some more times.
func (w *writer) write(ctx context.Context, todo []name) error {
	for round := 1; ; round++ {
		for part := range slices.Chunk(todo, w.cfg.batch) {
			if err := w.batch(ctx, part); err != nil {
				return err
			}
			if len(w.failures) == 0 { // none is left for later, either
				w.reach(part[len(part)-1])
			}
		}
		if todo, w.again = w.again, nil; len(todo) == 0 || round == rounds {
			return nil
		}
		if err := w.cfg.pause(ctx, between); err != nil {
			return err
		}
	}
}

// batch checks that the CRD has not changed, and writes some objects.
func (w *writer) batch(ctx context.Context, part []name) error {
	if err := w.check(ctx, w.of); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(workers)
	for _, n := range part {
		g.Go(func() error {
			if err := w.limit.Wait(ctx); err != nil {
				return ended(ctx)
			}
			return w.note(n, w.object(ctx, w.of.objects.ID(n.namespace, n.name)))
		})
	}
	err := g.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cfg.Progress(Progress{Name: w.of.Name, Done: w.done, All: w.all, Failed: len(w.failures)})
	w.cfg.Log.Info("objects "+w.verb, "cluster", w.cfg.Cluster.Name(), "definition", w.of.Name, "done", w.done, "all", w.all, "failed", len(w.failures))
	return err
}

// ended returns why a limiter did not wait: ctx has ended, or would have ended before.
func ended(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return context.DeadlineExceeded
}

// note notes the answer for an object. An error ends the migration.
func (w *writer) note(n name, err error) error {
	v := judge(err)
	if v == stop {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, again := w.failures[n]; !again {
		w.done++
	}
	delete(w.failures, n)
	switch v {
	case stored:
		w.stored++
	case later, refused:
		w.failures[n] = kube.MessageOf(err)
	}
	if v == later {
		w.again = append(w.again, n)
	}
	if len(w.failures) >= mostFailures {
		return errTooMany
	}
	return nil
}
