// Package problem describes problems as data: logs, Events, the status page and JSON show
// the same fields in their own ways, and no program has to parse a text.
//
// problem.go has problems, and errors that carry them; again.go compares the problems of two
// moments; immutable.go recognizes messages about immutable fields.
package problem

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"gitopsd.dev/reconcile/prose"
)

// Problem is a problem that people must know of. It is comparable.
type Problem struct {
	// Cluster is the name of the cluster; empty for the whole fleet.
	Cluster string `json:"cluster,omitempty"`
	// Package is the name of the package; empty if the problem is about none.
	Package string `json:"package,omitempty"`
	// Object is the object at fault, as manifest.ID prints it, or several of them.
	Object string `json:"object,omitempty"`
	// Reason is what is wrong, without the names above.
	Reason string `json:"reason"`
	// Origin is the place in the repository of the field at fault, the object or the
	// package, "file:line", or several places. For an object that gitopsd makes itself it
	// is like "made by gitopsd for spec.conversion of the Cluster". It is empty for an
	// object from a package.
	Origin string `json:"origin,omitempty"`
	// Advice is what to do about it; empty if that is not known.
	Advice string `json:"advice,omitempty"`
	// Lasting reports whether it is known to stay until somebody changes the repository, or
	// what the reason names.
	Lasting bool `json:"lasting,omitempty"`
	// Outside reports whether the object is not in the repository: somebody made it in the
	// cluster, which is Ready nevertheless.
	Outside bool `json:"outside,omitempty"`
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

// Shared returns the part of a problem that clusters with the same problem share. It leaves
// out the cluster, and the place of a package, which each may declare in a file of its own.
func (p Problem) Shared() Problem {
	p.Cluster = ""
	if p.Package != "" && p.Object == "" {
		p.Origin = ""
	}
	return p
}

// Key returns the same text for problems that clusters share, even if their lines differ.
func (p Problem) Key() string { return withoutLines(p.Shared().String()) }

// Error is an error with its cluster, object and advice, as far as these are known.
type Error struct {
	Cluster, Object, Advice string
	Lasting                 bool
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

// Unwrap returns Err.
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

// complete fills in the fields that a problem lacks, and adds the advice.
func (e *Error) complete(p Problem) Problem {
	p.Cluster, p.Object = cmp.Or(p.Cluster, e.Cluster), cmp.Or(p.Object, e.Object)
	if p.Advice != "" && e.Advice != "" {
		p.Advice += "; "
	}
	p.Advice += e.Advice
	p.Lasting = p.Lasting || e.Lasting
	return p
}

// Lasts reports whether all problems in an error are lasting.
func Lasts(err error) bool {
	return !slices.ContainsFunc(Of(err), func(p Problem) bool { return !p.Lasting })
}

// Message returns the problems in an error, one a line, for a place that names the cluster.
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

// Merge returns problems that several clusters share once, without a cluster, at the
// position of the first. It joins their origins, since clusters may declare the same package
// in several places.
func Merge(all []Problem) []Problem {
	var merged []Problem
	for _, s := range Gather(all) {
		merged = append(merged, s.Problem)
	}
	return merged
}

// Shared is a problem as [Merge] returns it, with the clusters that share it. If there are not
// several, Clusters is empty.
type Shared struct {
	Problem
	Clusters []string `json:"clusters,omitempty"`
}

// Concerns reports whether the problem is about one of the named clusters, or about the whole
// fleet. Without names it is true.
func (s Shared) Concerns(clusters []string) bool {
	return len(clusters) == 0 || s.Cluster == "" && len(s.Clusters) == 0 || slices.Contains(clusters, s.Cluster) ||
		slices.ContainsFunc(s.Clusters, func(name string) bool { return slices.Contains(clusters, name) })
}

// share adds a cluster; "" makes the problem the whole fleet's.
func (s *Shared) share(cluster string) {
	switch {
	case len(s.Clusters) == 0 && (s.Cluster == "" || s.Cluster == cluster):
		return
	case cluster == "":
		s.Clusters = nil
	case len(s.Clusters) == 0:
		s.Clusters = []string{s.Cluster, cluster}
	case !slices.Contains(s.Clusters, cluster):
		s.Clusters = append(s.Clusters, cluster)
	}
	s.Problem = s.WithoutCluster()
}

// Gather merges problems as [Merge] does.
func Gather(all []Problem) []Shared {
	var merged []Shared
	at := make(map[Problem]int)
	origins := make(map[int][]string)
	for _, p := range all {
		key := p.Shared()
		i, known := at[key]
		if !known {
			i = len(merged)
			at[key] = i
			merged = append(merged, Shared{Problem: p})
		} else {
			merged[i].share(p.Cluster)
		}
		if p.Origin != "" && !slices.Contains(origins[i], p.Origin) {
			origins[i] = append(origins[i], p.Origin)
		}
	}
	for i, all := range origins {
		merged[i].Origin = prose.Some(all, 3)
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
