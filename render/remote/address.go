package remote

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// address is a parsed entry.
type address struct {
	scheme string // https, http or ssh
	// host is in lower case, with the port if it is not the scheme's default.
	host string
	// path has the segments of the repository's path.
	path []string
	// dir is the directory in the repository, "." for its root.
	dir     string
	ref     string
	timeout time.Duration
}

// repository returns the URL to fetch from.
func (a address) repository() string {
	return a.scheme + "://" + a.host + "/" + strings.Join(a.path, "/")
}

// over returns the address with another scheme, for a kustomization.
func (a address) over(scheme string) string {
	a.scheme = scheme
	if i := strings.LastIndexByte(a.host, ':'); i > strings.LastIndexByte(a.host, ']') {
		a.host = a.host[:i]
	}
	text := a.repository() + "//" + strings.TrimPrefix(a.dir, ".")
	if a.ref != "" {
		text += "?ref=" + a.ref
	}
	return text
}

// The limits for the time of a fetch. The default is kustomize's.
const (
	defaultTimeout = 27 * time.Second
	maxTimeout     = 2 * time.Minute
)

// parameters are the parameters of an address.
var parameters = []string{"ref", "version", "timeout", "submodules"}

// parse parses an entry as kustomize does
// (https://github.com/kubernetes-sigs/kustomize/blob/master/examples/remoteBuild.md).
func parse(entry string) (address, error) {
	text, query, _ := strings.Cut(entry, "?")
	a, rest, err := parseHost(text)
	if err != nil {
		return a, err
	}
	repository, dir, err := split(rest)
	if err != nil {
		return a, err
	}
	if err := a.parseQuery(query); err != nil {
		return a, err
	}
	if a.path, err = segments(repository); err != nil {
		return a, err
	}
	if a.dir, err = cleanDir(dir); err != nil {
		return a, err
	}
	if ext := path.Ext(text); a.ref == "" && (ext == ".yaml" || ext == ".yml" || ext == ".json") {
		return a, errors.New("a file behind a URL can change without notice, and is never fetched; download it into the repository and name it there")
	}
	return a, nil
}

// parseHost parses the scheme and the host, and returns the rest.
func parseHost(text string) (a address, rest string, err error) {
	if strings.ContainsAny(text, "#%\\") || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return a, "", errors.New("an address of a repository has no escapes, fragments, spaces or characters other than ASCII")
	}
	scheme, rest, hasScheme := strings.Cut(text, "://")
	var authority string
	switch a.scheme = strings.ToLower(scheme); {
	case !hasScheme && isGithub(text):
		a.scheme = "https"
		authority, rest = text[:len("github.com")], text[len("github.com/"):]
	case !hasScheme && scpLike.MatchString(text):
		// user@host:path; its paths are relative to a home directory.
		a.scheme = "ssh"
		authority, rest, _ = strings.Cut(text, ":")
	case !hasScheme:
		return a, "", errors.New("is not an address of a repository that is understood here; write https://host/org/repo//directory?ref=…" + locally(text))
	case a.scheme == "https", a.scheme == "http", a.scheme == "ssh":
		authority, rest, _ = strings.Cut(rest, "/")
	case a.scheme == "file":
		return a, "", errors.New("is outside the fleet repository, on whatever machine renders; copy what it names into the repository")
	default:
		return a, "", errors.New("this kind of address is not supported; write https://host/org/repo//directory?ref=…")
	}
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		if a.scheme != "ssh" {
			return a, "", errors.New("has a user name or password before the host; remote bases are fetched without credentials: leave it out, and revoke it if it was a secret")
		}
		authority = authority[i+1:]
	}
	if a.host, err = parseHostPort(a.scheme, authority); err != nil {
		return a, "", err
	}
	if a.host == "github.com" && a.scheme == "http" {
		a.scheme = "https" // as kustomize has it
	}
	return a, rest, nil
}

func isGithub(text string) bool {
	const host = "github.com"
	return len(text) > len(host) && strings.EqualFold(text[:len(host)], host) && (text[len(host)] == '/' || text[len(host)] == ':')
}

var (
	scpLike  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9-]*@[^/:]+:`)
	hostName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
	ipv6     = regexp.MustCompile(`^\[[0-9a-f:.]+\]$`)
)

var defaultPorts = map[string]string{"https": "443", "http": "80", "ssh": "22"}

// parseHostPort returns the canonical form of a host and port.
func parseHostPort(scheme, authority string) (string, error) {
	host, port := strings.ToLower(authority), ""
	if i := strings.LastIndexByte(host, ':'); i > strings.LastIndexByte(host, ']') {
		host, port = host[:i], host[i+1:]
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return "", fmt.Errorf("%q is not a port", port)
		}
		port = strconv.FormatUint(n, 10)
	}
	switch {
	case !hostName.MatchString(host) && !ipv6.MatchString(host):
		return "", fmt.Errorf("%q is not a host", host)
	case port == "" || port == defaultPorts[scheme]:
		return host, nil
	}
	return host + ":" + port, nil
}

// split splits a path into the repository and the directory in it, as kustomize does: at
// _git/, else at //, else at .git, else after two segments.
func split(rest string) (repository, dir string, err error) {
	const azure = "_git/"
	if i := strings.Index(rest, azure); i >= 0 && (i == 0 || rest[i-1] == '/') {
		name, dir, _ := strings.Cut(rest[i+len(azure):], "/")
		return rest[:i+len(azure)] + name, dir, nil
	}
	if repository, dir, ok := strings.Cut(rest, "//"); ok {
		return repository, dir, nil
	}
	if i := strings.Index(rest, ".git"); i >= 0 {
		end := i + len(".git")
		if end < len(rest) && rest[end] != '/' {
			// Kustomize would split there.
			return "", "", errors.New("write // between the repository and the directory in it")
		}
		return rest[:end], rest[end:], nil
	}
	parts := strings.SplitN(rest, "/", 3)
	if len(parts) < 2 {
		return "", "", errors.New("does not say where the repository ends; write // behind it, https://host/org/repo//directory?ref=…")
	}
	return strings.Join(parts[:2], "/"), strings.Join(parts[2:], ""), nil
}

var segment = regexp.MustCompile(`^[A-Za-z0-9._~+-]*[A-Za-z0-9_~+-][A-Za-z0-9._~+-]*$`)

// segments returns the segments of the path of a repository or prefix. It refuses segments
// that a server could read as different ones.
func segments(text string) ([]string, error) {
	parts := strings.Split(text, "/")
	for _, s := range parts {
		if !segment.MatchString(s) {
			return nil, fmt.Errorf("%q is not a segment of a repository's path: it is empty, or has only dots or unusual characters", s)
		}
	}
	return parts, nil
}

func cleanDir(dir string) (string, error) {
	cleaned := path.Clean(strings.TrimLeft(dir, "/"))
	if !fs.ValidPath(cleaned) {
		return "", fmt.Errorf("%q leads out of its repository", dir)
	}
	return cleaned, nil
}

func (a *address) parseQuery(query string) error {
	values, err := url.ParseQuery(query)
	if err != nil {
		return errors.New("the text after the ? is not key=value&key=value")
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		switch {
		case !slices.Contains(parameters, key):
			return fmt.Errorf("%s= is not known here; there are %s", key, strings.Join(parameters, ", "))
		case len(values[key]) > 1:
			return fmt.Errorf("%s= is there twice", key)
		}
	}
	a.ref = cmp.Or(values.Get("ref"), values.Get("version"))
	if strings.ContainsFunc(a.ref, func(r rune) bool { return r <= ' ' || r > '~' || r == '\'' }) {
		return errors.New("?ref= is not the name of anything in Git")
	}
	a.timeout = defaultTimeout
	if text := values.Get("timeout"); text != "" {
		d, err := time.ParseDuration(text)
		if n, nerr := strconv.Atoi(text); nerr == nil && n < 1_000_000 {
			d, err = time.Duration(n)*time.Second, nil
		}
		if err != nil || d <= 0 || d > maxTimeout {
			return fmt.Errorf("timeout= is a number of seconds, or a duration as in 90s, of at most %s", maxTimeout)
		}
		a.timeout = d
	}
	if text := values.Get("submodules"); text != "" {
		switch with, err := strconv.ParseBool(text); {
		case err != nil:
			return errors.New("submodules= is true or false")
		case with:
			return errors.New("submodules are not fetched; name what is in the submodule by its own repository and commit")
		}
	}
	return nil
}
