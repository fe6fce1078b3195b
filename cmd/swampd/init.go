package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/swampd/swampd/datastore"
)

const initHelp = `Make a new datastore at URL (or at -s URL, SWAMPD_STORE, or the default place).

The store is probed first: one that ignores the conditions of conditional writes
would lose data and is refused. A bucket must exist; a directory is made. An init
that was interrupted can be run again.

--json: one object {"store","datastore"}.`

func (a *app) initCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "init [URL]",
		Short:   "Make a new datastore",
		Long:    initHelp,
		Example: "  swampd init /srv/data\n  swampd init s3://bucket/prefix",
		Args:    atMost(1),
	}
	cmd.RunE = a.run(func(ctx context.Context, args []string) error {
		if err := a.storeArgument(args); err != nil {
			return err
		}
		return a.init(ctx)
	})
	return cmd
}

// storeArgument takes the address from the argument of init and doctor.
func (a *app) storeArgument(args []string) error {
	if len(args) == 0 {
		return nil
	}
	if a.store != "" {
		return usagef("", "the store is named twice: %s and -s %s", quoteArg(shown(args[0])), quoteArg(shown(a.store)))
	}
	if args[0] == "" {
		return usagef("", "the address of the store is empty")
	}
	a.store = args[0]
	return nil
}

func (a *app) init(ctx context.Context) (err error) {
	addr, _, err := a.address()
	if err != nil {
		return err
	}
	s, err := datastore.Init(ctx, addr, a.options(nil))
	if err != nil {
		return err
	}
	defer shut(s, &err)
	if a.json {
		return a.emit(initJSON{Store: s.URL(), Datastore: idText(s.ID())})
	}
	return a.printf("made datastore %s at %s\n", s.ID(), shown(addr))
}
