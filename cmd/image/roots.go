package main

import (
	"bytes"
	"encoding/pem"
	"errors"
	"runtime/debug"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// rootsModule is the module that has Mozilla's list of certificate authorities. Its
// version is in go.mod, so the same commit has the same authorities wherever it is
// built, and an update of the list is a commit. The packages of a distribution, which
// change without one, would make another image of the same commit.
//
// They are a file in the image, where they could be compiled into the program: with a
// file, SSL_CERT_DIR adds the authorities of a company to those of the public, and a
// mount in its place replaces them. In a program, authorities that it was not given
// would be trusted wherever it finds none.
const rootsModule = "golang.org/x/crypto/x509roots/fallback"

// roots returns the certificates of authorities, in PEM. Left out are those that are
// trusted only for certificates from before a date, since a file cannot say so.
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

// rootsVersion returns the module that roots come from.
func rootsVersion() (*debug.Module, error) {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == rootsModule {
				return m, nil
			}
		}
	}
	return nil, errors.New("this program does not know its modules: build it with `go build` or `go run`")
}
