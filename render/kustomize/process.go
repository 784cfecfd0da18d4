package kustomize

import (
	"fmt"
	"io"
	"log"
	"regexp"
	"runtime"
	"strings"
	"sync"
)

// schema guards kustomize's schema, which is in process-wide variables: the schema that one
// build sets stays in use for later builds that set none, and kustomize loads the default on
// first use, while other builds read it without a lock.
var schema sync.Mutex

// guarded calls kustomize, one goroutine at a time. It returns an error if kustomize panics
// or tries to end the process.
func guarded(call func() error) (err error) {
	schema.Lock()
	defer schema.Unlock()
	w := lastWords{log.Writer()}
	log.SetOutput(w)
	defer func() {
		if log.Writer() == io.Writer(w) {
			log.SetOutput(w.before)
		}
	}()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
			if _, ok := p.(runtime.Error); ok {
				err = fmt.Errorf("kustomize cannot cope with this input: %v", p)
			}
		}
	}()
	return call()
}

// lastWords is the output of package log while kustomize runs. Kustomize calls
// log.Fatal for an object that it cannot print, which a small kustomization can cause.
// log.Fatal writes before it exits, so Write panics for its lines. All others go to the
// previous output, as one line each: texts of the repository are in them.
type lastWords struct{ before io.Writer }

// Write writes a line of package log. It is called under log's own mutex, which a panic
// releases.
func (w lastWords) Write(line []byte) (int, error) {
	if fromKustomizesEnd() {
		panic(strings.TrimSpace(dated.ReplaceAllString(string(line), "")))
	}
	text := strings.TrimSuffix(string(line), "\n")
	if _, err := io.WriteString(w.before, strings.NewReplacer("\n", `\n`, "\r", `\r`).Replace(text)+"\n"); err != nil {
		return 0, err
	}
	return len(line), nil
}

// dated matches the prefix that package log puts before a line.
var dated = regexp.MustCompile(`^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d+)? `)

// fromKustomizesEnd reports whether the line comes from kustomize's log.Fatal.
func fromKustomizesEnd() bool {
	var pcs [32]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	last := ""
	for {
		frame, more := frames.Next()
		if strings.HasPrefix(last, "log.Fatal") {
			return strings.HasPrefix(frame.Function, "sigs.k8s.io/kustomize/")
		}
		last = frame.Function
		if !more {
			return false
		}
	}
}
