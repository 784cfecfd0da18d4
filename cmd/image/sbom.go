package main

import (
	"cmp"
	"encoding/json"
	"runtime/debug"
	"slices"
	"strings"
)

// sbomType is the media type of a CycloneDX document, and the type under which
// registries list it with its image.
const sbomType = "application/vnd.cyclonedx+json"

// bom is a document of CycloneDX 1.6 (ECMA-424), as far as Go knows what it says: the
// modules that a program was made of, with their versions. It has no serial number and
// no time, so that the same program has the same document.
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

// sbom lists the modules that a program was made of, Go's own library, and more that
// are in the image otherwise.
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
	slices.SortFunc(components, func(a, b component) int { return cmp.Compare(a.Ref, b.Ref) })
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

// purl returns the package URL of a module (github.com/package-url/purl-spec), by which
// databases of vulnerabilities know it.
func purl(path, version string) string {
	if version == "" {
		return "pkg:golang/" + path
	}
	return "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
}
