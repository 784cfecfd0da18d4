package resolve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"gitopsd.dev/sources"
)

// latePart divides the time of a reference if its registry was late before in the pass.
// That is enough for cached content, and a hundred packages do not wait in turn for a
// registry that hangs.
const latePart = 10

// timed returns cfg with a time limit for every request to a registry.
func (p *pass) timed(cfg Config) Config {
	cfg.Timeout = cmp.Or(cfg.Timeout, DefaultTimeout)
	digest, verify, fetch, tags, platforms := cfg.Digest, cfg.Verify, cfg.Fetch, cfg.Tags, cfg.Platforms
	cfg.Digest = func(ctx context.Context, from sources.Origin, tag string) (sources.Digest, error) {
		return within(ctx, p, from, func(ctx context.Context) (sources.Digest, error) { return digest(ctx, from, tag) })
	}
	if verify != nil {
		cfg.Verify = func(ctx context.Context, from sources.Origin, d sources.Digest, policy *sources.Verification) (string, error) {
			return within(ctx, p, from, func(ctx context.Context) (string, error) { return verify(ctx, from, d, policy) })
		}
	}
	cfg.Fetch = func(ctx context.Context, from sources.Origin, d sources.Digest) (*sources.Package, error) {
		return within(ctx, p, from, func(ctx context.Context) (*sources.Package, error) { return fetch(ctx, from, d) })
	}
	cfg.Tags = func(ctx context.Context, from sources.Origin) ([]string, error) {
		return within(ctx, p, from, func(ctx context.Context) ([]string, error) { return tags(ctx, from) })
	}
	if platforms != nil {
		cfg.Platforms = func(ctx context.Context, from sources.Origin, d sources.Digest) ([]sources.Child, error) {
			return within(ctx, p, from, func(ctx context.Context) ([]sources.Child, error) { return platforms(ctx, from, d) })
		}
	}
	return cfg
}

// within calls a registry, and notes for the rest of the pass if it is late.
func within[T any](ctx context.Context, p *pass, from sources.Origin, ask func(context.Context) (T, error)) (T, error) {
	host, _, _ := strings.Cut(from.Repository, "/")
	limit := p.cfg.Timeout
	p.mu.Lock()
	before := p.late[host]
	p.mu.Unlock()
	if before {
		limit /= latePart
	}
	asking, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	got, err := ask(asking)
	overdue := asking.Err() != nil && !errors.Is(ctx.Err(), context.Canceled)
	if err == nil || errors.Is(err, sources.ErrNoRoom) || !overdue && !errors.Is(err, sources.ErrLate) {
		return got, err
	}
	p.mu.Lock()
	p.late[host] = true
	p.mu.Unlock()
	switch {
	case !overdue:
		return got, err
	case before:
		return got, fmt.Errorf("%w\n%s was late before in this pass and had only %s; the next pass tries again", err, host, limit.Round(time.Millisecond))
	}
	return got, fmt.Errorf("%w\nA package may take %s (--package-timeout). Complete downloads are kept for the next pass", err, p.cfg.Timeout)
}
