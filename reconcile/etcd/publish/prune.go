package publish

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// batch is how many keys are removed at a time.
const batch = 500

// prune removes old revisions, and incomplete ones whose writers are gone.
func (p *Publisher) prune(ctx context.Context) error {
	if err := p.retire(ctx); err != nil {
		return err
	}
	return p.sweep(ctx)
}

// sweep removes revisions that are marked for removal or incomplete, unless their writers are alive.
func (p *Publisher) sweep(ctx context.Context) error {
	left, err := p.numbers(ctx, started)
	if err != nil {
		return err
	}
	for _, number := range left {
		if err := p.remove(ctx, number); err != nil {
			return err
		}
	}
	return nil
}

// retire marks the whole revisions beyond the newest Config.Keep for removal.
func (p *Publisher) retire(ctx context.Context) error {
	whole, err := p.numbers(ctx, published)
	if err != nil {
		return err
	}
	now, _, err := p.current(ctx)
	if err != nil {
		return err
	}
	for _, number := range whole[:max(0, len(whole)-p.cfg.Keep)] {
		if number == now.Revision {
			continue
		}
		_, err := p.cfg.KV.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(numbered(published, number)), ">", 0)).
			Then(clientv3.OpDelete(numbered(published, number)), clientv3.OpPut(numbered(started, number), "")).
			Commit()
		if err != nil {
			return fmt.Errorf("removing revision %d: %w", number, err)
		}
	}
	return nil
}

// remove removes a started revision, unless its writer is alive. No writer can begin it again: numbers
// are used once.
func (p *Publisher) remove(ctx context.Context, number int64) error {
	unclaimed := clientv3.Compare(clientv3.CreateRevision(numbered(claims, number)), "=", 0)
	// A claim ends before its writer's last transaction can succeed, and never comes back.
	whole := clientv3.Compare(clientv3.CreateRevision(numbered(published, number)), "=", 0)
	from := below(number)
	for {
		page, err := p.cfg.KV.Get(ctx, from, clientv3.WithRange(clientv3.GetPrefixRangeEnd(below(number))), clientv3.WithKeysOnly(), clientv3.WithLimit(batch))
		if err != nil {
			return fmt.Errorf("removing revision %d: %w", number, err)
		}
		ops := []clientv3.Op{clientv3.OpDelete(numbered(started, number))}
		if n := len(page.Kvs); n > 0 {
			last := string(page.Kvs[n-1].Key) + "\x00"
			ops = []clientv3.Op{clientv3.OpDelete(from, clientv3.WithRange(last))}
			from = last
		}
		done, err := p.cfg.KV.Txn(ctx).If(unclaimed, whole).Then(ops...).Commit()
		if err != nil {
			return fmt.Errorf("removing revision %d: %w", number, err)
		}
		if !done.Succeeded || len(page.Kvs) == 0 {
			return nil
		}
	}
}

// numbers returns the revisions below a prefix, in ascending order. It ignores keys that are no numbers:
// they are not gitopsd's.
func (p *Publisher) numbers(ctx context.Context, prefix string) ([]int64, error) {
	res, err := p.cfg.KV.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", prefix, err)
	}
	var all []int64
	for _, kv := range res.Kvs {
		number, err := strconv.ParseInt(strings.TrimPrefix(string(kv.Key), prefix), 10, 64)
		if err == nil && numbered(prefix, number) == string(kv.Key) {
			all = append(all, number)
		}
	}
	return all, nil
}
