package main

import (
	"bytes"
	"context"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/swampd/swampd/internal/catalog"
)

func (a *app) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Say which program this is",
		Long:  "Say which version of the program this is and how it was built.\n\n--json: one object {\"version\",\"revision\",\"time\",\"modified\",\"go\",\"platform\",\"cgo\"}.",
		Args:  atMost(0),
	}
	cmd.RunE = a.runPlain(func(context.Context, []string) error {
		v := programVersion()
		if a.json {
			return a.emit(v)
		}
		return a.printf("%s\n", v.text())
	})
	return cmd
}

// programVersion reads what the Go tool wrote into the program.
func programVersion() versionInfoJSON {
	v := versionInfoJSON{Version: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Cgo: catalog.HasCgo}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Version = info.Main.Version
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

func (v *versionInfoJSON) text() string {
	parts := []string{"swampd " + v.Version}
	if len(v.Revision) > 12 && !strings.Contains(v.Version, v.Revision[:12]) {
		parts = append(parts, "revision "+v.Revision[:12])
	}
	parts = append(parts, v.Go, v.Platform)
	if !v.Cgo {
		parts = append(parts, "without cgo")
	}
	return strings.Join(parts, ", ")
}

const completionHelp = `Write a completion script for your shell.

  bash:        source <(swampd completion bash)
  zsh:         swampd completion zsh > "${fpath[1]}/_swampd"
  fish:        swampd completion fish > ~/.config/fish/completions/swampd.fish
  powershell:  swampd completion powershell | Out-String | Invoke-Expression

--json: one object {"shell","script"}.`

func (a *app) completionCommand(root *cobra.Command) *cobra.Command {
	writers := map[string]func(*bytes.Buffer) error{
		"bash":       func(b *bytes.Buffer) error { return root.GenBashCompletionV2(b, true) },
		"zsh":        func(b *bytes.Buffer) error { return root.GenZshCompletion(b) },
		"fish":       func(b *bytes.Buffer) error { return root.GenFishCompletion(b, true) },
		"powershell": func(b *bytes.Buffer) error { return root.GenPowerShellCompletionWithDesc(b) },
	}
	cmd := &cobra.Command{
		Use:       "completion bash|zsh|fish|powershell",
		Short:     "Write a completion script for your shell",
		Long:      completionHelp,
		ValidArgs: []string{"bash", "zsh", "fish", "powershell"},
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || writers[args[0]] == nil {
				return usagef("swampd completion bash (or zsh, fish, powershell)", "swampd completion needs the name of a shell")
			}
			return nil
		},
	}
	cmd.RunE = a.runPlain(func(_ context.Context, args []string) error {
		var script bytes.Buffer
		if err := writers[args[0]](&script); err != nil {
			return err
		}
		if a.json {
			return a.emit(completionJSON{args[0], script.String()})
		}
		_, err := script.WriteTo(a.out)
		return err
	})
	return cmd
}
