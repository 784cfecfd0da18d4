// Package kustomize builds the kustomizations of a fleet repository and applies
// kustomize patches. It is the only user of sigs.k8s.io/kustomize.
//
//   - [Builder] (build.go) returns the objects that `kustomize build` would print.
//   - inspect.go walks a kustomization before kustomize sees it. It reads every
//     file that the build may read, once, and refuses what gitopsd does not
//     support. fields.go inspects the fields of a kustomization, plugins.go the
//     configurations of generators and transformers, schemas.go schemas that could hang
//     or crash kustomize, texts.go labels and annotations that it would lose.
//     documents.go decodes YAML. mount.go adds remote bases.
//   - snapshot.go is the file system for kustomize, with the inspected files only.
//   - limits.go has the limits of a build. growth.go limits replacements and
//     copies, which could double an object again and again, and widths.go mappings and
//     lists with many entries. memory.go runs large builds one at a time.
//   - process.go serialises calls of kustomize, which has global state, and
//     keeps it from ending the process.
//   - aim.go finds patches in kustomizations that match nothing.
//   - errors.go adds places to errors, and rewords kustomize's errors. secrets.go keeps
//     values of Secrets out of them.
//   - [Patches] (patch.go) applies patches to existing objects.
//
// A build with remote files, plugins or functions that are executed, Helm charts,
// paths out of a repository or symbolic links is an error. So is a remote base,
// unless it is allowed and named by commit (render/remote). Kustomize fetches everything
// that looks like a URL, and runs git, and cannot be configured not to. So it never gets
// a string that it would read as a URL. It sees a remote base as a directory, which
// is also what buildMetadata's originAnnotations name.
//
// If a directory has no kustomization file, Build takes all YAML files in it
// and below. A subdirectory that has one is built instead of searched. Flux and
// `kustomize create --autodetect --recursive` do the same. A
// kustomization may use files anywhere in the repository, as with `kustomize
// build --load-restrictor LoadRestrictionsNone`.
//
// Kustomize prints warnings about deprecated fields to the process's standard error,
// which cannot be turned off either.
package kustomize
