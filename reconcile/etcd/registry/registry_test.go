package registry

import (
	"fmt"
	"strings"
	"testing"

	"gitopsd.dev/render/etcd"
)

var sample = etcd.ID{Cluster: "prod", Namespace: "default", Name: "sample"}

func record(id etcd.ID, number int64, prefix string) Record {
	return Record{ID: id, Number: number, Prefix: prefix, Owner: Owner{Fleet: "fleet", UID: "1"}, State: Active}
}

func entry(r Record) Entry { return Entry{Key(r.ID), r.Format()} }

// Records are read as they were written, and nothing else is a record.
func TestParse(t *testing.T) {
	t.Parallel()
	r := record(sample, 7, "/gitopsd.dev/ns/prod/default/sample/")
	const want = `{"version":1,"number":7,"prefix":"/gitopsd.dev/ns/prod/default/sample/","owner":{"fleet":"fleet","uid":"1"},"state":"active"}`
	if r.Format() != want {
		t.Errorf("%s, want %s", r.Format(), want)
	}
	if again, err := parse(Key(sample), want); err != nil || again != r {
		t.Errorf("%+v, %v", again, err)
	}
	for _, tt := range []struct{ key, from, to, want string }{
		{key: "/elsewhere", want: "it is not below /gitopsd.dev/registry/"},
		{key: Prefix + "a/b", want: `"a/b" is not the name of an etcd namespace`},
		{from: `"version":1`, to: `"version":2`, want: "it is of version 2, and this gitopsd knows version 1"},
		{from: `"number":7`, to: `"number":0`, want: "its number is 0"},
		{from: `"number":7`, to: `"number":1048576`, want: "its number is 1048576"},
		{from: `"number":7`, to: `"number":7.5`, want: "it is garbled"},
		{from: `"fleet":"fleet"`, to: `"fleet":""`, want: "it has no owner"},
		{from: "active", to: "gone", want: `its state is "gone"`},
		{from: "/sample/", to: "/sample", want: "does not end with /"},
		{from: "/gitopsd.dev/ns/prod", to: "/registry", want: "where kube-apiservers keep their objects"},
		{from: `{"version"`, to: `{"more":1,"version"`, want: "it is garbled"},
		{from: `}`, to: `}}`, want: "it is garbled"},
		{from: `"state":"active"}`, to: `"state":"active"} `, want: "it is not as gitopsd writes it"},
		{from: `"number":7`, to: `"number":7,"number":8`, want: "it is not as gitopsd writes it"},
		{from: want, to: "", want: "it is garbled"},
		{from: want, to: strings.Repeat(" ", maxRecord+1), want: "bytes"},
	} {
		key := tt.key
		if key == "" {
			key = Key(sample)
		}
		if _, err := parse(key, strings.Replace(want, tt.from, tt.to, 1)); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q for %q: %v, want %q", tt.to, tt.from, err, tt.want)
		}
	}
}

// A number is reused only after all others.
func TestAllocate(t *testing.T) {
	t.Parallel()
	at := func(name string, number int64) Entry {
		return entry(record(etcd.ID{Cluster: name}, number, "/"+name+"/"))
	}
	owner := Owner{Fleet: "fleet"}
	for _, tt := range []struct {
		name    string
		entries []Entry
		want    int64
	}{
		{"the first", nil, 1},
		{"the next", []Entry{at("a", 1), at("b", 2)}, 3},
		{"not one that was given back", []Entry{at("a", 5)}, 6},
		{"around", []Entry{at("a", etcd.MaxNumber), at("b", 1)}, 2},
	} {
		r, err := Read(tt.entries).Allocate(sample, "/mine/", owner)
		if err != nil || r != (Record{sample, tt.want, "/mine/", owner, Active}) {
			t.Errorf("%s: %+v, %v", tt.name, r, err)
		}
	}
	for _, prefix := range []string{"/a/", "/a/b/"} {
		if _, err := Read([]Entry{at("a", 1)}).Allocate(sample, prefix, owner); err == nil {
			t.Errorf("%s beside /a/", prefix)
		}
	}
}

// All records that contradict each other are damaged; others are not.
func TestClash(t *testing.T) {
	t.Parallel()
	a, b, c := etcd.ID{Cluster: "a"}, etcd.ID{Cluster: "b"}, etcd.ID{Cluster: "c"}
	for name, other := range map[string]Record{
		"number": record(b, 1, "/b/"), "prefix": record(b, 2, "/a/"), "inside": record(b, 2, "/a/b/"),
	} {
		r := Read([]Entry{entry(record(a, 1, "/a/")), entry(other), entry(record(c, 3, "/c/"))})
		_, _, errA := r.Get(a)
		_, _, errB := r.Get(b)
		_, ok, errC := r.Get(c)
		if errA == nil || errB == nil || errC != nil || !ok || len(r.Damaged()) != 2 || len(r.All()) != 1 {
			t.Errorf("%s: %v, %v, %v", name, errA, errB, errC)
		}
		if errA.Error() == errB.Error() {
			t.Errorf("%s: both say %v", name, errA)
		}
		if _, err := r.Allocate(sample, "/mine/", Owner{Fleet: "fleet"}); err == nil || !strings.Contains(err.Error(), "no number can be given out") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// All records with overlapping prefixes are damaged, in any order, and no others.
func TestNested(t *testing.T) {
	t.Parallel()
	prefixes := []string{"/a/", "/a/b/", "/a/b/c/", "/a/z/", "/a-/", "/a0/", "/b/c/", "/b/d/"}
	inside := 4
	for shift := range prefixes {
		var entries []Entry
		for i := range prefixes {
			n := (i + shift) % len(prefixes)
			entries = append(entries, entry(record(etcd.ID{Cluster: fmt.Sprint("c", (i*5+shift)%len(prefixes))}, int64(i+1), prefixes[n])))
		}
		r := Read(entries)
		if len(r.Damaged()) != inside || len(r.All()) != len(prefixes)-inside {
			t.Errorf("damaged %v", r.Damaged())
		}
	}
}

// Any registry is read without a panic, and only what gitopsd writes is a record.
func FuzzParse(f *testing.F) {
	r := record(sample, 7, "/mine/")
	f.Add(Key(sample), r.Format())
	f.Add(Prefix+"prod", `{"version":1}`)
	f.Add("", "")
	f.Fuzz(func(t *testing.T, key, value string) {
		r, err := parse(key, value)
		if err != nil {
			return
		}
		if Key(r.ID) != key || r.Format() != value || checkPrefix(r.Prefix) != nil {
			t.Errorf("%q, %q: %+v", key, value, r)
		}
		if again, err := parse(Key(r.ID), r.Format()); err != nil || again != r {
			t.Errorf("%+v, once written %+v, %v", r, again, err)
		}
	})
}
