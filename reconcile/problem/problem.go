// Package problem is how gitopsd says what is wrong: as a structure, so that logs,
// Events, the status page and JSON show the same thing in their own ways, and
// nobody takes a text apart to learn what it is about.
package problem

import "strings"

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
	b.WriteString(p.Reason)
	if p.Advice != "" {
		b.WriteString("; " + p.Advice)
	}
	return b.String()
}
