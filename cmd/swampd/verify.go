package main

import (
	"context"
	"errors"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/swampd/swampd/datastore"
)

const verifyHelp = `Check the datastore: that the records of the log are chained, that the checkpoint
says what the log says, and that all data objects which they name are there in
their sizes. With --read-data every stored byte is read and checked too. Nothing
is changed.

Findings that cost only space are marked "harmless". Exit code 1 if there are
others.

--json: one object {"store","ok","head","checkpoint","floor","records","versions",
"objects","stored_bytes","bytes_read","findings":[{"key","what","harmless"}],
"more_findings"}.`

func (a *app) verifyCommand() *cobra.Command {
	var readData bool
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check that the datastore is whole",
		Long:  verifyHelp,
		Args:  atMost(0),
	}
	cmd.RunE = a.run(func(ctx context.Context, _ []string) error { return a.verify(ctx, readData) })
	cmd.Flags().BoolVar(&readData, "read-data", false, "read and check every stored byte")
	return cmd
}

func (a *app) verify(ctx context.Context, readData bool) (err error) {
	meter := a.meter("checking")
	meter.follow = "verify data"
	defer meter.stop()
	s, err := a.open(ctx, meter.engine)
	if errors.Is(err, datastore.ErrCorrupt) { // other commands advise to run this one
		return &refusal{
			kind: "corrupt", err: err, text: plain(err),
			hint: "without this object the datastore cannot be read: put it back from a copy of the store, or from a former version that the bucket keeps",
		}
	}
	if err != nil {
		return err
	}
	defer shut(s, &err)
	r, err := s.Verify(ctx, &datastore.VerifyOptions{ReadData: readData, Progress: meter.engine})
	if err != nil {
		return err
	}
	meter.stop()
	if err := a.showReport(s.URL(), r, readData); err != nil {
		return err
	}
	if r.OK() {
		return nil
	}
	hint := "nothing was changed; what is named here cannot be read, all else can"
	if !readData {
		hint = "see whether contents are damaged too: swampd verify --read-data"
	}
	return &refusal{kind: "damaged", text: "the datastore is damaged", hint: hint}
}

func (a *app) showReport(store string, r *datastore.VerifyReport, readData bool) error {
	if a.json {
		d := verifyJSON{
			Store: store, OK: r.OK(), Head: r.Head, Checkpoint: r.Checkpoint, Floor: r.Floor, Records: r.Records,
			Versions: r.Versions, Objects: r.Objects, StoredBytes: r.Bytes, BytesRead: r.DataRead,
			Findings: []findingJSON{}, More: r.More,
		}
		for _, f := range r.Findings {
			d.Findings = append(d.Findings, findingJSON(f))
		}
		return a.emit(d)
	}
	for _, f := range r.Findings {
		word := "DAMAGED"
		if f.Harmless {
			word = "harmless"
		}
		if err := a.printf("%-8s  %s: %s\n", word, printable(f.Key), printable(f.What)); err != nil {
			return err
		}
	}
	if r.More > 0 {
		if err := a.printf("… and %s more\n", humanize.Comma(int64(r.More))); err != nil {
			return err
		}
	}
	if err := a.printf("checked %s, %s, %s (%s), up to state %d\n", count(int64(r.Records), "record"),
		count(int64(r.Versions), "version"), count(int64(r.Objects), "data object"), size(r.Bytes), r.Head); err != nil {
		return err
	}
	switch {
	case !r.OK():
		return nil
	case readData:
		return a.printf("all is well: %s of contents were read and are what was stored\n", size(r.DataRead))
	}
	return a.printf("all is well; contents were not read (--read-data)\n")
}
