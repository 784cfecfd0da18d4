package manifest

import "gitopsd.dev/sources"

// Declare returns the lines of a package's declaration with an annotation, for a person to
// copy. The lines of the annotation are indented by themselves.
func Declare(kind sources.PackageKind, name, ref string, annotation []string) []string {
	lines := []string{"apiVersion: " + GroupPackages + "/v1", "kind: " + string(kind), "metadata:", "  name: " + name, "  annotations:"}
	for _, line := range annotation {
		lines = append(lines, "    "+line)
	}
	return append(lines, "spec:", "  package: "+ref)
}
