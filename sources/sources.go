// Package sources is the vocabulary of desired state: commits, package
// references, digests, pins, packages and the YAML documents they hold.
//
// It has references ([Ref], [Digest], [Pin]), packages and their declarations
// (package.go), ImageConfigs (image.go), and the decoder of YAML (document.go,
// convert.go, share.go, explain.go).
//
// The packages below it read desired state: sources/clusters the registry of
// clusters, sources/git and sources/local the fleet repository, sources/oci and
// sources/xpkg packages, sources/signature their signatures, and sources/lockfile
// the digests that references resolved to. sources/resolve turns references and a
// lock into pins and packages.
//
// This package does no input or output, and imports none of them. It is the only one
// of them that render imports, so that data flows one way: sources to render to
// reconcile.
package sources
