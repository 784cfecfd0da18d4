package wire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gitopsd.dev/testscripts/gitserver"
)

const (
	hashA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	hashB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// pkts frames lines; "flush", "delim" and "end" are the special packets.
func pkts(lines ...string) string {
	var b strings.Builder
	for _, line := range lines {
		switch line {
		case "flush":
			b.WriteString("0000")
		case "delim":
			b.WriteString("0001")
		case "end":
			b.WriteString("0002")
		default:
			fmt.Fprintf(&b, "%04x%s", len(line)+4, line)
		}
	}
	return b.String()
}

func reader(s string) *pktReader { return newPktReader(strings.NewReader(s), func() {}) }

func wantError(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("error %v, want one with %q", err, text)
	}
}

func TestReadGreeting(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, in string
		v2       bool
		refs     string
		caps     string // one that must be there
		err      string
	}{
		{name: "version 2", in: pkts("version 2\n", "agent=git/2.39\n", "fetch=shallow filter\n", "flush"), v2: true, caps: "fetch"},
		{name: "version 2 after the service", in: pkts("# service=git-upload-pack\n", "flush", "version 2\n", "ls-refs\n", "flush"), v2: true, caps: "ls-refs"},
		{
			name: "version 0", in: pkts("# service=git-upload-pack\n", "flush", hashA+" HEAD\x00shallow agent=x\n", hashA+" refs/heads/main\n", hashB+" refs/heads/next\n", hashB+" refs/tags/v1\n", hashA+" refs/tags/v1^{}\n", "flush"),
			refs: "refs/heads/main refs/heads/next", caps: "shallow",
		},
		{name: "version 1", in: pkts("version 1\n", hashA+" refs/heads/main\x00shallow\n", "flush"), refs: "refs/heads/main", caps: "shallow"},
		{name: "a shallow repository", in: pkts(hashA+" refs/heads/main\x00shallow", "shallow "+hashB, "flush"), refs: "refs/heads/main"},
		{name: "empty", in: pkts(strings.Repeat("0", 40)+" capabilities^{}\x00report-status", "flush"), caps: "report-status"},
		{name: "empty, as old servers say it", in: pkts("flush")},
		{name: "error", in: pkts("ERR Repository not found."), err: "repository not found: the server says: Repository not found."},
		{name: "another object format", in: pkts("version 2\n", "object-format=sha256\n", "flush"), err: "object format is sha256"},
		{name: "another object format, version 0", in: pkts(hashA+" refs/heads/main\x00object-format=sha256", "flush"), err: "object format is sha256"},
		{name: "a web page", in: "<html>", err: `not the Git protocol: the length of a packet is "<htm"`},
		{name: "cut", in: pkts("version 2\n", "ls-refs\n"), err: "unexpected EOF"},
		{name: "nothing", err: "unexpected EOF"},
		{name: "a packet cut", in: "0032version", err: "unexpected EOF"},
		{name: "a length that is none", in: "0003", err: "a packet of 3 bytes"},
		{name: "too long", in: "fff5", err: "a packet of 65525 bytes"},
		{name: "no hash", in: pkts("main refs/heads/main\x00x", "flush"), err: `object name "main"`},
		{name: "no ref", in: pkts("hello", "flush"), err: `"hello" in a list of refs`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g, err := readGreeting(reader(tt.in), filter{prefixes: []string{"refs/heads/"}})
			if tt.err != "" {
				wantError(t, err, tt.err)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, r := range g.refs {
				names = append(names, r.Name)
			}
			if g.v2 != tt.v2 || g.listed == tt.v2 || strings.Join(names, " ") != tt.refs || tt.caps != "" && !g.supports(tt.caps, "") {
				t.Errorf("%+v", g)
			}
		})
	}
}

// canned answers requests with what servers were seen to say.
type canned struct{ answer string }

func (c canned) greeting(context.Context) (*pktReader, error) { return nil, errors.New("not here") }
func (c canned) request(context.Context, []byte) (*pktReader, error) {
	return reader(c.answer), nil
}
func (c canned) explain(err error) error { return err }
func (c canned) close()                  {}

func TestPushReport(t *testing.T) {
	t.Parallel()
	band := func(lines ...string) string { // a report inside the first channel
		return pkts("\x01"+pkts(lines...), "flush")
	}
	const ref = "refs/heads/main"
	for _, tt := range []struct {
		name, answer string
		moved        bool
		refused      string // the reason
		rule         bool   // that the reason names
		err          string
	}{
		{name: "ok", answer: band("unpack ok\n", "ok "+ref+"\n", "flush")},
		{name: "git, lost race", answer: band("unpack ok\n", "ng "+ref+" failed to update ref\n", "flush"), moved: true},
		{name: "git, lock held", answer: band("unpack ok\n", "ng "+ref+" cannot lock ref 'refs/heads/main': is at b but expected a\n", "flush"), moved: true},
		{name: "git, newer", answer: band("unpack ok\n", "ng "+ref+" incorrect old value provided\n", "flush"), moved: true},
		{name: "JGit", answer: band("unpack ok\n", "ng "+ref+" lock error: Unable to lock\n", "flush"), moved: true},
		{name: "not a fast-forward", answer: band("unpack ok\n", "ng "+ref+" non-fast-forward\n", "flush"), moved: true},
		{name: "hook", answer: band("unpack ok\n", "ng "+ref+" pre-receive hook declined\n", "flush"), refused: "pre-receive hook declined", rule: true},
		{
			name: "GitHub, protected", answer: pkts("\x02remote: error: GH006: Protected branch update failed.\nremote:\n", "\x01"+pkts("unpack ok\n", "ng "+ref+" protected branch hook declined\n", "flush"), "flush"),
			refused: "protected branch hook declined", rule: true, err: "\nerror: GH006: Protected branch update failed.",
		},
		{name: "GitHub, race in a hook's words", answer: band("unpack ok\n", "ng "+ref+" hook declined: cannot lock ref\n", "flush"), refused: "hook declined: cannot lock ref", rule: true},
		{name: "GitHub, ruleset", answer: band("unpack ok\n", "ng "+ref+" push declined due to repository rule violations\n", "flush"), refused: "push declined due to repository rule violations", rule: true},
		{name: "Azure", answer: band("unpack ok\n", "ng "+ref+" TF402455: Pushes to this branch are not permitted; you must use a pull request.\n", "flush"), refused: "TF402455: Pushes to this branch are not permitted; you must use a pull request.", rule: true},
		{name: "gc", answer: band("unpack ok\n", "ng "+ref+" unable to migrate objects to permanent storage\n", "flush"), refused: "unable to migrate objects to permanent storage"},
		{name: "disk full", answer: band("unpack index-pack abnormal exit\n", "ng "+ref+" unpacker error\n", "flush"), refused: "unpack index-pack abnormal exit"},
		{name: "another ref only", answer: band("unpack ok\n", "ok refs/heads/other\n", "flush"), err: "did not say what became of refs/heads/main"},
		{name: "cut", answer: pkts("\x01" + pkts("unpack ok\n")), err: "unexpected EOF"},
		{name: "fatal", answer: pkts("\x03the server is going down\n"), err: "the server says: the server is going down"},
		{name: "another channel", answer: pkts("\x07x"), err: "a packet on channel 7"},
		{name: "no report", answer: band("hello\n", "flush"), err: `"hello" in the report`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			g := &greeting{caps: map[string]string{"report-status": "", "side-band-64k": ""}}
			err := push(t.Context(), canned{tt.answer}, g, ref, hashA, hashB, nil)
			var refused *RefusedError
			switch {
			case tt.moved:
				if !errors.Is(err, ErrMoved) {
					t.Errorf("error %v, want ErrMoved", err)
				}
			case tt.refused != "":
				if !errors.As(err, &refused) || refused.Reason != tt.refused || errors.Is(err, ErrMoved) || refused.ByRule() != tt.rule {
					t.Errorf("error %v, want a refusal with the reason %q, by a rule: %t", err, tt.refused, tt.rule)
				}
			case tt.err == "" && err != nil:
				t.Error(err)
			}
			if tt.err != "" {
				wantError(t, err, tt.err)
			}
		})
	}
	g := &greeting{caps: map[string]string{"report-status": ""}}
	if err := push(t.Context(), canned{pkts("unpack ok\n", "ok "+ref+"\n", "flush")}, g, ref, hashA, hashB, nil); err != nil {
		t.Errorf("without a sideband: %v", err)
	}
	wantError(t, push(t.Context(), canned{}, g, ref, hashA, noHash, nil), "does not allow deletion")
	wantError(t, push(t.Context(), canned{}, &greeting{}, ref, hashA, hashB, nil), "no report-status")
}

func TestFetchAnswers(t *testing.T) {
	t.Parallel()
	v0 := &greeting{caps: map[string]string{"side-band-64k": "", "ofs-delta": "", "shallow": "", "multi_ack_detailed": ""}}
	v2 := &greeting{v2: true, caps: map[string]string{"fetch": "shallow wait-for-done"}}
	for _, tt := range []struct {
		name   string
		g      *greeting
		answer string
		err    string
	}{
		{name: "version 2", g: v2, answer: pkts("shallow-info\n", "shallow "+hashA+"\n", "delim", "packfile\n", "\x02hello", "\x01PA", "\x01CK", "flush")},
		{name: "version 2, acknowledgments", g: v2, answer: pkts("acknowledgments\n", "ACK "+hashA+"\n", "ready\n", "delim", "packfile\n", "\x01PACK", "flush")},
		{name: "version 2, no pack", g: v2, answer: pkts("acknowledgments\n", "NAK\n", "flush"), err: "has no pack"},
		{name: "version 2, gone", g: v2, answer: pkts("ERR upload-pack: not our ref " + hashA), err: "the server does not have that commit"},
		{name: "version 2, no shallow", g: &greeting{v2: true, caps: map[string]string{"fetch": ""}}, err: "no shallow fetch"},
		{name: "version 0", g: v0, answer: pkts("shallow "+hashA, "flush", "NAK\n", "\x01PACK", "flush")},
		{name: "version 0, many ACKs", g: v0, answer: pkts("shallow "+hashA, "flush", "ACK "+hashA+" common\n", "ACK "+hashB+" ready\n", "NAK\n", "ACK "+hashB+"\n", "\x01PACK", "flush")},
		{name: "version 0, something else", g: v0, answer: pkts("flush", "hello\n"), err: `"hello" in the answer`},
		{name: "version 0, cut", g: v0, answer: pkts("flush", "NAK\n"), err: "unexpected EOF"},
		{name: "version 0, pack cut", g: v0, answer: pkts("flush", "NAK\n", "\x01PACK"), err: "unexpected EOF"},
		{name: "version 0, no shallow", g: &greeting{}, err: "protocol has no side-band-64k"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			fetch := fetchV0
			if tt.g.v2 {
				fetch = fetchV2
			}
			var pack []byte
			err := fetch(t.Context(), canned{tt.answer}, tt.g, hashA, []string{hashB}, func(r io.Reader) (err error) {
				pack, err = io.ReadAll(r)
				return err
			})
			if tt.err != "" {
				wantError(t, err, tt.err)
			} else if err != nil || string(pack) != "PACK" {
				t.Errorf("pack %q, %v", pack, err)
			}
		})
	}
	_, err := readGreeting(reader(pkts("ERR upload-pack: not our ref "+hashA)), filter{})
	if !errors.Is(err, ErrUnknownObject) {
		t.Errorf("%v is not ErrUnknownObject", err)
	}
}

// A server that says nothing does not hold up a caller without a deadline.
func TestSilence(t *testing.T) {
	t.Parallel()
	s := gitserver.Start(t, gitserver.Config{})
	if _, err := s.Create(t.Context(), "fleet"); err != nil {
		t.Fatal(err)
	}
	s.Fail(gitserver.Fault{Hang: true, Discovery: true})
	for _, text := range []string{s.URL("fleet"), s.SSHURL("fleet")} {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		c, err := New(Config{URL: u, SSHKeyFile: s.SSHKeyFile, KnownHostsFile: s.KnownHostsFile})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.stall = 200 * time.Millisecond
		_, err = c.List(t.Context(), 0, "refs/heads/")
		wantError(t, err, "the server was silent for 200ms")
	}
}

// A hook that hangs does not hold up a caller without a deadline, although git sends
// keepalives meanwhile.
func TestHangingHook(t *testing.T) {
	t.Parallel()
	s := gitserver.Start(t, gitserver.Config{})
	repo, err := s.Create(t.Context(), "fleet")
	if err != nil {
		t.Fatal(err)
	}
	hash, err := repo.Commit(t.Context(), "next", "First", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := repo.Hook("pre-receive", "#!/bin/sh\nsleep 30\n"); err != nil {
		t.Fatal(err)
	}
	c, err := New(Config{Dir: repo.Dir})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.longest = 500 * time.Millisecond
	err = c.Push(t.Context(), "refs/heads/next", hash, noHash, nil)
	wantError(t, err, "the server was not done after 500ms")
}

func TestRedirects(t *testing.T) {
	t.Parallel()
	s := gitserver.Start(t, gitserver.Config{})
	repo, err := s.Create(t.Context(), "fleet")
	if err != nil {
		t.Fatal(err)
	}
	hash, err := repo.Commit(t.Context(), "main", "First", nil)
	if err != nil {
		t.Fatal(err)
	}
	backend, err := url.Parse(s.URL("fleet"))
	if err != nil {
		t.Fatal(err)
	}
	// A forge where the repository has another name now, and other places.
	forge := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, rest, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		query := "?" + r.URL.RawQuery
		switch name {
		case "old.git":
			http.Redirect(w, r, "/new.git/"+rest+query, http.StatusMovedPermanently)
		case "new.git":
			r.URL.Scheme, r.URL.Host, r.URL.Path, r.RequestURI = backend.Scheme, backend.Host, "/fleet.git/"+rest, ""
			res, err := http.DefaultTransport.RoundTrip(r)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadGateway)
				return
			}
			defer res.Body.Close()
			w.Header().Set("Content-Type", res.Header.Get("Content-Type"))
			w.WriteHeader(res.StatusCode)
			io.Copy(w, res.Body)
		case "away.git":
			http.Redirect(w, r, "http://localhost:1/fleet.git/"+rest+query, http.StatusFound)
		case "elsewhere.git":
			http.Redirect(w, r, s.URL("fleet")+"/"+rest+query, http.StatusFound)
		case "login.git":
			http.Redirect(w, r, "/login", http.StatusFound)
		case "circle.git":
			http.Redirect(w, r, r.URL.String(), http.StatusFound)
		default:
			w.Header().Set("Content-Type", "text/html")
			fmt.Fprint(w, "<html>Please log in</html>")
		}
	}))
	t.Cleanup(forge.Close)
	list := func(name string) (refs []Ref, err error) {
		u, err := url.Parse(forge.URL + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		c, err := New(Config{URL: u, Credentials: func(context.Context) (string, string, error) { return "fleet", "s3cr3t", nil }})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for range 2 {
			if refs, err = c.List(t.Context(), 0, "refs/heads/"); err != nil {
				break
			}
		}
		return refs, err
	}
	if refs, err := list("old.git"); err != nil || len(refs) != 1 || refs[0].Hash != hash {
		t.Errorf("%v, %v", refs, err)
	}
	for name, want := range map[string]string{
		"away.git":      "the server redirects to http://localhost:1: if that is right, use that URL",
		"elsewhere.git": "the server redirects to http://" + backend.Host,
		"login.git":     `the answer is not smart HTTP of a Git server (content type "text/html")`,
		"circle.git":    "redirects in circles",
		"nope.git":      "the answer is not smart HTTP",
	} {
		_, err := list(name)
		wantError(t, err, want)
	}
}

// All polls go over one connection, and a closed one is no error.
func TestConnections(t *testing.T) {
	t.Parallel()
	s := gitserver.Start(t, gitserver.Config{})
	if _, err := s.Create(t.Context(), "fleet"); err != nil {
		t.Fatal(err)
	}
	backend, err := url.Parse(s.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	backend.Path = ""
	var opened atomic.Int32
	front := httptest.NewUnstartedServer(httputil.NewSingleHostReverseProxy(backend))
	front.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	front.Start()
	t.Cleanup(front.Close)
	u, err := url.Parse(front.URL + "/fleet.git")
	if err != nil {
		t.Fatal(err)
	}
	c, err := New(Config{URL: u})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, want := range []int32{1, 2} {
		for range 5 {
			if _, err := c.List(t.Context(), 0, "refs/heads/main"); err != nil {
				t.Fatal(err)
			}
		}
		if have := opened.Load(); have != want {
			t.Errorf("%d connections, want %d", have, want)
		}
		front.CloseClientConnections()
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"remote: \nremote: no\x1b[K\r\nremote:  \n": "no[K",
		"a\nb\n": "a\nb",
		"\xff":   "?",
		"":       "",
	} {
		if have := clean(in); have != want {
			t.Errorf("clean(%q) is %q, want %q", in, have, want)
		}
	}
	if have := clean(strings.Repeat("ä", 2000)); len(have) > 2010 {
		t.Errorf("%d bytes are left", len(have))
	}
}

func FuzzGreeting(f *testing.F) {
	f.Add([]byte(pkts("version 2\n", "agent=git/2.39\n", "fetch=shallow filter\n", "flush")))
	f.Add([]byte(pkts("# service=git-upload-pack\n", "flush", hashA+" HEAD\x00shallow\n", hashA+" refs/heads/main\n", "flush")))
	f.Fuzz(func(t *testing.T, in []byte) {
		g, err := readGreeting(newPktReader(bytes.NewReader(in), func() {}), filter{prefixes: []string{""}})
		if err != nil {
			return
		}
		for _, r := range g.refs {
			if !isHash(r.Hash) {
				t.Errorf("ref %q names %q", r.Name, r.Hash)
			}
		}
	})
}

func FuzzFetchAnswer(f *testing.F) {
	f.Add(true, pkts("shallow-info\n", "shallow "+hashA+"\n", "delim", "packfile\n", "\x02hello", "\x01PACK", "flush"))
	f.Add(false, pkts("shallow "+hashA, "flush", "ACK "+hashA+" common\n", "NAK\n", "\x01PACK", "flush"))
	f.Fuzz(func(t *testing.T, isV2 bool, answer string) {
		g := &greeting{v2: isV2, caps: map[string]string{"fetch": "shallow", "side-band-64k": "", "ofs-delta": "", "shallow": ""}}
		fetch := fetchV0
		if isV2 {
			fetch = fetchV2
		}
		n := int64(0)
		fetch(context.Background(), canned{answer}, g, hashA, nil, func(r io.Reader) (err error) {
			n, err = io.Copy(io.Discard, r)
			return err
		})
		if n > int64(len(answer)) {
			t.Errorf("%d bytes of a pack in an answer of %d", n, len(answer))
		}
	})
}
