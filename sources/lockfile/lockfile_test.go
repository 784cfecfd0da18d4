package lockfile

import (
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/sources"
)

var (
	digestA = string(sources.DigestOf([]byte("a")))
	digestB = string(sources.DigestOf([]byte("b")))
	types   = "h1:" + strings.Repeat("A", 43) + "="
)

func sample() string {
	return strings.Join([]string{
		"@dev reg.io/acme/db v1.2.0 <- reg.io/acme/app",
		"@dev reg.io/acme/app v2.0.0",
		"@prod reg.io/acme/app " + digestA,
		"reg.io/acme/app " + digestA + " " + digestA,
		"reg.io/acme/app v2.0.0 " + digestA,
		"reg.io/acme/app v2.0.0/linux/amd64 " + digestB,
		"reg.io/acme/app v2.0.0/linux/arm/v7 " + digestB,
		"reg.io/acme/app v2.0.0/package.yaml " + digestA,
		"reg.io/acme/app v2.0.0/runtime " + digestA,
		"reg.io/acme/app v2.0.0/runtime/linux/amd64 " + digestB,
		"reg.io/acme/app v2.0.0/runtime/linux/arm/v7 " + digestB,
		"reg.io/acme/app v2.0.0/wasi-p1/wasm32.x " + digestB,
		"reg.io/acme/app v2.0.0/types " + types,
		"localhost:5000/db v1.2.0 " + digestB,
	}, "\n") + "\n"
}

func TestFormatIsStable(t *testing.T) {
	f := parsed(t, sample())
	want := f.Format()
	lines := strings.SplitAfter(strings.TrimSuffix(sample(), "\n")+"\n", "\n")
	lines = lines[:len(lines)-1]
	for range 20 {
		rand.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })
		again, err := Parse("clusters.lock", []byte(strings.Join(lines, "")))
		if err != nil {
			t.Fatal(err)
		}
		if have := string(again.Format()); have != string(want) {
			t.Fatalf("another order of lines gives\n%s\nnot\n%s", have, want)
		}
	}
	if n := strings.Count(string(want), "\n"); n != len(lines) {
		t.Errorf("%d lines written, %d read", n, len(lines))
	}
}

func TestParseFaults(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"cut off", "reg.io/a v1 " + digestA, "clusters.lock:1: the last line is cut off"},
		{"cut digest", "reg.io/a v1 " + digestA[:40] + "\n", "clusters.lock:1: digest"},
		{"conflict", "reg.io/a v1 " + digestA + "\n<<<<<<< HEAD\n", "clusters.lock:2: Git left a merge conflict"},
		{"empty line", "\n", "clusters.lock:1: an empty line"},
		{"no columns", "hello\n", `clusters.lock:1: "hello" is not a record`},
		{"two spaces", "reg.io/a  v1 " + digestA + "\n", "is not a record"},
		{"selection", "@dev reg.io/a\n", "is not a selection"},
		{"arrow", "@dev reg.io/a v1 -> reg.io/b\n", "is not a selection"},
		{"rules without sum", "@dev as.io conversion\n", "is not about conversion rules: want @CLUSTER DEFINITION conversion SUM"},
		{"sum of rules", "@dev as.io conversion " + digestA + "\n", "is not a digest of conversion rules"},
		{"definition of rules", "@dev As.io conversion " + rulesDigest("a") + "\n", `"As.io" is not the name of a CustomResourceDefinition`},
		{"cluster of rules", "@Dev as.io conversion " + rulesDigest("a") + "\n", `"Dev" is not a cluster's name`},
		{"cluster", "@Dev reg.io/a v1\n", `"Dev" is not a cluster's name`},
		{"repository", "reg.io/A v1 " + digestA + "\n", `"reg.io/A" is not a repository`},
		{"record without a registry", "reg.io/a v1 " + digestA + "\nacme/x v1 " + digestA + "\n", `clusters.lock:2: "acme/x" names no registry (references mean xpkg.crossplane.io/acme/x); delete the line, or restore the file from Git`},
		{"selection without a registry", "@dev acme/x v1\n", `"acme/x" names no registry`},
		{"parent without a registry", "@dev reg.io/a v1 <- acme/x\n", `"acme/x" names no registry`},
		{"name alone", "x v1 " + digestA + "\n", `"x" is not a repository`},
		{"item", "reg.io/a v1/else " + digestA + "\n", `"else" is not an item`},
		{"types", "reg.io/a v1/types " + digestA + "\n", "is not a hash of types"},
		{"sha512", "reg.io/a v1 sha512:00\n", "clusters.lock:1: digest"},
		{"binary", "\x00\x01\n", "is not a record"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse("clusters.lock", []byte(tt.in))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}

// A registry is one under all its names, which the first locks had as declared. Lines that differ
// are contested as any.
func TestParseUsualNames(t *testing.T) {
	f := parsed(t, "@dev Reg.io/a v1\n@dev index.docker.io/b v1 <- REG.io:443/a\nReg.io/a v1 "+digestA+"\nreg.io/a v1 "+digestA+"\nreg.io:443/a v2 "+digestA+"\nreg.io/a v2 "+digestB+"\n")
	want := "@dev docker.io/b v1 <- reg.io/a\n@dev reg.io/a v1\nreg.io/a v1 " + digestA + "\nreg.io/a v2 " + digestB + "\nreg.io/a v2 " + digestA + "\n"
	if have := string(f.Format()); have != want {
		t.Errorf("have\n%s\nwant\n%s", have, want)
	}
	if f.Contested("reg.io/a", "v1") != nil || f.Contested("reg.io/a", "v2") == nil {
		t.Errorf("contested: %v", f.Contradictions())
	}
}

func TestMendKeepsBothSides(t *testing.T) {
	in := "@dev reg.io/a v1\n<<<<<<< ours\n@dev reg.io/b v1\nreg.io/b v1 " + digestA + "\n||||||| base\n@dev reg.io/gone v1\n=======\n" +
		"@dev reg.io/c v1\nreg.io/c v1 " + digestB + "\n>>>>>>> theirs\nreg.io/a v1 " + digestA + "\n"
	f, conflicts, err := Mend("clusters.lock", []byte(in))
	if err != nil || !conflicts {
		t.Fatalf("conflicts %t, %v", conflicts, err)
	}
	want := "@dev reg.io/a v1\n@dev reg.io/b v1\n@dev reg.io/c v1\n" +
		"reg.io/a v1 " + digestA + "\nreg.io/b v1 " + digestA + "\nreg.io/c v1 " + digestB + "\n"
	if have := string(f.Format()); have != want {
		t.Errorf("have\n%s\nwant\n%s", have, want)
	}
}

// Lines are those of the file, whatever its order, and go with the record.
func TestLine(t *testing.T) {
	f := parsed(t, "reg.io/b v1 "+digestA+"\n@dev reg.io/b v1\nreg.io/a v1 "+digestB+"\n")
	a, b := Key{Repository: "reg.io/a", Version: "v1"}, Key{Repository: "reg.io/b", Version: "v1"}
	err := f.Clone().Record(a, digestA, "the registry")
	if err == nil || !strings.Contains(err.Error(), "clusters.lock:3 has  "+digestB) {
		t.Errorf("the error does not name line 3: %v", err)
	}
	f.Forget("reg.io/b", "v1")
	if err := f.Record(b, digestB, "the registry"); err != nil {
		t.Fatal(err)
	}
	if f.Line(a) != 3 || f.Line(b) != 0 {
		t.Errorf("lines %d and %d, want 3 and 0", f.Line(a), f.Line(b))
	}
}

func TestRecord(t *testing.T) {
	f := parsed(t, sample())
	before := string(f.Format())
	key := Key{Repository: "reg.io/acme/app", Version: "v2.0.0", Item: ItemContent}
	if err := f.Record(key, digestA, "the registry"); err != nil {
		t.Error(err)
	}
	var m *Mismatch
	if err := f.Record(key, digestB, "the registry"); !errors.As(err, &m) {
		t.Fatalf("error %v, want a Mismatch", err)
	}
	for _, want := range []string{"SECURITY ERROR", digestA, digestB, "reg.io/acme/app v2.0.0/package.yaml", "gitopsd lock --update=reg.io/acme/app"} {
		if !strings.Contains(m.Error(), want) {
			t.Errorf("%q is not in\n%s", want, m)
		}
	}
	if err := f.Record(Key{Repository: "reg.io/new", Version: "v1"}, "sha256:short", "the registry"); err == nil {
		t.Error("a digest that is none was recorded")
	}
	if after := string(f.Format()); after != before {
		t.Errorf("the lock changed to\n%s", after)
	}
}

func TestSelectAndTidy(t *testing.T) {
	f, _ := Parse("clusters.lock", []byte(sample()))
	f.Select("dev", []Selection{{Cluster: "dev", Repository: "localhost:5000/db", Version: "v1.2.0"}})
	if n := f.Tidy(); n != 9 {
		t.Errorf("%d records dropped, want the 9 of reg.io/acme/app v2.0.0", n)
	}
	want := "@dev localhost:5000/db v1.2.0\n@prod reg.io/acme/app " + digestA + "\nlocalhost:5000/db v1.2.0 " + digestB + "\nreg.io/acme/app " + digestA + " " + digestA + "\n"
	if have := string(f.Format()); have != want {
		t.Errorf("have\n%s\nwant\n%s", have, want)
	}
}

// Whatever parses is written back to bytes that parse to the same.
func FuzzParse(f *testing.F) {
	f.Add(sample())
	f.Add("<<<<<<< a\n=======\n>>>>>>> b\n")
	f.Add("@dev as.io conversion " + rulesDigest("a") + "\n@dev as.io conversion " + rulesDigest("b") + "\n@dev as.io conversion\n")
	f.Fuzz(func(t *testing.T, in string) {
		some, left := Salvage([]byte(in))
		if _, again := Salvage(some.Format()); again > 0 {
			t.Errorf("%d lines left out of %q, then %d of %q", left, in, again, some.Format())
		}
		lock, _, err := Mend("clusters.lock", []byte(in))
		if err != nil {
			return
		}
		text := lock.Format()
		again, err := Parse("clusters.lock", text)
		if err != nil {
			t.Fatalf("%q was written as %q: %v", in, text, err)
		}
		if string(again.Format()) != string(text) {
			t.Errorf("%q and %q", text, again.Format())
		}
	})
}

func TestAllSelections(t *testing.T) {
	f := parsed(t, "@b reg.io/a v1\n@a reg.io/b v1 <- reg.io/a\n@a reg.io/a v2\nreg.io/a v1 sha256:"+strings.Repeat("0", 64)+"\n")
	all := f.AllSelections()
	if len(all) != 2 {
		t.Errorf("have %v", all)
	}
	for _, name := range f.Clusters() {
		if !slices.Equal(all[name], f.Selections(name)) {
			t.Errorf("%s: have %v, want %v", name, all[name], f.Selections(name))
		}
	}
}

// Conversion rules belong to a cluster as its selections do.
func TestConversions(t *testing.T) {
	text := "@dev as.io conversion " + rulesDigest("a") + "\n@dev reg.io/a v1\n@prod as.io conversion " + rulesDigest("b") + "\n"
	f, err := Parse("clusters.lock", []byte(text))
	if err != nil || string(f.Clone().Format()) != text {
		t.Fatalf("%v\n%s", err, f.Clone().Format())
	}
	if have := f.Clusters(); !slices.Equal(have, []string{"dev", "prod"}) {
		t.Errorf("clusters %q", have)
	}
	before := f.Clone()
	f.Convert("dev", []Conversion{{"dev", "bs.io", rulesDigest("a")}})
	if f.Has(before) || len(f.Conversions("dev")) != 1 || len(before.Conversions("dev")) != 1 || before.Conversions("dev")[0].Definition != "as.io" {
		t.Errorf("rules of dev are %v, before %v", f.Conversions("dev"), before.Conversions("dev"))
	}
	if have := string(Added(before, f).Format()); have != "@dev bs.io conversion "+rulesDigest("a")+"\n" {
		t.Errorf("added\n%s", have)
	}
	f.Tidy()
	f.Leave("dev")
	if have := string(f.Format()); have != "@prod as.io conversion "+rulesDigest("b")+"\n" {
		t.Errorf("left\n%s", have)
	}
}
