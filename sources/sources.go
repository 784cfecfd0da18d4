// Package sources is the vocabulary of desired state: commits, package
// references, digests, pins, packages and the YAML documents they hold.
//
// The packages below it bring desired state in: sources/clusters reads the
// registry of clusters, sources/git and sources/local the fleet repository,
// sources/oci and sources/xpkg packages, sources/lockfile the record of what
// every reference resolved to, and sources/resolve turns references and a lock
// into pins and packages.
//
// This package does no input or output, and imports none of them. It is the
// only one that render imports, so that data flows one way: sources to render
// to reconcile.
package sources
