// Package leader has one of several daemons of a fleet work, and the others wait. They agree
// by a Lease in the hub, which the leader renews.
//
// Two daemons do not write at the same time. Each write of the leader asks [Leader.MayWrite]
// first, which refuses once the last renewal is so long ago that the write, if it takes as long
// as it may, could arrive after another daemon has become the leader. Only a process's own
// clocks count: the leader measures from the moment before it sent the renewal, the others from
// the moment at which they first saw it. Times in the Lease are for people.
//
// A leader that cannot reach the hub writes nothing, and goes on serving what it serves. It
// steps down when it learns that another daemon has the Lease.
package leader

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"gitopsd.dev/reconcile/kube"
	"gitopsd.dev/render/manifest"
)

// DefaultDuration is how long a Lease lasts without a renewal.
const DefaultDuration = time.Minute

// longest bounds the duration that is believed of another daemon's Lease.
const longest = 10 * time.Minute

// Config describes the Lease.
type Config struct {
	// Client returns a client of the hub. It is called for each request.
	Client func() (*kube.Client, error)
	// Namespace and Name are the Lease's.
	Namespace, Name string
	// Pod is the name of this process's pod in Namespace. The leader's pod has the label
	// manifest.LeaderLabel with the Lease's name. Without it no pod is labelled.
	Pod string
	// Process names this process in the Lease if there is no Pod.
	Process string
	// Fleet is the fleet that this process works on.
	Fleet string
	// Duration is how long the Lease lasts without a renewal; default DefaultDuration.
	Duration time.Duration
	// Writes is how long a write may take; default kube.DefaultTimeout. It must be less
	// than Duration.
	Writes time.Duration
	Log    *slog.Logger
}

// Leader is this process's part in the election. Await and Keep are called by one goroutine at
// a time; all else is safe for concurrent use.
type Leader struct {
	cfg Config
	// name is the pod or process, and id this process in the Lease.
	name, id string

	// seen is what this process read last, and seenAt when it first read that.
	seen   record
	seenAt time.Time
	// other is the last record of another process, and otherAt when it was renewed at the latest.
	other   record
	otherAt time.Time
	// mine is what this process wrote last as the leader. tried is whether it tried to be.
	mine  record
	tried bool
	// labels are the pods whose label may not be as it should be.
	labels map[string]bool
	// told and toldLabel are the last problems in the log.
	told, toldLabel string

	mu sync.Mutex
	// renewed is when the last renewal was sent; zero if this process is not the leader.
	renewed time.Time
	waits   string // why it waits
	looked  bool   // whether the Lease could be read
}

// New returns this process's part. It sends nothing.
func New(cfg Config) (*Leader, error) {
	if text := validation.IsDNS1123Subdomain(cfg.Name); len(text) > 0 || len(cfg.Name) > validation.LabelValueMaxLength {
		return nil, fmt.Errorf("%q is not the name of a Lease: lower-case letters, digits, '-' and '.', at most %d", cfg.Name, validation.LabelValueMaxLength)
	}
	cfg.Duration, cfg.Writes = cmp.Or(cfg.Duration, DefaultDuration), cmp.Or(cfg.Writes, kube.DefaultTimeout)
	if cfg.Duration > longest {
		return nil, fmt.Errorf("%s is too long for a Lease: others wait for %s at most", cfg.Duration, longest)
	}
	if cfg.Duration < cfg.Writes*3/2 {
		return nil, fmt.Errorf("%s is too short for a Lease: a write may take %s, and the leader needs time to renew it; at least %s", cfg.Duration, cfg.Writes, cfg.Writes*3/2)
	}
	l := &Leader{cfg: cfg, labels: make(map[string]bool), waits: "the Lease was not read yet"}
	l.name = cmp.Or(cfg.Pod, cfg.Process)
	l.id = l.name + separator + strings.ToLower(rand.Text()[:8])
	if cfg.Pod != "" {
		l.labels[cfg.Pod] = false // of the process that was in this pod before
	}
	return l, nil
}

// separator stands between the name of a process and what makes it unique.
const separator = "_"

// String returns the Lease's namespace and name.
func (l *Leader) String() string { return l.cfg.Namespace + "/" + l.cfg.Name }

// MayWrite returns an error unless a write that is sent now ends before another daemon can be
// the leader. It is for [kube.Config].
func (l *Leader) MayWrite(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.renewed.IsZero() {
		return fmt.Errorf("this daemon is not the leader by Lease %s", l)
	}
	if since(l.renewed) >= l.cfg.Duration-l.cfg.Writes {
		return fmt.Errorf("this daemon has not renewed Lease %s in time, and another one may be the leader", l)
	}
	return nil
}

// since returns how long ago a moment was, by the clock that says more: the monotonic one stands
// still while the machine is suspended, and the other one can be set back.
func since(t time.Time) time.Duration { return max(time.Since(t), time.Now().Round(0).Sub(t)) }

// Problem returns why the leader may not write; empty if it may, or is not the leader.
func (l *Leader) Problem() string {
	err := l.MayWrite(context.Background())
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil || l.renewed.IsZero() {
		return ""
	}
	return fmt.Sprintf("%v; it was renewed %s ago", err, since(l.renewed).Round(time.Second))
}

// Waiting returns why this process waits; empty for the leader. ok reports whether it could
// read the Lease, so that it can take over.
func (l *Leader) Waiting() (why string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waits, l.looked
}

// Await waits until this process is the leader. The error is that of the context.
func (l *Leader) Await(ctx context.Context) error {
	for {
		err := l.within(ctx, l.acquire)
		l.setLabels(ctx)
		switch {
		case ctx.Err() != nil:
			if err := l.giveBack(ctx); err != nil {
				l.cfg.Log.Warn("the Lease that this daemon may have taken as it was told to end could not be given up", "lease", l.String(), "error", err)
			}
			return ctx.Err()
		case err == nil:
			l.told = ""
			l.cfg.Log.Info("this daemon is the leader", "lease", l.String(), "process", l.id)
			return nil
		}
		if class := kube.ClassOf(err); class != kube.Changed && class != kube.Exists { // another one was faster
			l.tell(err)
		}
		if err := kube.Sleep(ctx, l.pause()); err != nil {
			return err
		}
	}
}

// pause is the time between two looks at the Lease of another daemon.
func (l *Leader) pause() time.Duration { return l.cfg.Duration / 20 }

// renewal is the time between two renewals, and the longest time for one.
func (l *Leader) renewal() time.Duration { return l.cfg.Duration / 6 }

// untilRenewal is the time until the next renewal of the leader, counted from the last one.
func (l *Leader) untilRenewal() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Until(l.renewed.Add(l.renewal()))
}

// ErrLost is the error of a former leader.
var ErrLost = errors.New("another daemon is the leader now")

// Keep renews the Lease until ctx ends, and returns nil then. If another daemon has it, the
// error is [ErrLost].
func (l *Leader) Keep(ctx context.Context) error {
	pause := l.untilRenewal()
	for {
		if kube.Sleep(ctx, pause) != nil {
			return nil
		}
		err := l.within(ctx, l.renew)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, ErrLost):
			l.lose(err.Error())
			return err
		case err != nil:
			l.tell(fmt.Errorf("the Lease cannot be renewed, and nothing is written soon: %w", err))
			pause = l.pause()
			continue
		case l.told != "":
			l.told = ""
			l.cfg.Log.Info("the Lease is renewed again", "lease", l.String())
		}
		l.setLabels(ctx)
		pause = l.untilRenewal()
	}
}

// giveBack releases the Lease if this process took it as ctx ended, perhaps without an answer.
func (l *Leader) giveBack(ctx context.Context) error {
	if !l.tried {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.renewal())
	defer cancel()
	return l.Release(ctx)
}

// Release gives the Lease to whoever waits, if this process has it. No write may be under way
// any more.
func (l *Leader) Release(ctx context.Context) error {
	l.lose("this daemon ends")
	if l.cfg.Pod != "" {
		l.labels[l.cfg.Pod] = false
	}
	err := l.within(ctx, func(ctx context.Context, c *kube.Client) error {
		// The answer to the last write may have been lost, or somebody edited the Lease.
		r, err := l.read(ctx, c)
		if err != nil || r.holder != l.id {
			return err
		}
		r.holder, r.duration = "", releasedFor
		return l.write(ctx, c, r)
	})
	l.setLabels(ctx)
	return err
}

// releasedFor is the duration of a Lease that its leader has given up, which nobody else writes
// beside an empty holder: it need not run out.
const releasedFor = time.Second

// lose makes this process one that is not the leader.
func (l *Leader) lose(why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewed, l.waits, l.looked = time.Time{}, why, false
}

// wait records why this process waits.
func (l *Leader) wait(why string, looked bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waits, l.looked = why, looked
}

// tell logs a problem once.
func (l *Leader) tell(err error) {
	text := err.Error()
	if held, ok := errors.AsType[*heldError](err); ok {
		l.wait(text, true)
		if l.told != text {
			level := slog.LevelInfo
			if held.otherFleet {
				level = slog.LevelWarn
			}
			l.cfg.Log.Log(context.Background(), level, "waiting: "+text, "lease", l.String())
		}
	} else {
		if why, _ := l.Waiting(); why != "" {
			l.wait(text, false)
		}
		if l.told != text {
			l.cfg.Log.Warn(text, "lease", l.String())
		}
	}
	l.told = text
}

// within calls f with a client and the time for one renewal.
func (l *Leader) within(ctx context.Context, f func(context.Context, *kube.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, l.renewal())
	defer cancel()
	c, err := l.cfg.Client()
	if err != nil {
		return err
	}
	return f(ctx, c)
}

// heldError says that another process has the Lease.
type heldError struct {
	text       string
	otherFleet bool
}

func (e *heldError) Error() string { return e.text }

// held returns the error for a Lease that another process has.
func (l *Leader) held(r record) *heldError {
	switch {
	case r.fleet == "":
		return &heldError{fmt.Sprintf("%s has the Lease, and is no gitopsd: choose another --lease", r.process()), true}
	case r.fleet != l.cfg.Fleet:
		return &heldError{fmt.Sprintf("%s has the Lease for another fleet, %s: give one of the two a --lease of its own", r.process(), r.fleet), true}
	case l.cfg.Pod != "" && r.process() == l.cfg.Pod:
		return &heldError{fmt.Sprintf("the process that was %s before has the Lease, until it has not been renewed for %s", l.name, l.lasts(r)), false}
	}
	return &heldError{r.process() + " is the leader", false}
}

// lasts returns how long the Lease of another process lasts without a renewal.
func (l *Leader) lasts(r record) time.Duration {
	return min(max(r.duration, l.cfg.Duration), longest)
}

// acquire makes this process the leader if nobody is.
func (l *Leader) acquire(ctx context.Context, c *kube.Client) error {
	r, err := l.read(ctx, c)
	if err != nil {
		return err
	}
	switch {
	case r.holder == l.id: // its answer was lost
	case r.holder != "":
		l.other, l.otherAt = r, l.seenAt
		if r.fleet == "" || time.Since(l.seenAt) < l.lasts(r) {
			return l.held(r)
		}
	case r.duration != releasedFor && l.other.holder != "" && time.Since(l.otherAt) < l.lasts(l.other):
		// Somebody deleted or cleared it. Its leader may be alive, and write it again.
		return l.held(l.other)
	}
	l.tried = true
	mine := record{
		version: r.version, holder: l.id, fleet: l.cfg.Fleet, duration: l.cfg.Duration, acquired: timestamp(time.Now()),
		transitions: (r.transitions + 1) & math.MaxInt32, // its type is an int32
	}
	if err := l.write(ctx, c, mine); err != nil {
		return err
	}
	if l.cfg.Pod != "" {
		if r.holder != "" {
			l.labels[r.process()] = false
		}
		l.labels[l.cfg.Pod] = true
	}
	return nil
}

// renew renews the Lease.
func (l *Leader) renew(ctx context.Context, c *kube.Client) error {
	err := l.write(ctx, c, l.mine)
	switch kube.ClassOf(err) {
	case kube.Changed, kube.Conflict, kube.NotFound, kube.Exists:
	default:
		return err
	}
	// Somebody wrote to it or deleted it: another daemon, a person, or this process, whose
	// answer was lost.
	r, err := l.read(ctx, c)
	if err != nil {
		return err
	}
	if r.version != "" && r.holder != l.id {
		return fmt.Errorf("%w: %s", ErrLost, cmp.Or(r.process(), "nobody"))
	}
	l.mine.version = r.version
	return l.write(ctx, c, l.mine)
}

// read reads the Lease; a record without a version means that there is none.
func (l *Leader) read(ctx context.Context, c *kube.Client) (record, error) {
	typ, err := c.Kind(ctx, manifest.Lease.Group, manifest.Lease.Kind)
	if err != nil {
		return record{}, err
	}
	tree, meta, err := c.Get(ctx, typ, manifest.Lease.ID(l.cfg.Namespace, l.cfg.Name))
	if err != nil && kube.ClassOf(err) != kube.NotFound {
		return record{}, err
	}
	var r record
	if err == nil {
		r = parse(tree, meta)
	}
	if l.seenAt.IsZero() || r.version != l.seen.version {
		l.seenAt = time.Now()
	}
	l.seen = r
	return r, nil
}

// write writes a record in place of the version in it, or creates the Lease. Afterwards this
// process is the leader if the record says so.
func (l *Leader) write(ctx context.Context, c *kube.Client, r record) error {
	typ, err := c.Kind(ctx, manifest.Lease.Group, manifest.Lease.Kind)
	if err != nil {
		return err
	}
	sent := time.Now()
	body, err := json.Marshal(r.tree(l.cfg.Namespace, l.cfg.Name, sent))
	if err != nil {
		return err
	}
	id := manifest.Lease.ID(l.cfg.Namespace, l.cfg.Name)
	var meta *metav1.PartialObjectMetadata
	if r.version == "" {
		meta, err = c.Create(ctx, typ, id, body)
	} else {
		var applied *kube.Applied
		if applied, err = c.Apply(ctx, typ, id, body, kube.ApplyOptions{Force: true}); err == nil {
			meta = applied.Meta
		}
	}
	if err != nil {
		return err
	}
	r.version = meta.ResourceVersion
	l.seen, l.seenAt = r, sent
	if r.holder == l.id {
		l.mine = r
		l.mu.Lock()
		l.renewed, l.waits, l.looked = sent, "", true
		l.mu.Unlock()
	}
	return nil
}

// setLabels brings the labels of pods to what they should be, as far as that succeeds. Without
// the label, Services do not find the leader's pod, which works all the same. It takes no longer
// than a renewal may, so that the next one is in time.
func (l *Leader) setLabels(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, l.renewal())
	defer cancel()
	for pod, leads := range l.labels {
		err := l.within(bounded, func(ctx context.Context, c *kube.Client) error { return l.label(ctx, c, pod, leads) })
		switch {
		case err == nil:
			delete(l.labels, pod)
		case ctx.Err() == nil && l.toldLabel != err.Error():
			l.toldLabel = err.Error()
			l.cfg.Log.Warn("the label of the leader's pod is not as it should be", "pod", l.cfg.Namespace+"/"+pod, "label", manifest.LeaderLabel, "error", err)
		}
	}
}

// label sets or removes the label of a pod, if there is such a pod.
func (l *Leader) label(ctx context.Context, c *kube.Client, pod string, leads bool) error {
	if len(validation.IsDNS1123Subdomain(pod)) > 0 {
		return nil // no pod of its own
	}
	typ, err := c.Kind(ctx, manifest.Pod.Group, manifest.Pod.Kind)
	if err != nil {
		return err
	}
	id := manifest.Pod.ID(l.cfg.Namespace, pod)
	meta, err := c.GetMetadata(ctx, typ, id)
	if kube.ClassOf(err) == kube.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	var want any
	if leads {
		want = l.cfg.Name
	}
	if was := meta.Labels[manifest.LeaderLabel]; leads && was == l.cfg.Name || !leads && was != l.cfg.Name {
		return nil
	}
	return c.Patch(ctx, typ, id, map[string]any{"metadata": map[string]any{"labels": map[string]any{manifest.LeaderLabel: want}}}, meta.ResourceVersion)
}

// record is what a Lease says.
type record struct {
	version     string // resourceVersion; empty if there is no Lease
	holder      string // empty: nobody
	fleet       string
	duration    time.Duration
	acquired    string
	transitions int64
}

// parse reads a Lease. What is not readable counts as not there.
func parse(tree map[string]any, meta *metav1.PartialObjectMetadata) record {
	spec := manifest.Mapping(tree, "spec")
	seconds, _ := spec["leaseDurationSeconds"].(int64)
	r := record{
		version: meta.ResourceVersion, fleet: meta.Annotations[manifest.FleetAnnotation], holder: manifest.Text(spec, "holderIdentity"),
		duration: time.Duration(min(seconds, int64(longest/time.Second))) * time.Second, acquired: manifest.Text(spec, "acquireTime"),
	}
	r.transitions, _ = spec["leaseTransitions"].(int64)
	return r
}

// process returns the name of the process or pod that has the Lease.
func (r record) process() string {
	if i := strings.LastIndex(r.holder, separator); i >= 0 {
		return r.holder[:i]
	}
	return r.holder
}

func timestamp(at time.Time) string { return at.UTC().Format(metav1.RFC3339Micro) }

// tree returns the Lease with a record, renewed at a time.
func (r record) tree(namespace, name string, now time.Time) map[string]any {
	meta := map[string]any{"namespace": namespace, "name": name, "annotations": map[string]any{manifest.FleetAnnotation: r.fleet}}
	if r.version != "" {
		meta["resourceVersion"] = r.version // as a precondition
	}
	return map[string]any{
		"apiVersion": manifest.Lease.Group + "/v1", "kind": manifest.Lease.Kind, "metadata": meta,
		"spec": map[string]any{
			"holderIdentity": r.holder, "leaseDurationSeconds": max(1, int64(r.duration/time.Second)), "leaseTransitions": r.transitions,
			"acquireTime": r.acquired, "renewTime": timestamp(now),
		},
	}
}
