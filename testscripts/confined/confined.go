// Package confined is a program that runs another one as an unprivileged container
// does: it can write nowhere but below one directory, and has no capabilities.
//
//	confined VARIABLE PROGRAM [ARGUMENT...]
//
// VARIABLE names the environment variable with the directory, such as
// GITOPSD_CACHE_DIR. Pods of devcluster are plain processes, which nothing but this
// keeps from writing where their container could not. The kernel does it, by Landlock,
// which needs no privileges (Linux 5.19 and later).
package confined

import (
	"fmt"
	"io"
	"os"
	"os/exec"
)

// Main runs the program with the arguments of this process. It does not return.
func Main() {
	os.Exit(run(os.Args[1:], os.Stderr))
}

func run(args []string, stderr io.Writer) int {
	if len(args) < 2 {
		fmt.Fprintln(stderr, "usage: confined VARIABLE PROGRAM [ARGUMENT...]")
		return 2
	}
	dir := os.Getenv(args[0])
	if dir == "" {
		fmt.Fprintf(stderr, "confined: %s is not set; it names the directory that the program may write to\n", args[0])
		return 2
	}
	program, err := exec.LookPath(args[1])
	if err == nil {
		err = confine(dir, program, args[1:])
	}
	fmt.Fprintf(stderr, "confined: %v\n", err) // it would not be here otherwise
	return 2
}
