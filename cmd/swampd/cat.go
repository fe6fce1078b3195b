package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/swampd/swampd/datastore"
)

const catHelp = `Write the contents of files to standard output, one after the other.

The bytes are checked against the sha256 of the content as they pass; if they are
damaged the command fails, and what was written must not be used.

--json: for each PATH one object as in "ls --json" with "offset" and, last,
"content_base64".`

func (a *app) catCommand() *cobra.Command {
	var at string
	var opts datastore.ReadOptions
	cmd := &cobra.Command{
		Use:     "cat PATH…",
		Short:   "Write contents to standard output",
		Long:    catHelp,
		Example: "  swampd cat docs/plan.md\n  swampd cat --at -1 docs/plan.md\n  swampd cat --offset -1024 server.log",
		Args:    atLeastOne("PATH", "see what there is with: swampd ls"),
	}
	cmd.RunE = a.run(func(ctx context.Context, args []string) error {
		if opts.Length < 0 || cmd.Flags().Changed("length") && opts.Length == 0 {
			return usagef("leave it out to read to the end", "--length: %d is no length", opts.Length)
		}
		return a.cat(ctx, args, at, opts)
	})
	addAt(cmd, &at)
	cmd.Flags().Int64Var(&opts.Offset, "offset", 0, "first `byte` to write; a negative one counts from the end")
	cmd.Flags().Int64Var(&opts.Length, "length", 0, "how many `bytes` to write at most (default: to the end)")
	return cmd
}

// addAt gives a reading command its flag.
func addAt(cmd *cobra.Command, at *string) {
	cmd.Flags().StringVar(at, "at", "", "read the state after `SLOT`; -N for the one N commits ago (default: the newest)")
}

func (a *app) cat(ctx context.Context, args []string, at string, opts datastore.ReadOptions) (err error) {
	files, err := targets(args)
	if err != nil {
		return err
	}
	s, err := a.open(ctx, nil)
	if err != nil {
		return err
	}
	defer shut(s, &err)
	if opts.At, err = state(ctx, s, at); err != nil {
		return err
	}
	for _, f := range files {
		if f.path == "" || f.dir {
			return a.isDirectory(f.path)
		}
		if err := a.catOne(ctx, s, f.path, opts); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) catOne(ctx context.Context, s *datastore.Store, path string, opts datastore.ReadOptions) (err error) {
	r, err := s.Open(ctx, path, &opts)
	if err != nil {
		return a.notFile(ctx, s, path, opts.At, err)
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if !a.json {
		_, err = io.Copy(a.out, r)
		return err
	}
	// The content is streamed into the object, as its last field.
	v := r.Version()
	offset := opts.Offset
	if offset < 0 {
		offset = max(0, v.Size+offset)
	}
	head, err := json.Marshal(catJSON{versionJSON: describeVersion(&v), Offset: min(offset, v.Size)})
	if err != nil {
		return err
	}
	if _, err := a.out.Write(head[:len(head)-len(`"}`)]); err != nil {
		return err
	}
	enc := base64.NewEncoder(base64.StdEncoding, a.out)
	if _, err := io.Copy(enc, r); err != nil {
		return err
	}
	if err := enc.Close(); err != nil {
		return err
	}
	return a.printf("\"}\n")
}

// notFile makes the error of a path that is no file say so if it is a directory.
func (a *app) notFile(ctx context.Context, s *datastore.Store, path string, at uint64, err error) error {
	if !errors.Is(err, datastore.ErrNotFound) {
		return err
	}
	for _, listErr := range s.List(ctx, &datastore.ListOptions{Prefix: path + "/", At: at}) {
		if listErr == nil {
			return a.isDirectory(path)
		}
		break
	}
	return a.missing(path, at, err)
}

func (a *app) isDirectory(path string) *refusal {
	if path == "" {
		path = "."
	}
	return &refusal{kind: "directory", text: path + " is a directory", hint: "see what is in it with: swampd ls " + quoteArg(path)}
}

func (a *app) missing(path string, at uint64, err error) error {
	if path == "" {
		return &refusal{kind: "not-found", err: err, text: "there is nothing" + inState(at), hint: "see what there was with: swampd log"}
	}
	return &refusal{
		kind: "not-found", err: err, text: fmt.Sprintf("there is no file or directory %q%s", path, inState(at)),
		hint: "see what there is with: swampd ls; and what there was with: swampd log " + quoteArg(path),
	}
}
