package main

import (
	"bytes"
	"encoding/pem"
	"errors"
	"runtime/debug"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// rootsModule is the module with Mozilla's list of certificate authorities. Its version is
// in go.mod, so the same commit has the same authorities wherever it is built, and an update
// of the list is a commit. A distribution's package changes without a commit.
//
// The list is a file in the image and not compiled into the program: SSL_CERT_DIR adds a
// company's authorities to the file's, and a mount over the file replaces them. Compiled-in
// authorities would be trusted wherever the program finds no others.
const rootsModule = "golang.org/x/crypto/x509roots/fallback"

// roots returns the certificates of authorities, in PEM. It omits those with a constraint,
// such as trust only for certificates from before a date: a file cannot express it.
func roots() ([]byte, error) {
	var text bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		if err := pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	return text.Bytes(), nil
}

// rootsVersion returns the module of the roots, with its version.
func rootsVersion() (*debug.Module, error) {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == rootsModule {
				return m, nil
			}
		}
	}
	return nil, errors.New("no build information in this program: build it with `go build` or `go run`")
}
