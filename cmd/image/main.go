// Command image makes gitopsd's container image, without a Docker engine. `make
// image` runs it.
//
// build.go compiles the program for each platform, image.go puts it into an image
// with the few files that it needs, and sbom.go lists its modules. publish.go writes
// the result into a directory or pushes it to a registry.
//
// The same commit with the same Git tags, and the same version of Go, give the same digest
// on every machine: the program has its version from the tags, nothing of the machine goes
// into the image, and the certificates of authorities come from a module (roots.go).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
)

// source is the package of the program, in the module in the working directory.
const source = "./cmd/gitopsd"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.SetOutput(stderr)
	layout := flags.String("layout", "", "write the image into this directory as an OCI image layout, replacing an existing one")
	push := flags.String("push", "", "push the image to this reference, with the credentials of Docker's configuration")
	patience := flags.Duration("push-timeout", 20*time.Minute, "give up pushing after this time")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 || *layout == "" && *push == "" {
		fmt.Fprintln(stderr, "usage: image [-layout DIR] [-push REGISTRY/REPOSITORY:TAG [-push-timeout DURATION]]")
		return 2
	}
	if err := publish(ctx, *layout, *push, *patience, stdout, stderr); err != nil {
		fmt.Fprintf(stderr, "image: %v\n", err)
		return 1
	}
	return 0
}

// publish makes the image, and prints each place where it put it, with the digest. Messages
// go to say.
func publish(ctx context.Context, layout, push string, patience time.Duration, out, say io.Writer) error {
	var tag name.Tag
	if push != "" {
		var err error
		if tag, err = name.NewTag(push, name.StrictValidation); err != nil {
			return fmt.Errorf("-push %s: want a registry, a repository and a tag, such as registry.example.com/platform/gitopsd:v1.0.0", push)
		}
	}
	if layout != "" {
		if err := replaceable(layout); err != nil {
			return err
		}
	}
	made, err := makeImage(ctx, ".", source, say)
	if err != nil {
		return err
	}
	if layout != "" {
		if err := made.write(layout); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s@%s\n", layout, made.digest)
	}
	if push != "" {
		fmt.Fprintf(say, "image: pushing %s\n", tag)
		if err := made.push(ctx, tag, patience); err != nil {
			return err
		}
		fmt.Fprintf(out, "%s@%s\n", tag, made.digest)
	}
	return nil
}

// makeImage compiles a package of a module for all platforms, and makes an image of it.
func makeImage(ctx context.Context, module, source string, say io.Writer) (_ *image, err error) {
	dir, err := os.MkdirTemp("", "gitopsd-image-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var programs []*program
	for _, p := range platforms {
		fmt.Fprintf(say, "image: compiling for %s\n", p)
		built, err := build(ctx, module, source, dir, p)
		if err != nil {
			return nil, err
		}
		programs = append(programs, built)
	}
	return assemble(programs)
}
