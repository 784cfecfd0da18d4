package conversion

import (
	"encoding/base64"
	"encoding/hex"
	"strings"

	"gitopsd.dev/render/conversion/rules"
	"gitopsd.dev/render/manifest"
)

// Label names the definition or schema that a document of rules belongs to, if its own
// name does not.
const Label = rules.Label

// Subject returns the name of the definition or APIResourceSchema that a document of
// rules belongs to.
func Subject(tree map[string]any) string { return rules.Subject(tree) }

const (
	pathPrefix   = "/convert/"
	digestPrefix = "h1:"
)

// Path returns the URL path at which API servers ask for conversions by one set of
// rules: "/convert/<cluster>/<definition>/<hex>", where hex is the SHA-256 in the set's
// digest. So a definition names its rules exactly, and a webhook that serves old and
// new rules knows which to use.
func Path(cluster, definition, digest string) string {
	text := strings.TrimPrefix(digest, digestPrefix)
	sum, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		sum = []byte(text) // not the digest of a Set
	}
	return pathPrefix + cluster + "/" + definition + "/" + hex.EncodeToString(sum)
}

// Asked returns the cluster and the digest in the address of a
// CustomResourceDefinition's conversion webhook. Both are empty if it has no webhook, or
// if the address does not have the form of [Path].
func Asked(definition map[string]any) (cluster, digest string) {
	spec := manifest.Mapping(definition, "spec", "conversion")
	if manifest.Text(spec, "strategy") != "Webhook" {
		return "", ""
	}
	client := manifest.Mapping(spec, "webhook", "clientConfig")
	address := manifest.Text(client, "url") + manifest.Text(client, "service", "path")
	at := strings.LastIndex(address, pathPrefix)
	parts := strings.Split(address[at+1:], "/")[1:]
	if at < 0 || len(parts) != 3 || parts[1] != manifest.Text(definition, "metadata", "name") {
		return "", ""
	}
	sum, err := hex.DecodeString(parts[2])
	if err != nil || len(sum) == 0 {
		return "", ""
	}
	return parts[0], digestPrefix + base64.StdEncoding.EncodeToString(sum)
}

// Rules returns the digest of the conversion rules that a rendered
// CustomResourceDefinition names, empty if it names none.
func Rules(definition map[string]any) string {
	named, _ := manifest.Mapping(definition, "metadata", "annotations")[manifest.ConversionAnnotation].(string)
	if named == "" {
		return ""
	}
	if _, asked := Asked(definition); asked != named {
		return "" // a copy of the annotation alone
	}
	return named
}
