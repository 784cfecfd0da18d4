package cli

import (
	"errors"
	"time"

	"github.com/spf13/pflag"
)

// waitOptions are the flags of commands that can wait until everything is Ready.
type waitOptions struct {
	wait    bool
	timeout time.Duration
}

func (o *waitOptions) register(f *pflag.FlagSet, usage string) {
	f.BoolVar(&o.wait, "wait", false, usage)
	f.DurationVar(&o.timeout, "timeout", 5*time.Minute, "with --wait: how long to wait")
	annotate(f, "timeout", needs, "wait")
}

// patience returns how long to wait, 0 without --wait.
func (o *waitOptions) patience(f *pflag.FlagSet) (time.Duration, error) {
	switch {
	case !o.wait && f.Changed("timeout"):
		return 0, errors.New("--timeout is for --wait")
	case !o.wait:
		return 0, nil
	}
	return o.timeout, nil
}
