package lockfile

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gitopsd.dev/sources"
)

// lock makes a lock of lines; a word that is a letter and a number at the end of
// one stands for a digest, after "conversion " for one of rules.
func lock(t testing.TB, lines ...string) *File {
	t.Helper()
	var text strings.Builder
	for _, l := range lines {
		if head, word, ok := cutLast(l); ok && l[0] != '@' {
			l = head + " " + string(sources.DigestOf([]byte(word)))
		} else if strings.HasSuffix(head, " conversion") {
			l = head + " " + rulesDigest(word)
		}
		text.WriteString(l + "\n")
	}
	return parsed(t, text.String())
}

func parsed(t testing.TB, text string) *File {
	t.Helper()
	f, err := Parse("clusters.lock", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func rulesDigest(word string) string {
	sum := sha256.Sum256([]byte(word))
	return "h1:" + base64.StdEncoding.EncodeToString(sum[:])
}

func cutLast(s string) (before, after string, ok bool) {
	i := strings.LastIndexByte(s, ' ')
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

func TestMerge(t *testing.T) {
	for _, tt := range []struct {
		name               string
		base, ours, theirs []string
		want               []string
		contested          string // in the error
	}{
		{name: "two packages are added",
			ours: []string{"@dev reg.io/a v1", "reg.io/a v1 d1"}, theirs: []string{"@dev reg.io/b v1", "reg.io/b v1 d2"},
			want: []string{"@dev reg.io/a v1", "reg.io/a v1 d1", "@dev reg.io/b v1", "reg.io/b v1 d2"}},
		{name: "a rollback, and somebody else's dependency",
			base:   []string{"@dev reg.io/d v10 <- reg.io/a", "@prod reg.io/e v1 <- reg.io/a"},
			ours:   []string{"@dev reg.io/d v9 <- reg.io/a", "@prod reg.io/e v1 <- reg.io/a"},
			theirs: []string{"@dev reg.io/d v10 <- reg.io/a", "@prod reg.io/e v2 <- reg.io/a"},
			want:   []string{"@dev reg.io/d v9 <- reg.io/a", "@prod reg.io/e v2 <- reg.io/a"}},
		{name: "two bumps of a dependency",
			base: []string{"@dev reg.io/d v8 <- reg.io/a"}, ours: []string{"@dev reg.io/d v9 <- reg.io/a"}, theirs: []string{"@dev reg.io/d v10 <- reg.io/a"},
			want:      []string{"@dev reg.io/d v9 <- reg.io/a", "@dev reg.io/d v10 <- reg.io/a"},
			contested: "two lines for the dependency reg.io/d of cluster dev: v10 in clusters.lock:1, v9 in clusters.lock:1."},
		{name: "a bump, and somebody else who needs it",
			base:   []string{"@dev reg.io/d v8 <- reg.io/a"},
			ours:   []string{"@dev reg.io/d v9 <- reg.io/a"},
			theirs: []string{"@dev reg.io/d v8 <- reg.io/a", "@dev reg.io/d v8 <- reg.io/b"},
			want:   []string{"@dev reg.io/d v9 <- reg.io/a"}},
		{name: "nobody needs it any more, but somebody else",
			base: []string{"@dev reg.io/d v8 <- reg.io/a"}, theirs: []string{"@dev reg.io/d v8 <- reg.io/a", "@dev reg.io/d v8 <- reg.io/b"},
			want: []string{"@dev reg.io/d v8 <- reg.io/b"}},
		{name: "two bumps of a declaration are the declaration's to settle",
			base: []string{"@dev reg.io/a v8"}, ours: []string{"@dev reg.io/a v9"}, theirs: []string{"@dev reg.io/a v10"},
			want: []string{"@dev reg.io/a v9", "@dev reg.io/a v10"}},
		{name: "an update",
			base:   []string{"reg.io/a v1 d1", "reg.io/a v1/package.yaml c1", "reg.io/a v1/linux/amd64 p1"},
			ours:   []string{"reg.io/a v1 d2", "reg.io/a v1/package.yaml c1"},
			theirs: []string{"reg.io/a v1 d1", "reg.io/a v1/package.yaml c1", "reg.io/a v1/linux/amd64 p1", "reg.io/a v1/runtime/linux/amd64 r1"},
			want:   []string{"reg.io/a v1 d2", "reg.io/a v1/package.yaml c1"}},
		{name: "two updates",
			base:      []string{"reg.io/a v1 d1", "reg.io/a v1/package.yaml c1"},
			ours:      []string{"reg.io/a v1 d2", "reg.io/a v1/package.yaml c1"},
			theirs:    []string{"reg.io/a v1 d3", "reg.io/a v1/package.yaml c1"},
			want:      []string{"reg.io/a v1 d2", "reg.io/a v1 d3", "reg.io/a v1/package.yaml c1"},
			contested: "two lines for reg.io/a v1: sha256:"},
		{name: "tidied here, selected there",
			base: []string{"reg.io/a v1 d1", "reg.io/a v1/package.yaml c1"}, theirs: []string{"@dev reg.io/a v1", "reg.io/a v1 d1", "reg.io/a v1/package.yaml c1"},
			want: []string{"@dev reg.io/a v1", "reg.io/a v1 d1", "reg.io/a v1/package.yaml c1"}},
		{name: "tidied here, updated there", base: []string{"reg.io/a v1 d1"}, theirs: []string{"reg.io/a v1 d2"}, want: []string{"reg.io/a v1 d2"}},
		{name: "what was tidied stays away", base: []string{"reg.io/a v1 d1"}, theirs: []string{"reg.io/a v1 d1", "reg.io/b v1 d2"}, want: []string{"reg.io/b v1 d2"}},
		{name: "items of one digest", base: []string{"reg.io/a v1 d1"},
			ours: []string{"reg.io/a v1 d1", "reg.io/a v1/linux/amd64 p1"}, theirs: []string{"reg.io/a v1 d1", "reg.io/a v1/package.yaml c1"},
			want: []string{"reg.io/a v1 d1", "reg.io/a v1/linux/amd64 p1", "reg.io/a v1/package.yaml c1"}},
		{name: "rules of two definitions", base: []string{"@dev as.io conversion r1", "@dev bs.io conversion r1"},
			ours: []string{"@dev as.io conversion r2", "@dev bs.io conversion r1"}, theirs: []string{"@dev as.io conversion r1", "@dev bs.io conversion r2", "@prod as.io conversion r1"},
			want: []string{"@dev as.io conversion r2", "@dev bs.io conversion r2", "@prod as.io conversion r1"}},
		{name: "rules that both changed are what the merged commit makes of them", base: []string{"@dev as.io conversion r1"},
			ours: []string{"@dev as.io conversion r2"}, theirs: []string{"@dev as.io conversion r3"},
			want: []string{"@dev as.io conversion r2", "@dev as.io conversion r3"}},
		{name: "rules removed here, changed there", base: []string{"@dev as.io conversion r1"}, theirs: []string{"@dev as.io conversion r2"},
			want: []string{"@dev as.io conversion r2"}},
		{name: "rules removed here", base: []string{"@dev as.io conversion r1"}, theirs: []string{"@dev as.io conversion r1"}},
		{name: "what was contested and one side settled", base: []string{"reg.io/a v1 d1", "reg.io/a v1 d2"}, ours: []string{"reg.io/a v1 d2"},
			theirs: []string{"reg.io/a v1 d1", "reg.io/a v1 d2", "reg.io/b v1 d1"}, want: []string{"reg.io/a v1 d2", "reg.io/b v1 d1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			base, ours, theirs := lock(t, tt.base...), lock(t, tt.ours...), lock(t, tt.theirs...)
			merged := Merge(base, ours, theirs)
			if have, want := string(merged.Format()), string(lock(t, tt.want...).Format()); have != want {
				t.Errorf("have\n%s\nwant\n%s", have, want)
			}
			errs := merged.Contradictions()
			if tt.contested == "" && len(errs) > 0 || tt.contested != "" && (len(errs) != 1 || !strings.Contains(errs[0].Error(), tt.contested)) {
				t.Errorf("contradictions %v", errs)
			}
			text := merged.FormatConflicts(ours, theirs)
			again, conflicts, err := Mend("clusters.lock", text)
			if err != nil || conflicts != (tt.contested != "") || string(again.Format()) != string(merged.Format()) {
				t.Errorf("with markers %t, %v\n%s", conflicts, err, text)
			}
			if rebased := Rebase(base, ours, theirs); tt.contested != "" && len(rebased.Contradictions()) > 0 {
				t.Errorf("a contested lock where theirs wins\n%s", rebased.Format())
			}
		})
	}
}

// A merge of any three locks is symmetric, takes the other side if one did not change, and
// changes nothing the second time.
func TestMergeLaws(t *testing.T) {
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 0))
		random := func(from *File) *File {
			f := from.Clone()
			for range r.IntN(6) {
				repository, version := fmt.Sprint("reg.io/", r.IntN(2)), fmt.Sprint("v", r.IntN(2))
				switch cluster := fmt.Sprint("c", r.IntN(2)); r.IntN(7) {
				case 6:
					var some []Conversion
					for i := range r.IntN(3) {
						some = append(some, Conversion{cluster, fmt.Sprintf("as%d.io", i), rulesDigest(fmt.Sprint(r.IntN(2)))})
					}
					f.Convert(cluster, some)
				case 0:
					f.Forget(repository, version)
				case 1:
					f.Tidy()
				case 2:
					f.Select(cluster, nil)
				case 3, 4:
					f.choose(Selection{Cluster: cluster, Repository: repository, Version: version, Parent: []string{"", "reg.io/p", "reg.io/q"}[r.IntN(3)]}, 0)
				default:
					f.put(Key{repository, version, []string{"", ItemRuntime, ItemContent, "linux/amd64"}[r.IntN(4)]}, record{sum: []string{digestA, digestB}[r.IntN(2)]})
				}
			}
			return f
		}
		base := random(random(new(File)))
		a, b := random(base), random(base)
		merged := Merge(base, a, b)
		for _, law := range []struct {
			name       string
			have, want *File
		}{
			{"the other way round", Merge(base, b, a), merged},
			{"again", Merge(base, merged, b), merged},
			{"again with the other side", Merge(base, a, merged), merged},
			{"nothing changed", Merge(a, a, a), a},
			{"the same change", Merge(base, a, a), a},
			{"one side changed", Merge(base, a, base), a},
			{"theirs, where one side changed", Rebase(base, base, b), b},
			{"nothing of ours where nothing changed", Rebase(base, a, base), a},
		} {
			if have, want := string(law.have.Format()), string(law.want.Format()); have != want {
				t.Fatalf("seed %d, %s: have\n%s\nwant\n%s\nbase\n%s\na\n%s\nb\n%s", seed, law.name, have, want, base.Format(), a.Format(), b.Format())
			}
		}
	}
}

// A text that anybody may have written costs its bad lines.
func TestSalvage(t *testing.T) {
	good := "@dev as.io conversion " + rulesDigest("a") + "\n@dev reg.io/d v1 <- reg.io/a\nreg.io/a v1 " + digestA + "\n"
	f, left := Salvage([]byte("hello\n@\n\n" + good + "reg.io/b v1 " + digestA + "\nreg.io/b v1 " + digestB + "\n" +
		"@dev reg.io/e v1 <- reg.io/a\n@dev reg.io/e v2 <- reg.io/a\n<<<<<<< x\nreg.io/c v1 " + digestA))
	if have := string(f.Format()); have != good || left != 9 {
		t.Errorf("%d lines left out of\n%s", left, have)
	}
}

func TestAdded(t *testing.T) {
	before := lock(t, "@dev reg.io/a v1", "reg.io/a v1 d1", "reg.io/b v1 d1")
	after := lock(t, "@dev reg.io/a v2", "reg.io/a v1 d2", "reg.io/a v2 d1", "reg.io/b v1 d1")
	added := Added(before, after)
	if have, want := string(added.Format()), string(lock(t, "@dev reg.io/a v2", "reg.io/a v1 d2", "reg.io/a v2 d1").Format()); have != want {
		t.Errorf("have\n%s\nwant\n%s", have, want)
	}
	if !after.Has(added) || before.Has(added) {
		t.Error("what was added is in one of them alone")
	}
}

// Two lines of one key are read and written as they are, and nothing is known by
// them.
func TestContested(t *testing.T) {
	text := "reg.io/a v1 " + digestB + "\nreg.io/a v1 " + digestA + "\nreg.io/a v1/package.yaml " + digestA + "\n@dev reg.io/d v9 <- reg.io/a\n@dev reg.io/d v10 <- reg.io/b\n@dev reg.io/d v9 <- reg.io/b\n"
	f := parsed(t, text)
	have := strings.Split(string(f.Clone().Format()), "\n")
	want := strings.Split(text, "\n")
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("have %q", have)
	}
	if d, ok := f.Digest("reg.io/a", "v1"); ok || len(f.Versions("reg.io/a")) > 0 || len(f.Images()) > 0 {
		t.Errorf("one of two is believed: %s, %v, %v", d, f.Versions("reg.io/a"), f.Images())
	}
	err := f.Record(Key{Repository: "reg.io/a", Version: "v1"}, digestA, "the registry")
	if err == nil || !strings.Contains(err.Error(), "two lines for reg.io/a v1: "+digestB+" in clusters.lock:1, "+digestA+" in clusters.lock:2") {
		t.Errorf("error %v", err)
	}
	err = f.ContestedSelection("dev", "reg.io/d")
	if err == nil || !strings.Contains(err.Error(), "v9 in clusters.lock:4, v10 in clusters.lock:5. ") || !strings.Contains(err.Error(), "gitopsd lock --update=reg.io/d") {
		t.Errorf("error %v", err)
	}
	other := new(File)
	other.Adopt(f, "reg.io/a", "v1")
	f.Forget("reg.io/a", "v1")
	if other.Contested("reg.io/a", "v1") == nil || f.Contested("reg.io/a", "v1") != nil {
		t.Error("what is contested does not go with its version")
	}
}
