package main

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/swampd/swampd/datastore"
)

const rmHelp = `Remove files from the newest state, as one commit. Earlier states keep them.

If one PATH is not there nothing is removed. "swampd rm -r ." removes everything.

--json: one object {"store","commit","slot","again","removed"}; again says that
the commit had landed before.`

func (a *app) rmCommand() *cobra.Command {
	var recursive bool
	var message, id string
	cmd := &cobra.Command{
		Use:     "rm PATH…",
		Short:   "Remove files from the newest state",
		Long:    rmHelp,
		Example: "  swampd rm docs/old.md\n  swampd rm -r docs",
		Args:    atLeastOne("PATH", "see what there is with: swampd ls"),
	}
	cmd.RunE = a.run(func(ctx context.Context, args []string) error {
		if message == "" {
			message = describe("rm", args)
		}
		if err := checkMessage(message); err != nil {
			return err
		}
		commit, err := commitID(id)
		if err != nil {
			return err
		}
		return a.rm(ctx, args, recursive, message, commit)
	})
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "remove directories with all that is in them")
	cmd.Flags().StringVarP(&message, "message", "m", "", "message of the commit (default: the command)")
	cmd.Flags().StringVar(&id, "id", "", "commit under this `UUID` (version 7): the same id and content land once")
	a.addMaxWait(cmd)
	return cmd
}

func (a *app) rm(ctx context.Context, args []string, recursive bool, message string, id uuid.UUID) (err error) {
	all, err := targets(args)
	if err != nil {
		return err
	}
	meter := a.meter("removing")
	defer meter.stop()
	s, err := a.open(ctx, meter.engine)
	if err != nil {
		return err
	}
	defer shut(s, &err)
	// First see whether all is there: becoming the writer for nothing would
	// disturb others.
	files := map[string]bool{}
	for _, t := range all {
		if err := a.find(ctx, s, t, recursive, files); err != nil {
			if c := landed(ctx, s, id, message); c != nil {
				meter.stop()
				return a.tellRemoved(s, c, int(c.Changes))
			}
			return err
		}
	}
	b, err := s.Begin(ctx, &datastore.BatchOptions{ID: id})
	if err != nil {
		return err
	}
	for _, t := range all {
		if err := a.remove(ctx, s, b, t, recursive); err != nil {
			return errors.Join(err, b.Discard())
		}
	}
	removed := b.Len()
	c, err := b.Commit(ctx, message)
	if err != nil {
		return err
	}
	meter.stop()
	return a.tellRemoved(s, c, removed)
}

// landed returns the commit with the caller's id, if this very command made it:
// what it removed is not there any more.
func landed(ctx context.Context, s *datastore.Store, id uuid.UUID, message string) *datastore.Commit {
	if id == uuid.Nil {
		return nil
	}
	c, err := s.Outcome(ctx, id)
	if err != nil || c.Message != message {
		return nil
	}
	c.Again = true
	return c
}

func (a *app) tellRemoved(s *datastore.Store, c *datastore.Commit, removed int) error {
	if a.json {
		return a.emit(rmJSON{Store: s.URL(), Commit: idText(c.ID), Slot: c.Slot, Again: c.Again, Removed: removed})
	}
	if c.Again {
		return a.printf("this commit had landed before, in state %d\n", c.Slot)
	}
	return a.printf("removed %s as state %d\n", count(int64(removed), "file"), c.Slot)
}

// find refuses a target that is not there, or is a directory where only files
// may go. It notes in files the paths that are files.
func (a *app) find(ctx context.Context, s *datastore.Store, t target, recursive bool, files map[string]bool) error {
	if !t.dir {
		_, err := s.Stat(ctx, t.path, 0)
		if err != nil && !isNotFound(err) {
			return err
		}
		files[t.path] = err == nil
	}
	for _, err := range s.List(ctx, &datastore.ListOptions{Prefix: t.prefix()}) {
		switch {
		case err != nil:
			return err
		case recursive || files[t.path]: // without -r the file of that name is meant
			return nil
		}
		r := a.isDirectory(t.path)
		r.hint = "remove it with all that is in it: swampd rm -r " + quoteArg(t.path)
		return r
	}
	if !files[t.path] {
		return a.missing(t.path, 0, nil)
	}
	return nil
}

// remove stages the removal of a target that find has seen.
func (a *app) remove(ctx context.Context, s *datastore.Store, b *datastore.Batch, t target, recursive bool) error {
	if !t.dir {
		if err := b.Delete(ctx, t.path); err != nil && !isNotFound(err) {
			return err
		}
	}
	if !recursive {
		return nil
	}
	for v, err := range s.List(ctx, &datastore.ListOptions{Prefix: t.prefix()}) {
		if err != nil {
			return err
		}
		// Not found: another argument named it too, or another writer was faster.
		if err := b.Delete(ctx, v.Path); err != nil && !isNotFound(err) {
			return err
		}
	}
	return nil
}

func isNotFound(err error) bool { return errors.Is(err, datastore.ErrNotFound) }
