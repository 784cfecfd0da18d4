package kustomize

import (
	"fmt"
	"strconv"

	"gitopsd.dev/sources"
)

// The limits of one build. Without them a build might not end: kustomize's time is
// quadratic in the number of objects, and takes a minute for 5,000 with a reference each.
const (
	// maxBytes is the size of all files read. A file that is used twice counts twice.
	maxBytes = 64 << 20
	// maxNesting is the nesting of bases in bases.
	maxNesting = 50
	// maxRemotes is the number of commits of other repositories.
	maxRemotes = 50
	// maxObjects is the number of objects in all files read.
	maxObjects = 5_000
	// maxValues is the number of values in all YAML documents read, with aliases
	// expanded. Kustomize needs more than a kilobyte for each. The 927 types of the
	// largest provider have 550,000.
	maxValues = 1_000_000
	// maxSteps is the sum, over all kustomizations, of the number of patches, labels,
	// replacements and the like, times the objects that they may change; plus
	// kustomizationSteps for each kustomization, and a step for each object that it
	// returns. A kustomization that is used twice counts twice.
	maxSteps = 2_000_000
	// maxNames is the number of names and references in all objects, times the number of
	// objects that kustomize searches for each. One takes some microseconds.
	maxNames = 50_000_000
	// maxWritten is the number of bytes that kustomizations write: the bytes of each label,
	// annotation, patch and the like, times the objects that get it. Kustomize needs 100
	// nanoseconds for each. A JSON 6902 patch writes its objects anew, so they count too.
	maxWritten = 512 << 20
	// maxEntries is the number of files and directories below a directory
	// without a kustomization file.
	maxEntries = 20_000
)

// kustomizationSteps is the cost of a kustomization without objects, in steps: looking for
// some files, and reading one. It allows as many kustomizations as objects.
const kustomizationSteps = 400

// budget is the rest of each limit.
type budget struct {
	bytes, objects, values, steps, written int
	// longest is the most bytes that one operator so far writes to one object.
	longest int
	// names counts up, since its limit depends on the number of objects; the limit
	// of widths depends on patches.
	names   int
	widths  widths
	patches int
}

func newBudget() budget {
	return budget{bytes: maxBytes, objects: maxObjects, values: maxValues, steps: maxSteps, written: maxWritten}
}

// spend takes n from a limit's rest. It fails if the limit is exceeded.
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

func (b *budget) hold(n int) error {
	return spend(&b.objects, n, "the build has more than %d objects; make packages of the types, or divide the directory between clusters", maxObjects)
}

func (b *budget) parse(n int) error {
	return spend(&b.values, n, "the build has more than %d values in its documents (are aliases nested?)", maxValues)
}

// settle checks the limits that depend on the whole build. schema reports whether a
// kustomization sets a schema.
func (b *budget) settle(schema bool) error {
	if err := b.widths.check(b.patches, schema); err != nil {
		return err
	}
	left := maxNames
	return spend(&left, b.names*(maxObjects-b.objects), "the build has more than %d names, times objects; divide the directory between clusters", maxNames)
}

func (b *budget) step(n int) error {
	return spend(&b.steps, n, "the build takes more than %d steps: patches, labels and the like, times objects, and kustomizations, each time that they are used", maxSteps)
}

// write counts a value of n bytes that is written in total bytes: once for each object.
func (b *budget) write(n, total int) error {
	b.longest = max(b.longest, n)
	return spend(&b.written, total, "up to "+strconv.Itoa(total)+" bytes in all objects that it may change, and a build writes no more than %d: labels, annotations, patches and the like, times objects; make it shorter, or aim it at fewer objects", maxWritten)
}
