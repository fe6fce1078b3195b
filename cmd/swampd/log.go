package main

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/swampd/swampd/datastore"
)

const logHelp = `Show the commits, newest first; or the versions of the file PATH.

Each line begins with the number of the state that the commit made: the SLOT that
other commands take. --all also shows the records that hold no commit (a new
writer's fence, retention …), which is why numbers can be missing otherwise.

--id ID asks for one commit: exit code 0 if it landed, 1 if it did not, 75 if there
is no answer.

--json: a stream of {"slot","kind","fence","session","writer","time","bytes",
"commit","message","changes"}; with PATH a stream as in "ls --json", with
"time" and "message", type "deleted" where it was removed.`

type logFlags struct {
	limit int
	all   bool
	id    string
}

func (a *app) logCommand() *cobra.Command {
	var f logFlags
	cmd := &cobra.Command{
		Use:     "log [PATH]",
		Short:   "Show commits, or the versions of a file",
		Long:    logHelp,
		Example: "  swampd log -n 10\n  swampd log docs/plan.md",
		Args:    atMost(1),
	}
	cmd.RunE = a.run(func(ctx context.Context, args []string) error {
		if f.limit < 0 || cmd.Flags().Changed("number") && f.limit == 0 {
			return usagef("leave it out to see all", "-n: %d is no number of commits", f.limit)
		}
		if f.id != "" && len(args) > 0 {
			return usagef("", "--id goes with no PATH")
		}
		return a.log(ctx, args, &f)
	})
	cmd.Flags().IntVarP(&f.limit, "number", "n", 0, "show `N` at most (default: all)")
	cmd.Flags().BoolVar(&f.all, "all", false, "records without commits too")
	cmd.Flags().StringVar(&f.id, "id", "", "ask for the commit with this `UUID`")
	return cmd
}

func (a *app) log(ctx context.Context, args []string, f *logFlags) (err error) {
	var id uuid.UUID
	if f.id != "" {
		if id, err = uuid.Parse(f.id); err != nil {
			return usagef("", "--id: %q is no UUID", f.id)
		}
	}
	a.asking = f.id != ""
	var t target
	if len(args) > 0 {
		if t, err = targetOf(args[0]); err != nil {
			return err
		}
	}
	s, err := a.open(ctx, nil)
	if err != nil {
		return err
	}
	defer shut(s, &err)
	switch {
	case f.id != "":
		return a.outcome(ctx, s, id)
	case len(args) > 0 && t.dir:
		return a.noHistory(t.path)
	case len(args) > 0:
		return a.history(ctx, s, t.path, f.limit)
	}
	shown := 0
	for e, err := range s.Log(ctx, &datastore.LogOptions{All: f.all}) {
		if err != nil {
			return err
		}
		if err := a.showEntry(&e); err != nil {
			return err
		}
		if shown++; shown == f.limit {
			break
		}
	}
	if shown == 0 {
		a.note("no commits yet")
	}
	return nil
}

func (a *app) showEntry(e *datastore.LogEntry) error {
	if a.json {
		d := logJSON{
			Slot: e.Slot, Kind: e.Kind, Fence: e.Fence, Session: idText(e.Session),
			Writer: e.Writer, Time: e.Time.UTC(), Bytes: e.Bytes,
		}
		if c := e.Commit; c != nil {
			d.Commit, d.Message, d.Changes, d.Time = idText(c.ID), c.Message, c.Changes, c.Time.UTC()
		}
		return a.emit(d)
	}
	if e.Commit == nil {
		return a.printf("%6d  %s  %-14s  %s\n", e.Slot, when(e.Time), e.Kind, printable(e.Writer))
	}
	c := e.Commit
	return a.printf("%6d  %s  %-14s  %s\n", c.Slot, when(c.Time), count(int64(c.Changes), "change"), printable(firstLine(c.Message)))
}

// outcome tells what became of one commit.
func (a *app) outcome(ctx context.Context, s *datastore.Store, id uuid.UUID) error {
	c, err := s.Outcome(ctx, id)
	if isNotFound(err) {
		return &refusal{
			kind: "not-found", err: err, text: fmt.Sprintf("no commit %s has landed", id),
			hint: "the command that made it can be run again, with --id " + id.String() + " to be safe from doing it twice",
		}
	}
	if err != nil {
		return err
	}
	e := datastore.LogEntry{Slot: c.Slot, Kind: "commit", Time: c.Time, Commit: c}
	return a.showEntry(&e)
}

// history shows the versions of one path.
func (a *app) history(ctx context.Context, s *datastore.Store, path string, limit int) error {
	shown := 0
	for v, err := range s.History(ctx, path) {
		if err != nil {
			return err
		}
		if err := a.showHistory(ctx, s, &v); err != nil {
			return err
		}
		if shown++; shown == limit {
			break
		}
	}
	if shown > 0 {
		return nil
	}
	for _, err := range s.List(ctx, &datastore.ListOptions{Prefix: path + "/"}) {
		if err == nil {
			return a.noHistory(path)
		}
		break
	}
	return &refusal{kind: "not-found", text: fmt.Sprintf("there never was a file %q", path), hint: "see what there is with: swampd ls"}
}

func (a *app) showHistory(ctx context.Context, s *datastore.Store, v *datastore.Version) error {
	var c datastore.Commit
	for e, err := range s.Log(ctx, &datastore.LogOptions{From: v.Slot, To: v.Slot}) {
		if err != nil {
			return err
		}
		if e.Commit != nil && (c.ID == uuid.Nil || e.Commit.ID == v.Commit) {
			c = *e.Commit
		}
	}
	if a.json {
		d := describeVersion(v)
		if c.ID != uuid.Nil {
			t := c.Time.UTC()
			d.Time, d.Message = &t, c.Message
		}
		return a.emit(d)
	}
	amount := size(v.Size)
	if v.Deleted {
		amount = "removed"
	}
	return a.printf("%6d  %s  %10s  %s\n", v.Slot, when(c.Time), amount, printable(firstLine(c.Message)))
}

func (a *app) noHistory(path string) error {
	if path == "" {
		path = "."
	}
	return &refusal{kind: "directory", text: path + " is a directory, and only files have versions", hint: "see what changed with: swampd diff"}
}
