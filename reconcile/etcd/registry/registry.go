// Package registry reads the registry of an etcd: a record for each namespace, under
// [Prefix] in the etcd itself. It is the authority on who has which number and which
// keys, since numbers and prefixes are unique in the etcd, whichever fleets and clusters
// share it. The package is pure; reconcile/etcd writes records, on the condition that the
// registry is as it was read.
package registry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/render/etcd"
)

// Prefix is before the keys of records, whose rest is the namespace's ID.
const Prefix = etcd.OwnPrefix + "registry/"

// kubernetes is where a kube-apiserver keeps its objects unless it was told otherwise.
const kubernetes = "/registry/"

// State is what becomes of a namespace.
type State string

// States.
const (
	// Active is a namespace that is declared.
	Active State = "active"
	// Retained is one that is no longer declared, and whose keys are kept.
	Retained State = "retained"
	// Deleting is one whose keys are being deleted.
	Deleting State = "deleting"
)

// Owner is who declares a namespace. Owners are comparable.
type Owner struct {
	// Fleet is the name of the fleet.
	Fleet string `json:"fleet"`
	// UID is that of the EtcdNamespace in its cluster; empty for a cluster's own
	// namespace. An object that was deleted and created again has another.
	UID string `json:"uid,omitempty"`
}

// Record is what the registry says of a namespace. Records are comparable.
type Record struct {
	ID     etcd.ID
	Number int64
	Prefix string
	Owner  Owner
	State  State
}

// content is a record as it is stored.
type content struct {
	Version int    `json:"version"`
	Number  int64  `json:"number"`
	Prefix  string `json:"prefix"`
	Owner   Owner  `json:"owner"`
	State   State  `json:"state"`
}

// version is that of the format. Records of another are not understood.
const version = 1

// maxRecord is more than any record has.
const maxRecord = 16 << 10

// Key returns the key of a namespace's record.
func Key(id etcd.ID) string { return Prefix + id.String() }

// Format returns the value of a record.
func (r Record) Format() string {
	text, _ := json.Marshal(content{version, r.Number, r.Prefix, r.Owner, r.State}) // strings and a number
	return string(text)
}

// parse parses a record. Whatever is not exactly what [Record.Format] writes is an error.
func parse(key, value string) (Record, error) {
	name, ok := strings.CutPrefix(key, Prefix)
	if !ok {
		return Record{}, fmt.Errorf("it is not below %s", Prefix)
	}
	id, err := etcd.ParseID(name)
	if err != nil {
		return Record{}, err
	}
	if len(value) > maxRecord {
		return Record{}, fmt.Errorf("it has %d bytes", len(value))
	}
	var c content
	d := json.NewDecoder(strings.NewReader(value))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return Record{}, fmt.Errorf("it is garbled: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Record{}, errors.New("it is garbled: something follows")
	}
	r := Record{ID: id, Number: c.Number, Prefix: c.Prefix, Owner: c.Owner, State: c.State}
	switch {
	case c.Version != version:
		return Record{}, fmt.Errorf("it is of version %d, and this gitopsd knows version %d", c.Version, version)
	case r.Number < 1 || r.Number > etcd.MaxNumber:
		return Record{}, fmt.Errorf("its number is %d", r.Number)
	case r.Owner.Fleet == "":
		return Record{}, errors.New("it has no owner")
	case r.State != Active && r.State != Retained && r.State != Deleting:
		return Record{}, fmt.Errorf("its state is %q", r.State)
	}
	if err := checkPrefix(r.Prefix); err != nil {
		return Record{}, err
	}
	if !bytes.Equal([]byte(r.Format()), []byte(value)) {
		return Record{}, errors.New("it is not as gitopsd writes it")
	}
	return r, nil
}

// maxPrefix is the most bytes that a prefix has. Keys in etcd are as much longer.
const maxPrefix = 512

// checkPrefix returns an error if no namespace may have a prefix.
func checkPrefix(prefix string) error {
	switch {
	case len(prefix) > maxPrefix:
		return fmt.Errorf("the prefix has %d bytes; use at most %d", len(prefix), maxPrefix)
	case !strings.HasSuffix(prefix, "/"):
		return fmt.Errorf("prefix %q does not end with /; without it, %s would be inside too", prefix, prefix+"a")
	case strings.Trim(prefix, "/") == "":
		return fmt.Errorf("prefix %q is around other keys; use one with a name, such as /mine/", prefix)
	case strings.ContainsFunc(prefix, func(r rune) bool { return r <= ' ' || r > '~' }):
		return fmt.Errorf("prefix %q has characters other than printable ASCII without spaces; use others", prefix)
	case meet(prefix, Prefix):
		return fmt.Errorf("prefix %q and %s, where gitopsd keeps its registry, are inside one another; use another prefix", prefix, Prefix)
	case meet(prefix, kubernetes):
		return fmt.Errorf("prefix %q and %s, where kube-apiservers keep their objects, are inside one another; use another prefix", prefix, kubernetes)
	}
	return nil
}

// meet reports whether a prefix is equal to, inside or around another.
func meet(a, b string) bool { return strings.HasPrefix(a, b) || strings.HasPrefix(b, a) }

// Entry is a key and its value in etcd.
type Entry struct{ Key, Value string }

// Registry is the registry as it was read. It is not changed.
type Registry struct {
	records map[etcd.ID]Record
	damaged map[string]error // by their keys
}

// Read reads the registry. Records that say the same of different namespaces are damaged,
// all of them: nobody can tell whose the keys are.
func Read(entries []Entry) *Registry {
	r := &Registry{records: make(map[etcd.ID]Record), damaged: make(map[string]error)}
	for _, e := range entries {
		record, err := parse(e.Key, e.Value)
		if err != nil {
			r.damaged[e.Key] = err
			continue
		}
		r.records[record.ID] = record
	}
	for id, err := range clashes(r.All()) {
		delete(r.records, id)
		r.damaged[Key(id)] = err
	}
	return r
}

// clashes returns which records cannot be right beside others, and why.
func clashes(all []Record) map[etcd.ID]error {
	found := make(map[etcd.ID]error)
	byNumber := make(map[int64]Record)
	for _, r := range all {
		other, twice := byNumber[r.Number]
		if byNumber[r.Number] = r; twice {
			found[r.ID] = fmt.Errorf("its number %d is also that of %s", r.Number, other.ID)
			found[other.ID] = fmt.Errorf("its number %d is also that of %s", r.Number, r.ID)
		}
	}
	// In the order of prefixes, what is inside one follows it.
	slices.SortFunc(all, func(a, b Record) int { return strings.Compare(a.Prefix, b.Prefix) })
	for i, outer := 1, 0; i < len(all); i++ {
		if a, b := all[outer], all[i]; meet(a.Prefix, b.Prefix) {
			found[a.ID] = fmt.Errorf("its prefix %q and %q, that of %s, are inside one another", a.Prefix, b.Prefix, b.ID)
			found[b.ID] = fmt.Errorf("its prefix %q and %q, that of %s, are inside one another", b.Prefix, a.Prefix, a.ID)
		} else {
			outer = i
		}
	}
	return found
}

func byName(a, b etcd.ID) int { return strings.Compare(a.String(), b.String()) }

// All returns the records that are sound, ordered by their names.
func (r *Registry) All() []Record {
	var all []Record
	for _, id := range slices.SortedFunc(maps.Keys(r.records), byName) {
		all = append(all, r.records[id])
	}
	return all
}

// Get returns the record of a namespace; ok reports whether there is one. The error is
// why the one that is there cannot be believed.
func (r *Registry) Get(id etcd.ID) (record Record, ok bool, err error) {
	if why := r.damaged[Key(id)]; why != nil {
		return Record{}, true, &DamagedError{Key: Key(id), Err: why}
	}
	record, ok = r.records[id]
	return record, ok, nil
}

// Damaged returns what is wrong with records, ordered by their keys.
func (r *Registry) Damaged() []error {
	var all []error
	for _, key := range slices.Sorted(maps.Keys(r.damaged)) {
		all = append(all, &DamagedError{Key: key, Err: r.damaged[key]})
	}
	return all
}

// DamagedError is a record that cannot be believed.
type DamagedError struct {
	Key string
	Err error
}

// Error implements error.
func (e *DamagedError) Error() string {
	return fmt.Sprintf("the record %s in etcd cannot be used: %v; nothing of its namespace is changed until somebody corrects it (etcdctl get, put), or deletes it if no such namespace is left", e.Key, e.Err)
}

// Unwrap returns what is wrong.
func (e *DamagedError) Unwrap() error { return e.Err }

// Allocate returns a record for a namespace that has none, with a number that is unused.
// While a record is damaged there is none: its number and its keys are not known.
func (r *Registry) Allocate(id etcd.ID, prefix string, owner Owner) (Record, error) {
	if err := checkPrefix(prefix); err != nil {
		return Record{}, err
	}
	if damaged := r.Damaged(); len(damaged) > 0 {
		return Record{}, fmt.Errorf("no number can be given out: %w", damaged[0])
	}
	record := Record{ID: id, Prefix: prefix, Owner: owner, State: Active}
	highest, used := int64(0), make(map[int64]bool)
	for _, other := range r.All() {
		if meet(other.Prefix, prefix) {
			return Record{}, fmt.Errorf("prefix %q and %q, that of %s, are inside one another; use another prefix", prefix, other.Prefix, other.ID)
		}
		highest, used[other.Number] = max(highest, other.Number), true
	}
	// A number that was given back is not given out again soon.
	for n := range int64(etcd.MaxNumber) {
		if number := (highest+n)%etcd.MaxNumber + 1; !used[number] {
			record.Number = number
			return record, nil
		}
	}
	return Record{}, fmt.Errorf("all %d numbers are taken; delete namespaces that are not used", etcd.MaxNumber)
}
