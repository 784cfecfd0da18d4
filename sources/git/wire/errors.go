package wire

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Errors for callers to distinguish. Each is in the chain of an error with details.
var (
	// ErrAuthentication: credentials are missing, or not accepted.
	ErrAuthentication = errors.New("authentication failed")
	// ErrNotFound: the repository does not exist, or the credentials may not
	// see it.
	ErrNotFound = errors.New("repository not found")
	// ErrHostKey: the SSH host key is unknown, or differs from the known one.
	ErrHostKey = errors.New("host key not accepted")
	// ErrUnknownObject: the server does not have the object of a fetch.
	ErrUnknownObject = errors.New("the server does not have that commit")
	// ErrMoved: a push lost the race for its ref.
	ErrMoved = errors.New("the ref has moved")
)

// RefusedError is the error for a push that the server refused, for instance by a hook or
// for a protected branch.
type RefusedError struct {
	Ref string
	// Local reports whether the repository is a directory on this machine.
	Local bool
	// Reason is the status that the server reports for the ref. Text is other output,
	// for instance a hook's, and may be empty.
	Reason, Text string
}

func (e *RefusedError) Error() string {
	who := "the server"
	if e.Local {
		who = "git"
	}
	s := fmt.Sprintf("%s refused the push to %s: %s", who, e.Ref, e.Reason)
	switch {
	case strings.HasPrefix(e.Reason, uncommitted):
		s += "; commit or stash them, or let gitopsd use a bare repository"
	case strings.HasPrefix(e.Reason, checkedOut):
		s += "; finish the rebase or bisect that is under way, or let gitopsd use a bare repository"
	case e.Local && strings.HasPrefix(e.Reason, locked):
		s += "; it cannot write the index of the work tree. If .git/index.lock is there, another git process works in the repository, or one has crashed: remove that file if no git is running"
	case e.Text != "":
		s += "\n" + e.Text
	}
	return s
}

// unpacking begins the reason of a server that could not store the objects.
const unpacking = "unpack "

// Beginnings of Git's reasons for a branch that is checked out.
const (
	uncommitted = "Working directory has "
	checkedOut  = "branch is currently checked out"
	// The index of the work tree cannot be written. Git does not say why.
	locked = "Up-to-date check failed"
)

// ByHook reports whether a hook or a rule refused the push, and would again, by words of Git.
func (e *RefusedError) ByHook() bool {
	return containsAny(e.Reason, "hook declined", "protected branch", "prohibited", "deny updating")
}

// ByRule reports whether a rule of the server refused the push as far as one can tell: forges
// name their rules in words of their own.
func (e *RefusedError) ByRule() bool {
	return e.ByHook() || !e.Local && !e.Passing() && !lostRace(e.Reason) && !strings.HasPrefix(e.Reason, unpacking)
}

// Passing reports whether another attempt may succeed: a gc removed the directory for the
// received objects.
func (e *RefusedError) Passing() bool { return containsAny(e.Reason, "unable to migrate objects") }

// lostRace reports whether a status means that somebody else has changed the ref, or is
// changing it. The texts are from git, JGit and the large forges.
func lostRace(reason string) bool {
	return containsAny(reason, "non-fast-forward", "fetch first", "stale info",
		"failed to update ref", "failed to start transaction", "transaction failed",
		"cannot lock ref", "failed to lock", "unable to lock", "lock error", "lock failure", "lock_failure",
		"incorrect old value", "reference already exists", "but expected")
}

// containsAny reports whether a text contains one of parts, ignoring case. Parts are in
// lower case.
func containsAny(text string, parts ...string) bool {
	text = strings.ToLower(text)
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(text, part) })
}

// serverError is a text from the server in place of an answer.
type serverError struct{ text string }

func (e *serverError) Error() string { return "the server says: " + e.text }

func newServerError(text string) error {
	err := &serverError{text: clean(text)}
	switch {
	case containsAny(err.text, "not our ref", "unadvertised object"):
		return fmt.Errorf("%w: %w", ErrUnknownObject, err)
	case containsAny(err.text, "not found", "does not exist", "no such repository", "could not be found", "does not appear to be a git repository"):
		return fmt.Errorf("%w: %w; check the path, and that these credentials may read it", ErrNotFound, err)
	case containsAny(err.text, "permission denied", "access denied", "read only", "read-only"):
		return fmt.Errorf("%w: %w", ErrAuthentication, err)
	}
	return err
}
