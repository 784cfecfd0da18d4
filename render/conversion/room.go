package conversion

import (
	"encoding/json"
	"fmt"
)

// maxWritten is the size of all that rules make of one object: by expressions, and by
// rules for elements that copy a field of the whole object into each. Without a bound, a
// small object could become one that no memory holds. API servers accept no object of
// more than 3 MiB.
const maxWritten = 8 << 20

// room counts a value that a rule writes. The error says that there is no room for it.
func (r *run) room(v any) error {
	size := sizeOf(v, maxWritten-r.written)
	if r.written+size > maxWritten {
		return fmt.Errorf("rules write more than %d MiB into the object", maxWritten>>20)
	}
	r.written += size
	return nil
}

// sizeOf returns about the size of a value as JSON. It stops counting above enough.
func sizeOf(v any, enough int) int {
	const scalar = 8
	switch v := v.(type) {
	case string:
		return scalar + len(v)
	case json.Number:
		return scalar + len(v)
	case map[string]any:
		size := scalar
		for name, value := range v {
			if size += len(name); size > enough {
				break
			}
			size += sizeOf(value, enough-size)
		}
		return size
	case []any:
		size := scalar
		for _, item := range v {
			if size > enough {
				break
			}
			size += sizeOf(item, enough-size)
		}
		return size
	}
	return scalar
}
