package lockfile

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"gitopsd.dev/sources"
)

// maxBytes bounds a lock: 2,000 clusters with 100 packages each stay below it.
const maxBytes = 64 << 20

// Parse reads a lock. Name is the file's, for errors. Lines may be in any order
// and repeated, since Git merges them like any text. Different sums or versions for
// one key are contested. Anything else that Format would not write is an error with
// file and line.
func Parse(name string, data []byte) (*File, error) {
	f, _, err := parse(name, data, false)
	return f, err
}

// Mend reads a lock that may have Git's conflict markers, and reports whether it has. It
// keeps the lines of both sides: unlike [Merge] it does not know the common ancestor, and
// so cannot tell which are older. It fails as [Parse] does.
func Mend(name string, data []byte) (f *File, conflicts bool, err error) {
	return parse(name, data, true)
}

// conflictMarkers are those of Git's merge and diff3 styles.
var conflictMarkers = []string{"<<<<<<<", "|||||||", "=======", ">>>>>>>"}

func parse(name string, data []byte, mend bool) (f *File, conflicts bool, err error) {
	if len(data) > maxBytes {
		return nil, false, fmt.Errorf("%s: has %d bytes; at most %d are read", name, len(data), maxBytes)
	}
	f = new(File)
	base := false // between ||||||| and =======, the common ancestor's lines
	line := 0
	for text := range strings.Lines(string(data)) {
		line++
		fail := func(format string, args ...any) error {
			return fmt.Errorf("%s:%d: %s", name, line, fmt.Sprintf(format, args...))
		}
		if len(text) >= 7 && slices.Contains(conflictMarkers, text[:7]) {
			if !mend {
				return nil, true, fail("Git left a merge conflict here; run `gitopsd lock` to merge the two sides")
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
		err := errors.New("an empty line")
		if text != "" {
			err = f.parseLine(text, line)
		}
		if err != nil {
			return nil, conflicts, fail("%v; delete the line, or restore the file from Git, then run `gitopsd lock`", err)
		}
	}
	return f, conflicts, nil
}

// parseLine reads a line, without its end, and adds it.
func (f *File) parseLine(text string, line int) error {
	switch {
	case !strings.HasPrefix(text, "@"):
		k, sum, err := parseRecord(text)
		if err != nil {
			return err
		}
		f.put(k, record{sum, line})
	case isConversion(text):
		c, err := parseConversion(text)
		if err != nil {
			return err
		}
		f.convert(c, line)
	default:
		s, err := parseSelection(text)
		if err != nil {
			return err
		}
		f.choose(s, line)
	}
	return nil
}

// Salvage reads the valid lines of an untrusted text, and returns the number of the
// others: invalid ones, and all lines of contested keys.
func Salvage(text []byte) (f *File, left int) {
	f = new(File)
	if len(text) > maxBytes {
		return f, strings.Count(string(text), "\n")
	}
	for line := range strings.Lines(string(text)) {
		if line, whole := strings.CutSuffix(line, "\n"); !whole || f.parseLine(line, 0) != nil {
			left++
		}
	}
	for _, both := range f.contested {
		left += len(both)
	}
	f.contested = nil
	for _, all := range f.contestedSelections() {
		for _, s := range all {
			f.selections.remove(s.Cluster, s)
			left++
		}
	}
	return f, left
}

// platform matches an operating system, an architecture or a variant, as sources/xpkg
// accepts them.
const platform = `[a-z0-9][a-z0-9._-]{0,63}`

var (
	clusterName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	tagName     = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
	item        = regexp.MustCompile(`^(package\.yaml|types|runtime|(runtime/)?` + platform + `/` + platform + `(/` + platform + `)?)$`)
	typesSum    = regexp.MustCompile(`^h1:[A-Za-z0-9+/]{43}=$`)
)

func parseSelection(text string) (Selection, error) {
	cluster, rest, _ := strings.Cut(strings.TrimPrefix(text, "@"), " ")
	fields := strings.Split(rest, " ")
	if len(fields) != 2 && (len(fields) != 4 || fields[2] != "<-") {
		return Selection{}, fmt.Errorf("%q is not a selection: want @CLUSTER REPOSITORY VERSION [<- REPOSITORY]", text)
	}
	if !clusterName.MatchString(cluster) {
		return Selection{}, fmt.Errorf("%q is not a cluster's name", cluster)
	}
	s := Selection{Cluster: cluster, Version: fields[1]}
	var err error
	if s.Repository, err = parseRepository(fields[0]); err != nil {
		return Selection{}, err
	}
	if len(fields) == 4 {
		if s.Parent, err = parseRepository(fields[3]); err != nil {
			return Selection{}, err
		}
	}
	return s, checkVersion(s.Version)
}

func parseRecord(text string) (Key, string, error) {
	fields := strings.Split(text, " ")
	if len(fields) != 3 {
		return Key{}, "", fmt.Errorf("%q is not a record: want REPOSITORY VERSION[/ITEM] SUM", text)
	}
	var k Key
	var err error
	if k.Repository, err = parseRepository(fields[0]); err != nil {
		return Key{}, "", err
	}
	k.Version, k.Item, _ = strings.Cut(fields[1], "/")
	if err := checkVersion(k.Version); err != nil {
		return Key{}, "", err
	}
	if strings.Contains(fields[1], "/") && !item.MatchString(k.Item) {
		return Key{}, "", fmt.Errorf("%q is not an item: want package.yaml, types, runtime or a platform", k.Item)
	}
	return k, fields[2], checkSum(k, fields[2])
}

// parseRepository returns a repository as in references. The first locks had hosts as
// declared.
func parseRepository(s string) (string, error) {
	repository, ok := sources.ParseRepository(s)
	if !ok || !strings.Contains(s, "/") {
		return "", fmt.Errorf("%q is not a repository", s)
	}
	if strings.Count(repository, "/") != strings.Count(s, "/") {
		return "", fmt.Errorf("%q names no registry (references mean %s)", s, repository)
	}
	return repository, nil
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
