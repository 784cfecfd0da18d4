package conversion

import (
	"encoding/json"
	"fmt"
)

// maxWritten limits the size of all values that rules write into one object, by
// expressions and by rules for elements that copy a field of the whole object into each.
// Without a limit, a small object could grow until memory runs out. API servers accept
// no object of more than 3 MiB.
const maxWritten = 8 << 20

// room counts the size of a value that a rule writes. The error says that the limit is
// reached.
func (r *run) room(v any) error {
	size := sizeOf(v, maxWritten-r.written)
	if r.written+size > maxWritten {
		return fmt.Errorf("rules write more than %d MiB into the object", maxWritten>>20)
	}
	r.written += size
	return nil
}

// sizeOf returns the approximate size of a value as JSON. It stops counting above enough.
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
