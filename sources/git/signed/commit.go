package signed

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// parts are the parts of a commit object.
type parts struct {
	// payload is the object without its signatures, byte for byte: that is what is signed
	// (parse_buffer_signed_by_header in git's commit.c).
	payload []byte
	// message is the end of payload: an empty line and what follows.
	message []byte
	// signature is the value of gpgsig; nil without that.
	signature []byte

	tree      string
	parents   []string
	committed time.Time
}

const (
	signatureHeader = "gpgsig"
	// sha256Header signs the commit in a repository with SHA-256 names. Git leaves it out of the
	// payload.
	sha256Header = "gpgsig-sha256"
)

// split splits a commit object. It is stricter than git, which takes the first of two trees
// where others take the last one (CVE-2026-44309), and which leaves out headers that only begin
// with gpgsig. Without that, a payload could say something else than the object that it is
// taken from.
func split(object []byte) (parts, error) {
	list, message, err := headers(object)
	if err != nil {
		return parts{}, err
	}
	var p parts
	more, err := p.basic(list)
	if err != nil {
		return parts{}, err
	}
	p.payload = make([]byte, 0, len(object))
	for _, h := range list[:len(list)-len(more)] {
		p.payload = append(p.payload, h.raw...)
	}
	seen := make(map[string]bool)
	for _, h := range more {
		switch {
		case slices.Contains([]string{"tree", "parent", "author", "committer"}, h.name):
			return parts{}, fmt.Errorf("it has a header %s after its committer", h.name)
		case !strings.HasPrefix(h.name, signatureHeader):
			p.payload = append(p.payload, h.raw...)
			continue
		case h.name != signatureHeader && h.name != sha256Header:
			return parts{}, fmt.Errorf("the header %q is not known", h.name)
		case seen[h.name]:
			return parts{}, fmt.Errorf("it has two headers %s", h.name)
		}
		seen[h.name] = true
		if h.name == signatureHeader {
			p.signature = []byte(h.value)
		}
	}
	p.payload, p.message = append(p.payload, message...), message
	return p, nil
}

// header is a header of a commit object. The value is without the space before each further
// line, and ends with a line break.
type header struct {
	name, value string
	raw         []byte
}

// headers returns the headers of an object, and what follows: an empty line and the message.
func headers(object []byte) (list []header, message []byte, err error) {
	if bytes.IndexByte(object, 0) >= 0 {
		return nil, nil, errors.New("it has a NUL byte")
	}
	for rest := object; len(rest) > 0; {
		end := bytes.IndexByte(rest, '\n') + 1
		if end == 0 {
			return nil, nil, errors.New("its last header does not end")
		}
		line := rest[:end]
		switch m := headerLine.FindSubmatch(line); {
		case end == 1:
			return list, rest, nil
		case line[0] == ' ' && len(list) > 0:
			last := &list[len(list)-1]
			last.value += string(line[1:])
			last.raw = last.raw[:len(last.raw)+len(line)] // the lines are adjacent in object
		case m != nil:
			list = append(list, header{name: string(m[1]), value: string(m[2]), raw: line})
		default:
			return nil, nil, fmt.Errorf("the line %q is no header", line[:end-1])
		}
		rest = rest[end:]
	}
	return list, nil, nil
}

var (
	headerLine = regexp.MustCompile(`^([!-~]+) ([^\n]*\n)$`)
	objectName = regexp.MustCompile(`^[0-9a-f]{40}\n$`)
	// identity matches the value of author and committer: name, address and time.
	identity = regexp.MustCompile(`^[^\n]*<[^<>\n]*> ([0-9]{1,12}) [+-][0-9]{4}\n$`)
)

// basic reads the headers that every commit begins with, and returns the others. None of them
// has more than one line.
func (p *parts) basic(list []header) (more []header, err error) {
	next := func(name string, pattern *regexp.Regexp) ([]string, error) {
		if len(list) == 0 || list[0].name != name {
			return nil, fmt.Errorf("it has no %s where that is expected", name)
		}
		m := pattern.FindStringSubmatch(list[0].value)
		if m == nil {
			return nil, fmt.Errorf("its %s is malformed", name)
		}
		list = list[1:]
		return m, nil
	}
	m, err := next("tree", objectName)
	if err != nil {
		return nil, err
	}
	p.tree = strings.TrimSpace(m[0])
	for len(list) > 0 && list[0].name == "parent" {
		if m, err = next("parent", objectName); err != nil {
			return nil, err
		}
		p.parents = append(p.parents, strings.TrimSpace(m[0]))
	}
	if _, err = next("author", identity); err != nil {
		return nil, err
	}
	if m, err = next("committer", identity); err != nil {
		return nil, err
	}
	seconds, err := strconv.ParseInt(m[1], 10, 64)
	p.committed = time.Unix(seconds, 0)
	return list, err
}
