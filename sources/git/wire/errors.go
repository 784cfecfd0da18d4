package wire

import (
	"errors"
	"fmt"
	"strings"
)

// Errors that callers decide on; each is in the chain of an error that says
// more.
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

// RefusedError is a push that the server refused for a reason of its own: a
// hook, a protected branch, a ref it does not let anybody write.
type RefusedError struct {
	Ref string
	// Reason is the status that the server reports for the ref. Text is its
	// other output, for instance a hook's; it may be empty.
	Reason, Text string
}

func (e *RefusedError) Error() string {
	s := fmt.Sprintf("the server refused the push to %s: %s", e.Ref, e.Reason)
	switch {
	case strings.HasPrefix(e.Reason, uncommitted):
		s += "; commit or stash them, or let gitopsd use a bare repository"
	case strings.HasPrefix(e.Reason, checkedOut):
		s += "; finish the rebase or bisect that is under way, or let gitopsd use a bare repository"
	case e.Text != "":
		s += "\n" + e.Text
	}
	return s
}

// These begin Git's reasons for a checked-out branch whose work tree cannot follow.
const (
	uncommitted = "Working directory has "
	checkedOut  = "branch is currently checked out"
)

// ByHook reports whether a hook or a rule refused the push, and would again.
func (e *RefusedError) ByHook() bool {
	reason := strings.ToLower(e.Reason)
	for _, text := range []string{"hook declined", "protected branch", "prohibited", "deny updating"} {
		if strings.Contains(reason, text) {
			return true
		}
	}
	return false
}

// Passing reports whether the server failed at something that another attempt
// may not meet: a gc removed the directory that received objects were to go to.
func (e *RefusedError) Passing() bool {
	return strings.Contains(strings.ToLower(e.Reason), "unable to migrate objects")
}

// lostRace reports whether a status means that somebody else changed the ref,
// or is about to. The texts are those of git, JGit and the large forges.
func lostRace(reason string) bool {
	reason = strings.ToLower(reason)
	for _, text := range []string{
		"non-fast-forward", "fetch first", "stale info",
		"failed to update ref", "failed to start transaction", "transaction failed",
		"cannot lock ref", "failed to lock", "unable to lock", "lock error", "lock failure", "lock_failure",
		"incorrect old value", "reference already exists", "but expected",
	} {
		if strings.Contains(reason, text) {
			return true
		}
	}
	return false
}

// serverError is a text that a server sent instead of an answer.
type serverError struct{ text string }

func (e *serverError) Error() string { return "the server says: " + e.text }

func newServerError(text string) error {
	text = clean(text)
	lower := strings.ToLower(text)
	err := &serverError{text: text}
	switch {
	case strings.Contains(lower, "not our ref"), strings.Contains(lower, "unadvertised object"):
		return fmt.Errorf("%w: %w", ErrUnknownObject, err)
	case strings.Contains(lower, "not found"), strings.Contains(lower, "does not exist"),
		strings.Contains(lower, "no such repository"), strings.Contains(lower, "could not be found"),
		strings.Contains(lower, "does not appear to be a git repository"):
		return fmt.Errorf("%w: %w; check the path, and that these credentials may read it", ErrNotFound, err)
	case strings.Contains(lower, "permission denied"), strings.Contains(lower, "access denied"),
		strings.Contains(lower, "read only"), strings.Contains(lower, "read-only"):
		return fmt.Errorf("%w: %w", ErrAuthentication, err)
	}
	return err
}
