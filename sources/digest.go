package sources

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"strings"
)

// Digest is a content digest in the form of the OCI image specification:
// "sha256:" and 64 lower-case hexadecimal digits. The zero value means no
// digest. Digests are comparable and safe as file names once the colon is
// replaced.
type Digest string

// ParseDigest checks that s is a complete sha256 digest. Other algorithms are
// refused: no registry in use needs one, and a lock with two kinds of digest
// for one content could not be compared.
func ParseDigest(s string) (Digest, error) {
	hexa, ok := strings.CutPrefix(s, "sha256:")
	if !ok {
		return "", fmt.Errorf("digest %q: want sha256:<64 hexadecimal digits>", s)
	}
	if len(hexa) != 2*sha256.Size || strings.Trim(hexa, "0123456789abcdef") != "" {
		return "", fmt.Errorf("digest %q: want 64 lower-case hexadecimal digits after sha256:, have %d characters", s, len(hexa))
	}
	return Digest(s), nil
}

// DigestOf returns the digest of content.
func DigestOf(content []byte) Digest {
	sum := sha256.Sum256(content)
	return Digest("sha256:" + hex.EncodeToString(sum[:]))
}

// DigestSum returns the digest of the content that was written to h, a SHA-256 hash.
func DigestSum(h hash.Hash) Digest {
	return Digest("sha256:" + hex.EncodeToString(h.Sum(nil)))
}

// Hex returns the hexadecimal digits without the algorithm.
func (d Digest) Hex() string { return strings.TrimPrefix(string(d), "sha256:") }

// Short returns the first twelve hexadecimal digits, as Crossplane uses them in
// the names of package revisions. It is for people: do not compare or cache by it.
func (d Digest) Short() string {
	h := d.Hex()
	return h[:min(12, len(h))]
}

// Abbreviate returns a version for people: "sha256:" and the digits of [Digest.Short] for a
// digest, and the version itself for anything else.
func Abbreviate(version string) string {
	if d, err := ParseDigest(version); err == nil {
		return "sha256:" + d.Short()
	}
	return version
}
