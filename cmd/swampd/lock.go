package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/swampd/swampd/datastore"
	"github.com/swampd/swampd/writer"
)

const lockHelp = `One process at a time writes a datastore. The lease says which one; the others
wait for it, up to --max-wait. Whether the process of the lease still lives is
judged by its identity (machine, boot, namespaces, pid, start time), never by its
age alone:

  alive    it is waited for, however long it takes, also when it is stopped
  gone     a new writer takes over at once
  unknown  it cannot be seen from here (another machine, another container): a new
           writer takes over when it has not renewed its lease for 40 seconds (the
           lease's 30, and 10 more) on the store's clock, and not for 15 before the
           eyes of who waits, since clocks jump; a shorter --max-wait never does

Both subcommands use the store alone: no local files, so nothing that another
process may have locked.`

const lockStatusHelp = `Say who writes the datastore, whether that process is alive as far as this machine
can tell, by what evidence, and what a new writer would do now, and when. It
changes nothing and disturbs nobody: a process that is stopped stays stopped.

The exit code is 0 whenever the lease could be read, held or not.

--json: one object {"store","held","lease","age_seconds","verdict","takeover_seconds",
"plan"}. lease is {"fence","session","released","command","checkout","writer",
"epoch","identity":{"hostname","pid","start_time","boot_id","pid_namespace",
"time_namespace"},"acquired","renewed","ttl_seconds","guard","fast_adoption":
{"beat_seconds","self_fence_seconds","silence_seconds"}}, without what it does not
say, and missing if nobody has ever written; acquired and renewed are by the
holder's clock. age_seconds is the time since the last renewal on the store's clock;
it is missing where that is not known. verdict is {"standing","evidence"}, standing
alive, gone or unknown; it is missing if nobody holds the lease. takeover_seconds is
when a new writer takes over if nothing changes: 0 = at once; missing = no time
decides it.`

const lockReleaseHelp = `Take the lease away from whoever holds it, alive or not, and give it back.

WARNING: this is for a writer that you know to be dead, or that may be given up.
The writer that loses the lease commits nothing more: what it has not committed
by then is lost to it, and it ends as fenced, with exit code 1. What it had
committed stays. A writer that has died on this machine needs none of this: the
next one takes over at once. See first: swampd lock status

It puts a barrier with a higher fence into the log, whatever the state of the
holder, so that not even one that is stopped and wakes up later can commit. It
waits for nobody and takes no lock. If nobody holds the lease the barrier is put up
all the same.

--json: one object {"store","fenced"}; fenced is the lease that was taken away, as in
"swampd lock status --json", or null if nobody held it.`

func (a *app) lockCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lock",
		Short: "Say who writes; take the lease away",
		Long:  lockHelp,
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	status := &cobra.Command{
		Use:     "status",
		Short:   "Say who writes, whether it lives, and when another may write",
		Long:    lockStatusHelp,
		Example: "  swampd lock status\n  swampd lock status -s s3://bucket/site --json",
		Args:    atMost(0),
	}
	status.RunE = a.runPlain(func(ctx context.Context, _ []string) error { return a.lockStatus(ctx) })

	var force bool
	release := &cobra.Command{
		Use:     "release --force",
		Short:   "Take the lease away from a writer that is known to be dead",
		Long:    lockReleaseHelp,
		Example: "  swampd lock status\n  swampd lock release --force",
		Args:    atMost(0),
	}
	release.RunE = a.runPlain(func(ctx context.Context, _ []string) error {
		if !force {
			return usagef("see who writes, and whether it lives, with: swampd lock status; a writer gives the lease back itself when it ends",
				"%s needs --force, since it takes the lease away also from a writer that is alive: that one commits nothing more, and ends as fenced with exit code 1", release.CommandPath())
		}
		return a.lockRelease(ctx)
	})
	release.Flags().BoolVar(&force, "force", false, "take it from whoever holds it, alive or not; that writer commits nothing more")
	cmd.AddCommand(status, release)
	return cmd
}

func (a *app) lockStatus(ctx context.Context) error {
	addr, isDefault, err := a.address()
	if err != nil {
		return err
	}
	st, err := datastore.LockStatus(ctx, addr, a.options(nil))
	if err != nil {
		return noDefault(addr, isDefault, err)
	}
	if a.json {
		return a.emit(describeLock(shown(addr), st))
	}
	for _, row := range lockRows(st) {
		if err := a.printf("%-12s  %s\n", row[0], printable(row[1])); err != nil {
			return err
		}
	}
	return nil
}

// lockRows is the table of lock status. What a record says is that writer's word.
func lockRows(st *writer.Status) [][2]string {
	l := st.Lease
	if l == nil {
		return [][2]string{{"lease", "free: nobody has written yet"}, {"a new writer", "would " + st.Plan()}}
	}
	heard := func() string {
		if st.Age < 0 {
			return "when is not known, since the store does not tell its time"
		}
		return took(st.Age) + " ago, on the store's clock"
	}()
	if !st.Held() {
		return [][2]string{
			{"lease", "free: it was given back, " + heard}, {"last holder", nameOfWriter(l) + ", since " + when(l.Acquired)}, {"fence", fmt.Sprint(l.Fence)},
			{"a new writer", "would " + st.Plan()},
		}
	}
	rows := [][2]string{{"lease", "held"}, {"holder", holder(l)}, {"identity", identityText(l.Identity)}}
	add := func(name, text string, is bool) {
		if is {
			rows = append(rows, [2]string{name, text})
		}
	}
	add("writer id", clip(orNone(l.Writer))+", epoch "+clip(orNone(l.Epoch)), l.Writer != "" || l.Epoch != "")
	add("checkout", clip(l.Checkout), l.Checkout != "")
	add("fence", fmt.Sprintf("%d, session %s", l.Fence, l.Session), true)
	add("renewed", heard+fmt.Sprintf("; it stands for %s after that", took(l.TTL())), true)
	add("verdict", st.Verdict.String(), true)
	add("a new writer", "would "+st.Plan(), true)
	return rows
}

func orNone(s string) string {
	if s == "" {
		return "(none)"
	}
	return s
}

// identityText is what tells a process apart, beside its host and pid.
func identityText(i *writer.Identity) string {
	if i == nil {
		return "the record names no process"
	}
	var parts []string
	for _, p := range [][2]string{
		{"started at", i.StartTime}, {"boot", i.BootID}, {"pid namespace", i.PIDNamespace}, {"time namespace", i.TimeNamespace},
	} {
		if p[1] != "" {
			parts = append(parts, p[0]+" "+clip(p[1]))
		}
	}
	return orNone(strings.Join(parts, ", "))
}

func (a *app) lockRelease(ctx context.Context) error {
	addr, isDefault, err := a.address()
	if err != nil {
		return err
	}
	victim, err := datastore.ForceRelease(ctx, addr, a.options(nil))
	if err != nil {
		return &releaseError{victim, noDefault(addr, isDefault, err)}
	}
	if a.json {
		return a.emit(lockReleaseJSON{Store: shown(addr), Fenced: describeLease(victim)})
	}
	if victim == nil {
		return a.printf("nobody held the lease; whoever still believed to is fenced\n")
	}
	return a.printf("fenced %s (fence %d): it can commit nothing more; the next writer need not wait\n", holder(victim), victim.Fence)
}

// releaseError is a forced release that is not done, or not known to be.
type releaseError struct {
	victim *writer.Lease // who lost the lease, nil if nobody did
	err    error
}

func (e *releaseError) Error() string { return e.err.Error() }
func (e *releaseError) Unwrap() error { return e.err }

// refine says what a forced release has left behind: doing it again is safe.
func (r *releaseError) refine(e *errorJSON) {
	const again = "run this again; it is safe to repeat"
	e.Commit = "" // what is open is a barrier, of which nobody can ask
	switch {
	case e.Kind == "fenced":
		e.Error, e.Hint = "another writer took over meanwhile: "+e.Error, "see who it is with: swampd lock status"
	case e.Kind == "unconfirmed" || errors.Is(r.err, writer.ErrExpired):
		e.Hint = again
	case r.victim != nil:
		e.Hint = strings.TrimPrefix(e.Hint+"; then "+again, "; then ")
	}
	if r.victim != nil {
		e.Error += "; " + nameOfWriter(r.victim) + " has lost the lease, but may still commit: the barrier is not known to be in the log"
	}
}

func seconds(d time.Duration) *float64 {
	if d < 0 {
		return nil
	}
	s := d.Seconds()
	return &s
}

func describeLock(store string, st *writer.Status) lockJSON {
	d := lockJSON{Store: store, Held: st.Held(), Lease: describeLease(st.Lease), Takeover: seconds(st.Takeover), Plan: st.Plan()}
	if st.Lease != nil {
		d.Age = seconds(st.Age)
	}
	if st.Held() {
		d.Verdict = &verdictJSON{st.Verdict.Standing.String(), st.Verdict.Evidence}
	}
	return d
}

func describeLease(l *writer.Lease) *leaseJSON {
	if l == nil {
		return nil
	}
	d := &leaseJSON{
		Fence: l.Fence, Session: l.Session.String(), Released: l.Released, Command: l.Command, Checkout: l.Checkout,
		Writer: l.Writer, Epoch: l.Epoch, Acquired: l.Acquired, Renewed: l.Renewed, TTL: l.TTL().Seconds(),
	}
	if i := l.Identity; i != nil {
		d.Identity = &identityJSON{i.Hostname, i.PID, i.StartTime, i.BootID, i.PIDNamespace, i.TimeNamespace}
	}
	if l.Guard != nil {
		d.Guard = l.Guard.Path
	}
	if ad := l.Adoption; ad != nil {
		d.FastAdoption = &adoptionJSON{float64(ad.BeatMillis) / 1000, float64(ad.SelfFenceMillis) / 1000, float64(ad.SilenceMillis) / 1000}
	}
	return d
}
