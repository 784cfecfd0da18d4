package cli

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// clusterValue is the value of --cluster. An empty name is an error, since without the flag a
// command is about all clusters: --cluster "$NAME" must not be, where NAME is not set.
type clusterValue struct{ pflag.Value }

// Set implements [pflag.Value].
func (v clusterValue) Set(text string) error {
	for name := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(name) == "" {
			return errors.New("the name of a cluster is empty; name a registered cluster, or leave the flag out")
		}
	}
	return v.Value.Set(text)
}

// filledValue is the value of a flag that changes what a command does. An empty value is an error:
// --against "$BASE" must not ask the clusters where BASE is not set.
type filledValue struct{ pflag.Value }

// Set implements [pflag.Value].
func (v filledValue) Set(text string) error {
	if strings.TrimSpace(text) == "" {
		return errors.New("the value is empty; write one, or leave the flag out")
	}
	return v.Value.Set(text)
}

// refuseEmpty has flags refuse an empty value on the command line. An empty variable still sets
// nothing.
func refuseEmpty(flags *pflag.FlagSet, names ...string) {
	for _, name := range names {
		f := flags.Lookup(name)
		f.Value = filledValue{f.Value}
	}
}

// durationValue is the value of a flag with a duration of more than 0, or also of 0 where that
// is the default.
type durationValue struct {
	pflag.Value
	zero bool
}

// Set implements [pflag.Value].
func (v durationValue) Set(text string) error {
	switch d, err := time.ParseDuration(text); {
	case err != nil:
		return fmt.Errorf("%q is not a duration, such as 90s or 1h30m", text)
	case d < 0 && v.zero:
		return errors.New("must not be less than 0")
	case d < 0, d == 0 && !v.zero:
		return errors.New("must be more than 0")
	}
	return v.Value.Set(text)
}

// boundDurations has the flags of a command and its subcommands refuse durations that are not
// more than 0.
func boundDurations(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Value.Type() != "duration" {
			return
		}
		v := durationValue{Value: f.Value, zero: f.DefValue == "0s"}
		if f.Value = v; v.zero {
			f.DefValue = "0" // which help does not show
		}
	})
	for _, sub := range cmd.Commands() {
		boundDurations(sub)
	}
}

// mustExist is the annotation of flags that name a file or directory which may not be needed,
// so that only a check at the start finds a slip.
const mustExist = "gitopsd-must-exist"

// checkFiles returns an error for flags that name files which do not exist. A daemon only logs a
// warning, since the file may come later; and nothing is said of a file that a variable names,
// which may be for another command.
func checkFiles(flags *pflag.FlagSet, daemon bool, log func() *slog.Logger) error {
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		if !annotated(f, mustExist) || f.Value.String() == "" {
			return
		}
		switch _, err := os.Stat(f.Value.String()); {
		case err != nil && daemon:
			log().Warn("a flag names a file that cannot be read yet", "flag", "--"+f.Name, "error", err)
		case err != nil && !annotated(f, fromVariable):
			errs = append(errs, fmt.Errorf("--%s: %w", f.Name, err))
		}
	})
	return errors.Join(errs...)
}
