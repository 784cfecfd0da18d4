// Package problem is how gitopsd says what is wrong: as a structure, so that logs,
// Events, the status page and JSON show the same thing in their own ways, and
// nobody takes a text apart to learn what it is about.
package problem

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Problem is something wrong that a person has to know of. Its zero value says
// nothing. Problems are comparable: two that are equal are the same.
type Problem struct {
	// Cluster is the name of the cluster that it concerns; empty for the whole
	// fleet.
	Cluster string `json:"cluster,omitempty"`
	// Package is the name of the package that it concerns, if it is about one.
	Package string `json:"package,omitempty"`
	// Object is the object at fault, as manifest.ID prints it, or several of them.
	Object string `json:"object,omitempty"`
	// Reason says what is wrong, without the names above.
	Reason string `json:"reason"`
	// Origin is where in the repository the object, or what is wrong in it, or the package is
	// written, "file:line", or several places; of an object that gitopsd makes for something else than
	// a package, "made by gitopsd for spec.conversion of the Cluster" or the like. It is empty if the object comes from a package.
	Origin string `json:"origin,omitempty"`
	// Advice says what to do about it, if that is known.
	Advice string `json:"advice,omitempty"`
}

// String returns the problem in one line: where, what, and what to do.
func (p Problem) String() string {
	var b strings.Builder
	if p.Cluster != "" {
		b.WriteString("cluster " + p.Cluster + ": ")
	}
	switch {
	case p.Object != "":
		b.WriteString(p.Object + ": ")
	case p.Package != "":
		b.WriteString("package " + p.Package + ": ")
	}
	// A reason of several lines has a headline.
	headline, rest, more := strings.Cut(p.Reason, "\n")
	b.WriteString(headline)
	if p.Origin != "" {
		b.WriteString(" (" + p.Origin + ")")
	}
	if more {
		b.WriteString("\n" + rest)
	}
	if p.Advice != "" {
		b.WriteString("; " + p.Advice)
	}
	return b.String()
}

// Error returns the same as String.
func (p Problem) Error() string { return p.String() }

// WithoutCluster returns the problem for a place that names the cluster, or to be
// compared with another cluster's.
func (p Problem) WithoutCluster() Problem {
	p.Cluster = ""
	return p
}

// Shared returns what clusters share that have the same problem: not the cluster, nor the place of
// a package, which each may declare in a file of its own.
func (p Problem) Shared() Problem {
	p.Cluster = ""
	if p.Package != "" && p.Object == "" {
		p.Origin = ""
	}
	return p
}

// Key returns a text that is the same for problems that clusters share, be it in other lines.
func (p Problem) Key() string { return withoutLines(p.Shared().String()) }

// Error is an error with what is known about it. Empty fields are unknown.
type Error struct {
	Cluster, Object, Advice string
	Err                     error
}

// In returns err as an error about a cluster; nil if it is nil.
func In(cluster string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Cluster: cluster, Err: err}
}

// Error returns the problems of [Of], one a line.
func (e *Error) Error() string { return lines(Of(e)) }

// Unwrap returns the error without what is known about it.
func (e *Error) Unwrap() error { return e.Err }

// Of returns the problems in an error: one for each error that [errors.Join]
// joined. An [Error], a [Problem] and an error with a method Problem() Problem say
// what they are about; the text of any other is the reason.
func Of(err error) []Problem {
	switch e := err.(type) {
	case nil:
		return nil
	case Problem:
		return []Problem{e}
	case interface{ Problem() Problem }:
		return []Problem{e.Problem()}
	case *Error:
		all := Of(e.Err)
		for i := range all {
			all[i] = e.complete(all[i])
		}
		return all
	case interface{ Unwrap() []error }:
		if joined := errors.Join(e.Unwrap()...); joined == nil || joined.Error() != err.Error() {
			break // not joined: it has a text of its own
		}
		var all []Problem
		for _, err := range e.Unwrap() {
			all = append(all, Of(err)...)
		}
		return all
	}
	return []Problem{{Reason: err.Error()}}
}

// complete adds what is known to a problem; what the problem says of itself is
// more precise.
func (e *Error) complete(p Problem) Problem {
	p.Cluster, p.Object = cmp.Or(p.Cluster, e.Cluster), cmp.Or(p.Object, e.Object)
	if p.Advice != "" && e.Advice != "" {
		p.Advice += "; "
	}
	p.Advice += e.Advice
	return p
}

// Message returns what an error says, one problem a line, for a place that names
// the cluster.
func Message(err error) string {
	all := Of(err)
	for i := range all {
		all[i] = all[i].WithoutCluster()
	}
	return lines(all)
}

func lines(all []Problem) string {
	text := make([]string, len(all))
	for i, p := range all {
		text[i] = p.String()
	}
	return strings.Join(text, "\n")
}

// Merge lists what is wrong in several clusters alike once, without a cluster, in
// the place of the first. Clusters may declare the same package in several places.
func Merge(all []Problem) []Problem {
	var merged []Problem
	at := make(map[Problem]int)
	origins := make(map[int][]string)
	for _, p := range all {
		key := p.Shared()
		i, known := at[key]
		switch {
		case !known:
			i = len(merged)
			at[key] = i
			merged = append(merged, p)
		case merged[i].Cluster != p.Cluster:
			merged[i] = merged[i].WithoutCluster()
		}
		if p.Origin != "" && !slices.Contains(origins[i], p.Origin) {
			origins[i] = append(origins[i], p.Origin)
		}
	}
	const most = 3
	for i, all := range origins {
		merged[i].Origin = strings.Join(all[:min(len(all), most)], ", ")
		if more := len(all) - most; more > 0 {
			merged[i].Origin += fmt.Sprintf(" and %d more", more)
		}
	}
	return merged
}

// Join returns an error with the text of all problems, one a line; nil if there
// are none. [Of] takes it apart again.
func Join(all []Problem) error {
	errs := make([]error, len(all))
	for i, p := range all {
		errs[i] = p
	}
	return errors.Join(errs...)
}
