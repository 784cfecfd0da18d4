package publish

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// ErrNone is returned by [Read] if nothing is published.
var ErrNone = errors.New("nothing is published")

// ErrIncomplete is wrapped by the error of [Read] for a revision that does not have the documents of its
// Pointer: others changed them, or the revision was removed.
var ErrIncomplete = errors.New("the revision is not as it was published")

// Read returns the current revision with its documents, sorted by name. at is the etcd revision to read
// at, such as the revision of an event about [Current]; 0 for the newest. Read verifies the digest. The
// error is [ErrNone], or wraps [ErrIncomplete] or an error of etcd. If etcd has compacted the revision,
// read the newest: compaction does not wait for readers.
func Read(ctx context.Context, kv clientv3.KV, at int64) (Pointer, []Document, error) {
	res, err := kv.Get(ctx, Current, clientv3.WithRev(at))
	if err != nil {
		return Pointer{}, nil, fmt.Errorf("reading %s: %w", Current, err)
	}
	if len(res.Kvs) == 0 {
		return Pointer{}, nil, ErrNone
	}
	var p Pointer
	if err := json.Unmarshal(res.Kvs[0].Value, &p); err != nil {
		return Pointer{}, nil, fmt.Errorf("%w: %s does not name one", ErrIncomplete, Current)
	}
	if at == 0 {
		at = res.Header.Revision // for all pages
	}
	prefix := below(p.Revision)
	var docs []Document
	for from := prefix; ; {
		page, err := kv.Get(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(prefix)), clientv3.WithRev(at), clientv3.WithLimit(batch))
		if err != nil {
			return p, nil, fmt.Errorf("reading revision %d: %w", p.Revision, err)
		}
		for _, kv := range page.Kvs {
			docs = append(docs, Document{Name: strings.TrimPrefix(string(kv.Key), prefix), Body: kv.Value})
			from = string(kv.Key) + "\x00"
		}
		if !page.More {
			break
		}
	}
	if digest, err := Digest(docs); err != nil || digest != p.Digest {
		return p, nil, fmt.Errorf("%w: revision %d has %d documents with the digest %s, not %d with %s", ErrIncomplete, p.Revision, len(docs), digest, p.Documents, p.Digest)
	}
	return p, docs, nil
}
