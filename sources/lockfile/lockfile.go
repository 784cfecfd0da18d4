// Package lockfile is clusters.lock: for each cluster the packages it selects,
// and for each package version the digests it resolved to.
//
// The lock is text, one record a line, sorted, without time stamps, so that Git
// merges it and a person reads its diff:
//
//	@CLUSTER REPOSITORY VERSION
//	@CLUSTER REPOSITORY VERSION <- REPOSITORY
//	REPOSITORY VERSION SUM
//	REPOSITORY VERSION/ITEM SUM
//
// A line that starts with @ selects, as a requirement in go.mod does; the
// second form is a dependency and names what depends on it. The others verify,
// as go.sum does: the first is what the version resolved to, an index or a
// manifest; the items are each platform's manifest ("linux/amd64"), the content
// that defines the types ("package.yaml"), the types themselves ("types") and
// the controller's image ("runtime"), with each platform of it where that is not
// the package itself ("runtime/linux/amd64"). A reference by digest has the
// digest in the version column.
//
// The package is pure: it parses, formats, compares and merges. Who may add a
// record, and when, is decided by sources/resolve.
package lockfile

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"gitopsd.dev/sources"
)

// Selection says that a cluster gets a version of a package. Comparable.
type Selection struct {
	Cluster    string
	Repository string
	Version    string
	// Parent is the repository of a package that depends on this one; empty
	// where the cluster declares it.
	Parent string
}

// Key names a record. Comparable.
type Key struct {
	Repository string
	Version    string
	// Item is empty for the version itself, or "package.yaml", "types",
	// "runtime", a platform, or "runtime/" and a platform.
	Item string
}

// The items that are not platforms.
const (
	ItemContent = "package.yaml"
	ItemTypes   = "types"
	ItemRuntime = "runtime"
)

// File is a lock in memory. The zero value is an empty lock. It is not safe for
// concurrent changes.
type File struct {
	selections map[Selection]struct{}
	records    map[Key]string
	// lines are where Parse found records.
	lines map[Key]int
}

// maxBytes bounds a lock: 2,000 clusters with 100 packages each stay below it.
const maxBytes = 64 << 20

// Parse reads a lock; name is the file's, for errors. Any order of lines is
// accepted, since Git merges lines without sorting them, and so is a line that
// is there twice. Anything else that Format would not write is an error with
// file and line.
func Parse(name string, data []byte) (*File, error) {
	f, _, err := parse(name, data, false)
	return f, err
}

// Mend reads a lock that Git left with conflict markers, and keeps the records
// of both sides. Where both select another version for one cluster both lines
// stay, and the next resolution keeps what is declared.
func Mend(name string, data []byte) (f *File, conflicts bool, err error) {
	return parse(name, data, true)
}

// conflictMarkers are those of Git's merge and diff3 styles.
var conflictMarkers = []string{"<<<<<<<", "|||||||", "=======", ">>>>>>>"}

func parse(name string, data []byte, mend bool) (f *File, conflicts bool, err error) {
	if len(data) > maxBytes {
		return nil, false, fmt.Errorf("%s: has %d bytes; at most %d are read", name, len(data), maxBytes)
	}
	f = &File{lines: make(map[Key]int)}
	base := false // between ||||||| and =======: what neither side has any more
	line := 0
	for text := range strings.Lines(string(data)) {
		line++
		fail := func(format string, args ...any) error {
			return fmt.Errorf("%s:%d: %s", name, line, fmt.Sprintf(format, args...))
		}
		if len(text) >= 7 && slices.Contains(conflictMarkers, text[:7]) {
			if !mend {
				return nil, true, fail("Git left a merge conflict here; run `gitopsd lock` to keep the records of both sides")
			}
			conflicts, base = true, text[0] == '|'
			continue
		}
		if base {
			continue
		}
		if !strings.HasSuffix(text, "\n") {
			return nil, conflicts, fail("the last line is cut off: restore the file from Git, or delete the line and run `gitopsd lock`")
		}
		text = strings.TrimSuffix(strings.TrimSuffix(text, "\n"), "\r")
		if text == "" {
			return nil, conflicts, fail("an empty line; records only are expected")
		}
		if text[0] == '@' {
			s, err := parseSelection(text)
			if err != nil {
				return nil, conflicts, fail("%v", err)
			}
			f.choose(s)
			continue
		}
		key, sum, err := parseRecord(text)
		if err != nil {
			return nil, conflicts, fail("%v", err)
		}
		if have, twice := f.records[key]; twice && have != sum {
			return nil, conflicts, fail("%s is recorded as %s here and as %s in line %d: one of them was changed by hand or by a bad merge; "+
				"delete both lines and run `gitopsd lock`", key, sum, have, f.lines[key])
		}
		f.lines[key] = line
		f.put(key, sum)
	}
	return f, conflicts, nil
}

// platform is an operating system, an architecture or a variant. All that
// sources/xpkg takes for one is one.
const platform = `[a-z0-9][a-z0-9._-]{0,63}`

var (
	clusterName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	tagName     = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
	item        = regexp.MustCompile(`^(package\.yaml|types|runtime|(runtime/)?` + platform + `/` + platform + `(/` + platform + `)?)$`)
	typesSum    = regexp.MustCompile(`^h1:[A-Za-z0-9+/]{43}=$`)
)

func parseSelection(text string) (Selection, error) {
	cluster, rest, _ := strings.Cut(text[1:], " ")
	fields := strings.Split(rest, " ")
	if len(fields) != 2 && (len(fields) != 4 || fields[2] != "<-") {
		return Selection{}, fmt.Errorf("%q is not a selection: want @CLUSTER REPOSITORY VERSION [<- REPOSITORY]", text)
	}
	if !clusterName.MatchString(cluster) {
		return Selection{}, fmt.Errorf("%q is not a cluster's name", cluster)
	}
	s := Selection{Cluster: cluster, Repository: fields[0], Version: fields[1]}
	if len(fields) == 4 {
		s.Parent = fields[3]
		if err := checkRepository(s.Parent); err != nil {
			return Selection{}, err
		}
	}
	if err := checkRepository(s.Repository); err != nil {
		return Selection{}, err
	}
	return s, checkVersion(s.Version)
}

func parseRecord(text string) (Key, string, error) {
	fields := strings.Split(text, " ")
	if len(fields) != 3 {
		return Key{}, "", fmt.Errorf("%q is not a record: want REPOSITORY VERSION[/ITEM] SUM", text)
	}
	k := Key{Repository: fields[0]}
	k.Version, k.Item, _ = strings.Cut(fields[1], "/")
	if err := checkRepository(k.Repository); err != nil {
		return Key{}, "", err
	}
	if err := checkVersion(k.Version); err != nil {
		return Key{}, "", err
	}
	if strings.Contains(fields[1], "/") && !item.MatchString(k.Item) {
		return Key{}, "", fmt.Errorf("%q is not an item: want package.yaml, types, runtime or a platform", k.Item)
	}
	return k, fields[2], checkSum(k, fields[2])
}

func checkRepository(s string) error {
	if _, err := sources.ParseRef(s + ":v0"); err != nil || !strings.Contains(s, "/") {
		return fmt.Errorf("%q is not a repository", s)
	}
	return nil
}

func checkVersion(s string) error {
	if strings.Contains(s, ":") {
		_, err := sources.ParseDigest(s)
		return err
	}
	if !tagName.MatchString(s) {
		return fmt.Errorf("%q is not a version: want a tag or a digest", s)
	}
	return nil
}

func checkSum(k Key, sum string) error {
	if k.Item == ItemTypes {
		if !typesSum.MatchString(sum) {
			return fmt.Errorf("%q is not a hash of types: want h1: and 44 characters of base64", sum)
		}
		return nil
	}
	_, err := sources.ParseDigest(sum)
	return err
}

// String is the first two columns of the record's line.
func (k Key) String() string {
	if k.Item == "" {
		return k.Repository + " " + k.Version
	}
	return k.Repository + " " + k.Version + "/" + k.Item
}

// String is the selection's line.
func (s Selection) String() string {
	line := "@" + s.Cluster + " " + s.Repository + " " + s.Version
	if s.Parent != "" {
		line += " <- " + s.Parent
	}
	return line
}

// Format returns the lock's bytes: its lines sorted bytewise. Equal locks have
// equal bytes.
func (f *File) Format() []byte {
	lines := make([]string, 0, len(f.selections)+len(f.records))
	for s := range f.selections {
		lines = append(lines, s.String())
	}
	for k, sum := range f.records {
		lines = append(lines, k.String()+" "+sum)
	}
	slices.Sort(lines)
	var b bytes.Buffer
	for _, l := range lines {
		b.WriteString(l)
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// Clone returns a copy that shares nothing.
func (f *File) Clone() *File {
	return &File{selections: maps.Clone(f.selections), records: maps.Clone(f.records), lines: maps.Clone(f.lines)}
}

func (f *File) choose(s Selection) {
	if f.selections == nil {
		f.selections = make(map[Selection]struct{})
	}
	f.selections[s] = struct{}{}
}

func (f *File) put(k Key, sum string) {
	if f.records == nil {
		f.records = make(map[Key]string)
	}
	f.records[k] = sum
}

// Lookup returns the sum that is recorded for k.
func (f *File) Lookup(k Key) (string, bool) {
	sum, ok := f.records[k]
	return sum, ok
}

// Line is where Parse found a record, from 1; 0 if it was added since.
func (f *File) Line(k Key) int { return f.lines[k] }

// Digest returns what a version of a package resolved to.
func (f *File) Digest(repository, version string) (sources.Digest, bool) {
	sum, ok := f.records[Key{Repository: repository, Version: version}]
	return sources.Digest(sum), ok
}

// Records returns the records of one version of a package, by item.
func (f *File) Records(repository, version string) map[string]string {
	found := make(map[string]string)
	for k, sum := range f.records {
		if k.Repository == repository && k.Version == version {
			found[k.Item] = sum
		}
	}
	return found
}

// Versions returns the versions of a package that there are records of: those
// that most clusters select first, then by name, the last first.
func (f *File) Versions(repository string) []string {
	uses := make(map[string]int)
	for k := range f.records {
		if k.Repository == repository && k.Item == "" {
			uses[k.Version] += 0
		}
	}
	for s := range f.selections {
		if _, ok := uses[s.Version]; ok && s.Repository == repository {
			uses[s.Version]++
		}
	}
	return slices.SortedFunc(maps.Keys(uses), func(a, b string) int {
		return cmp.Or(cmp.Compare(uses[b], uses[a]), cmp.Compare(b, a))
	})
}

// Selections returns what a cluster selects, sorted.
func (f *File) Selections(cluster string) []Selection {
	var found []Selection
	for s := range f.selections {
		if s.Cluster == cluster {
			found = append(found, s)
		}
	}
	slices.SortFunc(found, func(a, b Selection) int { return cmp.Compare(a.String(), b.String()) })
	return found
}

// Clusters returns the names of the clusters that select anything, sorted.
func (f *File) Clusters() []string {
	names := make(map[string]struct{})
	for s := range f.selections {
		names[s.Cluster] = struct{}{}
	}
	return slices.Sorted(maps.Keys(names))
}

// Select makes selections everything that the cluster selects. Selections of
// other clusters among them are an error of the caller and panic.
func (f *File) Select(cluster string, selections []Selection) {
	maps.DeleteFunc(f.selections, func(s Selection, _ struct{}) bool { return s.Cluster == cluster })
	for _, s := range selections {
		if s.Cluster != cluster {
			panic("lockfile: a selection of " + s.Cluster + " given for " + cluster)
		}
		f.choose(s)
	}
}

// Forget drops all records of one version of a package, so that it can be
// recorded anew.
func (f *File) Forget(repository, version string) {
	maps.DeleteFunc(f.records, func(k Key, _ string) bool {
		forget := k.Repository == repository && k.Version == version
		if forget {
			delete(f.lines, k)
		}
		return forget
	})
}

// Tidy drops the records that no cluster selects, and says how many there were.
func (f *File) Tidy() int {
	used := make(map[Key]bool)
	for s := range f.selections {
		used[Key{Repository: s.Repository, Version: s.Version}] = true
	}
	before := len(f.records)
	maps.DeleteFunc(f.records, func(k Key, _ string) bool {
		k.Item = ""
		return !used[k]
	})
	return before - len(f.records)
}

// Record verifies one sum, or adds it where nothing is recorded. A recorded sum
// that differs is a *Mismatch, and the lock stays as it was.
func (f *File) Record(k Key, sum, seenIn string) error {
	if err := checkSum(k, sum); err != nil {
		return fmt.Errorf("recording %s: %w", k, err)
	}
	if want, ok := f.records[k]; ok && want != sum {
		return &Mismatch{Key: k, Line: f.lines[k], Locked: want, Seen: sum, SeenIn: seenIn}
	}
	f.put(k, sum)
	return nil
}

// Merge adds the records of other that f does not have, verifying those it has.
// Selections stay as they are. On an error f is unchanged.
func (f *File) Merge(other *File) error {
	for k, sum := range other.records {
		if have, ok := f.records[k]; ok && have != sum {
			return &Mismatch{Key: k, Line: f.lines[k], Locked: have, Seen: sum, SeenIn: "this resolution"}
		}
	}
	for k, sum := range other.records {
		f.put(k, sum)
	}
	return nil
}
