package plan

import (
	"strconv"
	"strings"

	"gitopsd.dev/render/manifest"
)

// Allow is the annotation that would allow a step that is refused, in conflict or held, as
// data for showing the plan. The step's Reason says the same in words.
type Allow struct {
	// On is the document that takes the annotation.
	On Holder
	// Annotation is its name. Value is empty if there are Findings.
	Annotation, Value string
	// Findings are the names of the breaking findings to allow, by
	// manifest.AllowBreakingAnnotation, in Version, which is empty for a package's own.
	Findings []string
	Version  string
	// Cause is the step's Reason without the advice to annotate.
	Cause string
	// Sources is the value that, on the registration, adopts all objects of the same owner;
	// empty for other annotations than manifest.AdoptAnnotation.
	Sources string
}

// ForAlike returns the annotation for many steps with the same cause.
func (a *Allow) ForAlike() *Allow {
	if a.Sources == "" {
		return a
	}
	all := *a
	all.On, all.Value = OnCluster, a.Sources
	return &all
}

// Holder is the document that an annotation belongs on.
type Holder string

// The holders.
const (
	OnObject  Holder = "object"  // the step's
	OnPackage Holder = "package" // the declaration of the step's package
	OnCluster Holder = "cluster" // the registration, or the unit's own declaration
)

// placeholder stands for the reason, which a person has to write.
const placeholder = "<reason>"

// Text returns the annotation's value. version is the package's, and is not used unless
// the annotation belongs on a package.
func (a *Allow) Text(version string) string {
	if len(a.Findings) == 0 {
		return a.Value
	}
	if a.On != OnPackage {
		version = a.Version
	}
	lines := make([]string, len(a.Findings))
	for i, name := range a.Findings {
		lines[i] = version + ":" + name + "=" + placeholder
	}
	return strings.Join(lines, "\n")
}

// allowBreaking is the allowance of findings that are refused. version is empty for a
// package.
func allowBreaking(refused []string, version, cause string) *Allow {
	a := &Allow{On: OnPackage, Annotation: manifest.AllowBreakingAnnotation, Version: version, Cause: cause, Findings: allowable(refused)}
	if version != "" {
		a.On = OnObject
	}
	return a
}

// adopt is the annotation that takes an object over. An object of a package cannot be
// annotated by itself.
func (c claim) adopt(pkg string) *Allow {
	a := &Allow{On: OnObject, Annotation: manifest.AdoptAnnotation, Value: "true", Sources: strings.Join(c.sources, ","), Cause: "it is " + c.text}
	switch {
	case pkg == "":
		return a
	case a.Sources == "":
		return nil // the Reason says how
	}
	return a.ForAlike()
}

// allowPrune is the annotation that lets so many objects go at once.
func allowPrune(prunes int, cause string) *Allow {
	return &Allow{On: OnCluster, Annotation: manifest.AllowPruneAnnotation, Value: strconv.Itoa(prunes), Cause: cause}
}
