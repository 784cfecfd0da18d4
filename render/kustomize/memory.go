package kustomize

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// Large builds run one at a time, since each may need half of the memory: a build waits
// before it decodes the file that makes it large. Small builds run concurrently. The size of
// a build is the number of characters in its documents that can separate two values.
const largeBuild = 100_000

var large = semaphore.NewWeighted(1)

// turn is a build's turn to be the large build.
type turn struct {
	ctx    context.Context
	values int
	mine   bool
}

// count adds values, and waits for the turn if they make the build large.
func (t *turn) count(values int) error {
	if t == nil {
		return nil // a patch of a cluster
	}
	if t.values += values; t.mine || t.values <= largeBuild {
		return nil
	}
	if err := large.Acquire(t.ctx, 1); err != nil {
		return err
	}
	t.mine = true
	return nil
}

func (t *turn) end() {
	if t.mine {
		large.Release(1)
	}
}
