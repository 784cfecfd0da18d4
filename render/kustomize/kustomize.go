// Package kustomize builds the kustomizations of a fleet repository and applies
// kustomize patches. It is the only user of sigs.k8s.io/kustomize.
//
//   - Builder (build.go) gives the objects that `kustomize build` would print.
//   - inspect.go walks a kustomization before kustomize sees it: it reads every
//     file that the build may read, once, and refuses what gitopsd does not do.
//     fields.go knows which fields of a kustomization are paths, plugins.go
//     those of generators and transformers, schemas.go what could hang or crash
//     kustomize in a schema; documents.go decodes. mount.go puts remote bases
//     beside the repository.
//   - snapshot.go is the file system that kustomize gets: those files and no
//     others.
//   - limits.go names the bounds of a build; growth.go those of replacements and
//     copies, which could double an object again and again, widths.go those of
//     mappings and lists with many entries.
//   - process.go keeps builds from sharing what kustomize knows of types, and kustomize
//     from ending the process.
//   - Patches (patch.go) applies patches to objects that exist.
//
// Refused are remote files, plugins and functions that are executed, Helm charts,
// paths out of a repository and symbolic links; remote bases too, unless they are
// allowed and named by commit (render/remote). Kustomize fetches what looks like a
// URL, and runs git, with no switch to turn that off; so it never gets to see a
// string that it would take for one. A remote base it sees as a directory, so
// that buildMetadata's originAnnotations name that, and not the repository's URL.
//
// Where a directory has no kustomization file, Build takes all YAML files in it
// and below, and stops descending where a subdirectory has one, which is then
// built: what Flux does, and `kustomize create --autodetect --recursive`. A
// kustomization may use files anywhere in the repository, as with `kustomize
// build --load-restrictor LoadRestrictionsNone`.
//
// What kustomize prints about deprecated fields goes to the process's standard
// error; it has no switch either.
package kustomize
