package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// List returns the refs with one of the prefixes, at most most of them (0 means all).
// The error is [ErrAuthentication], [ErrNotFound] or [ErrHostKey] for these reasons.
func (c *Client) List(ctx context.Context, most int, prefixes ...string) ([]Ref, error) {
	return c.list(ctx, filter{prefixes: prefixes, most: most})
}

// Tips returns at most most branches and tags, with the peeled objects of annotated
// tags. It fails as List does.
func (c *Client) Tips(ctx context.Context, most int) ([]Ref, error) {
	return c.list(ctx, filter{prefixes: []string{"refs/heads/", "refs/tags/"}, most: most, peel: true})
}

func (c *Client) list(ctx context.Context, f filter) ([]Ref, error) {
	var refs []Ref
	err := c.converse(ctx, uploadPack, f, func(ctx context.Context, s session, g *greeting) error {
		if !g.v2 {
			refs = g.refs
			return nil
		}
		var err error
		refs, err = lsRefs(ctx, s, f)
		return err
	})
	return refs, err
}

// Fetch fetches the commit want and everything below its tree, without its parents, as
// one pack, which is passed to sink while it arrives. Objects of the commits in have,
// which the caller must have without their parents too, are left out. The pack is thin:
// its deltas may be based on those objects. (Otherwise git sends everything again to a
// shallow repository.) The error is [ErrUnknownObject] if the server does not have want,
// sink's, or one of List's.
func (c *Client) Fetch(ctx context.Context, want string, have []string, sink func(pack io.Reader) error) error {
	return c.converse(ctx, uploadPack, filter{}, func(ctx context.Context, s session, g *greeting) error {
		if g.v2 {
			return fetchV2(ctx, s, g, want, have, sink)
		}
		return fetchV0(ctx, s, g, want, have, sink)
	})
}

// History fetches the commits of wants and all their ancestors as one pack,
// with as few other objects as the server can leave out. It fails as Fetch
// does.
func (c *Client) History(ctx context.Context, wants []string, sink func(pack io.Reader) error) error {
	return c.converse(ctx, uploadPack, filter{}, func(ctx context.Context, s session, g *greeting) error {
		if g.v2 {
			return historyV2(ctx, s, g, wants, sink)
		}
		return historyV0(ctx, s, g, wants, sink)
	})
}

// commitsOnly requests a pack without trees and files.
const commitsOnly = "filter tree:0"

func historyV2(ctx context.Context, s session, g *greeting, all []string, sink func(io.Reader) error) error {
	var w pktWriter
	w.line("command=fetch")
	w.line("agent=%s", agent)
	w.delim()
	w.line("ofs-delta")
	w.line("no-progress")
	if g.supports("fetch", "filter") {
		w.line(commitsOnly)
	}
	for _, h := range all {
		w.line("want %s", h)
	}
	w.line("done")
	w.flush()
	return history(ctx, s, w.buf, "packfile", sink)
}

func historyV0(ctx context.Context, s session, g *greeting, all []string, sink func(io.Reader) error) error {
	caps := " side-band-64k"
	if err := g.require("side-band-64k"); err != nil {
		return err
	}
	for _, c := range []string{"ofs-delta", "filter", "no-progress"} {
		if g.supports(c, "") {
			caps += " " + c
		}
	}
	var w pktWriter
	for i, h := range all {
		if i > 0 {
			caps = ""
		}
		w.line("want %s%s", h, caps)
	}
	if g.supports("filter", "") {
		w.line(commitsOnly)
	}
	w.flush()
	w.line("done")
	return history(ctx, s, w.buf, "NAK", sink)
}

// history sends a request, and delivers the pack after the first line of the answer.
func history(ctx context.Context, s session, request []byte, first string, sink func(io.Reader) error) error {
	p, err := s.request(ctx, request)
	if err != nil {
		return err
	}
	line, kind, err := p.line()
	if err != nil {
		return err
	}
	if kind != dataPacket || line != first {
		return fmt.Errorf("not the Git protocol: %q in the answer to a fetch", clean(line))
	}
	return deliver(p, sink)
}

// Push changes ref from the object old to now, and sends the new objects in pack. If old
// is noHash, it creates the ref; if now is noHash and pack is nil, it deletes the ref.
//
// The error is [ErrMoved] if ref is not at old, a [*RefusedError] if the server refuses
// the push for another reason, or one of List's. After other errors the ref may or may
// not have changed.
func (c *Client) Push(ctx context.Context, ref, old, now string, pack []byte) error {
	return c.converse(ctx, receivePack, filter{prefixes: []string{ref}}, func(ctx context.Context, s session, g *greeting) error {
		if at, ok := g.at(ref); ok && at != old {
			return fmt.Errorf("%w: %s is at %s, not at %s", ErrMoved, ref, at, old)
		}
		err := push(ctx, s, g, ref, old, now, pack)
		if refused, ok := errors.AsType[*RefusedError](err); ok {
			_, refused.Local = c.t.(*programTransport)
		}
		return err
	})
}

// noHash means no object in a Push.
var noHash = strings.Repeat("0", 40)

// converse opens a session, reads its greeting unless that is known, and calls do.
func (c *Client) converse(ctx context.Context, service string, f filter, do func(context.Context, session, *greeting) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.longest, fmt.Errorf("the server was not done after %s", c.longest))
	defer cancel()
	watched, alive, stop := watchdog(ctx, c.stall)
	defer stop()
	err := func() error {
		s, err := c.t.open(watched, service, alive)
		if err != nil {
			return err
		}
		defer s.close()
		g := c.known.get(service)
		if g == nil || !c.t.stateless() {
			p, err := s.greeting(watched)
			if err != nil {
				return err
			}
			if g, err = readGreeting(p, f); err != nil {
				return s.explain(err)
			}
		}
		if err := do(watched, s, g); err != nil {
			c.known.set(service, nil) // the server may have changed
			return s.explain(err)
		}
		if g.v2 || service == receivePack {
			c.known.set(service, &greeting{v2: g.v2, caps: g.caps})
		}
		return nil
	}()
	return because(watched, err)
}

func lsRefs(ctx context.Context, s session, f filter) ([]Ref, error) {
	var w pktWriter
	w.line("command=ls-refs")
	w.line("agent=%s", agent)
	w.delim()
	if f.peel {
		w.line("peel")
	}
	for _, p := range f.prefixes {
		w.line("ref-prefix %s", p)
	}
	w.flush()
	p, err := s.request(ctx, w.buf)
	if err != nil {
		return nil, err
	}
	var refs []Ref
	for {
		line, kind, err := p.line()
		if err != nil {
			return nil, err
		}
		if kind != dataPacket {
			return refs, nil
		}
		hash, rest, _ := strings.Cut(line, " ")
		name, attributes, _ := strings.Cut(rest, " ")
		if !isHash(hash) {
			if hash == "unborn" {
				continue
			}
			return nil, fmt.Errorf("not the Git protocol: object name %q", clean(hash))
		}
		if f.keep(name, len(refs)) {
			ref := Ref{Name: name, Hash: hash}
			for attribute := range strings.FieldsSeq(attributes) {
				if peeled, ok := strings.CutPrefix(attribute, "peeled:"); ok && isHash(peeled) {
					ref.Peeled = peeled
				}
			}
			refs = append(refs, ref)
		}
	}
}

func fetchV2(ctx context.Context, s session, g *greeting, want string, have []string, sink func(io.Reader) error) error {
	if !g.supports("fetch", "shallow") {
		return errors.New("the server cannot give a commit without its history (no shallow fetch)")
	}
	var w pktWriter
	w.line("command=fetch")
	w.line("agent=%s", agent)
	w.delim()
	w.line("thin-pack")
	w.line("ofs-delta")
	w.line("no-progress")
	wants(&w, want, "", have)
	haves(&w, have)
	w.flush()
	p, err := s.request(ctx, w.buf)
	if err != nil {
		return err
	}
	for {
		section, kind, err := p.line()
		if err != nil {
			return err
		}
		if kind != dataPacket {
			return errors.New("not the Git protocol: the answer to a fetch has no pack")
		}
		if section == "packfile" {
			return deliver(p, sink)
		}
		for kind != delimPacket { // skip acknowledgments and shallow commits
			if _, kind, err = p.line(); err != nil {
				return err
			}
			if kind == flushPacket {
				return errors.New("not the Git protocol: the answer to a fetch has no pack")
			}
		}
	}
}

func fetchV0(ctx context.Context, s session, g *greeting, want string, have []string, sink func(io.Reader) error) error {
	caps := []string{"side-band-64k", "ofs-delta", "shallow"}
	if err := g.require(caps...); err != nil {
		return err
	}
	for _, c := range []string{"thin-pack", "no-progress", "multi_ack_detailed", "agent"} {
		if g.supports(c, "") {
			caps = append(caps, c)
		}
	}
	var w pktWriter
	wants(&w, want, " "+strings.Replace(strings.Join(caps, " "), "agent", "agent="+agent, 1), have)
	w.flush()
	haves(&w, have)
	p, err := s.request(ctx, w.buf)
	if err != nil {
		return err
	}
	// First shallow commits, up to a flush, then any number of ACK and NAK lines, and
	// then the pack.
	for kind := dataPacket; kind == dataPacket; {
		if _, kind, err = p.line(); err != nil {
			return err
		}
	}
	for {
		head, err := p.r.Peek(5)
		if err != nil {
			return unexpected(err)
		}
		if head[4] < 4 { // a channel of the pack
			return deliver(p, sink)
		}
		line, kind, err := p.line()
		if err != nil {
			return err
		}
		if kind != dataPacket || !strings.HasPrefix(line, "ACK ") && line != "NAK" {
			return fmt.Errorf("not the Git protocol: %q in the answer to a fetch", clean(line))
		}
	}
}

func wants(w *pktWriter, want, caps string, have []string) {
	w.line("want %s%s", want, caps)
	for _, h := range have {
		w.line("shallow %s", h)
	}
	w.line("deepen 1")
}

func haves(w *pktWriter, have []string) {
	for _, h := range have {
		w.line("have %s", h)
	}
	w.line("done")
}

// deliver passes a pack to sink.
func deliver(p *pktReader, sink func(io.Reader) error) error {
	pack := &sideband{p: p}
	if err := sink(pack); err != nil {
		return err
	}
	return pack.drain()
}

func push(ctx context.Context, s session, g *greeting, ref, old, now string, pack []byte) error {
	if !g.supports("report-status", "") {
		return errors.New("the server does not say what became of a push (no report-status)")
	}
	caps := " report-status"
	for _, c := range []string{"side-band-64k", "quiet"} {
		if g.supports(c, "") {
			caps += " " + c
		}
	}
	if now == noHash && !g.supports("delete-refs", "") {
		return &RefusedError{Ref: ref, Reason: "it does not allow deletion"}
	}
	var w pktWriter
	w.line("%s %s %s\x00%s agent=%s", old, now, ref, caps, agent)
	w.flush()
	p, err := s.request(ctx, append(w.buf, pack...))
	if err != nil {
		return err
	}
	text := func() string { return "" }
	if g.supports("side-band-64k", "") {
		band := &sideband{p: p}
		defer band.drain()
		p = newPktReader(band, p.alive)
		text = func() string { return clean(band.text.String()) }
	}
	unpack, _, err := p.line()
	if err != nil {
		return err
	}
	if status, ok := strings.CutPrefix(unpack, "unpack "); !ok {
		return fmt.Errorf("not the Git protocol: %q in the report on a push", clean(unpack))
	} else if status != "ok" {
		return &RefusedError{Ref: ref, Reason: unpacking + clean(status), Text: text()}
	}
	for {
		line, kind, err := p.line()
		if err != nil {
			return err
		}
		if kind != dataPacket {
			return fmt.Errorf("the server did not say what became of %s", ref)
		}
		if line == "ok "+ref {
			return nil
		}
		if reason, ok := strings.CutPrefix(line, "ng "+ref+" "); ok {
			refused := &RefusedError{Ref: ref, Reason: clean(reason), Text: text()}
			if lostRace(reason) && !refused.ByHook() {
				return fmt.Errorf("%w: %w", ErrMoved, refused)
			}
			return refused
		}
	}
}
