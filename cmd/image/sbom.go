package main

import (
	"encoding/json"
	"runtime/debug"
	"slices"
	"strings"
)

// sbomType is the media type of CycloneDX documents, and the artifact type of their
// manifests.
const sbomType = "application/vnd.cyclonedx+json"

// bom is the part of a CycloneDX 1.6 document (ECMA-424) that Go's build information
// provides: the modules of a program, with their versions. It has no serial number and no
// time, so that the same program has the same document.
type bom struct {
	Format      string      `json:"bomFormat"`
	SpecVersion string      `json:"specVersion"`
	Version     int         `json:"version"`
	Metadata    metadata    `json:"metadata"`
	Components  []component `json:"components"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type     string    `json:"type"`
	Ref      string    `json:"bom-ref"`
	Name     string    `json:"name"`
	Version  string    `json:"version,omitempty"`
	Licenses []license `json:"licenses,omitempty"`
	PURL     string    `json:"purl"`
}

type license struct {
	License struct {
		ID string `json:"id"`
	} `json:"license"`
}

// sbom returns the document of a program: its modules, Go's standard library, and more
// modules with content in the image.
func sbom(p *program, more ...*debug.Module) ([]byte, error) {
	main := component{Type: "application", Name: p.name(), Version: p.version()}
	main.PURL = purl(p.info.Main.Path, p.version()) + "?goarch=" + p.platform.Architecture + "&goos=" + p.platform.OS
	if sub, ok := strings.CutPrefix(p.info.Path, p.info.Main.Path+"/"); ok {
		main.PURL += "#" + sub
	}
	main.Ref = main.PURL
	main.Licenses = make([]license, 1)
	main.Licenses[0].License.ID = licenseID

	components := []component{library("stdlib", strings.TrimPrefix(p.info.GoVersion, "go"))}
	for _, m := range append(slices.Clone(p.info.Deps), more...) {
		if m.Replace != nil {
			m = m.Replace
		}
		components = append(components, library(m.Path, m.Version))
	}
	slices.SortFunc(components, func(a, b component) int { return strings.Compare(a.Ref, b.Ref) })
	components = slices.CompactFunc(components, func(a, b component) bool { return a.Ref == b.Ref })
	text, err := json.MarshalIndent(bom{
		Format: "CycloneDX", SpecVersion: "1.6", Version: 1, Metadata: metadata{main}, Components: components,
	}, "", "  ")
	return append(text, '\n'), err
}

func library(path, version string) component {
	url := purl(path, version)
	return component{Type: "library", Ref: url, Name: path, Version: version, PURL: url}
}

// purl returns the package URL of a module (github.com/package-url/purl-spec), which
// databases of vulnerabilities use as its name.
func purl(path, version string) string {
	if version == "" {
		return "pkg:golang/" + path
	}
	return "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
}
