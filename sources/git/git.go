// Package git reads and writes the fleet repository. It returns the newest commit
// of a branch as a read-only fs.FS over Git's objects (repository.go), makes commits that
// replace one file (update.go), and keeps the pending records of a pass on a ref of
// their own until they are in the lock (pending.go). fleet.go has the names of fleets.
//
// There is never a work tree, so nothing in a repository can write to this
// machine's files. A repository is reached over HTTP(S), over SSH, or in a
// directory through the git of this machine: sources/git/wire has the protocol,
// remote.go the cache.
//
// trees.go fetches commits of other repositories, for remote bases, without
// credentials. belongs.go proves that they are the repository's.
//
// directory.go reads any commit of a repository in a directory, without git and
// without a cache, and history.go the last change of a file; local.go reads the
// objects.
//
// sources/git/objects has the file system and replaces one file of a tree;
// sources/git/store is the cache of fetched packs. With this package they are
// the only users of go-git. sources/local reads working trees.
package git

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"

	"gitopsd.dev/sources/git/objects"
	"gitopsd.dev/sources/git/wire"
)

// Errors for callers to distinguish. Each is in the chain of an error that names the
// repository and says what to do.
var (
	// ErrAuthentication: credentials are missing, or not accepted.
	ErrAuthentication = wire.ErrAuthentication
	// ErrRepositoryNotFound: the repository does not exist, or the credentials
	// may not see it.
	ErrRepositoryNotFound = wire.ErrNotFound
	// ErrHostKey: the SSH server's key is not in KnownHostsFile.
	ErrHostKey = wire.ErrHostKey
	// ErrBranchNotFound: the repository has no such branch, or none at all.
	ErrBranchNotFound = errors.New("branch not found")
	// ErrMoved: somebody else has changed the ref.
	ErrMoved = wire.ErrMoved
	// ErrNotTrusted: the branch's newest commit is not signed by a trusted key.
	ErrNotTrusted = errors.New("is not acted upon")
)

// MaxFile is the largest file that is read from a repository, in bytes.
const MaxFile = objects.MaxFile

// RefusedError is a push that the server refused by a rule or a hook.
type RefusedError = wire.RefusedError

// Config says where the fleet repository is. URL, Branch and Dir are required.
type Config struct {
	// URL is https://…, http://…, ssh://…, user@host:path, file:///…, or the
	// directory of a repository, bare or with a work tree. For a directory git must
	// be installed. A work tree with Branch checked out follows it. Update is refused
	// while the work tree has uncommitted changes, or Branch is being rebased or
	// bisected.
	URL string
	// Branch is the branch that is followed and written, for instance "main".
	Branch string
	// Dir is a directory for this repository's cache, made if it does not
	// exist. One process at a time may use it.
	Dir string

	// Username and Password are for HTTP; a token goes into Password. They
	// take precedence over those in URL. A token needs no Username.
	Username, Password string
	// PasswordFile has the password or token and takes precedence over both. It is
	// read for each request, so that it may be replaced at any time.
	PasswordFile string
	// Token, if set, returns a token for HTTP and takes precedence over all of these but Username. It
	// is called for each request.
	Token func(context.Context) (string, error)
	// CAFile holds PEM certificates of authorities to trust beside the
	// system's, for HTTPS. It may be replaced at any time.
	CAFile string
	// SSHKeyFile is a private key without passphrase and KnownHostsFile the
	// host keys to accept; both are required for SSH.
	SSHKeyFile, KnownHostsFile string

	// TrustedOpenPGPKeys (armored public keys) and TrustedSSHSigners (ssh-keygen(1), ALLOWED
	// SIGNERS) are files with keys. With one of them, only commits that are signed by such a
	// key are read. SigningKeyFile is an SSH private key without passphrase, which signs
	// gitopsd's commits of the lock; it is accepted for these, too. The files may be replaced at
	// any time; while one has errors, nobody is trusted.
	TrustedOpenPGPKeys, TrustedSSHSigners, SigningKeyFile string

	// Name and Mail are the author of gitopsd's commits; by default gitopsd and
	// gitopsd@localhost.
	Name, Mail string
	// PendingBranch keeps pending records on the branch gitopsd/pending instead
	// of refs/gitopsd/pending. Otherwise the branch is used only if the server
	// refuses that ref.
	PendingBranch bool
	// MayPush, if set, is asked before each push. The push fails with its error.
	MayPush func(ctx context.Context) error
	// Log gets a warning when CAFile cannot be used any more. It may be nil.
	Log *slog.Logger
}

// Open opens a repository. It fails if the configuration or a file with keys is invalid, or the
// cache is in use. It does not connect: a wrong URL or password is an error of the first Poll.
func Open(cfg Config) (*Repository, error) {
	loc, err := parseURL(cfg.URL)
	if err != nil {
		return nil, err
	}
	r := &Repository{cfg: cfg, describe: loc.describe, location: loc}
	fail := func(err error) (*Repository, error) { return nil, r.wrap(err) }
	if !validBranch(cfg.Branch) {
		return fail(fmt.Errorf("%q is not the name of a branch", cfg.Branch))
	}
	r.cfg.Name = cmp.Or(cfg.Name, "gitopsd")
	r.cfg.Mail = cmp.Or(cfg.Mail, "gitopsd@localhost")
	if strings.ContainsAny(r.cfg.Name+r.cfg.Mail, "<>\n\x00") {
		return fail(fmt.Errorf("%q <%s> cannot be the identity of a commit: it has <, > or a line break", cfg.Name, cfg.Mail))
	}
	if r.trust, err = openTrust(cfg); err != nil {
		return fail(err)
	}
	if r.origin, err = openRemote(cfg, loc); err != nil {
		return fail(err)
	}
	return r, nil
}

// location is a parsed URL: dir for directories, otherwise url without credentials.
type location struct {
	describe           string
	dir                string
	url                *url.URL
	username, password string
}

func parseURL(s string) (location, error) {
	if s == "" {
		return location{}, errors.New("git repository: the URL is empty; give an https or ssh URL, or a directory")
	}
	if !strings.Contains(s, "://") {
		// A directory wins over user@host:path, as in git.
		switch {
		case !IsAddress(s):
			return directory(s)
		case scpPassword.MatchString(s):
			return location{}, fmt.Errorf("git repository %s: an address with user@host:path takes no password; leave it out, and use a key, or an https URL", Shown(s))
		}
		m := scpLike.FindStringSubmatch(s)
		u := &url.URL{Scheme: "ssh", Host: m[2], Opaque: m[3]}
		if m[1] != "" {
			u.User = url.User(m[1])
		}
		if strings.HasPrefix(m[3], "/") {
			u.Opaque, u.Path = "", m[3]
		}
		return location{describe: s, url: u}, nil
	}
	u, err := url.Parse(s)
	if err != nil {
		// The error of url.Parse repeats the URL, credentials included.
		return location{}, fmt.Errorf("git repository: the URL %s… does not parse", s[:strings.Index(s, "://")+3])
	}
	loc := location{}
	switch u.Scheme {
	case "file":
		if u.Host != "" && u.Host != "localhost" {
			return location{}, fmt.Errorf("git repository %s: a file URL names no host; write file:///…", Shown(s))
		}
		return directory(filepath.FromSlash(u.Path))
	case "http", "https":
		if u.User != nil {
			loc.username = u.User.Username()
			loc.password, _ = u.User.Password()
			u.User = nil
		}
		u.RawQuery, u.Fragment = "", ""
	case "ssh", "git+ssh", "ssh+git":
		u.Scheme = "ssh"
		if u.User != nil {
			u.User = url.User(u.User.Username())
		}
	default:
		return location{}, fmt.Errorf("git repository %s: %s is not supported; use https or ssh, or a directory", Shown(s), u.Scheme)
	}
	if u.Hostname() == "" {
		return location{}, fmt.Errorf("git repository %s: the URL names no host", Shown(s))
	}
	loc.describe, loc.url = u.String(), u
	return loc, nil
}

func directory(dir string) (location, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return location{}, fmt.Errorf("git repository %s: %w", dir, err)
	}
	return location{describe: abs, dir: abs}, nil
}

// validBranch reports whether a branch's name is valid by git-check-ref-format(1).
func validBranch(name string) bool {
	if name == "" || name == "@" || name == "HEAD" || strings.HasPrefix(name, "-") || strings.HasSuffix(name, ".") ||
		strings.Contains(name, "..") || strings.Contains(name, "@{") || strings.ContainsAny(name, " ~^:?*[\\\x7f") {
		return false
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || strings.HasPrefix(part, ".") || strings.HasSuffix(part, ".lock") {
			return false
		}
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return r < ' ' })
}
