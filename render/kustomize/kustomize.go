// Package kustomize builds the kustomizations of a fleet repository and applies
// kustomize patches. It is the only user of sigs.k8s.io/kustomize.
//
//   - [Builder] (build.go) returns the objects that `kustomize build` would print.
//   - inspect.go walks a kustomization before kustomize sees it: it reads every
//     file that the build may read, once, and refuses what gitopsd does not
//     support. fields.go knows which fields of a kustomization are paths,
//     plugins.go those of generators and transformers, schemas.go what could hang
//     or crash kustomize in a schema; documents.go decodes. mount.go puts remote
//     bases beside the repository.
//   - snapshot.go is the file system that kustomize gets: these files and no
//     others.
//   - limits.go has the limits of a build; growth.go limits replacements and
//     copies, which could double an object again and again, widths.go mappings and
//     lists with many entries; memory.go runs large builds one at a time.
//   - process.go serialises calls of kustomize, which keeps state in variables, and
//     keeps it from ending the process.
//   - [Patches] (patch.go) applies patches to objects that exist.
//
// A build with remote files, plugins or functions that are executed, Helm charts,
// paths out of a repository or symbolic links is an error. So is a remote base,
// unless it is allowed and named by commit (render/remote). Kustomize fetches what
// looks like a URL, and runs git, with no switch to turn that off; so it never gets
// a string that it would take for one. It sees a remote base as a directory, which
// is also what buildMetadata's originAnnotations name.
//
// Where a directory has no kustomization file, Build takes all YAML files in it
// and below. A subdirectory that has one is built instead of searched. Flux and
// `kustomize create --autodetect --recursive` do the same. A
// kustomization may use files anywhere in the repository, as with `kustomize
// build --load-restrictor LoadRestrictionsNone`.
//
// Kustomize prints warnings about deprecated fields to the process's standard error;
// there is no switch for that either.
package kustomize
