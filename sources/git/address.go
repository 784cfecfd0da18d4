package git

import (
	"os"
	"regexp"
	"strings"
)

// scpLike matches user@host:path, as in scp(1).
var scpLike = regexp.MustCompile(`^(?:([^@/:\s]+)@)?([A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:]+\]):([^\s].*)$`)

// scpPassword matches user:password@host:path, which is not supported.
var scpPassword = regexp.MustCompile(`^[^@/:\s]+:[^/].*@[^@/]+:`)

// IsAddress reports whether a text is the address of a repository elsewhere, and not a
// directory: a URL, or user@host:path unless there is a file of that name.
func IsAddress(text string) bool {
	if strings.Contains(text, "://") {
		return true
	}
	if _, err := os.Stat(text); err == nil {
		return false
	}
	return scpLike.MatchString(text) || scpPassword.MatchString(text)
}

// Shown returns an address for messages, without user names and passwords in URLs, which may be
// tokens, and without the password in user:password@host. It works for texts that are no valid
// addresses, too.
func Shown(address string) string {
	start := 0
	if i := strings.Index(address, "://"); i >= 0 {
		start = i + len("://")
	}
	rest := address[start:]
	authority := rest
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		authority = rest[:i]
	}
	user := strings.LastIndexByte(authority, '@')
	if _, port, ok := strings.Cut(authority, ":"); user < 0 && ok && strings.Trim(port, "0123456789") != "" {
		user = strings.LastIndexByte(rest, '@') // a password with a slash
	}
	if user < 0 || start == 0 && !strings.Contains(rest[:user], ":") {
		return address
	}
	return address[:start] + "…" + rest[user:]
}
