package lockfile

import (
	"fmt"
	"strings"

	"gitopsd.dev/sources"
)

// Mismatch is an error about content that differs from its record in the lock. It is a
// security error: no object of the package may change in any cluster until a person has
// settled it.
type Mismatch struct {
	Key Key
	// Line of the record in the lock; 0 if unknown.
	Line int
	// Locked is the digest or hash in the lock.
	Locked string
	// Seen is the digest or hash that was found in SeenIn.
	Seen   string
	SeenIn string
	// Named is set if Seen is a digest that a person wrote in SeenIn, and not one of a
	// package.
	Named bool
}

// Error says what was expected and seen, what it may mean and what to do.
func (m *Mismatch) Error() string {
	return fmt.Sprintf(mismatchText, m.Key, Where(m.Line), m.Locked, m.SeenIn, m.Seen,
		m.means(), m.Key.Repository)
}

// Summary returns one line, for tables and conditions.
func (m *Mismatch) Summary() string {
	return fmt.Sprintf("%s: %s has %s, %s has %s", m.Key, Where(m.Line), m.Locked, m.SeenIn, m.Seen)
}

// Where returns the lock's name with a line in it, or without one if line is 0.
func Where(line int) string {
	if line == 0 {
		return sources.LockFile
	}
	return fmt.Sprintf("%s:%d", sources.LockFile, line)
}

func (m *Mismatch) means() string {
	if m.Named {
		return "The digest in " + m.SeenIn + " was edited, or the lock was, or the tag was moved to\nanother package after it was locked."
	}
	switch m.Key.Item {
	case "":
		return "The tag was moved to another package after it was locked, or the lock was edited."
	case ItemContent, ItemTypes:
		return "The package defines other types than when it was locked, or the lock was edited."
	case ItemRuntime:
		return "The package would run another controller than when it was locked, or the lock was edited."
	default:
		if strings.HasPrefix(m.Key.Item, ItemRuntime+"/") {
			return "On one platform the package would run another controller than when it was locked, or the lock was edited."
		}
		return "One platform would get another package than when it was locked, or the lock was edited."
	}
}

const mismatchText = `SECURITY ERROR: %s is not what clusters.lock recorded.

    %s has  %s
    %s has  %s

%s
A publisher who moves tags does this, and so does an attacker who controls the
registry or the way to it. gitopsd changes nothing that this package defines, in
any cluster; everything else goes on.

If you did not expect this, find out from the package's publisher which digest
is the right one before you do anything else. If the new one is right, accept it
with

    gitopsd lock --update=%s

and have the change to clusters.lock reviewed like any other.`
