package problem

import "regexp"

// immutable matches the messages of Kubernetes' validation about fields that cannot be
// changed once their object exists.
var immutable = regexp.MustCompile(`field is immutable|may not be changed|cannot be changed|cannot change|may not change once set|updates to .* for fields other than|is immutable`)

// Immutable reports whether an API server's message says that a field cannot be changed
// once its object exists.
func Immutable(message string) bool { return immutable.MatchString(message) }
