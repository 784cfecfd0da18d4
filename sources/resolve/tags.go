package resolve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"gitopsd.dev/sources"
)

// noTag is the error for a missing tag in a repository with other tags.
type noTag struct {
	ref     sources.Ref
	nearest []string
	err     error
}

func (e *noTag) Error() string {
	verb := "are"
	if len(e.nearest) == 1 {
		verb = "is"
	}
	return fmt.Sprintf("%s: the repository has no such tag; the nearest %s %s", e.ref, verb, strings.Join(e.nearest, ", "))
}

func (e *noTag) Unwrap() error { return e.err }

// nearest returns an error for a missing tag that names the most similar tags, if the
// registry lists them.
func (p *pass) nearest(ctx context.Context, l *load, err error) error {
	if !errors.Is(err, sources.ErrNotFound) || l.ref.Tag == "" || p.cfg.Tags == nil {
		return err
	}
	tags, failed := p.cfg.Tags(ctx, l.origin)
	if failed != nil || len(tags) == 0 {
		return err
	}
	distance := make(map[string]int, len(tags))
	for _, tag := range tags {
		distance[tag] = sources.Distance(tag, l.ref.Tag)
	}
	tags = slices.SortedFunc(slices.Values(tags), func(a, b string) int {
		return cmp.Or(cmp.Compare(distance[a], distance[b]), cmp.Compare(b, a))
	})
	const most = 3
	return &noTag{ref: l.ref, nearest: tags[:min(len(tags), most)], err: err}
}
