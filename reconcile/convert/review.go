package convert

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

const (
	reviewVersion = "apiextensions.k8s.io/v1"
	reviewKind    = "ConversionReview"
)

// review is the request of a ConversionReview.
type review struct {
	uid string
	// to is the desired version, without the group.
	group, to string
	// objects are the objects in JSON, unchecked.
	objects [][]byte
}

// readReview reads a review. The objects are parts of body.
func readReview(body []byte) (review, error) {
	var r review
	var version, kind, desired string
	requested := false
	s := scanner{data: body}
	err := s.object(func(key string) error {
		switch key {
		case "apiVersion":
			return s.text(key, &version)
		case "kind":
			return s.text(key, &kind)
		case "request":
			requested = true
			return s.object(func(key string) error {
				switch key {
				case "uid":
					return s.text("request.uid", &r.uid)
				case "desiredAPIVersion":
					return s.text("request.desiredAPIVersion", &desired)
				case "objects":
					r.objects = nil
					return s.array(func() error {
						span, err := s.value()
						r.objects = append(r.objects, span)
						return err
					})
				}
				_, err := s.value()
				return err
			})
		}
		_, err := s.value()
		return err
	})
	if err == nil {
		if s.space(); s.at < len(s.data) {
			err = errors.New("there is text behind the JSON object")
		}
	}
	switch {
	case err != nil:
		return review{}, err
	case version != reviewVersion || kind != reviewKind:
		return review{}, fmt.Errorf("want a %s of %s", reviewKind, reviewVersion)
	case !requested || r.uid == "" || desired == "":
		return review{}, errors.New("request.uid and request.desiredAPIVersion are required")
	}
	var ok bool
	if r.group, r.to, ok = strings.Cut(desired, "/"); !ok {
		return review{}, errors.New("request.desiredAPIVersion has no group")
	}
	return r, nil
}

// writeReview appends the answer to a review: with the failure, or the converted objects if
// that is empty.
func writeReview(b []byte, uid string, converted [][]byte, failure string) []byte {
	b = append(b, `{"apiVersion":"`+reviewVersion+`","kind":"`+reviewKind+`","response":{"uid":`...)
	b = appendText(b, uid)
	if failure != "" {
		b = append(b, `,"convertedObjects":[],"result":{"status":"Failure","message":`...)
		b = appendText(b, failure)
		return append(b, "}}}"...)
	}
	b = append(b, `,"convertedObjects":[`...)
	for i, object := range converted {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, object...)
	}
	return append(b, `],"result":{"status":"Success"}}}`...)
}

func appendText(b []byte, text string) []byte {
	quoted, _ := json.Marshal(text) // a string has no error
	return append(b, quoted...)
}

// versionOf returns the apiVersion of an object in JSON; empty if it has none.
func versionOf(object []byte) string {
	found := errors.New("found")
	version := ""
	s := scanner{data: object}
	_ = s.object(func(key string) error { // the conversion returns the error
		if key == "apiVersion" {
			if err := s.text(key, &version); err != nil {
				return err
			}
			return found
		}
		_, err := s.value()
		return err
	})
	return version
}

// scanner walks over JSON. It finds where values end and checks no more than that.
type scanner struct {
	data []byte
	at   int
}

var errCut = errors.New("the JSON is cut short")

func (s *scanner) space() {
	for s.at < len(s.data) && (s.data[s.at] == ' ' || s.data[s.at] == '\n' || s.data[s.at] == '\r' || s.data[s.at] == '\t') {
		s.at++
	}
}

// next skips white space and one byte, which it returns; 0 at the end.
func (s *scanner) next() byte {
	s.space()
	if s.at == len(s.data) {
		return 0
	}
	s.at++
	return s.data[s.at-1]
}

func (s *scanner) wrong(want string) error {
	if s.at >= len(s.data) {
		return errCut
	}
	return fmt.Errorf("the JSON is malformed at byte %d: want %s", s.at, want)
}

// object calls field for each field of an object. field must skip the value.
func (s *scanner) object(field func(key string) error) error {
	return s.items('{', '}', func() error {
		var key string
		if err := s.text("a key", &key); err != nil {
			return err
		}
		if s.next() != ':' {
			return s.wrong("':'")
		}
		return field(key)
	})
}

// array calls element for each element of an array. element must skip it.
func (s *scanner) array(element func() error) error { return s.items('[', ']', element) }

func (s *scanner) items(open, end byte, item func() error) error {
	if s.next() != open {
		return s.wrong(fmt.Sprintf("%q", open))
	}
	if s.space(); s.at < len(s.data) && s.data[s.at] == end {
		s.at++
		return nil
	}
	for {
		if err := item(); err != nil {
			return err
		}
		switch s.next() {
		case end:
			return nil
		case ',':
		default:
			return s.wrong(fmt.Sprintf("',' or %q", end))
		}
	}
}

// text reads a string.
func (s *scanner) text(name string, to *string) error {
	span, err := s.value()
	switch {
	case err != nil:
		return err
	case span[0] != '"':
		return fmt.Errorf("%s is not a string", name)
	case bytes.IndexByte(span, '\\') < 0:
		*to = string(span[1 : len(span)-1])
		return nil
	}
	if err := json.Unmarshal(span, to); err != nil {
		return fmt.Errorf("%s is not a string", name)
	}
	return nil
}

// value skips a value and returns it.
func (s *scanner) value() ([]byte, error) {
	s.space()
	begin := s.at
	for depth := 0; s.at < len(s.data); {
		switch c := s.data[s.at]; c {
		case '"':
			if !s.quoted() {
				return nil, errCut
			}
			if depth == 0 {
				return s.data[begin:s.at], nil
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return s.bare(begin)
			}
			if depth--; depth == 0 {
				s.at++
				return s.data[begin:s.at], nil
			}
		case ',', ' ', '\n', '\r', '\t':
			if depth == 0 {
				return s.bare(begin)
			}
		}
		s.at++
	}
	return nil, errCut
}

// bare returns a number, true, false or null.
func (s *scanner) bare(begin int) ([]byte, error) {
	if s.at == begin {
		return nil, s.wrong("a value")
	}
	return s.data[begin:s.at], nil
}

// quoted skips a string.
func (s *scanner) quoted() bool {
	s.at++
	for {
		n := bytes.IndexByte(s.data[s.at:], '"')
		if n < 0 {
			return false
		}
		s.at += n + 1
		escapes := 0
		for at := s.at - 2; s.data[at] == '\\'; at-- {
			escapes++
		}
		if escapes%2 == 0 {
			return true
		}
	}
}
