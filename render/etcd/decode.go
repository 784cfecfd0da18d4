package etcd

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gitopsd.dev/sources"
)

// decoder reads the fields of a mapping and collects errors. A missing field has the zero
// value.
type decoder struct {
	fields map[string]any
	// path is the path of the mapping; empty for the document.
	path string
	errs *[]error
}

func (d decoder) at(field string) string { return strings.TrimPrefix(d.path+"."+field, ".") }

func (d decoder) fail(field, format string, args ...any) {
	*d.errs = append(*d.errs, fmt.Errorf("%s: %s", d.at(field), fmt.Sprintf(format, args...)))
}

// known refuses fields with other names.
func (d decoder) known(names ...string) {
	for _, field := range slices.Sorted(maps.Keys(d.fields)) {
		if !slices.Contains(names, field) {
			d.fail(field, "is not a field here%s", sources.MeantOrAll(field, names))
		}
	}
}

// mapping returns the decoder of a mapping.
func (d decoder) mapping(field string) decoder {
	inner := decoder{path: d.at(field), errs: d.errs}
	if d.fields[field] == nil {
		return inner
	}
	var ok bool
	if inner.fields, ok = d.fields[field].(map[string]any); !ok {
		d.fail(field, "want a mapping, have %v", d.fields[field])
	}
	return inner
}

// list returns the decoders of a list of at most most mappings.
func (d decoder) list(field string, most int) []decoder {
	if d.fields[field] == nil {
		return nil
	}
	items, ok := d.fields[field].([]any)
	switch {
	case !ok:
		d.fail(field, "want a list, have %v", d.fields[field])
		return nil
	case len(items) > most:
		d.fail(field, "has %d elements; want %d at most", len(items), most)
		return nil
	}
	all := make([]decoder, len(items))
	for i, item := range items {
		name := fmt.Sprintf("%s[%d]", field, i)
		all[i] = decoder{path: d.at(name), errs: d.errs}
		if all[i].fields, ok = item.(map[string]any); !ok {
			d.fail(name, "want a mapping, have %v", item)
		}
	}
	return all
}

func (d decoder) text(field string) string {
	text, ok := d.fields[field].(string)
	if !ok && d.fields[field] != nil {
		d.fail(field, "want a string, have %v; quote it", d.fields[field])
	}
	return text
}

// number reads a positive number; 0 if the field is missing.
func (d decoder) number(field string) int64 {
	if d.fields[field] == nil {
		return 0
	}
	n, ok := d.fields[field].(int64)
	if !ok || n < 1 {
		d.fail(field, "want a whole number that is more than 0, have %v; leave the field out for no limit of your own", d.fields[field])
		return 0
	}
	return n
}

// quantity matches numbers of bytes in Kubernetes' format, without fractions.
var quantity = regexp.MustCompile(`^([1-9][0-9]{0,18})(k|M|G|T|Ki|Mi|Gi|Ti)?$`)

var units = map[string]int64{
	"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
	"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
}

// bytes reads a number of bytes; 0 if the field is missing.
func (d decoder) bytes(field string) int64 {
	v := d.fields[field]
	if v == nil {
		return 0
	}
	m := quantity.FindStringSubmatch(fmt.Sprint(v))
	if m == nil {
		d.fail(field, "want a number of bytes that is more than 0, such as 512Mi, have %v", v)
		return 0
	}
	n, err := strconv.ParseInt(m[1], 10, 64)
	unit := units[m[2]]
	if err != nil || n > math.MaxInt64/unit {
		d.fail(field, "%v is more bytes than anything has", v)
		return 0
	}
	return n * unit
}

// name reads the required name of a Secret or ConfigMap.
func (d decoder) name(field string) string {
	text := d.text(field)
	switch {
	case d.fields[field] == nil:
		d.fail(field, "is missing")
	case !dnsName.MatchString(text) || len(text) > 253:
		d.fail(field, "%q is not a name: lower-case letters, digits, '-' and '.'", text)
	default:
		return text
	}
	return ""
}

// validity reads the validity of a certificate.
func (d decoder) validity(field string) time.Duration {
	if d.fields[field] == nil {
		return DefaultValidity
	}
	text := d.text(field)
	if text == "" {
		return DefaultValidity // text has reported an error, or the field is ""
	}
	v, err := parseValidity(text)
	switch {
	case err != nil:
		d.fail(field, "%v", err)
	case v < MinValidity, v > MaxValidity:
		d.fail(field, "%s; want %s at least and %dd at most", text, MinValidity, MaxValidity/(24*time.Hour))
	default:
		return v
	}
	return DefaultValidity
}

// days matches a number of days.
var days = regexp.MustCompile(`^([0-9]{1,5})d$`)

// parseValidity parses a duration in days, such as "90d", or as Go writes it, such as
// "36h".
func parseValidity(text string) (time.Duration, error) {
	if m := days.FindStringSubmatch(text); m != nil {
		n, _ := strconv.Atoi(m[1])
		return time.Duration(n) * 24 * time.Hour, nil
	}
	v, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration such as 90d or 36h", text)
	}
	return v, nil
}

// prefix reads a prefix, and closes it.
func (d decoder) prefix(field string) string {
	text := d.text(field)
	switch {
	case text == "":
		return ""
	case !prefix.MatchString(text) || len(text) >= maxPrefix:
		d.fail(field, "%q; want a path such as /team/widgets, of fewer than %d letters, digits, '-', '_' and '.'", text, maxPrefix)
		return ""
	}
	if !strings.HasSuffix(text, "/") {
		text += "/"
	}
	if strings.HasPrefix(text, OwnPrefix) {
		d.fail(field, "keys under %s are gitopsd's own; leave the field out for a prefix there, or choose another", OwnPrefix)
		return ""
	}
	return text
}

// oneOf reads a word; the first is the default.
func (d decoder) oneOf(field string, words ...string) string {
	if d.fields[field] == nil {
		return words[0]
	}
	text := d.text(field)
	if text != "" && !slices.Contains(words, text) {
		d.fail(field, "%q; use %s", text, strings.Join(words, " or "))
		return words[0]
	}
	return text
}
