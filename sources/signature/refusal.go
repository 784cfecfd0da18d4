package signature

import (
	"fmt"
	"strings"
	"unicode"

	"gitopsd.dev/sources"
)

// Refusal is the error for a package that no authority has signed. It is a security
// error: the package is not used.
type Refusal struct {
	// Subject is repository@digest.
	Subject string
	// ImageConfig that asks for a signature.
	ImageConfig string
	// Wanted describes the evidence that would be accepted, one line for each
	// authority.
	Wanted []string
	// Found describes the evidence that exists, and why it is not enough.
	Found []string
}

// Error says what was required and found, what it may mean and what to do.
func (r *Refusal) Error() string {
	return fmt.Sprintf(refusalText, r.Subject, r.ImageConfig, indent("wanted", "or", r.Wanted), indent("found", "and", r.Found), r.Subject, r.ImageConfig)
}

// Is reports whether target is [sources.ErrUnfit].
func (r *Refusal) Is(target error) bool { return target == sources.ErrUnfit }

func indent(first, next string, lines []string) string {
	var b strings.Builder
	for i, l := range lines {
		word := first
		if i > 0 {
			word = next
		}
		fmt.Fprintf(&b, "    %-7s %s\n", word, l)
	}
	return b.String()
}

const refusalText = `SECURITY ERROR: %s is not signed as ImageConfig %s asks for it.

%s%s
Somebody who can write to the registry may have put a package there that its
publisher has never seen; a publisher who forgot to sign looks the same. Nothing
of it was used: what clusters have of this package stays as it is, and everything
else goes on.

Ask the publisher for the signature (cosign sign %s), or
for the name of whoever signs now. If that is right, put it into ImageConfig
%s, and have the change reviewed like any other.`

// printable makes untrusted text fit for a log line or a terminal.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	const most = 300
	if r := []rune(s); len(r) > most {
		s = string(r[:most]) + "…"
	}
	return s
}
