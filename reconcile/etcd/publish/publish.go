// Package publish writes documents about a cluster's rendered unit into the cluster's own etcd
// namespace, for programs that do not read the fleet repository: packages, types with their
// digests, webhook configurations, targets and conversion rules.
//
// Documents that are published together are a revision. Their keys have a number that is never used
// again. The key [Current] names the newest whole revision; the transaction that completes a
// revision sets it. So a reader that gets Current, and then the documents of that revision, sees a
// whole revision, whatever happens to the publisher. A few older revisions stay for slow readers.
//
//	gitopsd/current                     the newest whole revision, as a [Pointer]
//	gitopsd/revisions/<number>/<name>   the documents of a revision
//	gitopsd/published/<number>          the Pointer of each whole revision
//	gitopsd/started/<number>            revisions that are being written or removed
//	gitopsd/claims/<number>             revisions whose writers are alive, attached to leases
//	gitopsd/next                        the number of the next revision
//
// Numbers have 20 digits. Equal units have the same documents; if Current has their digest already,
// nothing is written.
//
//   - documents.go: [Documents], the content of a revision
//   - publish.go: [Publisher], which writes revisions
//   - prune.go: removal of revisions
//   - read.go: [Read], for readers
//   - keep.go: [Keeper], which publishes for the daemon
package publish

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Current is the key of the newest whole revision.
const Current = root + "current"

const (
	root      = "gitopsd/"
	next      = root + "next"
	published = root + "published/"
	started   = root + "started/"
	claims    = root + "claims/"
	revisions = root + "revisions/"

	// maxOps and maxBytes bound one transaction. etcd takes 128 operations and 1.5 MiB.
	maxOps   = 64
	maxBytes = 1 << 20
)

// Pointer names a whole revision.
type Pointer struct {
	Revision int64 `json:"revision"`
	// Digest is the [Digest] of the documents.
	Digest string `json:"digest"`
	// Documents is the number of documents.
	Documents int `json:"documents"`
}

// Config configures a [Publisher].
type Config struct {
	// KV and Lease are the etcd namespace, without its prefix; required.
	KV    clientv3.KV
	Lease clientv3.Lease
	// Keep is how many revisions to keep, at least 2; 5 if 0.
	Keep int
	// Timeout bounds one call of Publish; a minute if 0.
	Timeout time.Duration
	// Log is required.
	Log *slog.Logger
}

// Publisher publishes revisions into one etcd namespace. Several may publish concurrently, in several
// processes: one of them succeeds, and the others return [ErrOvertaken].
type Publisher struct{ cfg Config }

// New returns a Publisher. It sends nothing.
func New(c Config) (*Publisher, error) {
	if c.KV == nil || c.Lease == nil || c.Log == nil {
		return nil, errors.New("publish: KV, Lease and Log are required")
	}
	c.Keep, c.Timeout = cmp.Or(c.Keep, 5), cmp.Or(c.Timeout, time.Minute)
	if c.Keep < 2 {
		return nil, fmt.Errorf("publish: %d revisions are kept; a reader of the one before needs at least 2", c.Keep)
	}
	return &Publisher{c}, nil
}

// ErrOvertaken is returned by Publish if another process published meanwhile, or this one was too slow.
// Nothing was published, and Publish may be called again.
var ErrOvertaken = errors.New("another process published meanwhile")

// Publish makes documents the current revision, and returns its Pointer. If they are current already, it
// writes nothing. The documents must have different names. After an error the current revision stays, and
// a later call removes the incomplete one. The error is [ErrOvertaken], or about etcd.
func (p *Publisher) Publish(ctx context.Context, docs []Document) (Pointer, error) {
	ctx, cancel := context.WithTimeout(ctx, p.cfg.Timeout)
	defer cancel()
	digest, err := Digest(docs)
	if err != nil {
		return Pointer{}, err
	}
	now, version, err := p.current(ctx)
	if err != nil {
		return Pointer{}, err
	}
	if now.Digest == digest {
		return now, nil
	}
	// What failed calls left behind goes first, so that it does not pile up while calls fail.
	if err := p.sweep(ctx); err != nil {
		return Pointer{}, err
	}
	r, err := p.claim(ctx)
	if err != nil {
		return Pointer{}, err
	}
	defer r.release(ctx, p)
	// The claimed revision is recorded as started: from here on, after a crash, the next call removes
	// what this one leaves behind.
	if err := p.write(ctx, r, docs); err != nil {
		return Pointer{}, err
	}
	pointer := Pointer{Revision: r.number, Digest: digest, Documents: len(docs)}
	if err := p.complete(ctx, r, pointer, version); err != nil {
		return Pointer{}, err
	}
	// The revision is current and whole. The rest is cleaning up.
	p.cfg.Log.Info("published", "revision", pointer.Revision, "documents", pointer.Documents, "digest", pointer.Digest)
	if err := p.prune(ctx); err != nil {
		p.cfg.Log.Warn("old revisions stay until the next one is published", "error", err)
	}
	return pointer, nil
}

// current returns the current revision, and the mod revision of its key; 0 if there is none. An invalid
// value stands for no revision, and will be replaced.
func (p *Publisher) current(ctx context.Context) (Pointer, int64, error) {
	res, err := p.cfg.KV.Get(ctx, Current)
	if err != nil {
		return Pointer{}, 0, fmt.Errorf("reading %s: %w", Current, err)
	}
	if len(res.Kvs) == 0 {
		return Pointer{}, 0, nil
	}
	var now Pointer
	if err := json.Unmarshal(res.Kvs[0].Value, &now); err != nil {
		return Pointer{}, res.Kvs[0].ModRevision, nil
	}
	return now, res.Kvs[0].ModRevision, nil
}

// revision is a revision that is being written.
type revision struct {
	number int64
	lease  clientv3.LeaseID
	since  int64 // the etcd revision of the claim
}

func numbered(prefix string, number int64) string { return fmt.Sprintf("%s%020d", prefix, number) }

// below returns the prefix of the keys of a revision's documents.
func below(number int64) string { return numbered(revisions, number) + "/" }

// held returns a comparison that holds while the revision is claimed.
func (r revision) held() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(numbered(claims, r.number)), "=", r.since)
}

// claim reserves a number. The claim ends with a lease, so that later calls know whether the writer is
// gone.
func (p *Publisher) claim(ctx context.Context) (revision, error) {
	lease, err := p.cfg.Lease.Grant(ctx, int64(p.cfg.Timeout/time.Second)+10)
	if err != nil {
		return revision{}, fmt.Errorf("claiming a revision: %w", err)
	}
	r := revision{lease: lease.ID}
	for {
		res, err := p.cfg.KV.Get(ctx, next)
		if err != nil {
			return revision{}, p.unclaimed(ctx, r, err)
		}
		var version int64
		r.number = 1
		if len(res.Kvs) > 0 {
			version = res.Kvs[0].ModRevision
			r.number, err = strconv.ParseInt(string(res.Kvs[0].Value), 10, 64)
		}
		if err == nil && r.number < 1 {
			err = errors.New("out of range")
		}
		if err != nil {
			return revision{}, p.unclaimed(ctx, r, fmt.Errorf("%s is not a number that gitopsd wrote (%w); delete all keys that begin with %s", next, err, root))
		}
		done, err := p.cfg.KV.Txn(ctx).
			If(clientv3.Compare(clientv3.ModRevision(next), "=", version)).
			Then(
				clientv3.OpPut(next, strconv.FormatInt(r.number+1, 10)),
				clientv3.OpPut(numbered(started, r.number), ""),
				clientv3.OpPut(numbered(claims, r.number), "", clientv3.WithLease(r.lease)),
			).Commit()
		if err != nil {
			return revision{}, p.unclaimed(ctx, r, err)
		}
		if done.Succeeded {
			r.since = done.Header.Revision
			return r, nil
		}
	}
}

func (p *Publisher) unclaimed(ctx context.Context, r revision, err error) error {
	r.release(ctx, p)
	return fmt.Errorf("claiming a revision: %w", err)
}

// release ends the claim. If that fails, the claim ends with the lease's time.
func (r revision) release(ctx context.Context, p *Publisher) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_, _ = p.cfg.Lease.Revoke(ctx, r.lease)
}

// write writes the documents, some at a time. Each transaction requires that the revision is still
// claimed, so that a writer that was paused for long writes nothing more.
func (p *Publisher) write(ctx context.Context, r revision, docs []Document) error {
	for len(docs) > 0 {
		var ops []clientv3.Op
		size := 0
		for _, d := range docs {
			if len(ops) == maxOps || len(ops) > 0 && size+len(d.Body) > maxBytes {
				break
			}
			size += len(d.Body)
			ops = append(ops, clientv3.OpPut(below(r.number)+d.Name, string(d.Body)))
		}
		done, err := p.cfg.KV.Txn(ctx).If(r.held()).Then(ops...).Commit()
		if err != nil {
			return fmt.Errorf("writing %s: %w", docs[0].Name, err)
		}
		if !done.Succeeded {
			return ErrOvertaken
		}
		docs = docs[len(ops):]
	}
	return nil
}

// complete makes a revision current, if the current one has not changed.
func (p *Publisher) complete(ctx context.Context, r revision, pointer Pointer, version int64) error {
	text, err := json.Marshal(pointer)
	if err != nil {
		return err
	}
	done, err := p.cfg.KV.Txn(ctx).
		If(r.held(), clientv3.Compare(clientv3.ModRevision(Current), "=", version)).
		Then(
			clientv3.OpPut(Current, string(text)),
			clientv3.OpPut(numbered(published, r.number), string(text)),
			clientv3.OpDelete(numbered(started, r.number)),
		).Commit()
	if err != nil {
		return fmt.Errorf("completing revision %d: %w", r.number, err)
	}
	if !done.Succeeded {
		return ErrOvertaken
	}
	return nil
}
