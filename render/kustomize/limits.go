package kustomize

import (
	"fmt"

	"gitopsd.dev/sources"
)

// The limits of one build, without which a build might not end. Kustomize takes time
// that is quadratic in the number of objects: 5,000 with a reference each take a
// minute.
const (
	// maxBytes of all files read; a file that is used twice counts twice.
	maxBytes = 64 << 20
	// maxNesting of bases in bases.
	maxNesting = 50
	// maxRemotes is the number of commits of other repositories that are used.
	maxRemotes = 50
	// maxObjects is the number of objects in all files read.
	maxObjects = 5_000
	// maxValues is the number of values in all YAML documents read, aliases
	// expanded. Kustomize takes more than a kilobyte for each; the 927 types of
	// the largest provider are 550,000.
	maxValues = 1_000_000
	// maxSteps is the sum, over all kustomizations, of their patches, labels,
	// replacements and the like, times the objects that these may change; and of
	// the cost of each kustomization itself, which is kustomizationSteps and a step
	// for each object that it hands on. A kustomization that is used twice counts
	// twice.
	maxSteps = 2_000_000
	// maxNames is the number of names and references in all objects, times the
	// objects among which kustomize looks for each: some microseconds each.
	maxNames = 50_000_000
	// maxEntries is the number of files and directories below a directory
	// without a kustomization file.
	maxEntries = 20_000
)

// kustomizationSteps is what a kustomization costs without any objects, in steps: some
// files are looked for, and one is read. There may be as many as there may be objects.
const kustomizationSteps = 400

// budget is what is left of each limit.
type budget struct {
	bytes, objects, values, steps int
	// names counts up, since its limit depends on the number of objects; the limit
	// of widths depends on patches.
	names   int
	widths  widths
	patches int
}

func newBudget() budget {
	return budget{bytes: maxBytes, objects: maxObjects, values: maxValues, steps: maxSteps}
}

// spend takes n from a budget.
func spend(left *int, n int, format string, limit int) error {
	if *left -= n; *left < 0 {
		*left = 0
		return fmt.Errorf(format+": %w", limit, sources.ErrLimit)
	}
	return nil
}

func (b *budget) read(n int) error {
	return spend(&b.bytes, n, "the build reads more than %d bytes; files that are used repeatedly count each time", maxBytes)
}

// enter takes what a kustomization costs before anything in it is known: one that uses
// another twice, which does so too, is endless for all practical purposes.
func (b *budget) enter() error { return b.step(kustomizationSteps) }

// leave takes what a kustomization costs by the objects that it hands on.
func (b *budget) leave(objects int) error { return b.step(objects) }

func (b *budget) hold(n int) error {
	return spend(&b.objects, n, "the build has more than %d objects; make packages of the types, or divide the directory between clusters", maxObjects)
}

func (b *budget) parse(n int) error {
	return spend(&b.values, n, "the build has more than %d values in its documents (are aliases nested?)", maxValues)
}

// settle checks the limits that depend on the whole build. schema reports whether a
// kustomization sets one.
func (b *budget) settle(schema bool) error {
	if err := b.widths.check(b.patches, schema); err != nil {
		return err
	}
	left := maxNames
	return spend(&left, b.names*(maxObjects-b.objects), "the build has more than %d names, times objects; divide the directory between clusters", maxNames)
}

func (b *budget) work(operators, objects int) error {
	// Both are bounded by the size of the input, so the product does not overflow.
	return b.step(operators * objects)
}

func (b *budget) step(n int) error {
	return spend(&b.steps, n, "the build takes more than %d steps: patches, labels and the like, times objects, and kustomizations, each time that they are used", maxSteps)
}
