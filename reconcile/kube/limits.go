package kube

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Limits on a cluster's answers. A hostile API server of one cluster must not exhaust the
// daemon's memory: an answer is read up to a limit, and its values are counted before it is
// decoded. An answer beyond a limit is an error of its object or kind.
const (
	// maxObjectBytes limits an object: etcd stores a tenth of that.
	maxObjectBytes = 16 << 20
	// maxPageBytes limits a page of a list, and a discovery document. A larger page is
	// requested again in smaller ones.
	maxPageBytes = 32 << 20
	// maxListBytes, maxListed and maxPages limit a whole list.
	maxListBytes = 512 << 20
	maxListed    = 1_000_000
	maxPages     = 10_000
	// maxErrorBytes limits the answer of an error, maxMessage its text.
	maxErrorBytes = 1 << 20
	maxMessage    = 4 << 10
	// maxEventBytes and maxMetadataBytes limit the metadata of an object: 256 KiB of
	// annotations, and the managers of its fields. maxMetadataFields limits the number of
	// labels, annotations, owners and managers.
	maxEventBytes     = 4 << 20
	maxMetadataBytes  = 2 << 20
	maxMetadataFields = 20_000
	// maxValues limits the number of values in a JSON document.
	maxValues = 2_000_000
)

var errMalformed = errors.New("it is no protobuf message")

// decodeJSON decodes a document with at most so many values.
func decodeJSON(answer []byte, most int, into any) error {
	if n := countValues(answer); n > most {
		return fmt.Errorf("it has more than %d values", most)
	}
	return json.Unmarshal(answer, into)
}

// countValues returns an upper bound for the number of values in a JSON document: each but
// the first comes after one of three bytes.
func countValues(doc []byte) int {
	n, quoted := 1, false
	for i := 0; i < len(doc); i++ {
		switch c := doc[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\\':
			i++
		case !quoted && (c == ',' || c == '[' || c == '{'):
			n++
		}
	}
	return n
}

// fields calls yield with each field of a protobuf message. The value of a number is
// nil.
func fields(message []byte, yield func(number uint64, value []byte) error) error {
	for len(message) > 0 {
		tag, n := binary.Uvarint(message)
		if n <= 0 {
			return errMalformed
		}
		message = message[n:]
		value, n := binary.Uvarint(message)
		if n <= 0 {
			return errMalformed
		}
		message = message[n:]
		var content []byte
		switch tag & 7 {
		case 0: // a number
		case 2:
			if value > uint64(len(message)) {
				return errMalformed
			}
			content, message = message[:value], message[value:]
		default:
			return errMalformed // Kubernetes has no others in metadata
		}
		if err := yield(tag>>3, content); err != nil {
			return err
		}
	}
	return nil
}

// unwrap returns the message in the envelope that protobuf answers come in, a
// runtime.Unknown, and its kind; ok is false for JSON.
func unwrap(answer []byte) (message []byte, kind string, ok bool, err error) {
	wire, ok := bytes.CutPrefix(answer, protobufMagic)
	if !ok {
		return nil, "", false, nil
	}
	err = fields(wire, func(number uint64, value []byte) error {
		switch number {
		case 1:
			return fields(value, func(number uint64, value []byte) error {
				if number == 2 {
					kind = string(value)
				}
				return nil
			})
		case 2:
			message = value
		}
		return nil
	})
	return message, kind, true, err
}

// jsonList is a page of a list.
type jsonList struct {
	Kind     string            `json:"kind"`
	Metadata metav1.ListMeta   `json:"metadata"`
	Items    []json.RawMessage `json:"items"`
}

// checkList returns an error if the kind of an answer is not a list's. Otherwise a
// proxy's own answer would read as an empty list.
func checkList(kind string) error {
	if kind == "" || kind == "Status" {
		return fmt.Errorf("the answer is no list (its kind is %q)", kind)
	}
	return nil
}

// decodeItem decodes the metadata of one object, protobuf or JSON.
func decodeItem(item []byte, protobuf bool) (*metav1.PartialObjectMetadata, error) {
	if len(item) > maxMetadataBytes {
		return nil, fmt.Errorf("the metadata of an object is larger than %d MiB", maxMetadataBytes>>20)
	}
	m := new(metav1.PartialObjectMetadata)
	if !protobuf {
		return m, decodeJSON(item, 10*maxMetadataFields, m)
	}
	n := 0
	count := func(uint64, []byte) error {
		if n++; n > maxMetadataFields {
			return fmt.Errorf("the metadata of an object has more than %d fields", maxMetadataFields)
		}
		return nil
	}
	if err := fields(item, func(number uint64, value []byte) error {
		if number == 1 {
			return fields(value, count)
		}
		return count(number, value)
	}); err != nil {
		return nil, err
	}
	return m, m.Unmarshal(item)
}

func decodeMetadataAnswer(answer []byte) (*metav1.PartialObjectMetadata, error) {
	message, _, protobuf, err := unwrap(answer)
	if err != nil {
		return nil, err
	}
	if !protobuf {
		message = answer
	}
	return decodeItem(message, protobuf)
}

// decodeMetadataList decodes a page of metadata, one object after the other, until
// yield returns false.
func decodeMetadataList(answer []byte, yield func(*metav1.PartialObjectMetadata) bool) (list metav1.ListMeta, more bool, err error) {
	var items [][]byte
	message, kind, protobuf, err := unwrap(answer)
	if err != nil {
		return list, false, err
	}
	if protobuf {
		err = fields(message, func(number uint64, value []byte) error {
			switch number {
			case 1:
				return list.Unmarshal(value)
			case 2:
				if items = append(items, value); len(items) > maxValues {
					return fmt.Errorf("it has more than %d objects", maxValues)
				}
			}
			return nil
		})
	} else {
		var page jsonList
		err = decodeJSON(answer, maxValues, &page)
		list, kind = page.Metadata, page.Kind
		for _, item := range page.Items {
			items = append(items, item)
		}
	}
	if err == nil {
		err = checkList(kind)
	}
	if err != nil {
		return list, false, err
	}
	for _, item := range items {
		m, err := decodeItem(item, protobuf)
		if err != nil {
			return list, false, err
		}
		if !yield(m) {
			return list, false, nil
		}
	}
	return list, true, nil
}
