package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/vbauerster/mpb/v8"
	"golang.org/x/term"
)

// app is one run of the program: the flags that every command has, and where
// its output goes. Fields are set before a command runs and do not change then.
type app struct {
	in      io.Reader
	out     *bufio.Writer // standard output, flushed at the end
	outFile *os.File      // beneath out
	errOut  *os.File
	// errTerm: people watch standard error, so progress may be drawn there.
	errTerm bool

	store    string // -s as given, or ""
	stateDir string
	json     bool
	quiet    bool
	maxWait  time.Duration

	live atomic.Pointer[mpb.Progress] // the bar that is on the terminal now

	command string // what other processes are told when they wait for this one
	parsed  bool   // flags and arguments were accepted
	asking  bool   // the command asks what became of a commit
}

func newApp(in io.Reader, out, errOut *os.File) *app {
	return &app{
		in: in, out: bufio.NewWriterSize(out, 64<<10), outFile: out, errOut: errOut,
		errTerm: term.IsTerminal(int(errOut.Fd())) && os.Getenv("TERM") != "dumb",
	}
}

// note tells people something that is no result: on standard error, and not in
// --json mode, where programs read.
func (a *app) note(format string, args ...any) {
	if !a.json && !a.quiet {
		var w io.Writer = a.errOut
		if bar := a.live.Load(); bar != nil {
			w = bar // above the bar
		}
		fmt.Fprintf(w, "swampd: "+format+"\n", args...)
	}
}

// emit writes one JSON object on a line of its own.
func (a *app) emit(v any) error {
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// printf writes to standard output.
func (a *app) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(a.out, format, args...)
	return err
}

const rootHelp = `swampd keeps files in a versioned datastore in a directory, an S3 bucket or a
GCS bucket. No server is needed: whoever can reach the store can read every
version, and one at a time can write.

The store is taken from -s URL, else from SWAMPD_STORE, else it is a default
datastore in your data directory, which the first put makes:

  /srv/data, file:///srv/data     a directory
  s3://bucket/prefix              S3; ?endpoint=URL&region=NAME&path_style=true
  gs://bucket/prefix              GCS; STORAGE_EMULATOR_HOST is honoured

Where a command takes --at SLOT, SLOT is a number from "swampd log", or -N for
the state N commits ago.

One process at a time writes. The others wait for it, up to --max-wait (60s; 0 = not
at all), and then end with exit code 75. A writer that has died on this machine is
replaced at once; one that cannot be seen from here (another machine, another
container) 40 seconds after it was last heard of. See: swampd lock --help

Exit codes:
    0  done
    1  not done, or done with findings; see the message. A command whose writer
       was fenced ends so too: another writer took over and nothing of this
       command landed, but the state is a new one now, so look at it before you
       run the command again; do not retry blindly
    2  wrong use: flags, arguments, names, addresses
   75  try again later: another writer is at work (who: swampd lock status), the
       store asks for patience, or no answer came about a commit (ask: swampd log
       --id ID)
  130  Ctrl-C; 143 SIGTERM; 129 the terminal was closed. Nothing is left half-made.
       A second one ends at once
  141  whoever read the output has closed it; what was to be stored is stored

With --json every command writes one JSON object, or one object per line where
its help says "stream", on standard output; an error is one JSON object
{"error","kind","exit_code","hint","detail","commit","problems":[{"path","error"}],
"problem_count"} on standard error, without what does not apply. Sizes are bytes,
times RFC 3339.`

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "swampd",
		Short:         "A versioned datastore in a directory, an S3 or a GCS bucket",
		Long:          rootHelp,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{err.Error(), "see: " + cmd.CommandPath() + " --help"}
	})
	flags := root.PersistentFlags()
	flags.StringVarP(&a.store, "store", "s", "", "address of the datastore (default: $SWAMPD_STORE, else one in your data directory)")
	flags.BoolVar(&a.json, "json", false, "output for programs: one documented JSON object, or a stream of them")
	flags.BoolVarP(&a.quiet, "quiet", "q", false, "no progress and no notes on standard error")
	flags.StringVar(&a.stateDir, "state-dir", "", "directory for the local files of this datastore (default: one in your state directory)")
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { return noEmptyFlag(cmd) }
	root.SetHelpCommand(helpCommand(root))
	root.AddCommand(
		a.initCommand(), a.putCommand(), a.getCommand(), a.catCommand(), a.lsCommand(), a.rmCommand(),
		a.logCommand(), a.diffCommand(), a.verifyCommand(), a.doctorCommand(), a.lockCommand(), a.versionCommand(), a.completionCommand(root),
	)
	return root
}

// helpCommand is cobra's, but a command that does not exist is wrong use.
func helpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Say how a command is used",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return usagef("see: swampd --help", "there is no command %s", quoteArg(strings.Join(args, " ")))
			}
			cmd.InitDefaultHelpFlag()
			return cmd.Help()
		},
	}
}

// noEmptyFlag refuses flags that name a place and are empty, as -s "$STORE" is
// when STORE is not set: the command would be let loose on the default datastore.
func noEmptyFlag(cmd *cobra.Command) error {
	for _, name := range []string{"store", "state-dir"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed && f.Value.String() == "" {
			return usagef("leave it out to use the default one", "--%s is empty", name)
		}
	}
	return nil
}

// action is the body of a command.
type action func(ctx context.Context, args []string) error

// run makes a cobra RunE of an action: from here on the use was right.
func (a *app) run(do action) func(*cobra.Command, []string) error {
	return a.runPlain(func(ctx context.Context, args []string) error {
		if err := needCgo(); err != nil {
			return err
		}
		return do(ctx, args)
	})
}

// runPlain is run for commands that need no catalog, and so no cgo.
func (a *app) runPlain(do action) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		a.parsed = true
		a.command = describe(cmd.CommandPath(), args)
		return do(cmd.Context(), args)
	}
}

// describe is a command as other processes and the log may see it: without
// flags, since an address may hold secrets.
func describe(path string, args []string) string {
	s := strings.Join(append([]string{path}, args...), " ")
	return clip(strings.ToValidUTF8(s, "?"))
}

// addMaxWait gives a writing command its flag.
func (a *app) addMaxWait(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&a.maxWait, "max-wait", 60*time.Second, "how long to wait for another writer; 0 = not at all")
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if a.maxWait < 0 {
			return usagef("0 means not to wait at all", "--max-wait: %v is negative", a.maxWait)
		}
		return nil
	}
}
