package remote

import (
	"strings"
	"testing"
	"time"

	"gitopsd.dev/sources"
)

const commit = "0123456789abcdef0123456789abcdef01234567"

// An address that kustomize reads as a directory of a repository is that directory.
func TestAddresses(t *testing.T) {
	t.Parallel()
	allowed := prefixes(t, "https://github.com/acme/", "https://git.example.org", "http://127.0.0.1:8080/", "https://dev.azure.com/acme", "https://git.example.org:8443/", "https://[::1]/")
	for entry, want := range map[string]Base{
		"https://github.com/acme/bases//config/default?ref=" + commit:                    base("https://github.com/acme/bases", "config/default"),
		"https://github.com/acme/bases/config/default?ref=" + commit:                     base("https://github.com/acme/bases", "config/default"),
		"https://github.com/acme/bases.git/config?ref=" + commit:                         base("https://github.com/acme/bases.git", "config"),
		"https://github.com/acme/bases.git//config?ref=" + commit:                        base("https://github.com/acme/bases.git", "config"),
		"https://github.com/acme/bases.git?ref=" + commit:                                base("https://github.com/acme/bases.git", "."),
		"https://github.com/acme/bases?version=" + commit:                                base("https://github.com/acme/bases", "."),
		"https://github.com/acme/bases//?ref=" + commit:                                  base("https://github.com/acme/bases", "."),
		"https://github.com/acme/bases//a/../b//c/?ref=" + commit:                        base("https://github.com/acme/bases", "b/c"),
		"github.com/acme/bases//config?ref=" + commit:                                    base("https://github.com/acme/bases", "config"),
		"GitHub.com/acme/bases/config?ref=" + commit:                                     base("https://github.com/acme/bases", "config"),
		"github.com:acme/bases?ref=" + commit:                                            base("https://github.com/acme/bases", "."),
		"http://github.com/acme/bases?ref=" + commit:                                     base("https://github.com/acme/bases", "."),
		"HTTPS://GIT.Example.org:443/a/b/c/bases//x?ref=" + strings.ToUpper(commit):      base("https://git.example.org/a/b/c/bases", "x"),
		"https://git.example.org:8443/bases.git?ref=" + commit:                           base("https://git.example.org:8443/bases.git", "."),
		"https://[::1]/bases.git?ref=" + commit:                                          base("https://[::1]/bases.git", "."),
		"http://127.0.0.1:8080/bases.git//x?ref=" + commit:                               base("http://127.0.0.1:8080/bases.git", "x"),
		"https://dev.azure.com/acme/project/_git/bases/config?ref=" + commit:             base("https://dev.azure.com/acme/project/_git/bases", "config"),
		"https://github.com/acme/bases?submodules=false&timeout=90s&ref=" + commit:       {Tree: sources.Tree{Repository: "https://github.com/acme/bases", Commit: commit}, Dir: ".", Timeout: 90 * time.Second},
		"https://github.com/acme/bases?timeout=120&ref=" + commit:                        {Tree: sources.Tree{Repository: "https://github.com/acme/bases", Commit: commit}, Dir: ".", Timeout: 2 * time.Minute},
		"https://github.com/acme/bases//config/x.yaml?ref=" + commit:                     base("https://github.com/acme/bases", "config/x.yaml"),
		"https://github.com/acme/my.bases/kustomize.yaml/overlay?version=&ref=" + commit: base("https://github.com/acme/my.bases", "kustomize.yaml/overlay"),
	} {
		if !Looks(entry) {
			t.Errorf("%s does not look remote", entry)
		}
		if have, err := allowed.Base(entry); err != nil || have != want {
			t.Errorf("%s: have %v, %v, want %v", entry, have, err, want)
		}
	}
}

func base(repository, dir string) Base {
	return Base{Tree: sources.Tree{Repository: repository, Commit: commit}, Dir: dir, Timeout: defaultTimeout}
}

// For an address that cannot be used, the error has the reason and advice, without secrets.
func TestRefused(t *testing.T) {
	t.Parallel()
	allowed := prefixes(t, "https://github.com/acme/", "https://git.example.org")
	for entry, want := range map[string]string{
		"https://github.com/acme/bases//x?ref=v1.2.0":                        "write ?ref= and the commit's full hash, 40 hexadecimal digits (the last line of `git ls-remote https://github.com/acme/bases 'v1.2.0' 'v1.2.0^{}'`)",
		"https://github.com/acme/bases//x?ref=" + commit[:12]:                "a tag, a branch or part of a hash",
		"https://github.com/acme/bases//x?ref=" + commit + commit[:24]:       "a tag, a branch or part of a hash",
		"https://github.com/acme/bases//x":                                   "names no commit",
		"github.com/acme/bases":                                              "(`git ls-remote https://github.com/acme/bases HEAD` prints the newest)",
		"https://github.com/acme/bases?ref=x'%20%3B%20rm":                    "is not the name of anything in Git",
		"https://github.com/acme/bases/releases/download/v1/install.yaml":    "download it into the repository and name it there",
		"https://raw.githubusercontent.com/acme/bases/main/x.yaml?token=abc": "token= is not known here",
		"https://raw.githubusercontent.com/acme/bases/main/x.yaml":           "download it into the repository and name it there",
		"https://github.com/other/bases?ref=" + commit:                       "https://github.com/other/bases is not below what --allow-remote-bases allows (https://github.com/acme, https://git.example.org/)",
		"git@github.com:acme/bases//x?ref=" + commit:                         "SSH needs a key; write https://github.com/acme/bases//x?ref=" + commit,
		"ssh://git@git.example.org:2222/acme/bases.git?ref=" + commit:        "SSH needs a key; write https://git.example.org/acme/bases.git//?ref=" + commit,
		"git@git.example.org:acme/bases":                                     "SSH needs a key; write https://git.example.org/acme/bases//,",
		"git::https://github.com/acme/bases?ref=" + commit:                   "this kind of address is not supported",
		"oci://ghcr.io/acme/bases":                                           "this kind of address is not supported",
		"file:///srv/bases?ref=" + commit:                                    "is outside the fleet repository",
		"c:windows":                                                          "(a local path that looks like this is written ./c:windows)",
		"https://github.com/acme/bases?submodules=true&ref=" + commit:        "submodules are not fetched",
		"https://github.com/acme/bases?submodules=perhaps&ref=" + commit:     "submodules= is true or false",
		"https://github.com/acme/bases?timeout=1h&ref=" + commit:             "of at most 2m0s",
		"https://github.com/acme/bases?timeout=-1&ref=" + commit:             "timeout= is a number of seconds",
		"https://github.com/acme/bases?ref=v1&ref=" + commit:                 "ref= is there twice",
		"https://github.com/acme/bases?d=1&c=1&b=1&e=1&ref=" + commit:        "b= is not known here",
		"https://github.com/acme/bases?;ref=" + commit:                       "is not key=value",
		"https://github.com/acme":                                            "does not say where the repository ends; write // behind it",
		"https://github.com/acme/foo.github.io/x?ref=" + commit:              "write // between the repository and the directory in it",
		"https://github.com/acme/bases//../../x?ref=" + commit:               `"../../x" leads out of its repository`,
	} {
		_, err := allowed.Base(entry)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: have %v\nwant an error with %q", entry, err, want)
		}
		for range 20 { // the order of a map's keys is random
			if _, again := allowed.Base(entry); err != nil && again.Error() != err.Error() {
				t.Errorf("%s: then %v, now %v", entry, err, again)
			}
		}
	}
	var none Prefixes
	if _, err := none.Base("https://github.com/acme/bases?ref=" + commit); err == nil || !strings.Contains(err.Error(), "is remote, or looks so: gitopsd builds from the fleet repository alone, unless its operator allows others with --allow-remote-bases") {
		t.Errorf("have %v", err)
	}
}

// An address that only looks as if it were below a prefix is not.
func TestPrefixesCannotBeTricked(t *testing.T) {
	t.Parallel()
	allowed := prefixes(t, "https://github.com/acme/", "https://git.example.org/team/bases", "https://git.example.org:8443/team")
	for _, address := range []string{
		"https://github.com/acme-evil/bases",
		"https://github.com/acme.git/bases//x",
		"https://github.com/acm/bases",
		"https://github.com/Acme/bases",
		"https://github.com/evil/acme",
		"https://github.com/acme/../evil/bases",
		"https://github.com/acme//../evil/bases",
		"https://github.com/acme/./../evil/bases",
		"https://github.com/acme/%2e%2e/evil//x",
		"https://github.com/acme%2f..%2fevil/bases",
		"https://github.com/acme/..%2fevil//x",
		`https://github.com/acme\..\evil/bases`,
		"https://github.com//acme/bases",
		"https://github.com@evil.example/acme/bases",
		"https://github.com:443@evil.example/acme/bases",
		"https://user:secret@github.com/acme/bases",
		"https://acme@github.com/acme/bases",
		"https://evil.example#github.com/acme/bases",
		"https://evil.example?https://github.com/acme/bases",
		"https://evil.example/https://github.com/acme/bases",
		"https://github.com.evil.example/acme/bases",
		"https://github.com./acme/bases",
		"https://evilgithub.com/acme/bases",
		"https://github.com:444/acme/bases",
		"https://github.com:80/acme/bases",
		"https://github.com:/acme/bases",
		"https://github.com:0443x/acme/bases",
		"https://gıthub.com/acme/bases",
		"https://github.com\t/acme/bases",
		" https://github.com/acme/bases",
		"https://github.com /acme/bases",
		"https:///github.com/acme/bases",
		"https:/github.com/acme/bases",
		"https:github.com/acme/bases",
		"//github.com/acme/bases",
		"ftp://github.com/acme/bases",
		"http://git.example.org/team/bases",
		"https://git.example.org:8443/teams/bases",
		"https://git.example.org:08444/team/bases",
		"https://git.example.org/team/bases2",
		"https://git.example.org/team/bases-evil.git",
		"https://git.example.org/team/bases/../evil.git",
		"https://git.example.org/team",
		"https://git.example.org/team//bases",
		"git.example.org/team/bases",
		"git@github.com:acme/bases",
		"ssh://github.com/acme/bases",
		"github.com:../acme/bases",
		"github.com/acme/..//x",
	} {
		if have, err := allowed.Base(address + "?ref=" + commit); err == nil {
			t.Errorf("%s: is allowed, as %v", address, have)
		} else if strings.Contains(err.Error(), "secret") && !strings.Contains(err.Error(), "if it was a secret") {
			t.Errorf("%s: %v", address, err)
		}
	}
	for _, address := range []string{
		"https://github.com/acme/bases", "https://GITHUB.com:443/acme/bases", "github.com/acme/bases.git", "https://git.example.org/team/bases.git//x",
		"https://git.example.org:8443/team/x/y//z", "https://git.example.org/team/bases/more//x",
	} {
		if _, err := allowed.Base(address + "?ref=" + commit); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestPrefixesThatAreNone(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"github.com/acme":                   "want the beginning of a repository's URL",
		"":                                  "want the beginning of a repository's URL",
		"https://github.com/acme?ref=main":  "want the beginning of a repository's URL",
		"https://*/":                        "is not a host",
		"https://":                          "is not a host",
		"ssh://git@github.com/acme":         "SSH needs a key",
		"https://token@github.com/acme":     "fetched without credentials",
		"https://github.com/acme/*":         "not a segment of a repository's path",
		"https://github.com/acme//bases":    "not a segment of a repository's path",
		"https://github.com/acme/../other/": "not a segment of a repository's path",
	} {
		_, err := ParsePrefixes([]string{text})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "token") {
			t.Errorf("%q: have %v\nwant an error with %q", text, err, want)
		}
	}
}

func TestShown(t *testing.T) {
	t.Parallel()
	for entry, want := range map[string]string{
		"https://github.com/acme/bases?ref=v1":                 "https://github.com/acme/bases?ref=v1",
		"https://user:s3cret@github.com/acme/bases":            "https://…@github.com/acme/bases",
		"https://user:s3@cret@github.com/acme/bases//x?ref=v1": "https://…@github.com/acme/bases//x?ref=v1",
		"https://raw.example.org/x.yaml?token=s3cret&ref=main": "https://raw.example.org/x.yaml?token=…&ref=main",
		"git@github.com:acme/bases":                            "git@github.com:acme/bases",
	} {
		if have := Shown(entry); have != want {
			t.Errorf("%s: have %s, want %s", entry, have, want)
		}
	}
}

func prefixes(t *testing.T, urls ...string) Prefixes {
	t.Helper()
	p, err := ParsePrefixes(urls)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Every allowed address is fetched from below the prefix, and its path means the same to
// every server.
func FuzzBase(f *testing.F) {
	for _, s := range []string{"https://github.com/acme/bases//x?ref=" + commit, "github.com/acme/bases?ref=" + commit, "https://github.com/acme/../x?ref=" + commit, "git@github.com:acme/x", "githuB.Com/acme//?ref=" + commit} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, entry string) {
		base, err := Prefixes{{address{scheme: "https", host: "github.com", path: []string{"acme"}}}}.Base(entry)
		if err != nil {
			return
		}
		// The prefix is a repository too.
		rest, below := strings.CutPrefix(base.Tree.Repository, "https://github.com/acme/")
		itself := base.Tree.Repository == "https://github.com/acme" || base.Tree.Repository == "https://github.com/acme.git"
		rest = "/" + rest + "/"
		odd := strings.ContainsAny(rest, "%\\?#@: ") || strings.Contains(rest, "//") || strings.Contains(rest, "/../") || strings.Contains(rest, "/./")
		if !itself && (!below || odd) {
			t.Errorf("%q is %q", entry, base.Tree.Repository)
		}
		if !Looks(entry) {
			t.Errorf("%q does not look remote", entry)
		}
	})
}
