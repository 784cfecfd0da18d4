// Package webhookserver is a program that serves webhooks as the controllers of packages
// do, for scenarios, the demo and the benchmarks: it answers admission and conversion
// reviews as its flags say.
//
// It serves HTTPS with tls.crt and tls.key of the directory in TLS_SERVER_CERTS_DIR, and
// reads them again when they change (certificate.go). Until they exist it does not listen.
//
//	/validate-…   denies objects with a label or field (review.go)
//	/mutate-…     sets an annotation
//	/convert      moves fields between two versions of a type (convert.go)
//	/healthz      200
//	/metrics      how often each path gave which result; printed at the end, too
//
// On SIGTERM it stops accepting connections, finishes the requests that it has, prints
// their numbers and exits with 0.
package webhookserver

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// The variables of the environment that are read, as Crossplane's providers get them.
const (
	certsDir = "TLS_SERVER_CERTS_DIR"
	podIP    = "POD_IP"
	port     = "9443"
)

// grace is how long requests may take to finish at the end. A kubelet waits for 30 s.
const grace = 20 * time.Second

// Main runs the program with the arguments of this process, and exits.
func Main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// options are the flags.
type options struct {
	addr       string
	certs      string
	reload     time.Duration
	delay      time.Duration
	neverReady bool
	close      bool
	exitAfter  time.Duration
	rules      rules
}

func parse(args []string, getenv func(string) string, stderr io.Writer) (options, error) {
	o := options{certs: getenv(certsDir), rules: rules{deny: make(map[string]string), versions: [2]string{"v1", "v2"}}}
	flags := flag.NewFlagSet("webhookserver", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.addr, "addr", net.JoinHostPort(getenv(podIP), port), "`address` to listen on")
	flags.DurationVar(&o.reload, "reload", 500*time.Millisecond, "how often to look for another certificate")
	flags.DurationVar(&o.delay, "delay", 0, "how long every answer takes")
	flags.BoolVar(&o.close, "close", false, "end each connection after one request, so that clients look at the certificate each time")
	flags.BoolVar(&o.neverReady, "never-ready", false, "never listen")
	flags.DurationVar(&o.exitAfter, "exit-after", 0, "exit with status 1 after this `time`")
	pair := func(name, usage string, set func(key, value string)) {
		flags.Func(name, usage, func(text string) error {
			key, value, ok := strings.Cut(text, "=")
			if !ok || key == "" {
				return fmt.Errorf("want NAME=VALUE, have %q", text)
			}
			set(key, value)
			return nil
		})
	}
	pair("deny-label", "deny objects with this `label=value`", func(key, value string) { o.rules.deny["metadata\x00labels\x00"+key] = value })
	pair("deny-field", "deny objects in which this `field=value`, such as spec.colour=red", func(key, value string) { o.rules.deny[strings.ReplaceAll(key, ".", "\x00")] = value })
	pair("annotate", "set this annotation `name=value` on objects", func(key, value string) { o.rules.annotations = append(o.rules.annotations, [2]string{key, value}) })
	pair("rename", "convert by moving a `field=field`, such as spec.size=spec.count", func(from, to string) { o.rules.renames = append(o.rules.renames, [2]string{from, to}) })
	pair("versions", "the two `version=version` between which -rename converts (default v1=v2)", func(from, to string) { o.rules.versions = [2]string{from, to} })
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	switch {
	case flags.NArg() > 0:
		return o, fmt.Errorf("%q: there are no arguments", flags.Arg(0))
	case o.certs == "":
		return o, fmt.Errorf("%s is not set", certsDir)
	case o.reload <= 0:
		return o, errors.New("-reload: want a time above 0")
	}
	return o, nil
}

func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	o, err := parse(args, getenv, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintf(stderr, "webhookserver: %v\n", err)
		return 2
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	var crash <-chan time.Time
	if o.exitAfter > 0 {
		timer := time.NewTimer(o.exitAfter)
		defer timer.Stop()
		crash = timer.C
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	counts := newCounts()
	go func() { done <- serve(ctx, o, counts, log) }()
	select {
	case <-crash:
		fmt.Fprintf(stderr, "webhookserver: exits after %s, as -exit-after says\n", o.exitAfter)
		return 1
	case err = <-done:
	}
	if err != nil {
		fmt.Fprintf(stderr, "webhookserver: %v\n", err)
		return 1
	}
	if err := counts.write(stdout); err != nil {
		return 1
	}
	return 0
}

// serve serves until the context is done, and then finishes the requests under way.
func serve(ctx context.Context, o options, counts *counts, log *slog.Logger) error {
	if o.neverReady {
		<-ctx.Done()
		return nil
	}
	certificate := &certificate{dir: o.certs, log: log}
	if !certificate.wait(ctx, o.reload) {
		return nil
	}
	listener, err := net.Listen("tcp", o.addr)
	if err != nil {
		return err
	}
	log.Info("serving", "address", listener.Addr().String())
	server := &http.Server{
		Handler:           handler(o, counts),
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: certificate.get},
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	if o.close {
		server.TLSNextProto = make(map[string]func(*http.Server, *tls.Conn, http.Handler)) // HTTP/1.1
		server.SetKeepAlivesEnabled(false)
	}
	go certificate.follow(ctx, o.reload)
	failed := make(chan error, 1)
	go func() { failed <- server.ServeTLS(listener, "", "") }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if err := server.Shutdown(end); err != nil {
		return errors.Join(fmt.Errorf("requests did not finish in %s: %w", grace, err), server.Close())
	}
	return nil
}
