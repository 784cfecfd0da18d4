// Package registry reads the registry of an etcd: a record for each namespace, under [Prefix] in the
// etcd itself. The registry decides who has which number and which keys. Numbers and prefixes are
// unique in the etcd, across all fleets and clusters that share it. The package is pure;
// reconcile/etcd writes records, on the condition that the registry has not changed.
package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"gitopsd.dev/render/etcd"
)

// Prefix is the prefix of records' keys. The namespace's ID follows it.
const Prefix = etcd.OwnPrefix + "registry/"

// kubernetes is the default prefix of kube-apiservers.
const kubernetes = "/registry/"

// State is the state of a namespace.
type State string

// States.
const (
	Active   State = "active"   // declared
	Retained State = "retained" // no longer declared; the keys are kept
	Deleting State = "deleting" // no longer declared; the keys are being deleted
)

// Owner identifies the declarer of a namespace. Owners are comparable.
type Owner struct {
	// Fleet is the name of the fleet.
	Fleet string `json:"fleet"`
	// UID identifies the cluster of the EtcdNamespace, by the UID of its namespace kube-system; empty
	// for a cluster's own namespace. A cluster that is created anew has another.
	UID string `json:"uid,omitempty"`
}

// Record is the registry's record of a namespace. Records are comparable.
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

// version is the version of the format. Records of other versions are damaged.
const version = 1

// maxRecord is more bytes than any record has.
const maxRecord = 16 << 10

// Key returns the key of a namespace's record.
func Key(id etcd.ID) string { return Prefix + id.String() }

// Format returns the value of a record.
func (r Record) Format() string {
	text, _ := json.Marshal(content{version, r.Number, r.Prefix, r.Owner, r.State}) // strings and a number
	return string(text)
}

// parse parses a record. Anything other than the output of [Record.Format] is an error.
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
	if r.Format() != value {
		return Record{}, errors.New("it is not as gitopsd writes it")
	}
	return r, nil
}

// maxPrefix is the largest length of a prefix. It makes each key in etcd longer.
const maxPrefix = 512

// checkPrefix returns an error for a prefix that no namespace may have.
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

// meet reports whether two prefixes are equal or one is inside the other.
func meet(a, b string) bool { return strings.HasPrefix(a, b) || strings.HasPrefix(b, a) }

// Entry is a key and its value in etcd.
type Entry struct{ Key, Value string }

// Registry is an immutable copy of the registry.
type Registry struct {
	records map[etcd.ID]Record
	damaged map[string]error // by key
}

// Read parses the registry. All records with the same number or overlapping prefixes are damaged: the
// owner of the keys is unknown.
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

// clashes returns the records that conflict with others, and why.
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
	// In this order, prefixes inside another follow it.
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

// All returns the records that are not damaged, ordered by name.
func (r *Registry) All() []Record {
	var all []Record
	for _, id := range slices.SortedFunc(maps.Keys(r.records), byName) {
		all = append(all, r.records[id])
	}
	return all
}

// Get returns the record of a namespace; ok reports whether there is one. The error is a [*DamagedError].
func (r *Registry) Get(id etcd.ID) (record Record, ok bool, err error) {
	if why := r.damaged[Key(id)]; why != nil {
		return Record{}, true, &DamagedError{Key: Key(id), Err: why}
	}
	record, ok = r.records[id]
	return record, ok, nil
}

// Damaged returns a [*DamagedError] for each damaged record, ordered by key.
func (r *Registry) Damaged() []error {
	var all []error
	for _, key := range slices.Sorted(maps.Keys(r.damaged)) {
		all = append(all, &DamagedError{Key: key, Err: r.damaged[key]})
	}
	return all
}

// DamagedError is the error of a damaged record.
type DamagedError struct {
	Key string
	Err error
}

// Error implements error.
func (e *DamagedError) Error() string {
	return fmt.Sprintf("the record %s in etcd cannot be used: %v; nothing of its namespace is changed until somebody corrects it (etcdctl get, put), or deletes it if no such namespace is left", e.Key, e.Err)
}

// Unwrap returns e.Err.
func (e *DamagedError) Unwrap() error { return e.Err }

// Allocate returns a record for a namespace that has none, with an unused number. It fails while any
// record is damaged: the number and keys of that are unknown.
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
	// Numbers are reused as late as possible.
	for n := range int64(etcd.MaxNumber) {
		if number := (highest+n)%etcd.MaxNumber + 1; !used[number] {
			record.Number = number
			return record, nil
		}
	}
	return Record{}, fmt.Errorf("all %d numbers are taken; delete namespaces that are not used", etcd.MaxNumber)
}
