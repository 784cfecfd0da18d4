package kustomize

import (
	"io"
	"log"
	"regexp"
	"runtime"
	"strings"
	"sync"
)

// Kustomize ends the process with log.Fatal where it finds an object that it
// cannot print; a kustomization of a page brings it there, and would take the
// daemon down with it. log.Fatal writes first and exits then. So while kustomize
// runs, what it writes there is a panic instead, which run recovers; whatever
// anybody else logs goes where it went before.
type survivor struct {
	mu      sync.Mutex
	running int
	before  io.Writer
}

var fatal survivor

func (s *survivor) enter() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running++; s.running == 1 && log.Writer() != io.Writer(s) {
		s.before = log.Writer()
		log.SetOutput(s)
	}
}

func (s *survivor) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running--; s.running == 0 && log.Writer() == io.Writer(s) {
		log.SetOutput(s.before)
	}
}

// Write is called under log's own mutex, which a panic releases.
func (s *survivor) Write(line []byte) (int, error) {
	if fromKustomizesEnd() {
		panic(strings.TrimSpace(dated.ReplaceAllString(string(line), "")))
	}
	return s.before.Write(line)
}

// dated is what the log package puts before a line.
var dated = regexp.MustCompile(`^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d(?:\.\d+)? `)

// fromKustomizesEnd tells whether the line that is being logged is the last of
// kustomize: a function of its on the stack, and then log.Fatal.
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
