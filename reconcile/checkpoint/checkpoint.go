// Package checkpoint keeps, for each unit of work, how it looked when nothing was left
// to do in it, and from what that had been computed. A daemon that starts anew
// over the same commit, and finds the cluster as it was, need neither read
// packages nor render them until something changes.
//
// It is a cache: a record that is missing or cannot be read costs what it would
// have saved. How a cluster looks is reconcile/apply's knowledge, what the records
// are good for reconcile's.
package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"gitopsd.dev/reconcile/apply"
	"gitopsd.dev/reconcile/status"
)

// Record is a cluster at rest.
type Record struct {
	// Input names everything that what is wanted was computed from. What is
	// computed from an equal input is equal.
	Input string `json:"input"`
	// Cluster is how it looked.
	Cluster *apply.Checkpoint `json:"cluster"`
	// Again is when it must be looked at again although nothing changed; zero for
	// never.
	Again time.Time `json:"again,omitzero"`
	// The rest is what people are told about the cluster.
	Objects  int                   `json:"objects"`
	Packages []status.PackageState `json:"packages,omitempty"`
	Notes    []string              `json:"notes,omitempty"`
}

// Equal says that two records are the same; either may be nil.
func (r *Record) Equal(o *Record) bool { return reflect.DeepEqual(r, o) }

// Store is a directory of records. It is safe for concurrent use on different
// clusters, also by several processes.
type Store struct{ Dir string }

func (s *Store) file(cluster string) string { return filepath.Join(s.Dir, cluster+".json") }

// Load returns the record of a cluster; nil if there is none of that input.
func (s *Store) Load(cluster, input string) *Record {
	text, err := os.ReadFile(s.file(cluster))
	if err != nil {
		return nil
	}
	r := new(Record)
	if err := json.Unmarshal(text, r); err != nil || r.Input != input || r.Cluster == nil {
		return nil
	}
	return r
}

// Save keeps the record of a cluster, in place of the one before.
func (s *Store) Save(cluster string, r *Record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("checkpoint of cluster %s: %w", cluster, err)
	}
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return fmt.Errorf("checkpoint of cluster %s: %w", cluster, err)
	}
	f, err := os.CreateTemp(s.Dir, ".new-*")
	if err != nil {
		return fmt.Errorf("checkpoint of cluster %s: %w", cluster, err)
	}
	_, err = f.Write(text)
	// Not synced: a record that a crash of the machine leaves half written is none.
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), s.file(cluster))
	}
	if err != nil {
		return errors.Join(fmt.Errorf("checkpoint of cluster %s: %w", cluster, err), os.Remove(f.Name()))
	}
	return nil
}

// Delete forgets a cluster.
func (s *Store) Delete(cluster string) error {
	if err := os.Remove(s.file(cluster)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("checkpoint of cluster %s: %w", cluster, err)
	}
	return nil
}
